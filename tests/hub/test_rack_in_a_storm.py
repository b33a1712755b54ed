"""The diagnosis of a rack while ten thousand events of other nodes lie in the journal: it reads none of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hub_stories import NOON, Line, later
from watchkeeper.model import events, fleet
from watchkeeper.model.alerts import Severity
from watchkeeper.model.incidents import Incident, IncidentId, IncidentState, Member, MemberKind

RACK, LEAF = fleet.Place("main", domain="rack=r1"), fleet.Place("main", domain="leaf=l1")


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    line = Line(tmp_path)
    yield line
    line.journal.close()


def happen(line: Line, *places: fleet.Place) -> None:
    kind = events.EventKind.FABRIC_DOWN
    line.journal.save_events([events.Event(f"e/{place}", kind, None, place, NOON, "dark") for place in places], NOON)


def test_only_events_of_the_rack_itself_are_read(line: Line) -> None:
    happen(line, RACK, LEAF, *(fleet.Place("main", node=f"n{at}") for at in range(50)))
    stored = line.journal.events_at(RACK, since=NOON, until=later(60))
    assert [event.place for event in stored] == [RACK]
    assert len(line.journal.events_at(fleet.Place("main"), since=NOON, until=later(60))) == 52


def test_a_diagnosis_of_a_rack_never_queries_the_whole_cluster(line: Line) -> None:
    queried_places: list[fleet.Place] = []
    events_at = line.journal.events_at

    def noting(place: fleet.Place, **more: object) -> list[events.Event]:
        queried_places.append(place)
        return events_at(place, **more)  # type: ignore[arg-type]

    line.journal.events_at = noting  # type: ignore[method-assign,assignment]
    member = Member(MemberKind.DOMAIN, "r", RACK, "node_down", NOON, "3 of 4 nodes", Severity.CRITICAL)
    incident = Incident(
        IncidentId("INC-1"), RACK, "", Severity.CRITICAL, IncidentState.OPEN, NOON, "node_down", "node_down", (member,)
    )
    line.pipeline.diagnose(incident, later(30))
    assert queried_places == [RACK]
