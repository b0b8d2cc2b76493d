"""Ctrl-C and SIGTERM end a run between two batches, so that what is saved is whole."""

from __future__ import annotations

import signal
import threading


class Interrupted(Exception):
    """The user, or the system, asked the run to end."""


class Interrupts:
    """While this context is open a signal is noted, not obeyed; `check` obeys it.

    A second signal changes nothing: the save that the first one led to is not cut short.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __enter__(self) -> Interrupts:
        self.requested = False
        self._previous = {}
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            self._previous = {number: signal.signal(number, self._note) for number in self.SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise `Interrupted` if a signal came."""
        if self.requested:
            raise Interrupted

    def _note(self, number: int, frame: object) -> None:
        self.requested = True
