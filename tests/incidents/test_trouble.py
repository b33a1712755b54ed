"""What holds when a part of the hub, a clock or a disk fails: nothing is lost, and nothing stands that is not kept."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.support.incident_stories import NOON, Room, alert, event, gpu, later, node, xid
from watchkeeper.errors import StoreError
from watchkeeper.incidents.tracker import CLAIMED_AT
from watchkeeper.model import alerts, fleet
from watchkeeper.model.events import EventKind
from watchkeeper.model.incidents import IncidentState


def test_a_push_that_breaks_leaves_nothing_behind_and_is_taken_when_it_comes_again(room: Room) -> None:
    def broken(_: fleet.Place) -> list[str]:
        raise OverflowError("date value out of range")

    healthy, room.workloads = room.workloads, broken
    with pytest.raises(OverflowError):
        room.push(xid(79, gpu(3), 0))
    assert (room.open(), room.journal.incidents()) == ([], [])
    room.workloads = healthy
    assert [incident.cause for incident in room.push(xid(79, gpu(3), 0))] == ["gpu_fell_off_bus"]
    assert len(room.journal.incidents()) == 1


def test_alerts_that_could_not_be_kept_leave_nothing_behind_and_count_when_told_again(room: Room) -> None:
    room.break_journal()
    with pytest.raises(StoreError):
        room.incidents.apply_alerts([alert("cooling_failure", node(), 0)], later(0))
    assert room.open() == []
    room.break_journal(False)
    room.incidents.apply_alerts([alert("cooling_failure", node(), 0)], later(9))
    assert room.open() == [("INC-1", node(), "cooling_failure")]
    assert len(room.journal.alerts()) == 1


@pytest.mark.parametrize("year", [9999, 1970])
def test_an_event_of_an_impossible_time_counts_from_when_it_came_and_says_so(room: Room, year: int) -> None:
    late_event = xid(31, gpu(1), 0)
    wrong = type(late_event)(
        late_event.id,
        late_event.kind,
        late_event.code,
        late_event.place,
        late_event.at.replace(year=year),
        late_event.text,
    )
    (incident,) = room.push(wrong, at=5)
    kept = room.journal.event(late_event.id)
    assert kept is not None
    assert (kept.at, kept.fields[CLAIMED_AT][:4]) == (later(5), str(year))
    assert incident.members[0].since == later(5)
    room.tick(5 + 660)
    assert room.open() == []


@pytest.mark.parametrize("off", [timedelta(minutes=9), -timedelta(days=29)])
def test_a_clock_that_is_a_little_off_and_a_spool_that_is_late_keep_their_times(room: Room, off: timedelta) -> None:
    late_event = xid(79, gpu(1), off.total_seconds())
    room.push(late_event, at=0)
    kept = room.journal.event(late_event.id)
    assert kept is not None
    assert (kept.at, dict(kept.fields)) == (NOON + off, {})


def test_a_future_clock_does_not_hide_a_reset(room: Room) -> None:
    room.push(xid(79, gpu(3), 400 * 86400), at=0)
    room.push(event(EventKind.GPU_RESET, gpu(3), 10), at=10)
    room.tick(80)
    assert room.open() == []


def test_an_incident_resolved_by_hand_returns_with_words_when_its_alert_still_fires(room: Room) -> None:
    fan = alert("cooling_failure", node(), 0)
    room.hear(fan)
    room.incidents.resolve("INC-1", "ada", why="Replaced the fan tray", now=later(30))
    assert room.tick(600, fan) == []
    (back,) = room.tick(630, fan)
    assert (back.id, back.state, back.members[0].until) == ("INC-1", IncidentState.OPEN, None)
    assert room.journal.timeline("INC-1")[-1].text == "Still firing 10m after it was resolved: cooling_failure here"
    assert room.tick(640, fan) == []


def test_an_incident_resolved_by_hand_stays_resolved_when_its_alert_ends(room: Room) -> None:
    fan = alert("cooling_failure", node(), 0)
    room.hear(fan)
    room.incidents.resolve("INC-1", "ada", why="Replaced the fan tray", now=later(30))
    assert room.tick(630) == []
    assert room.open() == []


def test_what_an_absorbed_incident_had_does_not_return_beside_the_one_that_took_it(room: Room) -> None:
    hot, fan = alert("thermal_throttle", gpu(1), 0, severity="warning"), alert("cooling_failure", node(), 10)
    room.hear(alert("thermal_throttle", gpu(2), 0, severity="warning"), hot, fan)
    room.tick(700, hot, fan)
    assert [incident for incident, _, _ in room.open()] == ["INC-1"]


def test_a_worse_signal_finds_room_in_a_full_incident(room: Room) -> None:
    for index in range(205):
        room.hear(alert("made_up", gpu(index), index, severity="info"))
    room.hear(alert("made_up", gpu(300), 300, severity="critical"))
    (incident,) = room.incidents.open_incidents()
    assert (len(incident.members), incident.severity) == (200, alerts.Severity.CRITICAL)
    assert "dropped" in room.journal.timeline("INC-1")[-1].text


def test_a_full_incident_lets_ended_signals_go_before_living_ones(room: Room) -> None:
    for index in range(200):
        room.hear(alert("made_up", gpu(index), index, severity="warning"))
    room.hear(alert("made_up", gpu(7), 7, ends=300, severity="warning"))
    room.hear(alert("made_up", gpu(400), 400, severity="info"))
    places = {member.place for member in room.incidents.open_incidents()[0].members}
    assert gpu(7) not in places
    assert gpu(400) in places


def test_a_machine_keeps_its_name_at_the_start_of_a_title(room: Room) -> None:
    room.hear(alert("node_down", node("gpu-r01-05"), 0), alert("gpu_missing", node("gpu-r01-06"), 0))
    titles = [incident.title for incident in room.incidents.open_incidents()]
    assert titles[0] == "gpu-r01-05 is down"
    assert titles[1].startswith("A GPU of gpu-r01-06")


def test_the_open_incidents_are_counted_by_severity_however_many_there_are(room: Room) -> None:
    assert set(room.journal.count_open().values()) == {0}
    room.push(*(xid(79, gpu(1, f"n{number}"), 0) for number in range(250)), xid(31, gpu(2), 0))
    room.incidents.resolve("INC-1", "ada", why="done", now=later(1))
    counted = room.journal.count_open()
    assert counted == {alerts.Severity.CRITICAL: 249, alerts.Severity.WARNING: 1, alerts.Severity.INFO: 0}
