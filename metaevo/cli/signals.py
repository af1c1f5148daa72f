"""Signals that ask a process to stop."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

NAMES = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")


STOPPING = "stopping after the step in progress; Ctrl-C again ends at once"


def on_signals(said: str = "") -> threading.Event:
    """Return an event that SIGINT, SIGTERM, SIGUSR1 and SIGHUP set.

    The first of them writes a line `said` to stderr, if there is any.

    A second SIGINT raises KeyboardInterrupt. SIGHUP, the end of a terminal or of an ssh
    connection, stays ignored where the parent ignores it, as `nohup` does. Outside the
    main thread, which alone may install handlers, the event is never set.
    """
    stop = threading.Event()

    def handle(number, frame):
        del frame
        if number == signal.SIGINT and stop.is_set():
            raise KeyboardInterrupt
        if said and not stop.is_set():
            # Unbuffered: a signal may arrive while Python writes.
            with contextlib.suppress(OSError):
                os.write(2, f"\n{said}\n".encode())
        stop.set()

    if threading.current_thread() is threading.main_thread():
        for name in NAMES:
            number = getattr(signal, name, None)  # Windows lacks some
            if number is None:
                continue
            if name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN:
                continue
            signal.signal(number, handle)
    return stop
