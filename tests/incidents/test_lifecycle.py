"""How incidents end, return, are worked on, and survive a restart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.incident_stories import Room, alert, event, gpu, later, node, xid
from watchkeeper.errors import InvalidTransition, JournalConflict
from watchkeeper.model.events import REPORTS_RECOVERY, SERVER, Event, EventKind
from watchkeeper.model.fleet import Place
from watchkeeper.model.incidents import IncidentState


def test_a_hardware_fault_ends_with_a_boot_of_its_node_and_resolves_after_the_hold(room: Room) -> None:
    room.push(xid(79, gpu(3), 0))
    room.tick(3600)
    assert len(room.open()) == 1
    room.push(event(EventKind.NODE_BOOT, node(), 4000))
    room.tick(4059)
    assert len(room.open()) == 1
    (done,) = room.tick(4060)
    assert (done.state, done.resolved_at) == (IncidentState.RESOLVED, later(4060))
    assert room.steps() == ["opened", "ended", "resolved"]


def test_a_link_fault_ends_when_the_link_is_up_and_not_with_a_boot(room: Room) -> None:
    port = Place("main", node="n1", port="mlx5_0")
    room.push(event(EventKind.FABRIC_DOWN, port, 0))
    room.push(event(EventKind.NODE_BOOT, node(), 100))
    room.tick(1000)
    assert len(room.open()) == 1
    room.push(event(EventKind.FABRIC_UP, port, 1100))
    room.tick(1300)
    assert room.open() == []


def storage(kind: EventKind, server: str, at: float, *, waits: bool = True) -> Event:
    named = {SERVER: server, **({REPORTS_RECOVERY: "1"} if waits and kind is EventKind.STORAGE_LOST else {})}
    return replace(event(kind, node(), at, id=f"{kind}/{server}/{at}"), fields=named)


def test_a_lost_file_server_stays_lost_until_the_same_server_answers(room: Room) -> None:
    room.push(storage(EventKind.STORAGE_LOST, "filer-1", 0), storage(EventKind.STORAGE_LOST, "filer-2", 1))
    room.push(xid(31, gpu(3), 2))
    room.tick(7200)
    room.restart(7201)
    room.push(storage(EventKind.STORAGE_BACK, "filer-1", 7300), storage(EventKind.STORAGE_BACK, "filer-3", 7301))
    room.tick(7400)
    (away,) = room.incidents.open_incidents()
    assert away.cause == "storage_unreachable"
    assert [member.ref for member in away.members if member.until is None] == ["storage_lost/filer-2/1"]
    room.restart(7500)
    room.push(storage(EventKind.STORAGE_BACK, "filer-2", 9000))
    room.tick(9061)
    assert room.open() == []


def test_a_file_server_and_a_gpu_of_one_node_do_not_clear_each_other(room: Room) -> None:
    room.push(storage(EventKind.STORAGE_LOST, "filer-1", 0), event(EventKind.GPU_RESET, node(), 10))
    room.tick(90)
    assert [cause for _, _, cause in room.open()] == ["storage_unreachable"]
    room.push(xid(79, gpu(3), 100), event(EventKind.STORAGE_BACK, node(), 101))
    room.tick(190)
    assert [cause for _, _, cause in room.open()] == ["gpu_fell_off_bus"]


def test_a_lost_file_server_without_a_recovery_event_ends_when_it_stays_quiet(room: Room) -> None:
    room.push(storage(EventKind.STORAGE_LOST, "filer-1", 0, waits=False))
    room.push(storage(EventKind.STORAGE_LOST, "filer-2", 1))
    room.tick(700)
    assert [member.until is None for member in room.incidents.open_incidents()[0].members] == [False, True]
    # The process that waited for the other server was killed, so no recovery is logged.
    room.tick(86_401)
    room.tick(86_501)
    assert room.open() == []


def test_a_reset_of_another_gpu_ends_nothing(room: Room) -> None:
    room.push(xid(48, gpu(3), 0))
    room.push(event(EventKind.GPU_RESET, gpu(4), 10))
    room.tick(1000)
    assert len(room.open()) == 1


def test_an_application_fault_ends_when_it_has_been_quiet_for_ten_minutes(room: Room) -> None:
    room.push(xid(31, gpu(1), 0))
    room.push(xid(31, gpu(1), 300))
    room.tick(899)
    assert room.incidents.open_incidents()[0].members[0].until is None
    room.tick(960)
    assert room.open() == []


def test_an_incident_waits_for_its_last_signal(room: Room) -> None:
    room.push(xid(79, gpu(3), 0))
    room.hear(alert("gpu_missing", node(), 30))
    room.push(event(EventKind.NODE_BOOT, node(), 100))
    room.tick(500)
    assert len(room.open()) == 1
    room.hear(alert("gpu_missing", node(), 30, ends=600))
    room.tick(660)
    assert room.open() == []


def test_an_alert_that_returns_soon_reopens_the_same_incident(room: Room) -> None:
    room.hear(alert("cooling_failure", node(), 0), alert("cooling_failure", node(), 0, ends=100))
    room.tick(160)
    assert room.open() == []
    room.hear(alert("cooling_failure", node(), 400))
    assert room.open() == [("INC-1", node(), "cooling_failure")]
    assert room.steps() == ["opened", "ended", "resolved", "reopened"]


def test_an_alert_that_returns_much_later_is_a_new_incident(room: Room) -> None:
    room.hear(alert("cooling_failure", node(), 0), alert("cooling_failure", node(), 0, ends=100))
    room.tick(160)
    room.tick(1000)
    room.hear(alert("cooling_failure", node(), 1001))
    assert [id for id, _, _ in room.open()] == ["INC-2"]


def test_an_alert_that_blinks_within_the_hold_stays_one_open_incident(room: Room) -> None:
    room.hear(alert("cooling_failure", node(), 0), alert("cooling_failure", node(), 0, ends=10))
    room.hear(alert("cooling_failure", node(), 30))
    room.tick(100)
    assert len(room.open()) == 1
    assert len(room.incidents.open_incidents()[0].members) == 1


def test_the_same_alert_told_twice_changes_nothing(room: Room) -> None:
    room.hear(alert("cooling_failure", node(), 0), alert("cooling_failure", node(), 0))
    assert room.steps() == ["opened"]
    room.hear(alert("cooling_failure", node(), 0, ends=5), alert("cooling_failure", node(), 0, ends=5))
    assert room.steps() == ["opened", "ended"]


def test_what_a_spool_delivers_late_from_before_a_reboot_opens_nothing(room: Room) -> None:
    room.push(event(EventKind.NODE_BOOT, node(), 100))
    assert room.push(xid(79, gpu(3), 50), at=200) == ()
    assert room.open() == []


def test_an_alert_does_not_reopen_at_once_what_a_person_resolved(room: Room) -> None:
    room.hear(alert("cooling_failure", node(), 0))
    room.incidents.acknowledge("INC-1", "ada", later(10))
    room.incidents.add_note("INC-1", "ada", text="Fan tray ordered", now=later(20))
    room.incidents.resolve("INC-1", "ada", why="Replaced the fan tray", now=later(30))
    room.hear(alert("cooling_failure", node(), 0))
    assert room.open() == []
    assert [(entry.kind, entry.actor, entry.text) for entry in room.journal.timeline("INC-1")][1:] == [
        ("acknowledged", "ada", "ada is working on it"),
        ("noted", "ada", "Fan tray ordered"),
        ("resolved", "ada", "Replaced the fan tray"),
    ]


def test_a_resolved_incident_cannot_be_acknowledged_and_an_unknown_one_is_named(room: Room) -> None:
    room.hear(alert("cooling_failure", node(), 0))
    room.incidents.resolve("INC-1", "ada", why="done", now=later(1))
    with pytest.raises(InvalidTransition, match="resolved cannot become acknowledged"):
        room.incidents.acknowledge("INC-1", "ada", later(2))
    with pytest.raises(InvalidTransition, match="INC-9: there is no such incident"):
        room.incidents.add_note("INC-9", "ada", text="?", now=later(2))


def test_a_second_acknowledgement_is_refused_with_the_name_of_the_first(room: Room) -> None:
    room.push(xid(79, gpu(3), 0))
    room.incidents.acknowledge("INC-1", "ann", later(5))
    with pytest.raises(InvalidTransition, match="already acknowledged by ann"):
        room.incidents.acknowledge("INC-1", "bob", later(5))
    assert room.incidents.open_incidents()[0].assignee == "ann"


def test_a_hub_that_lost_leadership_changes_nothing_in_memory(room: Room) -> None:
    from watchkeeper.store.journal.journal import Journal

    Journal(room.path).close()
    with pytest.raises(JournalConflict):
        room.push(xid(79, gpu(3), 0))
    assert room.open() == []


def test_a_restart_changes_nothing_and_what_was_pending_still_happens(room: Room) -> None:
    room.push(xid(79, gpu(3), 0), xid(31, gpu(1), 0), xid(31, gpu(1), 300))
    before = room.incidents.open_incidents()
    room.restart(400)
    assert room.incidents.open_incidents() == before
    assert room.push(xid(31, gpu(1), 500)) == ()
    room.push(event(EventKind.NODE_BOOT, node("n1"), 600))
    room.tick(700)
    assert room.open() == []
