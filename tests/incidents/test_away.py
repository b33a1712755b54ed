"""After a hub was down, nothing ends until agents and rules had time to report again."""

from __future__ import annotations

from tests.support.incident_stories import Room, alert, event, gpu, node, xid
from watchkeeper.model.events import EventKind
from watchkeeper.model.incidents import IncidentState


def test_a_fault_that_continues_while_the_hub_is_down_neither_ends_nor_reopens(room: Room) -> None:
    room.push(xid(43, gpu(1), 0))
    room.restart(1800, away=1790)
    assert room.tick(1801) == []
    room.push(xid(43, gpu(1), 1795), at=1850)
    assert room.tick(1981) == []
    assert room.steps() == ["opened"], "the same fault, which lasts"
    assert room.incidents.open_incidents()[0].reopened == 0


def test_a_quiet_fault_resolves_after_the_catch_up_time(room: Room) -> None:
    room.push(xid(43, gpu(1), 0))
    room.restart(1800, away=1790)
    assert room.tick(1979) == []
    assert [incident.state for incident in room.tick(1981)] == [IncidentState.RESOLVED]


def test_a_fault_repaired_while_the_hub_was_down_waits_for_the_rules(room: Room) -> None:
    room.push(xid(79, gpu(1), 0))
    room.restart(600, away=550)
    room.push(event(EventKind.NODE_BOOT, node(), 400), at=602)
    room.tick(603)
    room.hear(alert("gpu_missing", node(), 680))
    assert [incident.id for incident in room.incidents.open_incidents()] == ["INC-1"]
    assert room.steps().count("resolved") == 0


def test_a_short_restart_changes_nothing(room: Room) -> None:
    room.push(xid(43, gpu(1), 0))
    room.restart(620, away=30)
    room.tick(621)
    assert [incident.state for incident in room.tick(661)] == [IncidentState.RESOLVED]


def test_a_clock_that_is_set_back_does_not_keep_incidents_open(room: Room) -> None:
    room.push(xid(43, gpu(1), 0))
    room.restart(7200, away=7000)
    assert [incident.state for incident in room.tick(3600)] == [IncidentState.RESOLVED]
