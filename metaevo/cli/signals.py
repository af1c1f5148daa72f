"""Signals that ask a process to stop."""

from __future__ import annotations

import signal
import threading

NAMES = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")


def on_signals() -> threading.Event:
    """Return an event that SIGINT, SIGTERM, SIGUSR1 and SIGHUP set.

    A second SIGINT raises KeyboardInterrupt. SIGHUP, the end of a terminal or of an ssh
    connection, stays ignored where the parent ignores it, as `nohup` does. Outside the
    main thread, which alone may install handlers, the event is never set.
    """
    stop = threading.Event()

    def handle(number, frame):
        del frame
        if number == signal.SIGINT and stop.is_set():
            raise KeyboardInterrupt
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
