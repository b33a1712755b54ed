"""Places, events and alerts for the stories of this stage, and a room in which they happen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from watchkeeper.incidents.domains import Domains
from watchkeeper.incidents.footprint import NO_FOOTPRINT, Footprint
from watchkeeper.incidents.tracker import IncidentTracker
from watchkeeper.model import alerts, events, fleet, incidents, labels
from watchkeeper.store.journal.journal import Journal

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


def later(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def gpu(index: int, node: str = "n1") -> fleet.Place:
    return fleet.Place("main", node=node, gpu=f"GPU-{node}-{index}")


def node(name: str = "n1") -> fleet.Place:
    return fleet.Place("main", node=name)


def job(name: str = "llm") -> fleet.Place:
    return fleet.Place("main", domain=f"job={name}")


def event(
    kind: events.EventKind, place: fleet.Place, at: float, *, code: int | None = None, id: str | None = None
) -> events.Event:
    text = f"{kind} {code}" if code is not None else str(kind)
    return events.Event(id or f"{kind}/{code}/{place}/{at}", kind, code, place, later(at), text)


def xid(code: int, place: fleet.Place, at: float) -> events.Event:
    return event(events.EventKind.XID, place, at, code=code)


def alert(
    cause: str, place: fleet.Place, at: float, *, ends: float | None = None, severity: str = "critical"
) -> alerts.Alert:
    pairs = {"alertname": f"Alert {cause}", "cause": cause, "cluster": place.cluster, "severity": severity}
    pairs |= {"Hostname": place.node or "", "UUID": place.gpu or ""}
    pairs |= {"job_name": place.domain.removeprefix("job=")} if place.domain else {}
    return alerts.Alert(
        labels=labels.Labels(pairs),
        state=alerts.AlertState.FIRING if ends is None else alerts.AlertState.RESOLVED,
        active_at=later(at),
        value=1.0,
        annotations={"summary": f"{cause} here"},
        fired_at=later(at),
        resolved_at=None if ends is None else later(ends),
    )


class Room:
    """A journal and the incidents on it; `restart` forgets everything but the file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal.db"
        self.workloads: Callable[[fleet.Place], list[str]] = lambda place: [f"job on {place.node}"]
        # Where jobs run.
        self.jobs: dict[fleet.Place, Footprint] = {}
        self.pools: dict[str | None, str] = {}
        # Incidents whose own repair reboots a machine.
        self.under_repair: set[str] = set()
        self.last_alive: datetime | None = None
        self.journal = Journal(self.path)
        self.incidents = self._start(NOON)

    def _start(self, now: datetime) -> IncidentTracker:
        return IncidentTracker(
            self.journal,
            now=now,
            names=lambda place: f"GPU {place.gpu[-1]} on {place.node}" if place.gpu else str(place.node),
            workloads=self._workloads_at,
            domains=Domains(
                footprint_of=lambda place: self.jobs.get(place, NO_FOOTPRINT),
                pool_of=lambda place: self.pools.get(place.node, ""),
            ),
            under_repair=lambda _: self.under_repair,
            last_alive=self.last_alive,
        )

    def _workloads_at(self, place: fleet.Place) -> list[str]:
        return self.workloads(place)

    def restart(self, at: float, *, away: float = 0.0) -> None:
        """Begin anew with what the journal has; the hub before was at work until `away` seconds ago."""
        self.journal.close()
        self.journal = Journal(self.path)
        self.last_alive = later(at - away)
        self.incidents = self._start(later(at))

    def push(self, *batch: events.Event, at: float | None = None) -> tuple[incidents.Incident, ...]:
        now = max(event.at for event in batch) if at is None else later(at)
        return self.incidents.apply_events(batch, now).changed_incidents

    def hear(self, *received: alerts.Alert) -> None:
        for alert in received:
            self.incidents.apply_alert(alert, alert.resolved_at or alert.fired_at or alert.active_at)

    def tick(self, at: float, *firing: alerts.Alert) -> list[incidents.Incident]:
        return self.incidents.tick(later(at), firing)

    def break_journal(self, is_broken: bool = True) -> None:
        """From now on every write fails, as on a full disk."""
        self.journal._connection.execute(f"PRAGMA query_only = {int(is_broken)}")

    def open(self) -> list[tuple[str, fleet.Place, str]]:
        return [(incident.id, incident.place, incident.cause) for incident in self.incidents.open_incidents()]

    def steps(self, id: str = "INC-1") -> list[str]:
        return [entry.kind for entry in self.journal.timeline(id)]


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    room = Room(tmp_path)
    yield room
    room.journal.close()


RACK = fleet.Place("main", domain="rack=r1")
LEAF = fleet.Place("main", domain="leaf=l1")
NODES = [node(f"n{at}") for at in range(1, 65)]


class Racked(Room):
    """64 nodes in one rack; the first 32 behind one leaf switch."""

    def _start(self, now: object) -> IncidentTracker:
        behind = {place: (RACK, LEAF) if at < 32 else (RACK,) for at, place in enumerate(NODES)}
        domains = Domains(
            domains_of=lambda place: behind.get(place, ()),
            nodes_of=lambda domain: [place for place, domains in behind.items() if domain in domains],
        )
        names = lambda place: (place.domain or "").replace("=", " ") or str(place.node)  # noqa: E731
        return IncidentTracker(self.journal, now=later(0), names=names, domains=domains, workloads=self._workloads_at)


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[Racked]:
    room = Racked(tmp_path)
    yield room
    room.journal.close()
