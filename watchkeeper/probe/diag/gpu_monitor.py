"""What the GPUs did while they were tested: readings folded into extremes, the reason to stop at once, and verdicts.

`diag_work` hands over every line of `diag_watch` and looks at `fatal` after each; `diag_run` takes `results` at the
end. A GPU that lowers its clocks because of its power limit does what it should at full load; one that does so because
of heat, or because the chassis brakes it, does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from watchkeeper.model.diag import DiagVerdict, TestResult
from watchkeeper.probe import expectations
from watchkeeper.probe.diag.software_facts import GpuReading

# The hardware slows the clocks at 0; a reading is a second old, and ending a test takes a moment.
STOP_MARGIN_CELSIUS = 2.0
MARGIN = "watchkeeper_gpu_slowdown_margin_celsius"
REASONS = "watchkeeper_gpu_clocks_event_reason"
UNCORRECTABLE = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
CORRECTABLE = "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"
COUNTERS = {
    UNCORRECTABLE: "uncorrectable memory errors",
    CORRECTABLE: "corrected memory errors",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": "rows remapped after uncorrectable errors",
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": "rows remapped after corrected errors",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": "PCIe replays",
}
REPLAYS = "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"
# The driver's own slowdown comes before the hardware's, and is a warning of it.
BAD_REASONS = {
    "hw_thermal": (DiagVerdict.FAIL, "heat, by the hardware"),
    "hw_power_brake": (DiagVerdict.FAIL, "the chassis' power brake"),
    "hw_slowdown": (DiagVerdict.FAIL, "the hardware"),
    "sw_thermal": (DiagVerdict.WARN, "heat, by the driver"),
}
FATAL_EVENTS = frozenset({"ecc_double_bit", "poison_fatal", "gpu_unavailable", "dram_retirement_failure"})
UNHEALTHY = "unhealthy"


@dataclass(slots=True)
class GpuHistory:
    """One GPU over a run."""

    first: GpuReading
    last: GpuReading
    readings: int = 0
    hottest: float | None = None
    least_margin: float | None = None
    most_watts: float | None = None
    held: dict[str, int] = field(default_factory=dict)
    events: list[tuple[str, int]] = field(default_factory=list)

    def take(self, reading: GpuReading) -> None:
        self.last = reading
        self.readings += 1
        self.hottest = _worse(self.hottest, reading.number("DCGM_FI_DEV_GPU_TEMP"), max)
        self.least_margin = _worse(self.least_margin, reading.number(MARGIN), min)
        self.most_watts = _worse(self.most_watts, reading.number("DCGM_FI_DEV_POWER_USAGE"), max)
        for name, is_on in reading.parts(REASONS).items():
            self.held[name] = self.held.get(name, 0) + bool(is_on)

    def grown(self, counter: str) -> float | None:
        before, after = self.first.number(counter), self.last.number(counter)
        return None if before is None or after is None else max(0.0, after - before)


def _worse(known: float | None, value: float | None, choose: Any) -> float | None:
    return known if value is None else value if known is None else float(choose(known, value))


class GpuMonitor:
    """All GPUs of a run; `fatal` is set once and stays."""

    def __init__(self, tested: Iterable[str]) -> None:
        self._tested = frozenset(tested)
        self.gpus: dict[str, GpuHistory] = {}
        self.fatal: str | None = None

    def take_reading(self, gpus: Sequence[GpuReading], lost: Sequence[str]) -> None:
        for gpu in gpus:
            if gpu.uuid in self._tested:
                self.gpus.setdefault(gpu.uuid, GpuHistory(gpu, gpu)).take(gpu)
        gone = [sentence for sentence in lost if any(uuid in sentence for uuid in self._tested)]
        self.fatal = self.fatal or (gone[0] if gone else self._too_far())

    def take_event(self, words: Mapping[str, Any]) -> None:
        kind, gpu, detail = str(words["kind"]), words.get("gpu"), int(words.get("detail") or 0)
        for uuid, history in self.gpus.items():
            if gpu in (None, uuid):
                history.events.append((kind, detail))
        if gpu is not None and gpu not in self._tested:
            return
        if kind in FATAL_EVENTS:
            self.fatal = self.fatal or f"{gpu or 'a GPU'} reports {kind}"
        if kind == "xid" and is_unhealthy(detail):
            self.fatal = self.fatal or f"{gpu or 'a GPU'} reports Xid {detail}"

    def _too_far(self) -> str | None:
        for uuid, history in self.gpus.items():
            margin = history.last.number(MARGIN)
            if margin is not None and margin <= STOP_MARGIN_CELSIUS:
                limit = f"the limit of a test is {STOP_MARGIN_CELSIUS:g}"
                return f"{uuid} is {margin:g} °C below its slowdown temperature, {limit}"
            if history.grown(UNCORRECTABLE):
                return f"{uuid} has {history.grown(UNCORRECTABLE):g} new uncorrectable memory errors"
        return None

    def results(self) -> tuple[TestResult, ...]:
        found: list[TestResult] = []
        for uuid, history in self.gpus.items():
            found += [_heat(uuid, history), _clocks(uuid, history), _errors(uuid, history), _xids(uuid, history)]
        return tuple(found)


def _heat(uuid: str, history: GpuHistory) -> TestResult:
    if history.hottest is None:
        return TestResult("temperature", uuid, DiagVerdict.SKIP, "the GPU gives no temperature")
    limit, margin = expectations.health_limits()["slowdown_margin"], history.least_margin
    words = f"{history.hottest:g} °C at most"
    if margin is None:
        return TestResult("temperature", uuid, DiagVerdict.PASS, words, measured=history.hottest, unit="°C")
    words += f", {margin:g} °C below slowdown, the limit is {limit:g}"
    verdict = (
        DiagVerdict.FAIL if margin <= STOP_MARGIN_CELSIUS else DiagVerdict.WARN if margin <= limit else DiagVerdict.PASS
    )
    return TestResult("temperature", uuid, verdict, words, measured=history.hottest, unit="°C")


def _clocks(uuid: str, history: GpuHistory) -> TestResult:
    seen = max(1, history.readings)
    watts = "" if history.most_watts is None else f"; {history.most_watts:.0f} W at most"
    bad = [(*row, history.held[name] / seen) for name, row in BAD_REASONS.items() if history.held.get(name)]
    if bad:
        reasons = ", ".join(f"{words} ({share:.0%} of the time)" for _, words, share in bad)
        verdict = DiagVerdict.FAIL if any(one[0] is DiagVerdict.FAIL for one in bad) else DiagVerdict.WARN
        return TestResult("clocks", uuid, verdict, f"clocks were held down by {reasons}{watts}")
    capped = history.held.get("power_cap", 0) / seen
    words = (
        f"at the power limit in {capped:.0%} of the time, which is normal at full load" if capped else "not held down"
    )
    return TestResult("clocks", uuid, DiagVerdict.PASS, f"clocks were {words}{watts}")


def _errors(uuid: str, history: GpuHistory) -> TestResult:
    grown = {name: count for name in COUNTERS if (count := history.grown(name)) is not None}
    said = ", ".join(f"{count:g} {COUNTERS[name]}" for name, count in grown.items() if count)
    if not grown:
        return TestResult("errors", uuid, DiagVerdict.SKIP, "the GPU counts no errors")
    if not said:
        return TestResult("errors", uuid, DiagVerdict.PASS, "no memory error and no PCIe replay in the run")
    is_bad = any(count for name, count in grown.items() if "UNCORRECTABLE" in name or name == UNCORRECTABLE)
    generation = history.last.number("DCGM_FI_DEV_PCIE_LINK_GEN") or 0
    # A reading a second, and the limit is for a minute.
    allowed = expectations.health_limits().get(f"replay_gen{generation:g}", 0.0) * max(1.0, history.readings / 60)
    others = any(count for name, count in grown.items() if name != REPLAYS)
    if not others and grown.get(REPLAYS, 0.0) <= allowed:
        return TestResult("errors", uuid, DiagVerdict.PASS, f"{said} in the run, {allowed:.0f} are allowed")
    return TestResult("errors", uuid, DiagVerdict.FAIL if is_bad else DiagVerdict.WARN, f"{said} in the run")


def _xids(uuid: str, history: GpuHistory) -> TestResult:
    codes = [detail for kind, detail in history.events if kind == "xid"]
    others = sorted({kind for kind, _ in history.events if kind in FATAL_EVENTS})
    if not codes and not others:
        return TestResult("xids", uuid, DiagVerdict.PASS, "the driver reported no Xid")
    said = [*(f"Xid {code}" for code in dict.fromkeys(codes[:8])), *others]
    is_grave = bool(others) or any(is_unhealthy(code) for code in codes)
    return TestResult(
        "xids", uuid, DiagVerdict.FAIL if is_grave else DiagVerdict.WARN, f"the driver reported {', '.join(said)}"
    )


def is_unhealthy(code: int) -> bool:
    """By DCGM's health check; a code that it does not know counts, since our own work provokes none."""
    return expectations.health_xids().get(code, UNHEALTHY) == UNHEALTHY
