"""The laws of repairs hold on every path: budgets are kept, nothing is done twice, nothing of ours stays behind, and an
incident stays open until its node is back, also across restarts.

The long form of the walk, over other paths, is `python -m bench repair --walks N`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.remediate.walk import walk
from tests.remediate.world import World
from watchkeeper.errors import InvalidTransition
from watchkeeper.incidents.tracker import IncidentTracker
from watchkeeper.model import events, fleet
from watchkeeper.model.incidents import Incident
from watchkeeper.model.repairs import Repair
from watchkeeper.remediate.validation import CheckResult, CheckState

GPU = fleet.Place("main", node="n1", gpu="GPU-1")


class Soak:
    """A check that takes five minutes, longer than an incident waits after its last signal."""

    name = "no_new_xid"
    state = CheckState.PASSED

    def check(self, place: fleet.Place, since: datetime, now: datetime) -> CheckResult:
        is_soaking = now - since < timedelta(minutes=5)
        return CheckResult(self.name, CheckState.UNKNOWN if is_soaking else self.state, "the soak")


class Recovery:
    """A lost GPU on n1; `step` lets a second pass for its incident and its repair."""

    def __init__(self, folder: Path) -> None:
        self.soak = Soak()
        self.world = World(folder, checks=[self.soak])
        self.world.cluster.machines["n1"].is_sick = False
        self.tracker = self._track()
        self.happen(events.EventKind.XID, code=79)
        self.world.take(self.incident)

    def _track(self) -> IncidentTracker:
        world = self.world
        return IncidentTracker(world.journal, now=world.now, active_repair=world.repairs.active_repair)

    @property
    def incident(self) -> Incident:
        incident = self.world.journal.incident("INC-1")
        assert incident is not None
        return incident

    @property
    def repair(self) -> Repair:
        repair = self.world.repairs.find("INC-1")
        assert repair is not None
        return repair

    def happen(self, kind: events.EventKind, *, code: int | None = None) -> None:
        event = events.Event(f"{kind}/{self.world.now}", kind, code, GPU, self.world.now, f"{kind}")
        self.tracker.apply_events([event], self.world.now)

    def restart(self) -> None:
        self.world.restart()
        self.tracker = self._track()

    def step(self) -> None:
        self.world.step()
        for event in self.world.reported:
            self.tracker.apply_events([event], self.world.now)
        self.world.reported.clear()
        self.tracker.tick(self.world.now)
        assert self.incident.is_open or not self.repair.has_node, "resolved while its repair has the node"

    def step_until(self, is_reached: Callable[[], bool]) -> None:
        for _ in range(1000):
            if is_reached():
                return
            self.step()
        raise AssertionError(f"the repair is {self.repair.state}: {self.repair.reason}")

    def recover(self) -> None:
        """The GPU is back after the reboot, and its signal has ended for a minute."""
        self.step_until(lambda: self.repair.state == "validating")
        self.happen(events.EventKind.GPU_RESET)
        self.step_until(lambda: self.incident.recovering_since is not None)


@pytest.fixture
def recovery(tmp_path: Path) -> Iterator[Recovery]:
    recovery = Recovery(tmp_path)
    yield recovery
    recovery.world.close()


@pytest.mark.parametrize("restarts_after", [None, 1, 3, 70, 200, 310])
def test_an_incident_resolves_only_after_its_node_is_back(recovery: Recovery, restarts_after: int | None) -> None:
    for second in range(400):
        if second == 8:
            recovery.happen(events.EventKind.GPU_RESET)
        if second == restarts_after:
            before = recovery.incident, replace(recovery.repair, waits_for=())
            recovery.restart()
            assert (recovery.incident, recovery.repair) == before
        recovery.step()
    assert (recovery.repair.state, recovery.world.cluster.ours()) == ("done", [])
    assert not recovery.incident.is_open
    assert recovery.incident.recovering_since is None
    recovering = next(text for text in recovery.world.story("INC-1") if "it resolves when" in text)
    assert (
        recovering == "The signal ended and did not return; it resolves when INC-1.1 has ended, which is validating n1"
    )


def test_a_new_fault_during_the_recovery_is_the_same_incident_and_no_recovery(recovery: Recovery) -> None:
    recovery.recover()
    recovery.happen(events.EventKind.XID, code=79)
    assert (recovery.incident.recovering_since, recovery.incident.reopened) == (None, 0)
    assert recovery.tracker.open_incidents() == [recovery.incident]


def test_a_failed_validation_keeps_the_incident_open_beside_the_cordon(recovery: Recovery) -> None:
    recovery.soak.state = CheckState.FAILED
    recovery.recover()
    recovery.step_until(lambda: recovery.repair.state == "failed")
    recovery.step()
    assert recovery.world.cluster.ours() == ["n1"]
    assert recovery.incident.is_open
    assert recovery.incident.recovering_since is None
    assert any("stays out of service after its repair" in member.text for member in recovery.incident.members)


def test_a_person_resolves_an_incident_when_its_repair_has_ended(recovery: Recovery) -> None:
    recovery.step_until(lambda: recovery.repair.state == "validating")
    answered = recovery.tracker.resolve("INC-1", "ada", why="new riser", now=recovery.world.now)
    assert answered.is_open
    assert answered.recovering_since == recovery.world.now
    with pytest.raises(InvalidTransition, match=r"recovering already: INC-1\.1 is validating n1"):
        recovery.tracker.resolve("INC-1", "ada", why="again", now=recovery.world.now)
    recovery.step_until(lambda: not recovery.incident.is_open)
    assert recovery.repair.state == "done"


def test_an_incident_whose_repair_waits_for_approval_resolves_at_once(recovery: Recovery) -> None:
    recovery.step_until(lambda: recovery.repair.state == "validating")
    waiting = recovery.world.breaks("n2")
    recovery.world.take(waiting, recovery.world.mode.ASK)
    assert recovery.world.repairs.active_repair(waiting.id) is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_no_path_breaks_a_budget_or_leaves_a_cordon(tmp_path: Path, seed: int) -> None:
    walked = walk(tmp_path, seed, 250)
    assert walked.world.cluster.calls
