"""Check the pages that are read for words that metaevo's documentation does not use.

    python scripts/check_words.py       # `make lint`

Prints `FILE:LINE: WORD: what to write`, and ends with 1 if there is any.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INSTEAD = {
    ", too": "also",
    "in order to": "to",
    "utilize": "use",
    "leverage": "use",
    "upon": "on",
    "thus": "so",
    "hence": "so",
    "whilst": "while",
    "e.g.": "such as",
    "i.e.": "that is",
    "etc.": "and others",
    "simply": "",
    "obviously": "",
    "of course": "",
    "clearly": "",
    "nobody": "no one",
    "beforehand": "before",
    "is to be": "an imperative",
    "are to be": "an imperative",
    "for want of": "without",
    "comes to": "is",
    "behaviour": "behavior",
    "colour": "color",
    "neighbour": "neighbor",
}
"""What is not written, and what is written in its place; empty: nothing."""

_WORD = re.compile(
    "|".join(rf"(?:\b|(?=,)){re.escape(x)}(?!\w)" for x in INSTEAD), re.IGNORECASE
)
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.M | re.S)


def found(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, word and what to write, of a page without its code."""
    prose = _CODE.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), text)
    for number, line in enumerate(prose.splitlines(), 1):
        for word in _WORD.findall(line):
            yield number, word, INSTEAD[word.lower()]


def main() -> int:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]
    failed = 0
    for page in pages:
        if "log" not in page.relative_to(ROOT).parts:
            for number, word, instead in found(page.read_text(encoding="utf-8")):
                place = f"{page.relative_to(ROOT)}:{number}"
                print(f"{place}: {word!r}: write {instead or 'nothing'!r}")
                failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
