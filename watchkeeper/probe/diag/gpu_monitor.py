"""Monitor GPUs during tests: temperature, clocks, errors and Xids, the reason to stop at once, and verdicts.

`work_loop` passes every message of `nvml_child` and checks `stop_reason` after each; `runner` gets `results` at the
end. A GPU that reduces its clocks at the power limit is normal at full load; reduction by heat or a power brake is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from watchkeeper.model.diag import DiagVerdict, TestResult
from watchkeeper.probe import expectations
from watchkeeper.probe.diag.software_facts import GpuReading

# At 0 the hardware reduces clocks. A reading can be a second old, and stopping a test takes time.
STOP_MARGIN_CELSIUS = 2.0
SLOWDOWN_MARGIN = "watchkeeper_gpu_slowdown_margin_celsius"
CLOCK_REASONS = "watchkeeper_gpu_clocks_event_reason"
UNCORRECTABLE = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
REPLAYS = "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"
COUNTERS = {
    UNCORRECTABLE: "uncorrectable memory errors",
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": "corrected memory errors",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": "rows remapped after uncorrectable errors",
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": "rows remapped after corrected errors",
    REPLAYS: "PCIe replays",
}
# Software slowdown starts before hardware slowdown.
SLOWDOWN_REASONS = {
    "hw_thermal": (DiagVerdict.FAIL, "HW thermal slowdown"),
    "hw_power_brake": (DiagVerdict.FAIL, "HW power brake slowdown"),
    "hw_slowdown": (DiagVerdict.FAIL, "HW slowdown"),
    "sw_thermal": (DiagVerdict.WARN, "SW thermal slowdown"),
}
STOP_EVENTS = frozenset({"ecc_double_bit", "poison_fatal", "gpu_unavailable", "dram_retirement_failure"})
UNHEALTHY = "unhealthy"


@dataclass(slots=True)
class GpuHistory:
    first: GpuReading
    last: GpuReading
    readings: int = 0
    max_celsius: float | None = None
    min_margin_celsius: float | None = None
    max_watts: float | None = None
    readings_by_reason: dict[str, int] = field(default_factory=dict)
    events: list[tuple[str, int]] = field(default_factory=list)

    def add_reading(self, reading: GpuReading) -> None:
        self.last = reading
        self.readings += 1
        self.max_celsius = _extreme(self.max_celsius, reading.number("DCGM_FI_DEV_GPU_TEMP"), max)
        self.min_margin_celsius = _extreme(self.min_margin_celsius, reading.number(SLOWDOWN_MARGIN), min)
        self.max_watts = _extreme(self.max_watts, reading.number("DCGM_FI_DEV_POWER_USAGE"), max)
        for name, is_on in reading.parts(CLOCK_REASONS).items():
            self.readings_by_reason[name] = self.readings_by_reason.get(name, 0) + bool(is_on)

    def increase(self, counter: str) -> float | None:
        first_value, last_value = self.first.number(counter), self.last.number(counter)
        return None if first_value is None or last_value is None else max(0.0, last_value - first_value)


def _extreme(previous: float | None, value: float | None, choose: Any) -> float | None:
    return previous if value is None else value if previous is None else float(choose(previous, value))


class GpuMonitor:
    """All GPUs of a run; `stop_reason` does not change once it is set."""

    def __init__(self, tested_uuids: Iterable[str]) -> None:
        self._tested_uuids = frozenset(tested_uuids)
        self.gpus: dict[str, GpuHistory] = {}
        self.stop_reason: str | None = None

    def add_readings(self, gpus: Sequence[GpuReading], lost: Sequence[str]) -> None:
        for gpu in gpus:
            if gpu.uuid in self._tested_uuids:
                self.gpus.setdefault(gpu.uuid, GpuHistory(gpu, gpu)).add_reading(gpu)
        lost_tested = [text for text in lost if any(uuid in text for uuid in self._tested_uuids)]
        self.stop_reason = self.stop_reason or (lost_tested[0] if lost_tested else self._exceeded_limit())

    def add_event(self, event: Mapping[str, Any]) -> None:
        kind, gpu, detail = str(event["kind"]), event.get("gpu"), int(event.get("detail") or 0)
        for uuid, history in self.gpus.items():
            if gpu in (None, uuid):
                history.events.append((kind, detail))
        if gpu is not None and gpu not in self._tested_uuids:
            return
        if kind in STOP_EVENTS:
            self.stop_reason = self.stop_reason or f"{gpu or 'a GPU'} reports {kind}"
        if kind == "xid" and is_unhealthy_xid(detail):
            self.stop_reason = self.stop_reason or f"{gpu or 'a GPU'} reports Xid {detail}"

    def _exceeded_limit(self) -> str | None:
        for uuid, history in self.gpus.items():
            margin = history.last.number(SLOWDOWN_MARGIN)
            if margin is not None and margin <= STOP_MARGIN_CELSIUS:
                limit = f"the limit is {STOP_MARGIN_CELSIUS:g} °C"
                return f"{uuid} is {margin:g} °C below its slowdown temperature, {limit}"
            if errors := history.increase(UNCORRECTABLE):
                return f"{uuid} has {errors:g} new uncorrectable memory errors"
        return None

    def results(self) -> tuple[TestResult, ...]:
        judges = (_judge_temperature, _judge_clocks, _judge_errors, _judge_xids)
        return tuple(judge(uuid, history) for uuid, history in self.gpus.items() for judge in judges)


def _judge_temperature(uuid: str, history: GpuHistory) -> TestResult:
    if history.max_celsius is None:
        return TestResult("temperature", uuid, DiagVerdict.SKIP, "the GPU reports no temperature")
    limit, margin = expectations.health_limits()["slowdown_margin"], history.min_margin_celsius
    text = f"maximum {history.max_celsius:g} °C"
    if margin is None:
        return TestResult("temperature", uuid, DiagVerdict.PASS, text, measured=history.max_celsius, unit="°C")
    text += f", {margin:g} °C below the slowdown temperature, the limit is {limit:g} °C"
    verdict = DiagVerdict.WARN if margin <= limit else DiagVerdict.PASS
    verdict = DiagVerdict.FAIL if margin <= STOP_MARGIN_CELSIUS else verdict
    return TestResult("temperature", uuid, verdict, text, measured=history.max_celsius, unit="°C")


def _judge_clocks(uuid: str, history: GpuHistory) -> TestResult:
    readings = max(1, history.readings)
    watts = "" if history.max_watts is None else f"; maximum {history.max_watts:.0f} W"
    slowdowns = [
        (*row, history.readings_by_reason[name] / readings)
        for name, row in SLOWDOWN_REASONS.items()
        if history.readings_by_reason.get(name)
    ]
    if slowdowns:
        reasons = ", ".join(f"{reason} ({share:.0%} of the time)" for _, reason, share in slowdowns)
        verdict = max((verdict for verdict, _, _ in slowdowns), key=list(DiagVerdict).index)
        return TestResult("clocks", uuid, verdict, f"clocks were reduced by {reasons}{watts}")
    capped_share = history.readings_by_reason.get("power_cap", 0) / readings
    text = f"at the power limit {capped_share:.0%} of the time, which is normal at full load"
    return TestResult("clocks", uuid, DiagVerdict.PASS, f"clocks were {text if capped_share else 'not reduced'}{watts}")


def _judge_errors(uuid: str, history: GpuHistory) -> TestResult:
    increases = {name: count for name in COUNTERS if (count := history.increase(name)) is not None}
    counts_text = ", ".join(f"{count:g} {COUNTERS[name]}" for name, count in increases.items() if count)
    if not increases:
        return TestResult("errors", uuid, DiagVerdict.SKIP, "the GPU reports no error counters")
    if not counts_text:
        return TestResult("errors", uuid, DiagVerdict.PASS, "no new memory errors or PCIe replays")
    is_bad = any(count for name, count in increases.items() if "UNCORRECTABLE" in name or name == UNCORRECTABLE)
    pcie_generation = history.last.number("DCGM_FI_DEV_PCIE_LINK_GEN") or 0
    per_minute = expectations.health_limits().get(f"replay_gen{pcie_generation:g}", 0.0)
    # One reading per second.
    max_replays = per_minute * max(1.0, history.readings / 60)
    has_other_errors = any(count for name, count in increases.items() if name != REPLAYS)
    if not has_other_errors and increases.get(REPLAYS, 0.0) <= max_replays:
        text = f"{counts_text} during the run, the limit is {max_replays:.0f}"
        return TestResult("errors", uuid, DiagVerdict.PASS, text)
    return TestResult("errors", uuid, DiagVerdict.FAIL if is_bad else DiagVerdict.WARN, f"{counts_text} during the run")


def _judge_xids(uuid: str, history: GpuHistory) -> TestResult:
    codes = [detail for kind, detail in history.events if kind == "xid"]
    event_kinds = sorted({kind for kind, _ in history.events if kind in STOP_EVENTS})
    if not codes and not event_kinds:
        return TestResult("xids", uuid, DiagVerdict.PASS, "the driver reported no Xid")
    reported = ", ".join([*(f"Xid {code}" for code in dict.fromkeys(codes[:8])), *event_kinds])
    is_failure = bool(event_kinds) or any(is_unhealthy_xid(code) for code in codes)
    verdict = DiagVerdict.FAIL if is_failure else DiagVerdict.WARN
    return TestResult("xids", uuid, verdict, f"the driver reported {reported}")


def is_unhealthy_xid(code: int) -> bool:
    """Whether DCGM's health check fails on this Xid; unknown Xids count, because our tests cause none."""
    return expectations.health_xids().get(code, UNHEALTHY) == UNHEALTHY
