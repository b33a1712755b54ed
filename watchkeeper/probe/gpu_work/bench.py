"""What the tests of the working child share: the bench they work on, and how they time it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MIB = 1 << 20


class TestSkipped(Exception):
    """This GPU or this torch does not have what the test needs; the message says what."""


@dataclass(frozen=True)
class Bench:
    """torch, where it works (`cuda`, or `cpu` for a test of the test), and a way to say how far something is."""

    torch: Any
    device: str
    tell: Callable[..., None]

    @property
    def is_gpu(self) -> bool:
        return self.device == "cuda"

    def wait(self) -> None:
        if self.is_gpu:
            self.torch.cuda.synchronize()

    def place(self, number: int) -> str:
        """Where the tensors of one of several visible GPUs lie."""
        return f"cuda:{number}" if self.is_gpu else self.device

    def wait_for_all(self) -> None:
        if self.is_gpu:
            for number in range(self.torch.cuda.device_count()):
                self.torch.cuda.synchronize(number)

    def release(self) -> None:
        """Give memory back, so that the next test finds all of it free."""
        if self.is_gpu:
            self.torch.cuda.empty_cache()

    def free_bytes(self) -> int:
        return int(self.torch.cuda.mem_get_info()[0]) if self.is_gpu else 256 * MIB

    def seconds(self, work: Callable[[], Any], *, calls: int = 1) -> float:
        """How long the GPU itself takes for `calls` runs of `work`, by its own events."""
        if not self.is_gpu:
            start = time.perf_counter()
            for _ in range(calls):
                work()
            return time.perf_counter() - start
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def median_seconds(self, work: Callable[[], Any], *, calls: int, batches: int = 5) -> float:
        """Seconds for one run of `work`: the median of batches, after a batch that only warms up."""
        self.seconds(work, calls=calls)
        return statistics.median(self.seconds(work, calls=calls) for _ in range(batches)) / calls
