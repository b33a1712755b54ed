"""Measures how long a rank's GPU waits for other ranks, with two CUDA events in one step per second.

The host runs ahead of its GPU, so the host's clock does not show the wait. The first event is recorded after this
rank's last gradient, the second after the all-reduce, both on the compute stream: the time between them is the wait.
The events are read one step later, when they have completed, so that the host never waits for the GPU. `frameworks`
records the events, `step_clock` reads the wait.
"""

from __future__ import annotations

from contextlib import suppress
from time import perf_counter
from typing import Any

EVERY_SECONDS = 1.0


class GpuWait:
    """The wait of one GPU; `cuda` is torch.cuda. If a call fails, the last measured wait stays."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._sent_event: Any = None
        self._reduced_event: Any = None
        self._due_at = float("-inf")
        self.seconds = 0.0

    def is_due(self) -> bool:
        return self._sent_event is None and perf_counter() >= self._due_at

    def record_sent(self) -> bool:
        """Record that all gradients of this rank are sent; True if this step is measured."""
        if self.is_due():
            with suppress(Exception):
                self._sent_event = self._record_event()
                return True
        return False

    def record_reduced(self) -> None:
        """Record that the stream has only the all-reduce left to wait for."""
        with suppress(Exception):
            if self._sent_event is not None and self._reduced_event is None:
                self._reduced_event = self._record_event()

    def read_wait(self) -> float:
        """The last measured wait in seconds; call it when the backward pass has ended on the host."""
        with suppress(Exception):
            if self._sent_event is not None and self._reduced_event is None:
                # `record_reduced` was not called: later work of the program, such as clipping, counts too.
                self._reduced_event = self._record_event()
            elif self._reduced_event is not None and self._reduced_event.query():
                self.seconds = self._sent_event.elapsed_time(self._reduced_event) / 1000
                self._sent_event = self._reduced_event = None
                self._due_at = perf_counter() + EVERY_SECONDS
        return self.seconds

    def _record_event(self) -> Any:
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event
