"""What happens while tests run: heat, brakes, errors and Xids, and when everything must stop."""

from __future__ import annotations

from typing import Any

import pytest

from tests.probe.diag.standins import UUID, row
from watchkeeper.model.diag import DiagVerdict
from watchkeeper.probe.diag import software_facts
from watchkeeper.probe.diag.gpu_monitor import GpuMonitor

GPU = f"{UUID}0"


def watched(*readings: dict[str, Any]) -> GpuMonitor:
    found = GpuMonitor([GPU])
    for values in readings:
        found.take_reading(*software_facts.read_gpus([row(**values), row(1, **values)]))
    return found


def verdict(found: GpuMonitor, test: str) -> DiagVerdict:
    return next(result.verdict for result in found.results() if result.test == test)


def test_clocks_at_the_power_limit_are_normal_at_full_load() -> None:
    found = watched({"watchkeeper_gpu_clocks_event_reason": {"power_cap": 1, "hw_thermal": 0}}, {})
    assert verdict(found, "clocks") is DiagVerdict.PASS
    assert "power limit in 100% of the time, which is normal" in next(iter(found.results()[1:])).why


@pytest.mark.parametrize(
    ("reason", "answer"),
    [("hw_thermal", DiagVerdict.FAIL), ("hw_power_brake", DiagVerdict.FAIL), ("sw_thermal", DiagVerdict.WARN)],
)
def test_clocks_that_heat_or_the_chassis_hold_down_are_no_pass(reason: str, answer: DiagVerdict) -> None:
    assert verdict(watched({}, {"watchkeeper_gpu_clocks_event_reason": {reason: 1}}, {}), "clocks") is answer


def test_a_margin_near_slowdown_warns_before_it_stops() -> None:
    near = watched({}, {"watchkeeper_gpu_slowdown_margin_celsius": 4}, {})
    assert (verdict(near, "temperature"), near.fatal) == (DiagVerdict.WARN, None)
    over = watched({}, {"watchkeeper_gpu_slowdown_margin_celsius": 2}, {})
    assert over.fatal == f"{GPU} is 2 °C below its slowdown temperature, the limit of a test is 2"
    assert verdict(over, "temperature") is DiagVerdict.FAIL


def test_only_errors_of_this_run_count() -> None:
    old = {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 7, "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 100}
    assert verdict(watched(old, old), "errors") is DiagVerdict.PASS
    corrected = watched(old, old | {"DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 101})
    assert (verdict(corrected, "errors"), corrected.fatal) == (DiagVerdict.WARN, None)
    worse = watched(old, old | {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 8})
    assert (verdict(worse, "errors"), worse.fatal) == (DiagVerdict.FAIL, f"{GPU} has 1 new uncorrectable memory errors")


def test_a_few_pcie_replays_are_allowed() -> None:
    link = {"DCGM_FI_DEV_PCIE_LINK_GEN": 5, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 3}
    assert verdict(watched(link, link | {"DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 13}), "errors") is DiagVerdict.PASS
    assert verdict(watched(link, link | {"DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 99}), "errors") is DiagVerdict.WARN


def test_an_xid_of_a_program_warns_and_a_grave_event_stops() -> None:
    found = watched({})
    found.take_event({"kind": "xid", "gpu": f"{UUID}1", "detail": 79})
    assert (found.fatal, verdict(found, "xids")) == (None, DiagVerdict.PASS)
    found.take_event({"kind": "xid", "gpu": GPU, "detail": 31})
    assert (found.fatal, verdict(found, "xids")) == (None, DiagVerdict.WARN)
    found.take_event({"kind": "ecc_double_bit", "gpu": GPU, "detail": 0})
    assert (found.fatal, verdict(found, "xids")) == (f"{GPU} reports ecc_double_bit", DiagVerdict.FAIL)


def test_a_gpu_that_is_lost_stops_its_test_and_another_does_not() -> None:
    found = watched({})
    found.take_reading((), (f"{UUID}1 is lost",))
    assert found.fatal is None
    found.take_reading((), (f"{GPU} is lost",))
    assert found.fatal == f"{GPU} is lost"


def test_a_gpu_without_numbers_is_not_called_healthy() -> None:
    found = GpuMonitor([GPU])
    bare = row()
    found.take_reading(*software_facts.read_gpus([{**bare, "values": {"DCGM_FI_DEV_GPU_UTIL": 1}}]))
    assert (verdict(found, "temperature"), verdict(found, "errors")) == (DiagVerdict.SKIP, DiagVerdict.SKIP)
