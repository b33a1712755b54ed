"""What to change first about a bottleneck, how much that could give at most, and what was achieved: pure values.

The words are packs/bottlenecks.csv and packs/profile_expectations.csv, the numbers come from the features of the
segment that was judged. A gain is Amdahl's: the share of the time that the change takes away at best. `report` puts it
together.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from watchkeeper.catalogue import pack
from watchkeeper.probe import expectations
from watchkeeper.probe.profile.features import Features
from watchkeeper.probe.profile.limits import GpuCeilings, limits
from watchkeeper.probe.profile.verdict import Bound

TERA, GIGA, MEGA = 1e12, 1e9, 1e6
# More than this is a way of saying that nearly all of the time is waiting.
MOST_GAIN = 100.0


@dataclass(frozen=True, slots=True)
class BottleneckAdvice:
    """One row of packs/bottlenecks.csv."""

    title: str
    meaning: str
    first_change: str
    then: str
    tool: str


@dataclass(frozen=True, slots=True)
class ExpectedGain:
    """`at_most` times as fast if the change takes away all that it can; None where the counters cannot tell."""

    at_most: float | None
    why: str
    unit: str = "times as fast"


@dataclass(frozen=True, slots=True)
class AchievedRates:
    """Estimates from shares of pipes, clocks and the model's figures; None where a counter or figure is missing."""

    tensor_tflops: float | None
    fp32_tflops: float | None
    fp64_tflops: float | None
    memory_gb: float | None
    pcie_gb: float | None


@dataclass(frozen=True, slots=True)
class GpuRates:
    sms: float
    tensor_flop: float
    fp32_flop: float
    fp64_flop: float
    memory_gb: float


@dataclass(frozen=True, slots=True)
class MetricExpectation:
    """A range that a kind of workload should be in, and what it means not to be."""

    metric: str
    low: float
    high: float
    seen: float | None
    remark: str

    @property
    def is_met(self) -> bool | None:
        return None if self.seen is None else self.low <= self.seen <= self.high


@cache
def bottleneck_advice() -> Mapping[str, BottleneckAdvice]:
    rows = pack.load(
        "bottlenecks.csv",
        lambda cells: (
            cells["class"],
            BottleneckAdvice(cells["title"], cells["meaning"], cells["first_change"], cells["then"], cells["tool"]),
        ),
    )
    return dict(rows)


@cache
def rates() -> Mapping[str, GpuRates]:
    rows = pack.load(
        "gpu_rates.csv",
        lambda cells: (
            cells["model"],
            GpuRates(
                float(cells["sms"]),
                float(cells["tensor_flop"]),
                float(cells["fp32_flop"]),
                float(cells["fp64_flop"]),
                float(cells["memory_gb_per_second"]),
            ),
        ),
    )
    return dict(rows)


def achieved(features: Features, model: GpuCeilings) -> AchievedRates:
    """A pipe's share of its time × what it does in a clock × the clock that was recorded."""
    rate, clock = rates().get(model.name), features.sm_clock
    pcie = [value for value in (features.pcie_in_mib, features.pcie_out_mib) if value is not None]
    carried = round(max(pcie) * 2**20 / GIGA, 2) if pcie else None
    if rate is None:
        return AchievedRates(None, None, None, None, carried)

    def tflops(share: float | None, flop: float) -> float | None:
        if share is None or clock is None:
            return None
        return round(share * rate.sms * flop * clock * MEGA / TERA, 2)

    memory = None if features.dram is None else round(features.dram * rate.memory_gb, 1)
    double = features.tensor_fp64 or 0.0
    tensor = None if features.tensor is None else max(0.0, features.tensor - double)
    # Tensor cores do twice as many fp64 operations in a clock as the fp64 pipe (A100, H100 data sheets).
    fp64 = None if features.fp64 is None else features.fp64 + 2 * double
    return AchievedRates(
        tflops(tensor, rate.tensor_flop),
        tflops(features.fp32, rate.fp32_flop),
        tflops(fp64, rate.fp64_flop),
        memory,
        carried,
    )


