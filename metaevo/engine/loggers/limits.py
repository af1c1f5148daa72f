"""Calls of a logger that neither stop a run nor delay it for long."""

from __future__ import annotations

import contextlib
import queue
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from metaevo.errors import printable


class Limited:
    """Run the calls of a logger on a thread of their own, each within a time limit.

    The first call that fails or exceeds its limit is warned of, and turns the logger
    off for the rest of the process.

    Args:
        name: the logger's name, for the warning.
        afterwards: what the warning says of the time after it.

    Attributes:
        alive: whether no call has failed.
        value: what the last task returned.
        problem: the last error that `attempt` met.
    """

    def __init__(self, name: str, afterwards: str):
        self.name, self.afterwards = name, afterwards
        self.alive = True
        self.value: Any = None
        self.problem: BaseException | None = None
        self._tasks: queue.Queue = queue.Queue()
        threading.Thread(target=self._work, daemon=True).start()

    def call(self, task: Callable[[], Any], limit: float) -> Any:
        """Run `task`; turn the logger off if it fails or takes longer than `limit`.

        Returns:
            what `task` returns; None if it fails or is not run.
        """
        if self.attempt(task, limit):
            return self.value
        if self.alive:
            self.alive = False
            self.warn(f"{line(self.problem)}; {self.afterwards}")
        return None

    def attempt(self, task: Callable[[], Any], limit: float) -> bool:
        """Run `task`; return False if it raised, which `problem` then tells.

        A task that takes longer than `limit` seconds turns the logger off.
        """
        if not self.alive:
            return False
        future: Future = Future()
        self._tasks.put((task, future))
        try:
            self.problem = future.exception(limit)
        except TimeoutError:
            self.alive = False
            self.warn(f"no answer within {limit:.0f} s; {self.afterwards}")
            return False
        self.value = None if self.problem else future.result()
        return self.problem is None

    def warn(self, message: str) -> None:
        """Warn, also where warnings are errors."""
        with contextlib.suppress(Warning):
            warnings.warn(printable(f"{self.name}: {message}"), stacklevel=3)

    def _work(self) -> None:
        while True:
            task, future = self._tasks.get()
            try:
                future.set_result(task())
            except BaseException as error:  # wandb also raises SystemExit
                future.set_exception(error)


def line(error: BaseException | None) -> str:
    """The kind of an error and the first line of its message.

    >>> line(ValueError("wrong\\nand more"))
    'ValueError: wrong'
    """
    return f"{type(error).__name__}: {[*str(error).splitlines(), ''][0]}"
