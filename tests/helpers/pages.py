"""Code blocks of the documentation, the commands in them, and the words around them."""

import re

FENCE = re.compile(r"^```(.*)\n((?:.*\n)*?)```$", re.M)
"""A block: what follows the fence, and its text."""

LINK = re.compile(r"!?\[([^\]]*)\]\(([^)\s]+)\)")
"""A link or an image: its text, and its target."""


def words(text):
    """Return the words that are read: without code blocks and targets of links."""
    shown = LINK.sub(r"\1", FENCE.sub("", text)).split()
    return [word for word in shown if re.search(r"\w", word)]


def commands(block):
    """(command, shown output, exit code) of each `$ ` line.

    `[exit 2]` on a line of its own says that a command fails so.
    """
    for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
        command, *shown = part.splitlines()
        code = 0
        if shown and (match := re.fullmatch(r"\[exit (\d+)\]", shown[-1])):
            code, shown = int(match[1]), shown[:-1]
        yield command, shown, code


def fits(shown, printed):
    """Return True if the output is as shown.

    `...` stands for anything, on a line of its own for any number of lines.
    """
    pattern = ""
    for line in shown:
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += re.escape(line.rstrip()).replace(r"\.\.\.", ".*") + r"\s*\n"
    text = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    return re.fullmatch(pattern, text) is not None