def gain(bound: Bound, features: Features, model: GpuCeilings) -> ExpectedGain:
    """How much the first change of a class could give at most."""
    busy = features.graphics if features.graphics is not None else features.rhythm.mean
    match bound:
        case Bound.DATA_STARVED | Bound.STALLS | Bound.LAUNCH:
            what = "launches take no time" if bound is Bound.LAUNCH else "the GPU never waits"
            return _times(busy, f"the GPU itself works {100 * busy:.0f} % of the time; that is left if {what}")
        case Bound.UNDERUTILIZED:
            share = features.sm if features.sm is not None else busy
            found = _times(share, f"SMs are active {100 * share:.1f} % of the time")
            return replace(found, unit="times as much work")
        case Bound.PCIE:
            link = features.pcie or 0.0
            if link < limits()["pcie_dominant"]:
                return _times(link, f"copies run at {100 * link:.0f} % of the link; pinned memory reaches all of it")
            return _times(1 / (1 + busy), f"copies fully behind kernels that take {100 * busy:.0f} % of the time")
        case Bound.COMPUTE_NO_TENSOR:
            return _with_tensor_cores(features, model)
        case Bound.COMPUTE:
            share = (features.tensor or 0.0) / limits()["tensor_practical"]
            return (
                _times(share, "up to the practical ceiling of the tensor cores in this precision") if share else UNKNOWN
            )
        case Bound.MEMORY:
            share = (features.dram or 0.0) / limits()["dram_practical"]
            if share >= limits()["weak_dominant"]:
                return _times(share, "up to the memory's practical ceiling; fewer bytes give more, in proportion")
            return UNKNOWN
        case _:
            return UNKNOWN


UNKNOWN = ExpectedGain(None, "the counters cannot tell; the command below can")


def _times(share: float, why: str) -> ExpectedGain:
    return ExpectedGain(round(min(MOST_GAIN, 1 / max(share, 1 / MOST_GAIN)), 2) if share < 1 else 1.0, why)


def _with_tensor_cores(features: Features, model: GpuCeilings) -> ExpectedGain:
    """Amdahl: the share of time on the fp32 pipe becomes as much faster as products are on tensor cores."""
    expected = expectations.expectations_by_test(model.name)
    fast, slow = expected.get("matmul_bf16"), expected.get("matmul_fp32")
    pipe = min(1.0, (features.fp32 or 0.0) / limits()["fp32_practical"])
    if fast is None or slow is None or pipe < limits()["weak_dominant"]:
        return UNKNOWN
    ratio = fast.expected / slow.expected
    speedup = 1 / ((1 - pipe) + pipe / ratio)
    why = (
        f"products are {ratio:.0f} times as fast in bf16 on tensor cores; they take {100 * pipe:.0f} % of the time here"
    )
    return ExpectedGain(round(min(MOST_GAIN, speedup), 2), f"{why}, if all of it is products")


def tool(bound: Bound, command: Sequence[str] | None) -> str:
    """The profiler's command line for this class, with the workload's own."""
    return bottleneck_advice()[bound.value].tool.replace("CMD", shlex.join(command) if command else "CMD")


def expected(
    kind: str, features: Features, *, limit_watts: float, spread: float | None, memory_used: float | None
) -> tuple[MetricExpectation, ...]:
    """What this kind of workload should look like, beside what it does."""
    power = None if features.power_watts is None else features.power_watts / limit_watts
    seen: Mapping[str, float | None] = {
        "gpu_util": features.gpu_util,
        "tensor": features.tensor,
        "power": power,
        "memory_used": memory_used,
        "pcie": features.pcie,
        "spread": spread,
    }
    found = []
    for row in pack.load("profile_expectations.csv", dict):
        if row["kind"] == kind:
            value, low, high = seen[row["metric"]], float(row["low"]), float(row["high"])
            remark = row["below"] if value is not None and value < low else row["above"]
            is_off = value is not None and not low <= value <= high
            found.append(MetricExpectation(row["metric"], low, high, value, remark if is_off else ""))
    return tuple(found)
