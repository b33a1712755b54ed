"""Advice for a bottleneck: what to change first, the largest possible gain, achieved rates, and expected ranges.

Texts are in packs/bottlenecks.csv and packs/profile_expectations.csv; numbers come from the features of a segment. A
gain follows Amdahl's law: it assumes that the change removes all of the time that it can.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from watchkeeper.catalogue import pack
from watchkeeper.catalogue.gpu_models import GpuModel
from watchkeeper.probe import expectations
from watchkeeper.probe.profile.features import Features
from watchkeeper.probe.profile.verdict import Bound, limits

TERA, GIGA, MEGA = 1e12, 1e9, 1e6
# A larger gain only means that the GPU waits nearly all of the time.
MAX_GAIN = 100.0


@dataclass(frozen=True, slots=True)
class BottleneckAdvice:
    """One row of packs/bottlenecks.csv."""

    title: str
    meaning: str
    first_change: str
    next_change: str
    tool: str


@dataclass(frozen=True, slots=True)
class ExpectedGain:
    """The largest possible gain: `at_most` times as fast, or None if the counters do not show it."""

    at_most: float | None
    why: str
    unit: str = "times as fast"


@dataclass(frozen=True, slots=True)
class AchievedRates:
    """Estimated rates from pipe shares, clocks and the GPU model; None where a counter or figure is missing."""

    tensor_tflops: float | None
    fp32_tflops: float | None
    fp64_tflops: float | None
    memory_gb: float | None
    pcie_gb: float | None

    def by_unit(self) -> list[tuple[str, float]]:
        rates = (
            ("TFLOP/s on tensor cores if 16-bit", self.tensor_tflops),
            ("TFLOP/s fp32", self.fp32_tflops),
            ("TFLOP/s fp64", self.fp64_tflops),
            ("GB/s memory", self.memory_gb),
            ("GB/s PCIe", self.pcie_gb),
        )
        return [(unit, value) for unit, value in rates if value is not None]


@dataclass(frozen=True, slots=True)
class GpuRates:
    sms: float
    tensor_flop: float
    fp32_flop: float
    fp64_flop: float
    memory_gb: float


@dataclass(frozen=True, slots=True)
class MetricExpectation:
    """The expected range of a metric for a kind of workload; `remark` explains a value outside of it."""

    metric: str
    low: float
    high: float
    value: float | None = field(metadata={"json_key": "seen"})
    remark: str

    @property
    def is_met(self) -> bool | None:
        return None if self.value is None else self.low <= self.value <= self.high


@cache
def bottleneck_advice() -> Mapping[str, BottleneckAdvice]:
    names = ("title", "meaning", "first_change", "then", "tool")
    rows = pack.load(
        "bottlenecks.csv", lambda cells: (cells["class"], BottleneckAdvice(*(cells[name] for name in names)))
    )
    return dict(rows)


@cache
def gpu_rates() -> Mapping[str, GpuRates]:
    names = ("sms", "tensor_flop", "fp32_flop", "fp64_flop", "memory_gb_per_second")
    rows = pack.load("gpu_rates.csv", lambda cells: (cells["model"], GpuRates(*(float(cells[name]) for name in names))))
    return dict(rows)


def achieved_rates(features: Features, model: GpuModel) -> AchievedRates:
    """Share of each pipe × its work per clock × the recorded clock."""
    rate, clock = gpu_rates().get(model.name), features.sm_clock
    pcie = [value for value in (features.pcie_in_mib, features.pcie_out_mib) if value is not None]
    pcie_gb = round(max(pcie) * 2**20 / GIGA, 2) if pcie else None
    if rate is None:
        return AchievedRates(None, None, None, None, pcie_gb)

    def tflops(share: float | None, flop: float) -> float | None:
        if share is None or clock is None:
            return None
        return round(share * rate.sms * flop * clock * MEGA / TERA, 2)

    memory_gb = None if features.dram is None else round(features.dram * rate.memory_gb, 1)
    tensor_fp64 = features.tensor_fp64 or 0.0
    tensor = None if features.tensor is None else max(0.0, features.tensor - tensor_fp64)
    # Tensor cores do twice as many fp64 operations per clock as the fp64 pipe (A100, H100 data sheets).
    fp64 = None if features.fp64 is None else features.fp64 + 2 * tensor_fp64
    tensor_tflops, fp32_tflops = tflops(tensor, rate.tensor_flop), tflops(features.fp32, rate.fp32_flop)
    return AchievedRates(tensor_tflops, fp32_tflops, tflops(fp64, rate.fp64_flop), memory_gb, pcie_gb)


def expected_gain(bound: Bound, features: Features, model: GpuModel) -> ExpectedGain:
    busy = features.graphics if features.graphics is not None else features.rhythm.mean
    match bound:
        case Bound.DATA_STARVED | Bound.STALLS | Bound.LAUNCH:
            condition = "launches take no time" if bound is Bound.LAUNCH else "the GPU never waits"
            reason = f"the GPU works {100 * busy:.0f} % of the time; only this remains if {condition}"
            return _gain_from_share(busy, reason)
        case Bound.UNDERUTILIZED:
            share = features.sm if features.sm is not None else busy
            gain_of_share = _gain_from_share(share, f"SMs are active {100 * share:.1f} % of the time")
            return replace(gain_of_share, unit="times as much work")
        case Bound.PCIE:
            link = features.pcie or 0.0
            if link < limits()["pcie_dominant"]:
                reason = f"copies use {100 * link:.0f} % of the link; with pinned memory they use all of it"
                return _gain_from_share(link, reason)
            reason = f"if copies overlap fully with kernels, which take {100 * busy:.0f} % of the time"
            return _gain_from_share(1 / (1 + busy), reason)
        case Bound.COMPUTE_NO_TENSOR:
            return _gain_with_tensor_cores(features, model)
        case Bound.COMPUTE:
            share = (features.tensor or 0.0) / limits()["tensor_practical"]
            reason = "if tensor cores reach their practical ceiling in this precision"
            return _gain_from_share(share, reason) if share else UNKNOWN
        case Bound.MEMORY:
            share = (features.dram or 0.0) / limits()["dram_practical"]
            if share >= limits()["weak_dominant"]:
                return _gain_from_share(share, "if memory reaches its practical ceiling; moving fewer bytes gives more")
            return UNKNOWN
        case _:
            return UNKNOWN


UNKNOWN = ExpectedGain(None, "not visible in the counters; run the command below")


def _gain_from_share(share: float, reason: str) -> ExpectedGain:
    return ExpectedGain(round(min(MAX_GAIN, 1 / max(share, 1 / MAX_GAIN)), 2) if share < 1 else 1.0, reason)


def _gain_with_tensor_cores(features: Features, model: GpuModel) -> ExpectedGain:
    """The gain if all fp32 work becomes as fast as matrix products on tensor cores."""
    matmul_rates = expectations.expectations_by_test(model.name)
    fast, slow = matmul_rates.get("matmul_bf16"), matmul_rates.get("matmul_fp32")
    fp32_share = min(1.0, (features.fp32 or 0.0) / limits()["fp32_practical"])
    if fast is None or slow is None or fp32_share < limits()["weak_dominant"]:
        return UNKNOWN
    ratio = fast.expected / slow.expected
    speedup = 1 / ((1 - fp32_share) + fp32_share / ratio)
    reason = (
        f"matrix products are {ratio:.0f} times as fast in bf16 on tensor cores; here they take up to "
        f"{100 * fp32_share:.0f} % of the time"
    )
    return ExpectedGain(round(min(MAX_GAIN, speedup), 2), reason)


def profiler_command(bound: Bound, command: Sequence[str] | None) -> str:
    return bottleneck_advice()[bound.value].tool.replace("CMD", shlex.join(command) if command else "CMD")


def metric_expectations(
    kind: str, features: Features, *, limit_watts: float, spread: float | None, memory_used: float | None
) -> tuple[MetricExpectation, ...]:
    power = None if features.power_watts is None else features.power_watts / limit_watts
    values: Mapping[str, float | None] = {
        "gpu_util": features.gpu_util,
        "tensor": features.tensor,
        "power": power,
        "memory_used": memory_used,
        "pcie": features.pcie,
        "spread": spread,
    }
    rows = []
    for row in pack.load("profile_expectations.csv", dict):
        if row["kind"] == kind:
            value, low, high = values[row["metric"]], float(row["low"]), float(row["high"])
            remark = row["below"] if value is not None and value < low else row["above"]
            is_outside = value is not None and not low <= value <= high
            rows.append(MetricExpectation(row["metric"], low, high, value, remark if is_outside else ""))
    return tuple(rows)
