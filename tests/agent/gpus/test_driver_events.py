"""Policies, repeated reports, and one event for two reports of one Xid."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from watchkeeper.agent.gpus import driver_events, policies
from watchkeeper.agent.gpus.gpu_samples import GpuSample
from watchkeeper.agent.gpus.sampler import DriverFault, NvmlEvent
from watchkeeper.errors import PackError
from watchkeeper.incidents.signals import clear_rule, from_event
from watchkeeper.model.events import Event, EventKind, EventSource
from watchkeeper.model.fleet import Place
from watchkeeper.readers.nvml.families import Cadence

NOW = datetime(2026, 11, 15, tzinfo=UTC)
UUID = "GPU-1"
PLACE = Place("main", node="n1", gpu=UUID)
FACT = NvmlEvent("xid", UUID, 31, NOW)
LINE = Event("id", EventKind.XID, 31, PLACE, NOW, "NVRM: Xid …")


def sample(at: float, **values: float) -> GpuSample:
    return GpuSample(0, {"uuid": UUID}, {Cadence.FAST: at}, values)


def watch() -> policies.PolicyWatch:
    return policies.PolicyWatch(policies.load_policies())


def names(watching: policies.PolicyWatch, at: float, **values: float) -> list[str]:
    return [violation.policy.name for violation in watching.find_violations([sample(at, **values)], at)]


@pytest.mark.parametrize(
    ("values", "violated"),
    [
        ({"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 1.0}, ["dbe"]),
        ({"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 0.0}, []),
        ({"DCGM_FI_DEV_RETIRED_SBE": 60.0, "DCGM_FI_DEV_RETIRED_DBE": 3.0}, ["max_pages"]),
        ({"watchkeeper_gpu_slowdown_margin_celsius": 0.0}, ["thermal"]),
        ({"DCGM_FI_DEV_POWER_USAGE": 771.0, "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": 700.0}, ["power"]),
        ({"DCGM_FI_DEV_POWER_USAGE": 710.0, "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": 700.0}, []),
        ({"DCGM_FI_DEV_POWER_USAGE": 710.0}, []),
    ],
)
def test_a_policy_is_violated_at_its_limit(values: dict[str, float], violated: list[str]) -> None:
    assert names(watch(), 0.0, **values) == violated


def test_a_counter_violates_a_policy_by_its_growth_within_a_minute() -> None:
    watching, name = watch(), "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"
    assert names(watching, 0.0, **{name: 5000.0}) == []
    assert names(watching, 30.0, **{name: 5031.0}) == []
    assert names(watching, 40.0, **{name: 5032.0}) == ["pcie"]
    assert names(watching, 200.0, **{name: 5032.0}) == []
    assert names(watching, 210.0, **{name: 0.0}) == [], "a reset is no growth"


def test_stale_values_violate_no_policy() -> None:
    violations = watch().find_violations([sample(0.0, DCGM_FI_DEV_ECC_DBE_VOL_TOTAL=1.0)], 60.0)
    assert violations == []


def test_a_policy_with_an_unknown_key_is_refused() -> None:
    with pytest.raises(PackError, match="unknown keys: atleast"):
        policies.load_policies('[policy.x]\nbit=1\ncause="unknown"\nmeasures=["a"]\nwords="w"\nsource="s"\natleast=1\n')


def test_nvml_first_and_the_kernel_line_second_are_one_event() -> None:
    merge = driver_events.XidMerge()
    merge.add_nvml_event(FACT, 10.0)
    assert merge.take_expired(11.9) == []
    assert merge.add_kernel_line(LINE) is True
    assert merge.take_expired(99.0) == []


def test_the_kernel_line_first_and_nvml_second_are_one_event() -> None:
    merge = driver_events.XidMerge()
    assert merge.add_kernel_line(LINE) is False
    merge.add_nvml_event(FACT, 10.0)
    assert merge.take_expired(99.0) == []


@pytest.mark.parametrize(
    "other", [replace(FACT, detail=48), replace(FACT, uuid="GPU-2"), replace(FACT, at=NOW + timedelta(seconds=3))]
)
def test_another_code_gpu_or_time_is_another_event(other: NvmlEvent) -> None:
    merge = driver_events.XidMerge()
    merge.add_kernel_line(LINE)
    merge.add_nvml_event(other, 10.0)
    assert merge.take_expired(12.0) == [other]


def test_a_lasting_condition_is_reported_when_it_starts_and_every_few_minutes() -> None:
    schedule = driver_events.ReportSchedule()
    held = {"hung": object()}
    reported = [at for at in range(0, 700, 10) if schedule.take_due(held, float(at))]
    assert reported == [0, 300, 600]


def test_a_flapping_condition_is_not_reported_each_time() -> None:
    schedule = driver_events.ReportSchedule()
    reported = [at for at in range(120) if schedule.take_due({"hot": 1} if at % 2 == 0 else {}, float(at))]
    assert reported == [0, 60]


def test_ids_continue_after_those_of_an_earlier_agent() -> None:
    source = EventSource("main", "n1", "boot", "nvml")
    fault = DriverFault("driver_call_hung", PLACE, NOW, "hangs")
    first = driver_events.DriverEvents(source, lambda: 100.0)
    ids = [first.build_fault_event(fault).id, first.build_fault_event(fault).id]
    ids.append(driver_events.DriverEvents(source, lambda: 101.0).build_fault_event(fault).id)
    assert [id.rpartition("/")[2] for id in ids] == ["100000000", "100000001", "101000000"]


def test_a_fault_opens_its_own_cause_and_ends_when_it_is_no_longer_repeated() -> None:
    events = driver_events.DriverEvents(EventSource("main", "n1", "boot", "nvml"), lambda: 1.0)
    fault = events.build_fault_event(DriverFault("driver_call_hung", PLACE, NOW, "hangs"))
    signal = from_event(fault)
    assert signal is not None
    assert (signal.cause, signal.family) == ("driver_call_hung", "driver")
    quiet = clear_rule(signal.cause, fault).quiet_seconds
    assert quiet is not None
    assert quiet > driver_events.REPEAT_SECONDS
    assert clear_rule("gpu_fell_off_bus", replace(fault, kind=EventKind.XID)).quiet_seconds is None


def test_nvml_events_that_indicate_no_fault_are_not_sent() -> None:
    events = driver_events.DriverEvents(EventSource("main", "n1", "boot", "nvml"), lambda: 1.0)
    assert events.build_nvml_event(replace(FACT, kind="clock")) is None
    assert events.build_nvml_event(replace(FACT, kind="recovery_action", detail=0)) is None
    event = events.build_nvml_event(replace(FACT, kind="ecc_double_bit"))
    assert event is not None
    assert event.fields["cause"] == "ecc_uncorrectable"
