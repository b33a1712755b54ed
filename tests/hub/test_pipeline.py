"""The way from samples to plans when something on it fails, stops, or happens twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.hub_stories import HOT, Line, gpu, later, xid
from watchkeeper.errors import StoreError
from watchkeeper.kit import clock
from watchkeeper.model.alerts import AlertState
from watchkeeper.model.incidents import IncidentState
from watchkeeper.query import engine as engines
from watchkeeper.rules import evaluate

TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"


def heat_up(line: Line, start: float = 0) -> None:
    """Hot for long enough to fire at the last of four evaluations."""
    for seconds in (0, 15, 30, 45):
        line.read(TEMPERATURE, 95.0, start + seconds)
        line.run_rules(start + seconds)


def test_an_alert_that_fires_while_the_journal_cannot_write_becomes_an_incident_later(line: Line) -> None:
    line.break_journal()
    with pytest.raises(StoreError):
        heat_up(line)
    with pytest.raises(StoreError):
        line.pipeline.tick(later(46))
    assert line.open() == []
    line.break_journal(False)
    assert [incident.id for incident in line.pipeline.tick(later(47))] == ["INC-1"]
    assert line.open() == [("INC-1", "cooling_failure")]


def test_an_alert_that_ends_while_the_journal_cannot_write_ends_its_incident_later(line: Line) -> None:
    heat_up(line)
    line.break_journal()
    line.read(TEMPERATURE, 50.0, 60)
    with pytest.raises(StoreError):
        line.run_rules(60)
    line.break_journal(False)
    line.pipeline.tick(later(70))
    line.pipeline.tick(later(140))
    assert line.open() == []


def test_an_unexpected_alert_does_not_block_the_others(line: Line) -> None:
    heat_up(line)
    (good,) = (alert for alert in line.pipeline.active_alerts() if alert.state is AlertState.FIRING)
    bad = replace(good, labels=good.labels.with_labels(Hostname="n2"), annotations={"summary": object()})  # type: ignore[dict-item]
    other = replace(good, labels=good.labels.with_labels(Hostname="n3"))
    line.pipeline.ingest_alerts([bad, other], later(50))
    assert {incident.place.node for incident in line.pipeline.incidents.open_incidents()} == {"n1", "n3"}


def test_a_failed_workload_query_does_not_lose_the_event(line: Line) -> None:
    def refuse(expr: str, at_ms: int) -> engines.QueryResult:
        raise RuntimeError("no memory")

    line.engine.instant = refuse  # type: ignore[method-assign]
    (incident,) = line.pipeline.ingest_events([xid(79, gpu(0), 0)], later(0)).changed_incidents
    assert (incident.cause, incident.workloads) == ("gpu_fell_off_bus", ())


def test_a_restart_does_not_resolve_an_alert_whose_fault_persists(line: Line) -> None:
    heat_up(line)
    line.restart(100)
    line.run_rules(105)
    line.pipeline.tick(later(106))
    assert [member.until for member in line.pipeline.incidents.open_incidents()[0].members] == [None]
    line.read(TEMPERATURE, 95.0, 120)
    line.run_rules(120)
    line.run_rules(180)
    line.pipeline.tick(later(300))
    assert line.open() == [("INC-1", "cooling_failure")]


def test_after_a_restart_an_alert_resolves_once_its_expression_had_time_to_be_true(line: Line) -> None:
    heat_up(line)
    line.restart(100)
    for seconds in (105, 120, 150):
        line.read(TEMPERATURE, 50.0, seconds)
        line.run_rules(seconds)
    assert len(line.open()) == 1
    line.run_rules(165)
    line.pipeline.tick(later(226))
    assert line.open() == []


def test_the_time_while_the_hub_was_down_does_not_count_as_pending(line: Line) -> None:
    line.read(TEMPERATURE, 95.0, 0)
    line.read(evaluate.HEARTBEAT, 0.1, 0)
    line.run_rules(0)
    line.restart(60, keeps_samples=True)
    for seconds in (60, 75):
        line.read(TEMPERATURE, 95.0, seconds)
        line.run_rules(seconds)
    assert line.open() == []
    line.run_rules(90)
    assert line.open() == [("INC-1", "cooling_failure")]


def test_series_of_rules_from_before_a_restart_end_with_the_first_evaluation(line: Line) -> None:
    line.read(TEMPERATURE, 95.0, 0)
    line.run_rules(0)
    line.restart(60, keeps_samples=True)
    line.read(TEMPERATURE, 50.0, 60)
    assert len(line.engine.instant("ALERTS", clock.to_ms(later(60))).latest()) == 1
    line.run_rules(60)
    assert line.engine.instant('{__name__=~"ALERTS.*"}', clock.to_ms(later(60))).latest() == {}


def test_an_alert_of_a_rule_removed_during_a_restart_resolves(line: Line) -> None:
    heat_up(line)
    line.restart(100, HOT.replace("alert: Hot", "alert: Warm"))
    line.pipeline.tick(later(100))
    line.pipeline.tick(later(161))
    assert (line.open(), line.journal.alerts()) == ([], [])


def test_an_alert_that_keeps_firing_reopens_an_incident_that_a_person_resolved(line: Line) -> None:
    heat_up(line)
    line.pipeline.incidents.resolve("INC-1", "ada", why="done", now=later(60))
    assert line.pipeline.tick(later(659)) == []
    (back,) = line.pipeline.tick(later(660))
    assert back.state is IncidentState.OPEN


def test_two_incidents_that_would_reboot_the_same_node_name_each_other(line: Line) -> None:
    line.pipeline.ingest_events([xid(79, gpu(0), 0), xid(79, gpu(1), 0)], later(0))
    for incident in line.pipeline.incidents.open_incidents():
        line.pipeline.diagnose(incident, later(1))
    for own, other in (("INC-1", "INC-2"), ("INC-2", "INC-1")):
        plan = line.journal.plan(own)
        assert plan is not None
        (reboot,) = (receipt.text for receipt in plan.receipts if receipt.action.kind == "reboot")
        assert f"(also planned for {other}: one reboot is enough)" in reboot


def test_a_program_that_failed_because_of_bad_memory_joins_that_incident(line: Line) -> None:
    line.pipeline.ingest_events([xid(31, gpu(0), 0)], later(0))
    line.pipeline.ingest_events([xid(48, gpu(0), 60)], later(60))
    app = line.pipeline.incidents.open_incidents()[0]
    finding = line.pipeline.diagnose(app, later(61))
    assert finding is not None
    line.pipeline.apply_finding(app, finding, later(61))
    assert line.open() == [("INC-2", "ecc_uncorrectable")]
    assert line.journal.timeline("INC-1")[-1].text == "Part of INC-2"


def test_without_a_separate_incident_the_better_cause_renames_the_explained_one(line: Line) -> None:
    line.pipeline.ingest_events([xid(31, gpu(0), 0)], later(0))
    line.pipeline.ingest_events([xid(48, gpu(0), 60)], later(60))
    line.pipeline.incidents.resolve("INC-2", "ada", why="done", now=later(60))
    app = line.pipeline.incidents.open_incidents()[0]
    finding = line.pipeline.diagnose(app, later(61))
    assert finding is not None
    (named,) = line.pipeline.apply_finding(app, finding, later(61))
    assert (named.id, named.cause, named.severity) == ("INC-1", "ecc_uncorrectable", "critical")
    assert "uncorrectable" in named.title
