"""GPUs during tests: temperature, slowdowns, errors and Xids, and when everything must stop."""

from __future__ import annotations

from typing import Any

import pytest

from tests.probe.diag.standins import UUID, row
from watchkeeper.model.diag import DiagVerdict
from watchkeeper.probe.diag import software_facts
from watchkeeper.probe.diag.gpu_monitor import GpuMonitor

GPU = f"{UUID}0"


def monitored(*readings: dict[str, Any]) -> GpuMonitor:
    monitor = GpuMonitor([GPU])
    for values in readings:
        monitor.add_readings(*software_facts.read_gpus([row(**values), row(1, **values)]))
    return monitor


def verdict(monitor: GpuMonitor, test: str) -> DiagVerdict:
    return next(result.verdict for result in monitor.results() if result.test == test)


def test_clocks_at_the_power_limit_are_normal_at_full_load() -> None:
    monitor = monitored({"watchkeeper_gpu_clocks_event_reason": {"power_cap": 1, "hw_thermal": 0}}, {})
    assert verdict(monitor, "clocks") is DiagVerdict.PASS
    assert "power limit 100% of the time, which is normal" in next(iter(monitor.results()[1:])).why


@pytest.mark.parametrize(
    ("reason", "answer"),
    [("hw_thermal", DiagVerdict.FAIL), ("hw_power_brake", DiagVerdict.FAIL), ("sw_thermal", DiagVerdict.WARN)],
)
def test_clocks_reduced_by_heat_or_a_power_brake_do_not_pass(reason: str, answer: DiagVerdict) -> None:
    assert verdict(monitored({}, {"watchkeeper_gpu_clocks_event_reason": {reason: 1}}, {}), "clocks") is answer


def test_a_margin_near_slowdown_warns_before_it_stops() -> None:
    near = monitored({}, {"watchkeeper_gpu_slowdown_margin_celsius": 4}, {})
    assert (verdict(near, "temperature"), near.stop_reason) == (DiagVerdict.WARN, None)
    over = monitored({}, {"watchkeeper_gpu_slowdown_margin_celsius": 2}, {})
    assert over.stop_reason == f"{GPU} is 2 °C below its slowdown temperature, the limit is 2 °C"
    assert verdict(over, "temperature") is DiagVerdict.FAIL


def test_only_errors_of_this_run_count() -> None:
    old = {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 7, "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 100}
    assert verdict(monitored(old, old), "errors") is DiagVerdict.PASS
    corrected = monitored(old, old | {"DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 101})
    assert (verdict(corrected, "errors"), corrected.stop_reason) == (DiagVerdict.WARN, None)
    worse = monitored(old, old | {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 8})
    assert (verdict(worse, "errors"), worse.stop_reason) == (
        DiagVerdict.FAIL,
        f"{GPU} has 1 new uncorrectable memory errors",
    )


def test_a_few_pcie_replays_are_allowed() -> None:
    link = {"DCGM_FI_DEV_PCIE_LINK_GEN": 5, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 3}
    assert verdict(monitored(link, link | {"DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 13}), "errors") is DiagVerdict.PASS
    assert verdict(monitored(link, link | {"DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 99}), "errors") is DiagVerdict.WARN


def test_an_application_xid_warns_and_a_severe_event_stops_the_run() -> None:
    monitor = monitored({})
    monitor.add_event({"kind": "xid", "gpu": f"{UUID}1", "detail": 79})
    assert (monitor.stop_reason, verdict(monitor, "xids")) == (None, DiagVerdict.PASS)
    monitor.add_event({"kind": "xid", "gpu": GPU, "detail": 31})
    assert (monitor.stop_reason, verdict(monitor, "xids")) == (None, DiagVerdict.WARN)
    monitor.add_event({"kind": "ecc_double_bit", "gpu": GPU, "detail": 0})
    assert (monitor.stop_reason, verdict(monitor, "xids")) == (f"{GPU} reports ecc_double_bit", DiagVerdict.FAIL)


def test_a_lost_gpu_stops_the_run_only_if_it_is_tested() -> None:
    monitor = monitored({})
    monitor.add_readings((), (f"{UUID}1 is lost",))
    assert monitor.stop_reason is None
    monitor.add_readings((), (f"{GPU} is lost",))
    assert monitor.stop_reason == f"{GPU} is lost"


def test_a_gpu_without_readings_is_not_reported_as_healthy() -> None:
    monitor = GpuMonitor([GPU])
    bare = row()
    monitor.add_readings(*software_facts.read_gpus([{**bare, "values": {"DCGM_FI_DEV_GPU_UTIL": 1}}]))
    assert (verdict(monitor, "temperature"), verdict(monitor, "errors")) == (DiagVerdict.SKIP, DiagVerdict.SKIP)
