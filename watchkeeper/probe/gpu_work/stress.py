"""Full load for as long as wanted: products of large matrices, each batch compared to the last bit with the first.

Called by `gpu_work`. After each batch it says how fast it was; the parent looks at heat, clocks and errors meanwhile
and ends this program when one of them is too far. `measured` is the median rate of the batches, and the facts have the
slowest: a GPU that is fast when cold and slow when hot shows here.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from watchkeeper.probe.gpu_work.bench import Bench, TestSkipped
from watchkeeper.probe.gpu_work.matmul import FORMATS, MatrixProduct, differing, flip

SIZE = 8192
BATCH_SECONDS = 0.5
# A run of hours keeps this many rates, the newest ones.
KEPT_BATCHES = 20_000


def _product(bench: Bench) -> MatrixProduct:
    """bf16, as training has it; fp16 on the GPUs before Ampere, whose matrix units know nothing else."""
    try:
        return MatrixProduct(bench, FORMATS["bf16"])
    except TestSkipped:
        return MatrixProduct(bench, FORMATS["fp16"])


def stress(bench: Bench, options: Mapping[str, Any]) -> dict[str, Any]:
    seconds = float(options.get("seconds", 60.0))
    product = _product(bench)
    size = int(options.get("size", SIZE if bench.is_gpu else 128))
    left, right = product.random(size), product.random(size)
    first = product.of(left, right)
    flops = 2.0 * size**3
    one = bench.median_seconds(lambda: product.of(left, right), calls=2, batches=2)
    calls = max(1, round(min(BATCH_SECONDS, seconds / 10) / one))
    rates: deque[float] = deque(maxlen=KEPT_BATCHES)
    problems: list[str] = []
    batches, start = 0, time.monotonic()
    while ((elapsed := time.monotonic() - start) < seconds or not rates) and not problems:
        took = bench.seconds(lambda: product.of(left, right), calls=calls)
        last = product.of(left, right)
        batches += 1
        if options.get("plant") and elapsed > seconds / 2:
            flip(bench.torch, last)
        wrong = differing(bench.torch, first, last)
        if wrong:
            problems.append(f"after {elapsed:.0f} s of load {wrong} of {first.numel()} elements came out differently")
        rates.append(calls * flops / took / 1e12)
        bench.tell(test="stress", done=min(1.0, elapsed / seconds), rate=rates[-1])
    facts = {"seconds": time.monotonic() - start, "slowest": min(rates), "batches": batches, "size": size}
    note = f"the slowest batch {min(rates):.4g}, {batches} batches, all the same to the last bit"
    return {"measured": statistics.median(rates), "problems": problems, "facts": facts, "note": note}
