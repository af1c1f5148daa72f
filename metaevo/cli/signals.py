"""Signals that ask a process to stop."""

from __future__ import annotations

import signal
import threading

NAMES = ("SIGINT", "SIGTERM", "SIGUSR1")


def on_signals() -> threading.Event:
    """Return an event that SIGINT, SIGTERM and SIGUSR1 set.

    A second SIGINT raises KeyboardInterrupt. Outside the main thread, which alone may
    install handlers, the event is never set.
    """
    stop = threading.Event()

    def handle(number, frame):
        del frame
        if number == signal.SIGINT and stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    if threading.current_thread() is threading.main_thread():
        for name in NAMES:
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), handle)
    return stop
