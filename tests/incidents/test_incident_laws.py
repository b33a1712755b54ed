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
Told = events.Event | alerts.Alert


@st.composite
def one_signal(draw: st.DrawFn) -> tuple[str, int, int]:
    return draw(st.sampled_from(NODES)), draw(st.integers(0, 2)), draw(st.integers(0, 12))


def tell(choice: tuple[str, int, int], at: float) -> Told:
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


def play(room: Room, story: list[Told]) -> None:
    for told in story:
        if isinstance(told, events.Event):
            room.push(told)
        else:
            room.hear(told)


def picture(room: Room) -> set[tuple[fleet.Place, str, str, str, frozenset[str]]]:
    return {
        (found.place, found.family, found.cause, found.severity, frozenset(member.ref for member in found.members))
        for found in room.incidents.open_incidents()
    }


@pytest.mark.slow
@given(choices=st.lists(one_signal(), max_size=12), repeat=st.lists(st.booleans(), min_size=12, max_size=12))
@examples(30)
def test_repetition_and_the_mixing_of_nodes_do_not_change_what_is_open(
    choices: list[tuple[str, int, int]], repeat: list[bool]
) -> None:
    story = [tell(choice, at * 20) for at, choice in enumerate(choices)]
    by_node = [told for name in NODES for told, choice in zip(story, choices, strict=True) if choice[0] == name]
    doubled = [again for told, twice in zip(by_node, repeat, strict=False) for again in [told] * (1 + twice)]
    with a_room() as one, a_room() as other:
        play(one, story)
        play(other, doubled)
        assert picture(one) == picture(other)


@pytest.mark.slow
@given(choices=st.lists(one_signal(), max_size=12), cut=st.integers(0, 12), gap=st.sampled_from([1, 20, 90, 700]))
@examples(30)
def test_a_restart_at_any_moment_changes_nothing(choices: list[tuple[str, int, int]], cut: int, gap: int) -> None:
    story = [tell(choice, at * gap) for at, choice in enumerate(choices)]
    with a_room() as one, a_room() as other:
        for at, told in enumerate(story):
            if at == cut:
                other.restart(at * gap)
            for room in (one, other):
                play(room, [told])
                room.tick(at * gap + gap / 2)
        assert one.incidents.open_incidents() == other.incidents.open_incidents()
        assert other.journal.verify() is None


@given(choices=st.lists(one_signal(), max_size=15), gap=st.sampled_from([1, 60, 400]))
@examples(30)
def test_no_incident_ever_moves_illegally_and_versions_rise_by_one(
    choices: list[tuple[str, int, int]], gap: int
) -> None:
    seen: dict[str, Incident] = {}
    with a_room() as room:
        for at, choice in enumerate(choices):
            play(room, [tell(choice, at * gap)])
            room.tick(at * gap + gap / 2)
            for found in room.journal.incidents():
                before = seen.get(found.id)
                assert before is None or found.version >= before.version
                assert (found.state is IncidentState.RESOLVED) == (found.resolved_at is not None)
                if before is not None and found.version == before.version + 1 and found.state != before.state:
                    assert found.state in INCIDENT_MOVES[before.state]
                seen[found.id] = found
        places = [(found.family, found.place) for found in room.incidents.open_incidents()]
        assert len(places) == len(set(places))
