"""Ctrl-C and SIGTERM end a run between two batches, so that what is saved is whole."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """The user, or the system, asked the run to end."""


class Interrupts:
    """While this context is open a signal is noted, not obeyed; `check` obeys it.

    A second signal changes nothing: the save that the first one led to is not cut short.
    """

    def __enter__(self) -> Interrupts:
        self.requested = False
        self._previous = {number: _handle(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            _handle(number, handler)

    def check(self) -> None:
        """Raise `Interrupted` if a signal came."""
        if self.requested:
            raise Interrupted

    def _note(self, number: int, frame: object) -> None:
        self.requested = True


def treat_sigterm_as_ctrl_c() -> None:
    """Let SIGTERM raise KeyboardInterrupt too, for the time before and after `Interrupts`."""
    _handle(signal.SIGTERM, signal.default_int_handler)


def ignore_signals() -> None:
    """Hear no more signals: the program is about to end, and an impatient second Ctrl-C must not make it stumble."""
    for number in SIGNALS:
        _handle(number, signal.SIG_IGN)


@contextlib.contextmanager
def signals_held_back() -> Iterator[None]:
    """Let signals wait; a process that is forked meanwhile inherits that, and leaves them to this one for good."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _handle(number: int, handler: Any) -> Any:
    """Install a handler and return the one before; a signal that the caller made us ignore (nohup, &) stays ignored."""
    before = signal.getsignal(number)
    # Python allows handlers in the main thread alone.
    if before != signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(number, handler)
    return before
