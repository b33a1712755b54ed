"""Reads the statistics of PyTorch's allocator of GPU memory, over all GPUs that this process uses; imports nothing.

`training_page` calls this for each scrape, in a thread whose current GPU is not the one of the program.
"""

from __future__ import annotations

import sys
from contextlib import suppress

# Name, help, key of torch.cuda.memory_stats. The allocator `cudaMallocAsync` reports 0 for what it does not count.
ROWS = (
    (
        "training_allocator_allocated_bytes",
        "GPU memory in tensors (torch.cuda.memory_allocated)",
        "allocated_bytes.all.current",
    ),
    (
        "training_allocator_reserved_bytes",
        "GPU memory that PyTorch has reserved for tensors (torch.cuda.memory_reserved)",
        "reserved_bytes.all.current",
    ),
)
NATIVE_ROWS = (
    (
        "training_allocator_fragmented_bytes",
        "Reserved GPU memory that is free between tensors of the same block (inactive_split_bytes)",
        "inactive_split_bytes.all.current",
    ),
    (
        "training_allocator_retries_total",
        "Allocations that succeeded only after PyTorch had released its cached memory (num_alloc_retries)",
        "num_alloc_retries",
    ),
    ("training_cuda_ooms_total", "CUDA out-of-memory errors (torch.cuda.memory_stats num_ooms)", "num_ooms"),
)


def list_rows() -> list[tuple[str, str, float | None]]:
    """Name, help and value; None is unknown, and without PyTorch on a GPU there are no rows."""
    torch = sys.modules.get("torch")
    with suppress(Exception):
        if torch is not None and torch.cuda.is_initialized():
            stats = [torch.cuda.memory_stats(device) for device in range(torch.cuda.device_count())]
            is_native = torch.cuda.get_allocator_backend() == "native"
            rows = ROWS + NATIVE_ROWS if is_native else ROWS
            return [(name, help, _sum_counted([each.get(key) for each in stats])) for name, help, key in rows]
    return []


def _sum_counted(values: list[int | None]) -> float | None:
    counted = [value for value in values if value is not None]
    return float(sum(counted)) if counted else None
