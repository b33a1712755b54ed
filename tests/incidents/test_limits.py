"""Limits: what exceeds them is logged, counted, and retried when there is capacity."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.support.incident_stories import NODES, Racked, Room, alert, gpu, later, node, xid
from watchkeeper.errors import InvalidTransition
from watchkeeper.incidents import correlate, tracker
from watchkeeper.model.incidents import IncidentState, MemberKind
from watchkeeper.model.silences import Matcher
from watchkeeper.notify import silence_store


def test_an_alert_that_was_dropped_joins_when_other_signals_end(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correlate, "MAX_MEMBERS", 3)
    firing = [alert("cooling_failure", gpu(at), 0) for at in range(5)]
    room.hear(*firing)
    assert (len(room.incidents.open_incidents()[0].members), room.incidents.dropped_signals) == (3, 2)
    room.hear(*(alert("cooling_failure", gpu(at), 0, ends=60) for at in range(3)))
    room.tick(70, *firing[3:])
    refs = {member.ref for member in room.incidents.open_incidents()[0].members if member.until is None}
    assert refs == {str(firing_alert.labels) for firing_alert in firing[3:]}


def test_past_the_limit_of_open_incidents_alerts_wait(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker, "MAX_OPEN", 2)
    firing = [alert("agent_down", node(f"n{at}"), 0) for at in range(4)]
    room.hear(*firing)
    assert (len(room.open()), room.incidents.dropped_signals) == (2, 2)
    room.incidents.resolve("INC-1", "ada", why="done", now=later(5))
    room.tick(20, *firing)
    assert len(room.open()) == 2


def test_the_text_of_a_domain_counts_failed_nodes_as_they_increase(rack: Racked) -> None:
    for at, place in enumerate(NODES):
        rack.incidents.apply_alerts([alert("node_down", place, at)], later(at))
    (incident,) = rack.incidents.open_incidents()
    (text,) = [member.text for member in incident.members if member.kind is MemberKind.DOMAIN]
    assert text.startswith("64 of 64 nodes of rack r1 at once")


def test_an_absorbed_incident_names_the_incident_it_is_part_of(rack: Racked) -> None:
    for at, place in enumerate(NODES[:20]):
        rack.incidents.apply_alerts([alert("node_down", place, at)], later(at))
    part = rack.journal.incident("INC-2")
    assert part is not None
    assert (part.state, part.part_of) == (IncidentState.RESOLVED, "INC-1")
    rack.restart(60)
    again = rack.journal.incident("INC-2")
    assert again is not None
    assert again.part_of == "INC-1"


def test_a_clock_that_is_set_back_does_not_delay_resolution(room: Room) -> None:
    room.push(xid(31, gpu(1), 0))
    room.tick(86_400 * 3 + 599)
    room.push(xid(31, gpu(2), 10), at=10)
    room.tick(700)
    room.tick(800)
    assert room.open() == []


@pytest.mark.parametrize(("begins", "lasts"), [(0, 366), (360, 10), (-2, 1)])
def test_a_silence_ends_after_now_and_within_a_year(room: Room, begins: int, lasts: int) -> None:
    starts_at = later(0) + timedelta(days=begins)
    request = silence_store.SilenceRequest(
        (Matcher("node", "n1"),), "ada", "new fans", starts_at, starts_at + timedelta(days=lasts)
    )
    with pytest.raises(InvalidTransition, match="must end after now and within"):
        silence_store.SilenceStore(room.journal, now=later(0)).add(request, later(0))
