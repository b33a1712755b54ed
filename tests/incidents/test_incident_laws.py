"""Laws: repetition and interleaving change nothing, a restart changes nothing, no life cycle is illegal."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from tests.support.incident_stories import Room, alert, event, gpu, node, xid
from watchkeeper.model import alerts, events, fleet
from watchkeeper.model.incidents import INCIDENT_MOVES, Incident, IncidentState

NODES = ("n1", "n2")
CAUSES = ("gpu_missing", "cooling_failure", "thermal_throttle", "gpu_idle_waste", "unknown")
Change = events.Event | alerts.Alert


@st.composite
def one_signal(draw: st.DrawFn) -> tuple[str, int, int]:
    return draw(st.sampled_from(NODES)), draw(st.integers(0, 2)), draw(st.integers(0, 12))


def make_change(choice: tuple[str, int, int], at: float) -> Change:
    name, index, what = choice
    codes = (79, 48, 63, 31, 45, 154)
    if what < len(codes):
        return xid(codes[what], gpu(index, name), at)
    if what == len(codes):
        return event(events.EventKind.GPU_RESET, gpu(index, name), at)
    if what == len(codes) + 1:
        return event(events.EventKind.NODE_BOOT, node(name), at)
    cause = CAUSES[what - len(codes) - 2]
    return alert(cause, node(name) if index == 0 else gpu(index, name), at, ends=None if index < 2 else at)


@contextmanager
def a_room() -> Iterator[Room]:
    with tempfile.TemporaryDirectory() as folder:
        room = Room(Path(folder))
        yield room
        room.journal.close()


def apply(room: Room, story: list[Change]) -> None:
    for change in story:
        if isinstance(change, events.Event):
            room.push(change)
        else:
            room.hear(change)


def picture(room: Room) -> set[tuple[fleet.Place, str, str, str, frozenset[str]]]:
    return {
        (
            incident.place,
            incident.family,
            incident.cause,
            incident.severity,
            frozenset(member.ref for member in incident.members),
        )
        for incident in room.incidents.open_incidents()
    }


@pytest.mark.slow
@given(choices=st.lists(one_signal(), max_size=12), repeat=st.lists(st.booleans(), min_size=12, max_size=12))
@examples(30)
def test_repetition_and_the_mixing_of_nodes_do_not_change_what_is_open(
    choices: list[tuple[str, int, int]], repeat: list[bool]
) -> None:
    story = [make_change(choice, at * 20) for at, choice in enumerate(choices)]
    by_node = [change for name in NODES for change, choice in zip(story, choices, strict=True) if choice[0] == name]
    doubled = [again for change, twice in zip(by_node, repeat, strict=False) for again in [change] * (1 + twice)]
    with a_room() as first, a_room() as other:
        apply(first, story)
        apply(other, doubled)
        assert picture(first) == picture(other)


@pytest.mark.slow
@given(choices=st.lists(one_signal(), max_size=12), cut=st.integers(0, 12), gap=st.sampled_from([1, 20, 90, 700]))
@examples(30)
def test_a_restart_at_any_moment_changes_nothing(choices: list[tuple[str, int, int]], cut: int, gap: int) -> None:
    story = [make_change(choice, at * gap) for at, choice in enumerate(choices)]
    with a_room() as first, a_room() as other:
        for at, change in enumerate(story):
            if at == cut:
                other.restart(at * gap)
            for room in (first, other):
                apply(room, [change])
                room.tick(at * gap + gap / 2)
        assert first.incidents.open_incidents() == other.incidents.open_incidents()
        assert other.journal.verify() is None


@given(choices=st.lists(one_signal(), max_size=15), gap=st.sampled_from([1, 60, 400]))
@examples(30)
def test_no_incident_ever_moves_illegally_and_versions_rise_by_one(
    choices: list[tuple[str, int, int]], gap: int
) -> None:
    previous: dict[str, Incident] = {}
    with a_room() as room:
        for at, choice in enumerate(choices):
            apply(room, [make_change(choice, at * gap)])
            room.tick(at * gap + gap / 2)
            for incident in room.journal.incidents():
                before = previous.get(incident.id)
                assert before is None or incident.version >= before.version
                assert (incident.state is IncidentState.RESOLVED) == (incident.resolved_at is not None)
                if before is not None and incident.version == before.version + 1 and incident.state != before.state:
                    assert incident.state in INCIDENT_MOVES[before.state]
                previous[incident.id] = incident
        places = [(incident.family, incident.place) for incident in room.incidents.open_incidents()]
        assert len(places) == len(set(places))
