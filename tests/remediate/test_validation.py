"""Validation: what was not seen has not passed, and what came since the repair has failed it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from tests.remediate.evidence_files import GPU, NODE, NOON, xid
from watchkeeper.errors import StoreError
from watchkeeper.model import alerts, events, fleet, incidents
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.remediate.validation import (
    BootCheck,
    CheckResult,
    CheckState,
    ConditionsClear,
    DomainCool,
    GpusPresent,
    NoNewXid,
    run_checks,
)
from watchkeeper.store.head.head import Head
from watchkeeper.store.journal.journal import Journal

MINUTE = timedelta(minutes=1)


@dataclass
class Records:
    events: list[events.Event] = field(default_factory=list)
    open: list[incidents.Incident] = field(default_factory=list)

    def events_at(
        self, place: fleet.Place, *, since: datetime, until: datetime, limit: int = 1000
    ) -> list[events.Event]:
        return [event for event in self.events if since <= event.at <= until and place.encloses(event.place)][:limit]

    def open_incidents_at(self, _: fleet.Place) -> list[str]:
        return [incident.id for incident in self.open]

    def incident(self, id: str) -> incidents.Incident | None:
        return next(incident for incident in self.open if incident.id == id)


def state_and_text(verdict: CheckResult) -> tuple[CheckState, str]:
    return verdict.state, verdict.text


def test_a_node_must_soak_before_it_passes() -> None:
    check = NoNewXid(Records([xid(79, NOON - MINUTE)]))
    assert state_and_text(check.check(NODE, NOON, NOON + MINUTE)) == (
        CheckState.UNKNOWN,
        "Soaking: 60 of 300 s without a new Xid",
    )
    assert check.check(NODE, NOON, NOON + 5 * MINUTE).state is CheckState.PASSED


def test_an_xid_of_hardware_after_the_repair_fails_it_and_one_of_a_program_does_not() -> None:
    check = NoNewXid(Records([xid(31, NOON + MINUTE)]))
    assert check.check(NODE, NOON, NOON + 5 * MINUTE).state is CheckState.PASSED
    check = NoNewXid(Records([xid(48, NOON + MINUTE)]))
    assert state_and_text(check.check(NODE, NOON, NOON + 2 * MINUTE)) == (
        CheckState.FAILED,
        "Xid 48 at 12:01:00Z: Xid 48",
    )


def boot_check(*readings: tuple[str, float, float], boots: tuple[float, ...] = ()) -> BootCheck:
    """`readings` are name, second and value, by the clock of the hub; `boots` the seconds of boot lines."""
    engine, at_ms = EmbeddedEngine(Head(max_series=100)), round(NOON.timestamp() * 1000)
    for name, second, value in readings:
        host = {"instance": f"{NODE.node}:9100"} if name == "node_boot_time_seconds" else {"Hostname": NODE.node or ""}
        labels = Labels({"__name__": name, "cluster": NODE.cluster, **host})
        engine.appender.append([Sample(labels, at_ms + round(1000 * second), value)])
    lines = [
        events.Event(f"b{at}", events.EventKind.NODE_BOOT, None, NODE, NOON + timedelta(seconds=at), "Linux version")
        for at in boots
    ]
    return BootCheck(engine, Records([replace(line, received_at=line.at) for line in lines]))


BOOT, UPTIME = "node_boot_time_seconds", "watchkeeper_host_uptime_seconds"
# The clock of this node is five minutes behind that of the hub.
SLOW = NOON.timestamp() - 300


def test_a_boot_is_seen_by_boot_time_uptime_or_kernel_log() -> None:
    seen = [
        boot_check((BOOT, -10, SLOW - 86_400), (BOOT, 110, SLOW + 60)),
        boot_check((UPTIME, -10, 86_400), (UPTIME, 110, 40)),
        boot_check((UPTIME, 110, 40)),
        boot_check(boots=(60,)),
    ]
    assert [check.check(NODE, NOON, NOON + 2 * MINUTE).state for check in seen] == [CheckState.PASSED] * 4  # type: ignore[union-attr]


def test_what_a_node_reports_before_it_goes_down_is_no_boot() -> None:
    awaited = [
        boot_check((BOOT, -10, SLOW - 86_400), (BOOT, 5, SLOW - 86_398)),
        boot_check((BOOT, -10, SLOW - 86_400)),
        boot_check((UPTIME, -10, 86_400), (UPTIME, 20, 86_430)),
        boot_check((UPTIME, -10, 86_400), boots=(-60,)),
    ]
    for check in awaited:
        result = check.check(NODE, NOON, NOON + MINUTE / 2)
        assert result is not None
        assert state_and_text(result) == (CheckState.UNKNOWN, f"{NODE.node} has not booted since 12:00:00Z")


def test_a_boot_of_a_node_without_a_source_is_unknown_for_good() -> None:
    assert boot_check().check(NODE, NOON, NOON + MINUTE) is None


def test_a_rack_is_cool_when_each_gpu_was_below_its_limit_for_ten_minutes() -> None:
    engine = EmbeddedEngine(Head(max_series=100))
    rack, at_ms = fleet.Place("main", domain="rack=r1"), round(NOON.timestamp() * 1000)

    def report(node: str, rack: str, celsius: float, minutes: int) -> None:
        gpu = {"cluster": "main", "Hostname": node, "UUID": f"GPU-{node}"}
        info = {"__name__": "watchkeeper_node_info", "cluster": "main", "Hostname": node, "rack": rack}
        limit = Labels({"__name__": "DCGM_FI_DEV_GPU_MAX_OP_TEMP", **gpu})
        reading = Labels({"__name__": "DCGM_FI_DEV_GPU_TEMP", **gpu})
        values = ((Labels(info), 1.0), (limit, 87.0), (reading, celsius))
        engine.appender.append([Sample(series, at_ms + minutes * 60_000, value) for series, value in values])

    def judged(minutes: int) -> CheckResult:
        return DomainCool(engine).check(rack, NOON, NOON + minutes * MINUTE)

    assert state_and_text(judged(0)) == (CheckState.UNKNOWN, "no GPU of r1 reports its temperature")
    report("n1", "r1", 85.0, 0)
    report("n2", "r2", 95.0, 10)
    report("n1", "r1", 60.0, 9)
    hot = "the hottest GPU of r1 was at 85 °C within 10 minutes, the limit is 77 °C"
    assert state_and_text(judged(9)) == (CheckState.UNKNOWN, hot)
    report("n1", "r1", 60.0, 11)
    assert judged(11).state is CheckState.PASSED
    # A rack that stops reporting is not cool.
    assert judged(40).state is CheckState.UNKNOWN


def test_gpus_count_when_they_reported_after_the_repair() -> None:
    engine = EmbeddedEngine(Head(max_series=100))
    check, at_ms = GpusPresent(engine), round(NOON.timestamp() * 1000)
    labels = {"cluster": "main", "Hostname": "n1"}

    def report(name: str, value: float, seconds: int, **more: str) -> None:
        series = Labels({"__name__": name, **labels, **more})
        engine.appender.append([Sample(series, at_ms + seconds * 1000, value)])

    report("DCGM_FI_DEV_GPU_TEMP", 40.0, -10, UUID="GPU-1")
    assert state_and_text(check.check(NODE, NOON, NOON)) == (
        CheckState.UNKNOWN,
        "0 GPUs report, the expected number is unknown",
    )
    report("watchkeeper_node_expected_gpus", 2.0, 0)
    report("DCGM_FI_DEV_GPU_TEMP", 40.0, 10, UUID="GPU-1")
    verdict = check.check(NODE, NOON, NOON + timedelta(seconds=20))
    assert state_and_text(verdict) == (CheckState.UNKNOWN, "1 of 2 GPUs have reported since 12:00:00Z")
    report("DCGM_FI_DEV_GPU_TEMP", 40.0, 15, UUID="GPU-2")
    assert check.check(NODE, NOON, NOON + timedelta(seconds=20)).state is CheckState.PASSED


def test_a_fault_that_lasts_keeps_the_node_out() -> None:
    member = incidents.Member(
        incidents.MemberKind.EVENT, "e", GPU, "gpu_fell_off_bus", NOON, "Xid 79", alerts.Severity.CRITICAL
    )
    incident = incidents.Incident(
        incidents.IncidentId("INC-1"),
        GPU,
        "lost",
        alerts.Severity.CRITICAL,
        incidents.IncidentState.OPEN,
        NOON,
        "gpu_fell_off_bus",
        "gpu_lost",
        (member,),
    )
    records = Records(open=[incident])
    verdict = ConditionsClear(records).check(NODE, NOON, NOON)
    assert state_and_text(verdict) == (CheckState.UNKNOWN, "1 hardware faults are active, such as: Xid 79")
    records.open = [replace(incident, members=(replace(member, until=NOON),))]
    assert ConditionsClear(records).check(NODE, NOON, NOON).state is CheckState.PASSED


def test_a_check_without_validator_or_that_fails_to_run_has_not_passed() -> None:
    class Broken:
        name = "broken"

        def check(self, place: fleet.Place, since: datetime, now: datetime) -> CheckResult:
            raise StoreError("the disk is gone")

    verdicts = run_checks(["magic", "broken"], {"broken": Broken()}, NODE, since=NOON, now=NOON)
    assert [verdict.state for verdict in verdicts] == [CheckState.UNKNOWN, CheckState.UNKNOWN]
    assert verdicts[1].text == "the check broken failed to run: the disk is gone"


def test_the_journal_serves_the_checks(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    soon = NOON + timedelta(seconds=1)
    journal.save_events([xid(79, NOON)], NOON)
    assert NoNewXid(journal).check(NODE, NOON, soon).state is CheckState.UNKNOWN
    journal.save_events([xid(48, soon)], soon)
    assert NoNewXid(journal).check(NODE, NOON, soon).state is CheckState.FAILED
    assert ConditionsClear(journal).check(NODE, NOON, NOON).state is CheckState.PASSED
    journal.close()


def test_a_gpu_that_two_exporters_report_counts_once() -> None:
    engine = EmbeddedEngine(Head())
    at = int((NOON + MINUTE).timestamp() * 1000)
    where = {"cluster": "main", "Hostname": "n1"}
    states = [
        Sample(Labels({"__name__": "DCGM_FI_DEV_GPU_TEMP", "UUID": "GPU-1", "job": job, **where}), at, 40.0)
        for job in ("dcgm-exporter", "watchkeeper")
    ]
    expected = Sample(Labels({"__name__": "watchkeeper_node_expected_gpus", **where}), at, 2.0)
    engine.appender.append([*states, expected])
    verdict = GpusPresent(engine).check(NODE, NOON, NOON + MINUTE)
    assert (verdict.state, verdict.text[:15]) == (CheckState.UNKNOWN, "1 of 2 GPUs hav")
    engine.close()
