"""Adds up the time of GPU kernels by kind, from the profiles that the program records with torch.profiler (CUPTI).

`TrainingMonitor.record_kernels` is the profiler's `on_trace_ready`, and `training_page` reads the sums.
"""

from __future__ import annotations

import logging
import re
from typing import Any

log = logging.getLogger("watchkeeper.instrument")
# The first pattern that matches the name of a kernel is its kind, so that the number of series is fixed.
KINDS = (
    ("communication", re.compile(r"nccl|all_?reduce|all_?gather|reduce_?scatter", re.IGNORECASE)),
    ("copy", re.compile(r"^mem(cpy|set)", re.IGNORECASE)),
    ("attention", re.compile(r"flash|fmha|attention|attn|sdpa", re.IGNORECASE)),
    ("matmul", re.compile(r"gemm|gemv|cutlass|cublas|nvjet|wgrad|dgrad|fprop|matmul|conv\dd", re.IGNORECASE)),
)
OTHER_KIND = "other"


class KernelTimes:
    """`profiled_seconds` is the time that all profiles cover; kernels of several streams can exceed it."""

    def __init__(self) -> None:
        self.seconds_by_kind = dict.fromkeys((*(kind for kind, _ in KINDS), OTHER_KIND), 0.0)
        self.profiled_seconds = 0.0

    def record(self, profiler: Any) -> None:
        """Add a profile. Deliberately any error is caught: it must not affect the training."""
        try:
            events = list(profiler.events())
            kernels = [event for event in events if _is_kernel(event)]
            if not kernels:
                log.warning("profile has no GPU kernels, events=%d: add ProfilerActivity.CUDA", len(events))
                return
            for event in kernels:
                self.seconds_by_kind[find_kind(event.name)] += event.time_range.elapsed_us() / 1e6
            started, ended = (event.time_range.start for event in events), (event.time_range.end for event in events)
            self.profiled_seconds += (max(ended) - min(started)) / 1e6
        except Exception as error:
            log.warning("profile not read: %s", error)


def find_kind(name: str) -> str:
    return next((kind for kind, pattern in KINDS if pattern.search(name)), OTHER_KIND)


def _is_kernel(event: Any) -> bool:
    """Whether it ran on the GPU; ranges that the program names appear there too."""
    is_range = getattr(event, "is_user_annotation", False) or event.name.startswith("ProfilerStep#")
    return event.device_type.name != "CPU" and not is_range
