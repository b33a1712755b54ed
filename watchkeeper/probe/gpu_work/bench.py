"""torch, device and timing, shared by all tests of `worker_child`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MIB = 1 << 20


class TestSkipped(Exception):
    """This GPU or this torch lacks something that the test needs; the message says what."""


@dataclass(frozen=True)
class Bench:
    """torch, the device (`cuda`, or `cpu` in our own tests), and a function that reports progress."""

    torch: Any
    device: str
    report: Callable[..., None]

    @property
    def is_gpu(self) -> bool:
        return self.device == "cuda"

    def synchronize(self) -> None:
        if self.is_gpu:
            self.torch.cuda.synchronize()

    def device_of(self, index: int) -> str:
        return f"cuda:{index}" if self.is_gpu else self.device

    def synchronize_all(self) -> None:
        if self.is_gpu:
            for index in range(self.torch.cuda.device_count()):
                self.torch.cuda.synchronize(index)

    def release_memory(self) -> None:
        if self.is_gpu:
            self.torch.cuda.empty_cache()

    def free_bytes(self) -> int:
        return int(self.torch.cuda.mem_get_info()[0]) if self.is_gpu else 256 * MIB

    def measure_seconds(self, work: Callable[[], Any], *, calls: int = 1) -> float:
        """Seconds for `calls` runs of `work`, measured with CUDA events."""
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
        """Seconds for one run of `work`: the median of batches, after a warm-up batch."""
        self.measure_seconds(work, calls=calls)
        return statistics.median(self.measure_seconds(work, calls=calls) for _ in range(batches)) / calls
