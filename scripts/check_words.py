"""Check the pages that are read for words that metaevo's documentation does not use.

    python scripts/check_words.py       # `make lint`

CONTRIBUTING.md has the words in a table. Prints `FILE:LINE: WORD: what to write`, and
ends with 1 if there is any.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("not this")[1]
INSTEAD = dict(re.findall(r"^\| `([^`]+)` \| (.*) \|$", TABLE, re.M))
"""What is not written, and what is written in its place."""

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


def main() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]
    lines = [
        f"{page.relative_to(ROOT)}:{number}: {word!r}: {instead}"
        for page in pages
        if "log" not in page.parts
        for number, word, instead in found(page.read_text(encoding="utf-8"))
    ]
    sys.exit("\n".join(lines) or 0)


if __name__ == "__main__":
    main()
