"""Calls of a logger that neither stop a run nor delay it for long."""

from __future__ import annotations

import contextlib
import queue
import threading
import warnings
from collections.abc import Callable

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
        problem: the last error that `attempt` met.
    """

    def __init__(self, name: str, afterwards: str):
        self.name, self.afterwards = name, afterwards
        self.alive = True
        self.problem: BaseException | None = None
        self._tasks: queue.Queue = queue.Queue()
        threading.Thread(target=self._work, daemon=True).start()

    def call(self, task: Callable[[], None], limit: float) -> None:
        """Run `task`; turn the logger off if it fails or takes longer than `limit`."""
        if self.alive and not self.attempt(task, limit) and self.alive:
            self.alive = False
            self.warn(f"{line(self.problem)}; {self.afterwards}")

    def attempt(self, task: Callable[[], None], limit: float) -> bool:
        """Run `task`; return False if it raised, which `problem` then tells.

        A task that takes longer than `limit` seconds turns the logger off.
        """
        if not self.alive:
            return False
        done = threading.Event()
        problem: list[BaseException] = []
        self._tasks.put((task, done, problem))
        if not done.wait(limit):
            self.alive = False
            self.warn(f"no answer within {limit:.0f} s; {self.afterwards}")
            return False
        self.problem = problem[0] if problem else None
        return not problem

    def warn(self, message: str) -> None:
        """Warn, also where warnings are errors."""
        with contextlib.suppress(Warning):
            warnings.warn(printable(f"{self.name}: {message}"), stacklevel=3)

    def _work(self) -> None:
        while True:
            task, done, problem = self._tasks.get()
            try:
                task()
            except BaseException as error:  # wandb also raises SystemExit
                problem.append(error)
            done.set()


def line(error: BaseException | None) -> str:
    """The kind of an error and the first line of its message.

    >>> line(ValueError("wrong\\nand more"))
    'ValueError: wrong'
    """
    return f"{type(error).__name__}: {[*str(error).splitlines(), ''][0]}"
