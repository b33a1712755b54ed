"""How fast bytes move over PCIe each way, inside the GPU's memory and between GPUs, and whether they arrive whole.

Called by `gpu_work`. Host memory is pinned, since only then the GPU itself moves the bytes. What was sent is compared
bit for bit with what comes back: a link that corrupts and passes its checksums shows here.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Any

from watchkeeper.probe.gpu_work.bench import MIB, Bench, TestSkipped

HOST_BYTES = 256 * MIB
# Several times the L2 of any GPU so far, and a quarter of a small GPU's memory at most.
INSIDE_BYTES = 4096 * MIB
PAIR_BYTES = 512 * MIB
REPEATS = 8


def to_gpu(bench: Bench, options: Mapping[str, Any]) -> dict[str, Any]:
    return _over_pcie(bench, options, is_to_gpu=True)


def from_gpu(bench: Bench, options: Mapping[str, Any]) -> dict[str, Any]:
    return _over_pcie(bench, options, is_to_gpu=False)


def _over_pcie(bench: Bench, options: Mapping[str, Any], *, is_to_gpu: bool) -> dict[str, Any]:
    torch, size = bench.torch, int(options.get("bytes", HOST_BYTES))
    sent = torch.randint(-(2**62), 2**62, (size // 8,), dtype=torch.int64)
    back = torch.empty_like(sent)
    if bench.is_gpu:
        sent, back = sent.pin_memory(), back.pin_memory()
    there = torch.empty(size // 8, dtype=torch.int64, device=bench.device)
    there.copy_(sent)

    def move() -> None:
        if is_to_gpu:
            there.copy_(sent, non_blocking=True)
        else:
            back.copy_(there, non_blocking=True)

    took = bench.median_seconds(move, calls=REPEATS)
    back.copy_(there)
    bench.wait()
    wrong = int((back != sent).sum())
    problems = [f"{wrong} of {size // 8} words came back changed"] if wrong else []
    return {"measured": size / took / 1e9, "problems": problems, "facts": {"bytes": size}}


def inside(bench: Bench, options: Mapping[str, Any]) -> dict[str, Any]:
    """A copy from one half to the other; bytes read and bytes written both count."""
    torch = bench.torch
    size = min(int(options.get("bytes", INSIDE_BYTES)), bench.free_bytes() // 4) // 8 * 8
    one = torch.randint(-(2**62), 2**62, (size // 8,), dtype=torch.int64, device=bench.device)
    two = torch.empty_like(one)
    took = bench.median_seconds(lambda: two.copy_(one), calls=REPEATS)
    problems = [] if torch.equal(one, two) else ["the copy differs from what was copied"]
    return {"measured": 2 * size / took / 1e9, "problems": problems, "facts": {"bytes": size}}


def between(bench: Bench, options: Mapping[str, Any]) -> dict[str, Any]:
    """Every ordered pair of the visible GPUs; `measured` is the slowest, `names` are what people call them."""
    torch, size = bench.torch, int(options.get("bytes", PAIR_BYTES))
    names = options.get("names", ())
    if bench.is_gpu and torch.cuda.device_count() != len(names):
        raise TestSkipped(f"{torch.cuda.device_count()} GPUs are visible, {len(names)} were chosen")
    if len(names) < 2:
        raise TestSkipped("two GPUs are needed")
    pairs, problems, direct = {}, [], 0
    ways = [(one, other) for one in range(len(names)) for other in range(len(names)) if one != other]
    for one, other in ways:
        source = torch.randint(-(2**62), 2**62, (size // 8,), dtype=torch.int64, device=bench.place(one))
        target = torch.empty(size // 8, dtype=torch.int64, device=bench.place(other))
        pairs[f"{names[one]} to {names[other]}"] = size / _pair_seconds(bench, source, target) / 1e9
        # Each GPU adds up what it has; any one word that differs changes the sum.
        if options.get("plant") == [one, other]:
            target[3] ^= 1
        if int(source.sum()) != int(target.sum()):
            problems.append(f"what GPU {names[one]} sent to GPU {names[other]} arrived changed")
        direct += bench.is_gpu and bool(torch.cuda.can_device_access_peer(one, other))
        bench.tell(test="p2p", done=len(pairs) / len(ways))
    slowest, middle = min(pairs, key=lambda pair: pairs[pair]), statistics.median(pairs.values())
    facts = {"pairs": {pair: round(rate, 1) for pair, rate in pairs.items()}, "direct": direct, "median": middle}
    note = f"the slowest of {len(pairs)} ways is from GPU {slowest}; {direct} of them are direct"
    return {"measured": pairs[slowest], "problems": problems, "facts": facts, "note": note}


def _pair_seconds(bench: Bench, source: Any, target: Any) -> float:
    """By the host's clock around both GPUs' work: an event of one GPU does not see the other's."""
    best = float("inf")
    for _ in range(4):
        bench.wait_for_all()
        start = time.perf_counter()
        for _ in range(REPEATS):
            target.copy_(source, non_blocking=True)
        bench.wait_for_all()
        best = min(best, (time.perf_counter() - start) / REPEATS)
    return best
