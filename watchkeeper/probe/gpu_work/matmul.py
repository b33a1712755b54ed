"""Matrix products, for speed and for correctness: a GPU that computes wrongly without saying so is found here.

Called by `gpu_work` for each number format. Three questions about correctness. The same product of random numbers
several times: is it the same to the last bit? Some rows of it against float64: are they near enough? And a product of
small whole numbers, whose result every format holds exactly before it rounds once: is each element of it exactly the
rounded result of float64, which another unit of the GPU computes, and which is itself held against exact sums
(Freivalds: C·x = A·(B·x) for a random x)?
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from watchkeeper.probe.gpu_work.bench import Bench, TestSkipped

SIZE = 8192
# A format without matrix units takes a smaller product, so that a slow GPU is not at it for minutes.
SMALL_SIZE = 4096
REPEATS = 6
SAMPLED_ROWS = 64
# Long enough to time, and over before the power limit bites: an H200 computes some 790 TFLOP/s of bf16 in a burst and
# 665 under lasting load, which is what `stress` measures.
BURST_SECONDS = 0.015
BURSTS = 7
REST_SECONDS = 0.1


class NumberFormat(NamedTuple):
    """`operand` is the type of the factors, `result` of the product; `largest` whole number of an exact factor.

    `tolerance` is half a unit in the last place of the result, as a share, with room for the order of the sums.
    """

    operand: str
    result: str
    tolerance: float
    largest: int = 3
    is_tf32: bool = False


# fp8: the matrix units of Hopper keep some 14 bits of a running sum, so exact sums must stay small. tf32 cuts each
# factor to 10 bits before the product, which the reference does not.
FORMATS: Mapping[str, NumberFormat] = {
    "bf16": NumberFormat("bfloat16", "bfloat16", 2**-8),
    "fp16": NumberFormat("float16", "float16", 2**-10),
    "fp8": NumberFormat("float8_e4m3fn", "bfloat16", 2**-5, largest=1),
    "tf32": NumberFormat("float32", "float32", 2**-7, is_tf32=True),
    "fp32": NumberFormat("float32", "float32", 2**-15),
    "fp64": NumberFormat("float64", "float64", 2**-40),
}


# The first compute capability whose matrix units know the format.
NEEDED = {"bfloat16": (8, 0), "float8_e4m3fn": (8, 9)}


class MatrixProduct:
    """One format's product of two square matrices on this bench."""

    def __init__(self, bench: Bench, kind: NumberFormat) -> None:
        self._torch = bench.torch
        self.bench = bench
        self.kind = kind
        self.operand = getattr(bench.torch, kind.operand, None)
        self.result = getattr(bench.torch, kind.result)
        if self.operand is None:
            raise TestSkipped(f"this torch has no {kind.operand}")
        needed = (8, 0) if kind.is_tf32 else NEEDED.get(kind.operand, (0, 0))
        if bench.is_gpu and (own := bench.torch.cuda.get_device_capability()) < needed:
            words = "compute capability {}.{} has no such product, {}.{} has"
            raise TestSkipped(words.format(*own, *needed))

    def random(self, size: int) -> Any:
        torch = self._torch
        made = torch.randn(size, size, device=self.bench.device, dtype=torch.float32)
        return made.to(self.operand)

    def whole(self, size: int) -> Any:
        """Whole numbers that the format holds exactly."""
        torch, most = self._torch, self.kind.largest
        return torch.randint(-most, most + 1, (size, size), device=self.bench.device).to(torch.float32).to(self.operand)

    def of(self, left: Any, right: Any) -> Any:
        torch = self._torch
        settings = torch.backends.cuda.matmul
        settings.allow_tf32 = self.kind.is_tf32
        # Partial sums of a split product would be rounded twice, and an exact product is rounded once.
        settings.allow_fp16_reduced_precision_reduction = settings.allow_bf16_reduced_precision_reduction = False
        if not self.kind.operand.startswith("float8"):
            return torch.mm(left, right)
        if not self.bench.is_gpu:
            return torch.mm(left.float(), right.float()).to(self.result)
        one = torch.ones((), device=self.bench.device)
        # cuBLAS takes the second fp8 factor column by column.
        return torch._scaled_mm(
            left, right.t().contiguous().t(), scale_a=one, scale_b=one, out_dtype=self.result, use_fast_accum=True
        )


def test(name: str) -> Any:
    kind = FORMATS[name]

    def run(bench: Bench, options: Mapping[str, Any]) -> dict[str, Any]:
        return _run(bench, kind, options)

    return run


