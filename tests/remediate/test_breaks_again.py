"""A machine that breaks again while the incident of its last repair is open: real incidents, repairs and a journal."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.remediate.world import World, limits
from watchkeeper.incidents.tracker import IncidentTracker
from watchkeeper.model import alerts, events, fleet
from watchkeeper.model.incidents import Incident
from watchkeeper.model.labels import Labels
from watchkeeper.model.repairs import Repair
from watchkeeper.model.trust import Mode

GPU = fleet.Place("main", node="n1", gpu="GPU-1")


class Watched:
    """A world whose incidents follow from events, with a machine whose clock is as far behind as `behind`."""

    def __init__(self, folder: Path, *, behind: timedelta = timedelta(), attempts: int = 2) -> None:
        self.world = World(folder, limits=limits(attempts=attempts))
        self.incidents = IncidentTracker(self.world.journal, now=self.world.now)
        self.behind, self.count = behind, 0

    def happens(self, kind: events.EventKind, code: int | None, place: fleet.Place = GPU) -> list[Incident]:
        self.count += 1
        now = self.world.now
        event = events.Event(f"e{self.count}", kind, code, place, now - self.behind, f"{kind} {code}")
        return list(self.incidents.apply_events([event], now).changed_incidents)

    def breaks(self) -> Repair | None:
        """It falls off the bus; what its plan becomes."""
        self.world.step()
        (incident,) = self.happens(events.EventKind.XID, 79)
        return self.world.take(incident)

    def is_repaired(self) -> Incident:
        """Its repair has run, the machine has booted, and the incident waits whether that lasts."""
        self.world.settle(10)
        self.happens(events.EventKind.NODE_BOOT, None, fleet.Place("main", node="n1"))
        self.world.settle(20)
        (incident,) = self.incidents.open_incidents()
        assert self.world.state(incident.id) == "done"
        assert all(member.until is not None for member in incident.members)
        return incident

    @property
    def reboots(self) -> int:
        return self.world.cluster.calls.count("reboot n1")


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    watched = Watched(tmp_path)
    yield watched
    watched.world.close()


@pytest.mark.parametrize("behind_minutes", [0, 9])
def test_a_gpu_that_breaks_again_is_repaired_again_although_its_incident_is_open(
    tmp_path: Path, behind_minutes: int
) -> None:
    watched = Watched(tmp_path, behind=timedelta(minutes=behind_minutes))
    watched.breaks()
    incident = watched.is_repaired()
    assert watched.breaks() is not None
    assert watched.is_repaired().id == incident.id
    assert (watched.reboots, watched.incidents.open_incidents()[0].reopened) == (2, 0)
    watched.world.close()


def test_repeated_faults_need_a_person_after_the_allowed_attempts(watched: Watched) -> None:
    for _ in range(2):
        watched.breaks()
        watched.is_repaired()
    third = watched.breaks()
    watched.world.settle(30)
    assert third is not None
    assert watched.reboots == 2
    refused = watched.world.repairs.find(third.id)
    assert refused is not None
    assert refused.reason.startswith("Refused by attempts: 2 repairs of n1 within 1w, the limit is 2")
    assert watched.world.take(watched.incidents.open_incidents()[0]) is None


def test_in_mode_ask_the_second_repair_needs_its_own_approval(watched: Watched) -> None:
    watched.breaks()
    watched.is_repaired()
    watched.world.mode = Mode.ASK
    second = watched.breaks()
    watched.world.settle(30)
    assert second is not None
    assert (watched.world.state(second.id), watched.reboots) == ("planned", 1)


def test_a_fault_that_stays_after_its_repair_is_not_repaired_again(watched: Watched) -> None:
    watched.breaks()
    watched.world.settle(30)
    (incident,) = watched.incidents.open_incidents()
    assert watched.world.state(incident.id) == "done"
    # The kernel repeats itself: nothing has ended, so nothing has begun.
    assert watched.happens(events.EventKind.XID, 79) == []
    assert watched.world.take(incident) is None


def test_a_lighter_fault_that_joins_after_the_repair_is_no_reason_for_another(watched: Watched) -> None:
    watched.breaks()
    watched.is_repaired()
    shown = {"alertname": "PcieSlow", "cluster": "main", "Hostname": "n1", "UUID": "GPU-1", "cause": "pcie_degraded"}
    now = watched.world.now
    alert = alerts.Alert(Labels({**shown, "severity": "warning"}), alerts.AlertState.FIRING, now, 1.0, fired_at=now)
    (incident,) = watched.incidents.apply_alerts([alert], now)
    assert incident.cause == "gpu_fell_off_bus"
    assert any(member.until is None for member in incident.members)
    assert watched.world.take(incident) is None


def test_a_repair_that_a_person_refused_is_not_planned_again_when_the_gpu_breaks_again(watched: Watched) -> None:
    watched.world.mode = Mode.ASK
    first = watched.breaks()
    assert first is not None
    watched.world.control.reject(first.id, "we look at it ourselves", actor="ada", now=watched.world.now)
    watched.happens(events.EventKind.NODE_BOOT, None, fleet.Place("main", node="n1"))
    assert watched.breaks() is None
