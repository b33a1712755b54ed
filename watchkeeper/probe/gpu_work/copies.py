"""Copy tests: bandwidth and correctness over PCIe in each direction, inside GPU memory, and between GPUs.

Host memory is pinned, because only then the GPU copies by DMA. The copy is compared with the original bit for bit,
which detects a link that corrupts data without a checksum error.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from itertools import permutations
from typing import Any

from watchkeeper.probe.gpu_work.bench import MIB, Bench, TestSkipped

HOST_BYTES = 256 * MIB
# Several times the L2 cache of any GPU, and at most a quarter of a small GPU's memory.
GPU_COPY_BYTES = 4096 * MIB
PAIR_BYTES = 512 * MIB
REPEATS = 8


def copy_over_pcie(bench: Bench, options: Mapping[str, Any], *, is_to_gpu: bool) -> dict[str, Any]:
    torch, size = bench.torch, int(options.get("bytes", HOST_BYTES))
    sent = torch.randint(-(2**62), 2**62, (size // 8,), dtype=torch.int64)
    received = torch.empty_like(sent)
    if bench.is_gpu:
        sent, received = sent.pin_memory(), received.pin_memory()
    on_gpu = torch.empty(size // 8, dtype=torch.int64, device=bench.device)
    on_gpu.copy_(sent)

    def move() -> None:
        if is_to_gpu:
            on_gpu.copy_(sent, non_blocking=True)
        else:
            received.copy_(on_gpu, non_blocking=True)

    seconds = bench.median_seconds(move, calls=REPEATS)
    received.copy_(on_gpu)
    bench.synchronize()
    wrong = int((received != sent).sum())
    problems = [f"{wrong} of {size // 8} words changed on the way"] if wrong else []
    return {"measured": size / seconds / 1e9, "problems": problems, "facts": {"bytes": size}}


def copy_inside_gpu(bench: Bench, options: Mapping[str, Any]) -> dict[str, Any]:
    """Copy inside GPU memory; bytes read and bytes written both count."""
    torch = bench.torch
    size = min(int(options.get("bytes", GPU_COPY_BYTES)), bench.free_bytes() // 4) // 8 * 8
    source = torch.randint(-(2**62), 2**62, (size // 8,), dtype=torch.int64, device=bench.device)
    target = torch.empty_like(source)
    seconds = bench.median_seconds(lambda: target.copy_(source), calls=REPEATS)
    problems = [] if torch.equal(source, target) else ["the copy differs from the original"]
    return {"measured": 2 * size / seconds / 1e9, "problems": problems, "facts": {"bytes": size}}


def copy_between_gpus(bench: Bench, options: Mapping[str, Any]) -> dict[str, Any]:
    """Copy between every ordered pair of visible GPUs; `measured` is the slowest, `names` are shown to users."""
    torch, size = bench.torch, int(options.get("bytes", PAIR_BYTES))
    names = options.get("names", ())
    if bench.is_gpu and torch.cuda.device_count() != len(names):
        raise TestSkipped(f"{torch.cuda.device_count()} GPUs are visible, {len(names)} were chosen")
    if len(names) < 2:
        raise TestSkipped("two GPUs are needed")
    rates, problems, direct = {}, [], 0
    directions = list(permutations(range(len(names)), 2))
    for first, second in directions:
        source = torch.randint(-(2**62), 2**62, (size // 8,), dtype=torch.int64, device=bench.device_of(first))
        target = torch.empty(size // 8, dtype=torch.int64, device=bench.device_of(second))
        rates[f"{names[first]} to {names[second]}"] = size / _measure_pair_seconds(bench, source, target) / 1e9
        # Each GPU computes a sum; a single changed word changes it.
        if options.get("plant") == [first, second]:
            target[3] ^= 1
        if int(source.sum()) != int(target.sum()):
            problems.append(f"data from GPU {names[first]} to GPU {names[second]} changed on the way")
        direct += bench.is_gpu and bool(torch.cuda.can_device_access_peer(first, second))
        bench.report(test="p2p", done=len(rates) / len(directions))
    slowest_pair, median_rate = min(rates, key=lambda pair: rates[pair]), statistics.median(rates.values())
    facts = {"pairs": {pair: round(rate, 1) for pair, rate in rates.items()}, "direct": direct, "median": median_rate}
    note = f"the slowest of {len(rates)} directions is GPU {slowest_pair}; {direct} use peer-to-peer access"
    return {"measured": rates[slowest_pair], "problems": problems, "facts": facts, "note": note}


def _measure_pair_seconds(bench: Bench, source: Any, target: Any) -> float:
    """Measured with the host's clock, because a CUDA event of one GPU does not cover the other."""
    best_seconds = float("inf")
    for _ in range(4):
        bench.synchronize_all()
        start = time.perf_counter()
        for _ in range(REPEATS):
            target.copy_(source, non_blocking=True)
        bench.synchronize_all()
        best_seconds = min(best_seconds, (time.perf_counter() - start) / REPEATS)
    return best_seconds
