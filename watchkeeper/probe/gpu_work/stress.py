"""Full load for a given time: products of large matrices; every batch must be identical to the first in every bit.

It reports the rate of each batch; the parent monitors temperature, clocks and errors and kills this process at a safety
limit. The facts have the slowest batch, which shows a GPU that is fast when cold and slow when hot.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from watchkeeper.probe.gpu_work.bench import Bench, TestSkipped
from watchkeeper.probe.gpu_work.matmul import FORMATS, MatrixProduct, count_differing, flip_bit

SIZE = 8192
BATCH_SECONDS = 0.5
# A run of hours keeps only the newest rates.
MAX_RATES = 20_000


def _create_product(bench: Bench) -> MatrixProduct:
    """bf16, as in training; fp16 on GPUs before Ampere, whose tensor cores support nothing else."""
    try:
        return MatrixProduct(bench, FORMATS["bf16"])
    except TestSkipped:
        return MatrixProduct(bench, FORMATS["fp16"])


def stress(bench: Bench, options: Mapping[str, Any]) -> dict[str, Any]:
    seconds = float(options.get("seconds", 60.0))
    product = _create_product(bench)
    size = int(options.get("size", SIZE if bench.is_gpu else 128))
    left, right = product.random_matrix(size), product.random_matrix(size)
    first = product.multiply(left, right)
    flops = 2.0 * size**3
    product_seconds = bench.median_seconds(lambda: product.multiply(left, right), calls=2, batches=2)
    calls = max(1, round(min(BATCH_SECONDS, seconds / 10) / product_seconds))
    rates: deque[float] = deque(maxlen=MAX_RATES)
    problems: list[str] = []
    batches, start = 0, time.monotonic()
    while ((elapsed := time.monotonic() - start) < seconds or not rates) and not problems:
        batch_seconds = bench.measure_seconds(lambda: product.multiply(left, right), calls=calls)
        result = product.multiply(left, right)
        batches += 1
        if options.get("plant") and elapsed > seconds / 2:
            flip_bit(bench.torch, result)
        wrong = count_differing(bench.torch, first, result)
        if wrong:
            problems.append(f"after {elapsed:.0f} s of load {wrong} of {first.numel()} elements differ")
        rates.append(calls * flops / batch_seconds / 1e12)
        bench.report(test="stress", done=min(1.0, elapsed / seconds), rate=rates[-1])
    facts = {"seconds": time.monotonic() - start, "slowest": min(rates), "batches": batches, "size": size}
    note = f"the slowest batch {min(rates):.4g}, {batches} batches, all identical"
    return {"measured": statistics.median(rates), "problems": problems, "facts": facts, "note": note}
