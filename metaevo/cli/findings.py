"""Findings of the commands that check something: `verify` and `doctor`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from metaevo.errors import printable


class Finding(NamedTuple):
    """Result of one check.

    Attributes:
        name: the thing that was checked, in a word or two.
        ok: whether it can be used.
        message: a figure or a content, and the remedy if it is not ok.
        critical: whether the whole check fails with this finding. The loss of an older
            checkpoint, for instance, is not critical.
    """

    name: str
    ok: bool
    message: str
    critical: bool = True


def failures(findings: Sequence[Finding]) -> list[str]:
    """Return the names of the critical findings that are not ok.

    >>> failures([Finding("disk", True, "9 GiB free"), Finding("locks", False, "none")])
    ['locks']
    """
    return [f.name for f in findings if f.critical and not f.ok]


def text(findings: Sequence[Finding], well: str, ill: str) -> str:
    """Return a line per finding, and a summary line.

    Args:
        findings: The findings.
        well: The summary if no critical one is bad.
        ill: The word before the names of those that are.

    >>> print(text([Finding("disk", True, "9 GiB free")], "ready", "problems"))
    ok   disk  9 GiB free
    ready
    """
    names = [printable(f.name) for f in findings]
    width = max(map(len, names))
    lines = [
        f"{'ok ' if f.ok else 'BAD'}  {name:{width}}  {printable(f.message)}"
        for name, f in zip(names, findings, strict=True)
    ]
    bad = ", ".join(map(printable, failures(findings)))
    return "\n".join([*lines, f"{ill}: {bad}" if bad else well])
