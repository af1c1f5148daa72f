"""Which process wrote an event, and whether it is still there."""

from __future__ import annotations

import functools
import hashlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["gone", "this_process"]

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def this_process() -> dict[str, Any]:
    """Return facts by which `gone` knows this process: its machine and number."""
    return {"machine": _machine(), "pid": os.getpid()}


def gone(event: Mapping[str, Any]) -> bool:
    """Return True if the process of an event is known to have ended.

    Nothing is known of other machines, and of events without such facts.

    >>> gone(this_process()), gone({}), gone({"machine": "another", "pid": 1})
    (False, False, False)
    """
    pid = event.get("pid")
    if event.get("machine") != _machine() or not isinstance(pid, int) or pid < 1:
        return False
    try:
        os.kill(pid, 0)  # sends nothing
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # another user's, or no number of a process
        pass
    return False


@functools.cache
def _machine() -> str:
    """A name of this machine since it was booted, from which nobody reads its own."""
    booted = _BOOT.read_text(encoding="ascii") if _BOOT.exists() else ""
    return hashlib.sha256(f"{socket.gethostname()} {booted}".encode()).hexdigest()[:16]
