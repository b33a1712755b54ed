"""How long a rank's GPU waits for other ranks, by two CUDA events in one step of a second.

The host runs ahead of its GPU, so its clock does not see the wait. The first event lies behind the last gradient that
this rank computed, the second behind the end of the all-reduce, both on the stream that computes: what lies between
them is waiting. They are read a step later, when they are over, so nobody waits for the GPU. `frameworks` says when
both are due, `step_clock` takes the time.
"""

from __future__ import annotations

from contextlib import suppress
from time import perf_counter
from typing import Any

EVERY_SECONDS = 1.0


class GpuWait:
    """`cuda` is torch.cuda; whatever it raises leaves the last known wait as it is."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._sent: Any = None
        self._came: Any = None
        self._due = float("-inf")
        self.seconds = 0.0

    def is_due(self) -> bool:
        return self._sent is None and perf_counter() >= self._due

    def sent(self) -> bool:
        """All gradients of this rank are on their way. True: this step is measured."""
        if self.is_due():
            with suppress(Exception):
                self._sent = self._marked()
                return True
        return False

    def reduced(self) -> None:
        """The stream waits for the all-reduce from here on, and for nothing else."""
        with suppress(Exception):
            if self._sent is not None and self._came is None:
                self._came = self._marked()

    def came(self) -> float:
        """The backward pass is over on the host; the wait as it was last measured, in seconds."""
        with suppress(Exception):
            if self._sent is not None and self._came is None:
                # Nobody has said `reduced`: what the program did since then counts as well, such as clipping.
                self._came = self._marked()
            elif self._came is not None and self._came.query():
                self.seconds = self._sent.elapsed_time(self._came) / 1000
                self._sent = self._came = None
                self._due = perf_counter() + EVERY_SECONDS
        return self.seconds

    def _marked(self) -> Any:
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event
