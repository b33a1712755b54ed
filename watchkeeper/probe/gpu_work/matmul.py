"""Matrix products: measure speed and detect silent data corruption.

A repeated product of random numbers must be identical in every bit; sampled rows must match float64 within rounding. A
product of small integers is exact in every format until one rounding at the end: it must equal the rounded float64
result, which is verified itself (Freivalds: C·x = A·(B·x) for a random x).
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from watchkeeper.probe.gpu_work.bench import Bench, TestSkipped

SIZE = 8192
# A format without tensor cores uses a smaller product, which would take minutes otherwise.
SMALL_SIZE = 4096
REPEATS = 6
SAMPLED_ROWS = 64
# Long enough to measure, and short enough not to reach the power limit: an H200 computes about 790 TFLOP/s of bf16 in a
# burst and 665 under sustained load, which `stress` measures.
BURST_SECONDS = 0.015
BURSTS = 7
REST_SECONDS = 0.1
STRESS_BATCH_SECONDS = 0.5
# A run of hours keeps only the newest rates.
MAX_RATES = 20_000


class NumberFormat(NamedTuple):
    """Types of the factors and of the product; exact factors are integers up to `max_integer`."""

    operand: str
    result: str
    # The allowed relative error: half a unit in the last place, plus the order of summation.
    tolerance: float
    max_integer: int = 3
    is_tf32: bool = False


# fp8: the tensor cores of Hopper keep about 14 bits of a running sum, so exact sums must stay small. tf32 truncates
# each factor to 10 bits before the product; the reference does not.
FORMATS: Mapping[str, NumberFormat] = {
    "bf16": NumberFormat("bfloat16", "bfloat16", 2**-8),
    "fp16": NumberFormat("float16", "float16", 2**-10),
    "fp8": NumberFormat("float8_e4m3fn", "bfloat16", 2**-5, max_integer=1),
    "tf32": NumberFormat("float32", "float32", 2**-7, is_tf32=True),
    "fp32": NumberFormat("float32", "float32", 2**-15),
    "fp64": NumberFormat("float64", "float64", 2**-40),
}


# The first compute capability whose tensor cores support the format.
MIN_CAPABILITY = {"bfloat16": (8, 0), "float8_e4m3fn": (8, 9)}


class MatrixProduct:
    """Multiplies two square matrices in one number format."""

    def __init__(self, bench: Bench, number_format: NumberFormat) -> None:
        self._torch = bench.torch
        self.bench = bench
        self.number_format = number_format
        self.operand = getattr(bench.torch, number_format.operand, None)
        self.result = getattr(bench.torch, number_format.result)
        if self.operand is None:
            raise TestSkipped(f"this torch has no {number_format.operand}")
        min_capability = (8, 0) if number_format.is_tf32 else MIN_CAPABILITY.get(number_format.operand, (0, 0))
        if bench.is_gpu and (capability := bench.torch.cuda.get_device_capability()) < min_capability:
            reason = "not supported by compute capability {}.{}, needs {}.{}"
            raise TestSkipped(reason.format(*capability, *min_capability))

    def random_matrix(self, size: int) -> Any:
        torch = self._torch
        return torch.randn(size, size, device=self.bench.device, dtype=torch.float32).to(self.operand)

    def integer_matrix(self, size: int) -> Any:
        """A matrix of integers that the format represents exactly."""
        torch, max_integer = self._torch, self.number_format.max_integer
        matrix = torch.randint(-max_integer, max_integer + 1, (size, size), device=self.bench.device)
        return matrix.to(torch.float32).to(self.operand)

    def multiply(self, left: Any, right: Any) -> Any:
        torch = self._torch
        settings = torch.backends.cuda.matmul
        settings.allow_tf32 = self.number_format.is_tf32
        # Partial sums of a split product would be rounded twice; an exact product must be rounded once.
        settings.allow_fp16_reduced_precision_reduction = settings.allow_bf16_reduced_precision_reduction = False
        if not self.number_format.operand.startswith("float8"):
            return torch.mm(left, right)
        if not self.bench.is_gpu:
            return torch.mm(left.float(), right.float()).to(self.result)
        scale = torch.ones((), device=self.bench.device)
        # cuBLAS expects the second fp8 factor in column-major order.
        return torch._scaled_mm(
            left, right.t().contiguous().t(), scale_a=scale, scale_b=scale, out_dtype=self.result, use_fast_accum=True
        )


def multiply_matrices(bench: Bench, options: Mapping[str, Any], *, number_format: NumberFormat) -> dict[str, Any]:
    product = MatrixProduct(bench, number_format)
    size = int(options.get("size", 0)) or _fitting_size(bench, product)
    left, right = product.random_matrix(size), product.random_matrix(size)
    flops = 2.0 * size**3
    right_factor = right.t().contiguous().t() if number_format.operand.startswith("float8") else right
    warm_seconds = bench.median_seconds(lambda: product.multiply(left, right_factor), calls=1, batches=3)
    calls = max(1, round(BURST_SECONDS / warm_seconds))
    seconds = _median_burst_seconds(bench, lambda: product.multiply(left, right_factor), calls)
    problems = [
        *_check_repeats(product, left, right_factor, plant=options.get("plant") == "repeat"),
        *_check_sampled_rows(product, left, right, plant=options.get("plant") == "sample"),
        *_check_exact_product(product, size, plant=options.get("plant") == "exact"),
    ]
    facts = {"size": size, "calls": calls, "checked_elements": size * size * (REPEATS + 1)}
    return {"measured": flops / seconds / 1e12, "problems": problems, "facts": facts}


def _median_burst_seconds(bench: Bench, work: Callable[[], Any], calls: int) -> float:
    """Seconds for one product: the median of bursts, with a pause before each."""
    burst_seconds = []
    for _ in range(BURSTS):
        bench.synchronize()
        time.sleep(REST_SECONDS if bench.is_gpu else 0.0)
        bench.measure_seconds(work, calls=2)
        burst_seconds.append(bench.measure_seconds(work, calls=calls) / calls)
    return statistics.median(burst_seconds)


def _fitting_size(bench: Bench, product: MatrixProduct) -> int:
    """SIZE if one product takes well under a second and the matrices fit, else SMALL_SIZE."""
    if not bench.is_gpu:
        return 256
    # Factors and results, also in float64.
    if bench.free_bytes() < 6 * 8 * SIZE**2:
        return SMALL_SIZE
    small = product.random_matrix(SMALL_SIZE)
    seconds = bench.median_seconds(lambda: product.multiply(small, small), calls=1, batches=2)
    return SIZE if seconds * (SIZE / SMALL_SIZE) ** 3 < 0.25 else SMALL_SIZE


def _check_repeats(product: MatrixProduct, left: Any, right: Any, *, plant: bool) -> list[str]:
    first = product.multiply(left, right)
    for repeat in range(REPEATS):
        result = product.multiply(left, right)
        if plant and repeat == REPEATS - 1:
            flip_bit(product.bench.torch, result)
        wrong = count_differing(product.bench.torch, first, result)
        if wrong:
            return [f"repetition {repeat + 2} of the same product differs in {wrong} of {first.numel()} elements"]
    return []


def _check_sampled_rows(product: MatrixProduct, left: Any, right: Any, *, plant: bool) -> list[str]:
    """Compare rows of a random product with float64, each element within its rounding error."""
    torch = product.bench.torch
    result = product.multiply(left, right)
    rows = torch.randperm(result.shape[0], device=result.device)[:SAMPLED_ROWS]
    if plant:
        result[rows[0], 7] *= -2
    factors = left.to(torch.float64)[rows], right.to(torch.float64)
    expected = factors[0] @ factors[1]
    magnitude = (factors[0].abs() @ factors[1].abs()).clamp_(min=1e-30)
    # The first term allows for rounding the result, the second for rounding the sums.
    tolerance = product.number_format.tolerance * (expected.abs() + magnitude / left.shape[1] ** 0.5)
    is_wrong = (result[rows].to(torch.float64) - expected).abs() > tolerance
    wrong = int(is_wrong.sum()) + int((~torch.isfinite(result[rows].float())).sum())
    return (
        [f"{wrong} of {is_wrong.numel()} sampled elements differ from float64 by more than rounding"] if wrong else []
    )


def _check_exact_product(product: MatrixProduct, size: int, *, plant: bool) -> list[str]:
    torch = product.bench.torch
    left, right = product.integer_matrix(size), product.integer_matrix(size)
    result = product.multiply(left, right)
    if plant:
        flip_bit(torch, result)
    left_float64, right_float64 = left.to(torch.float64), right.to(torch.float64)
    expected = left_float64 @ right_float64
    probe = torch.randint(0, 2, (size, 4), device=result.device).to(torch.float64) * 2 - 1
    residual = int((expected @ probe != left_float64 @ (right_float64 @ probe)).sum())
    if residual:
        return [f"the float64 reference is wrong in at least {residual} rows"]
    wrong = int((result != expected.to(product.result)).sum())
    return [f"{wrong} of {result.numel()} elements of an exact product are wrong"] if wrong else []


def stress(bench: Bench, options: Mapping[str, Any]) -> dict[str, Any]:
    """Full load for a given time; every batch must be identical to the first in every bit.

    The parent monitors temperature, clocks and errors, and kills this process at a safety limit. The facts have the
    slowest batch, which shows a GPU that is fast when cold and slow when hot.
    """
    seconds = float(options.get("seconds", 60.0))
    try:
        # As in training.
        product = MatrixProduct(bench, FORMATS["bf16"])
    except TestSkipped:
        # The tensor cores of GPUs before Ampere support nothing else.
        product = MatrixProduct(bench, FORMATS["fp16"])
    size = int(options.get("size", SIZE if bench.is_gpu else 128))
    left, right = product.random_matrix(size), product.random_matrix(size)
    first = product.multiply(left, right)
    flops = 2.0 * size**3
    product_seconds = bench.median_seconds(lambda: product.multiply(left, right), calls=2, batches=2)
    calls = max(1, round(min(STRESS_BATCH_SECONDS, seconds / 10) / product_seconds))
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


def count_differing(torch: Any, first: Any, second: Any) -> int:
    """The number of elements that differ in any bit; NaN equals NaN."""
    return int((_view_as_integers(torch, first) != _view_as_integers(torch, second)).sum())


def flip_bit(torch: Any, matrix: Any) -> None:
    """Flip the lowest bit of one element, for tests."""
    _view_as_integers(torch, matrix)[3, 5] ^= 1


def _view_as_integers(torch: Any, matrix: Any) -> Any:
    return matrix.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[matrix.element_size()])