def _run(bench: Bench, kind: NumberFormat, options: Mapping[str, Any]) -> dict[str, Any]:
    product = MatrixProduct(bench, kind)
    size = int(options.get("size", 0)) or _fitting_size(bench, product)
    left, right = product.random(size), product.random(size)
    flops = 2.0 * size**3
    right_ready = right.t().contiguous().t() if kind.operand.startswith("float8") else right
    warm = bench.median_seconds(lambda: product.of(left, right_ready), calls=1, batches=3)
    calls = max(1, round(BURST_SECONDS / warm))
    took = _burst_seconds(bench, lambda: product.of(left, right_ready), calls)
    problems = [
        *_repeated(product, left, right_ready, plant=options.get("plant") == "repeat"),
        *_sampled(product, left, right, plant=options.get("plant") == "sample"),
        *_exact(product, size, plant=options.get("plant") == "exact"),
    ]
    facts = {"size": size, "calls": calls, "checked_elements": size * size * (REPEATS + 1)}
    return {"measured": flops / took / 1e12, "problems": problems, "facts": facts}


def _burst_seconds(bench: Bench, work: Callable[[], Any], calls: int) -> float:
    """Seconds for one product: the median of bursts, with a rest before each."""
    took = []
    for _ in range(BURSTS):
        bench.wait()
        time.sleep(REST_SECONDS if bench.is_gpu else 0.0)
        bench.seconds(work, calls=2)
        took.append(bench.seconds(work, calls=calls) / calls)
    return statistics.median(took)


def _fitting_size(bench: Bench, product: MatrixProduct) -> int:
    """The large size where one product of it takes well under a second, and its matrices fit."""
    if not bench.is_gpu:
        return 256
    # Factors, results and their float64 shadows.
    if bench.free_bytes() < 6 * 8 * SIZE**2:
        return SMALL_SIZE
    small = product.random(SMALL_SIZE)
    took = bench.median_seconds(lambda: product.of(small, small), calls=1, batches=2)
    return SIZE if took * (SIZE / SMALL_SIZE) ** 3 < 0.25 else SMALL_SIZE


def _repeated(product: MatrixProduct, left: Any, right: Any, *, plant: bool) -> list[str]:
    first = product.of(left, right)
    for number in range(REPEATS):
        again = product.of(left, right)
        if plant and number == REPEATS - 1:
            flip(product.bench.torch, again)
        wrong = differing(product.bench.torch, first, again)
        if wrong:
            return [f"the same product differed in {wrong} of {first.numel()} elements at repetition {number + 2}"]
    return []


def _sampled(product: MatrixProduct, left: Any, right: Any, *, plant: bool) -> list[str]:
    """Rows of the random product against float64, each element within its own rounding."""
    torch = product.bench.torch
    found = product.of(left, right)
    rows = torch.randperm(found.shape[0], device=found.device)[:SAMPLED_ROWS]
    if plant:
        found[rows[0], 7] *= -2
    factors = left.to(torch.float64)[rows], right.to(torch.float64)
    expected = factors[0] @ factors[1]
    size = (factors[0].abs() @ factors[1].abs()).clamp_(min=1e-30)
    # A share of the result for its rounding, and one of the sum of magnitudes for the rounding of sums.
    allowed = product.kind.tolerance * (expected.abs() + size / left.shape[1] ** 0.5)
    far = (found[rows].to(torch.float64) - expected).abs() > allowed
    wrong = int(far.sum()) + int((~torch.isfinite(found[rows].float())).sum())
    return [f"{wrong} of {far.numel()} sampled elements are further from float64 than rounding allows"] if wrong else []


def _exact(product: MatrixProduct, size: int, *, plant: bool) -> list[str]:
    torch = product.bench.torch
    left, right = product.whole(size), product.whole(size)
    found = product.of(left, right)
    if plant:
        flip(torch, found)
    wide_left, wide_right = left.to(torch.float64), right.to(torch.float64)
    expected = wide_left @ wide_right
    probe = torch.randint(0, 2, (size, 4), device=found.device).to(torch.float64) * 2 - 1
    residual = int((expected @ probe != wide_left @ (wide_right @ probe)).sum())
    if residual:
        return [f"the float64 reference itself is wrong in at least {residual} rows"]
    wrong = int((found != expected.to(product.result)).sum())
    return [f"{wrong} of {found.numel()} elements of an exact product are wrong"] if wrong else []


def differing(torch: Any, one: Any, other: Any) -> int:
    """Elements that differ in any bit; NaN equals itself here."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    return int((one.view(whole) != other.view(whole)).sum())


def flip(torch: Any, matrix: Any) -> None:
    """Flip the lowest bit of one element, to see that it is found."""
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[matrix.element_size()]
    matrix.view(whole)[3, 5] ^= 1
