"""A hot rack: its power limits are lowered at once, its nodes drained if a person says so, and all of it is undone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import pytest

from tests.remediate.cluster import Machine, TestCluster
from tests.remediate.world import FREE, World, limits
from watchkeeper.errors import ActionFailed, ActionRefused
from watchkeeper.model import alerts, fleet, incidents
from watchkeeper.model.actions import Action, ActionKind
from watchkeeper.model.repairs import Repair, RepairState
from watchkeeper.model.trust import Mode
from watchkeeper.remediate import guards, validation
from watchkeeper.remediate.driver import ActionOutcome
from watchkeeper.remediate.plan import make_plan
from watchkeeper.remediate.proposal import propose_repair
from watchkeeper.remediate.trust_rules import ModeDecision

RACK, OTHER_RACK = (fleet.Place("main", domain=f"rack=r{at}") for at in (0, 1))
# Racks of four nodes: n0 to n3, and n4 to n7.
NODES = 8


@dataclass
class HotCluster(TestCluster):
    """A cluster whose agents lower power limits, unless they are gone or their boards refuse."""

    capped: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    refusing: set[str] = field(default_factory=set)

    def describe(self, action: Action) -> str:
        if action.kind is ActionKind.LOWER_POWER and action.place.node in self.gone:
            raise ActionRefused("its agent last asked for orders 300 s ago, the limit is 120 s")
        return super().describe(action)

    def _effect(self, action: Action, machine: Machine) -> ActionOutcome:
        if action.kind is not ActionKind.LOWER_POWER:
            return super()._effect(action, machine)
        node = action.place.node or ""
        if node in self.gone:
            raise ActionFailed("the agent does not answer")
        if node in self.refusing:
            raise ActionRefused("GPU-1 allows 200 to 700 W, not 150 W")
        (self.capped.discard if "restore" in action.arguments else self.capped.add)(node)
        return ActionOutcome("the limit is set")


@dataclass
class Thermometer:
    celsius: float = 88.0
    name: str = validation.COOL

    def check(self, place: fleet.Place, since: datetime, now: datetime) -> validation.CheckResult:
        assert (place.domain, since <= now) == ("rack=r0", True)
        state = validation.CheckState.PASSED if self.celsius < 77 else validation.CheckState.UNKNOWN
        return validation.CheckResult(self.name, state, f"the hottest GPU was at {self.celsius:g} °C")


class HotRack(World):
    """A world whose racks get hot."""

    cluster: HotCluster

    def __init__(self, folder: Path, chosen: guards.GuardLimits = FREE) -> None:
        self.thermometer = Thermometer()
        super().__init__(folder, NODES, chosen, cluster_kind=HotCluster, checks=(self.thermometer,))

    def heats(self, rack: fleet.Place = RACK) -> incidents.Incident:
        id, critical = self.journal.next_incident_id(), alerts.Severity.CRITICAL
        state = incidents.IncidentState.OPEN
        incident = incidents.Incident(id, rack, "hot", critical, state, self.now, "cooling_failure", "cooling", ())
        self.journal.save_incident(incident, kind="opened", text="hot", at=self.now)
        return incident

    def plans(self, incident: incidents.Incident, mode: Mode = Mode.ACT) -> Repair | None:
        def nodes_of(domain: fleet.Place) -> list[fleet.Place]:
            return [node.place for node in self.nodes if domain in node.failure_domains()]

        draft = make_plan(incident, None, self.policy, nodes_of=nodes_of)
        allowed = ModeDecision(mode, f"mode {mode} by the test")
        proposal = propose_repair(
            incident, draft.cause, draft.actions, policy=self.policy, pool="", mode_decision=allowed
        )
        assert proposal is not None
        return self.repairs.submit(proposal, self.now)

    def repair(self, incident: incidents.Incident) -> Repair:
        repair = self.repairs.find(incident.id)
        assert repair is not None
        return repair

    def has_drained(self) -> list[str]:
        return [name for name, machine in self.cluster.machines.items() if machine.workloads == 0]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[HotRack]:
    opened = HotRack(tmp_path)
    yield opened
    opened.close()


def capped(world: HotRack) -> incidents.Incident:
    incident = world.heats()
    world.plans(incident)
    world.settle(30)
    return incident


def test_every_node_of_the_rack_and_no_other_gets_a_lower_power_limit(world: HotRack) -> None:
    incident = capped(world)
    assert world.cluster.capped == {"n0", "n1", "n2", "n3"}
    assert (world.cluster.ours(), world.has_drained()) == ([], [])
    repair = world.repair(incident)
    assert repair.action is not None
    assert (repair.node, repair.action.kind, repair.is_running) == (RACK, ActionKind.INSPECT, True)
    assert "4 of 4 nodes have the lower power limit" in repair.waits_for[0]


def test_a_plan_needs_one_approval_for_the_whole_rack(world: HotRack) -> None:
    incident = world.heats()
    proposed = world.plans(incident, Mode.ASK)
    world.settle(5)
    assert (world.cluster.capped, world.state(incident.id)) == (set(), RepairState.PLANNED)
    assert proposed is not None
    world.control.approve(proposed.id, proposed.digest, actor="ada", now=world.now)
    world.settle(30)
    assert len(world.cluster.capped) == 4


def test_the_limits_are_restored_only_when_the_rack_has_been_cool(world: HotRack) -> None:
    incident = capped(world)
    world.ends(incident.id)
    world.settle(30)
    assert len(world.cluster.capped) == 4
    assert world.repair(incident).waits_for == ("until it is cool: the hottest GPU was at 88 °C",)
    world.thermometer.celsius = 60
    world.settle(30)
    assert (world.cluster.capped, world.state(incident.id)) == (set(), RepairState.DONE)


def test_a_person_lets_the_rack_drain_one_node_after_the_other_and_all_come_back(world: HotRack) -> None:
    incident = capped(world)
    world.control.step_done(incident.id, actor="ada", now=world.now)
    world.settle(60)
    assert (world.has_drained(), world.cluster.ours()) == (["n0", "n1", "n2", "n3"], ["n0", "n1", "n2", "n3"])
    calls = [call for call in world.cluster.calls if "cordon" in call or "drain" in call]
    assert calls[:4] == ["cordon n0", "drain n0", "cordon n1", "drain n1"]
    world.thermometer.celsius = 60
    world.ends(incident.id)
    world.settle(60)
    assert (world.cluster.ours(), world.cluster.capped) == ([], set())
    assert world.state(incident.id) == RepairState.DONE


def test_the_budget_stops_the_drain_with_both_numbers(tmp_path: Path) -> None:
    world = HotRack(tmp_path, limits(fleet_percent=25, domains=("rack",)))
    incident = capped(world)
    world.control.step_done(incident.id, actor="ada", now=world.now)
    world.settle(3600, seconds=2)
    assert (world.has_drained(), world.cluster.most_ours) == (["n0", "n1"], 2)
    expected = "2 of 8 nodes of the fleet are out of service, one more is 3, the limit is 2 (25 %)"
    assert expected in world.repair(incident).waits_for[0]
    # A person makes room in the budget, hours later: the step is not too late.
    world.limits = limits(domains=("rack",))
    world.restart()
    world.settle(60)
    assert len(world.has_drained()) == 4
    world.close()


def test_nodes_of_the_rack_that_share_its_leaf_are_drained_too(tmp_path: Path) -> None:
    world = HotRack(tmp_path, limits(domains=("rack", "leaf")))
    world.nodes = [replace(node, domains={**node.domains, "leaf": "l0"}) for node in world.nodes]
    world.restart()
    incident = capped(world)
    world.control.step_done(incident.id, actor="ada", now=world.now)
    world.settle(60)
    assert len(world.has_drained()) == 4
    # A node of the other rack is behind the same leaf, and waits.
    broken = world.breaks("n5")
    world.take(broken)
    world.settle(10)
    assert "in leaf l0 is out of service: 4 in that leaf, the limit is 1" in world.repair(broken).reason
    world.close()


def test_a_rack_whose_agents_cannot_all_be_reached_is_refused_with_both_numbers(world: HotRack) -> None:
    world.cluster.gone = {"n2"}
    incident = capped(world)
    assert (world.cluster.capped, world.state(incident.id)) == (set(), RepairState.APPROVED)
    reason = "3 of 4 nodes of rack r0 can lower their power limit, all 4 are needed: n2: its agent last asked"
    assert reason in world.repair(incident).reason
    world.cluster.gone = set()
    world.settle(30)
    assert len(world.cluster.capped) == 4


def test_a_board_that_refuses_is_skipped_and_the_others_are_cooled(world: HotRack) -> None:
    world.cluster.refusing = {"n1"}
    incident = capped(world)
    assert world.cluster.capped == {"n0", "n2", "n3"}
    assert "3 of 4 nodes have the lower power limit" in world.repair(incident).waits_for[0]
    assert any("n1 is skipped: GPU-1 allows 200 to 700 W, not 150 W" in text for text in world.story(incident.id))


def test_a_rack_that_no_node_can_cool_fails_with_the_reason(world: HotRack) -> None:
    world.cluster.refusing = {"n0", "n1", "n2", "n3"}
    repair = world.repair(capped(world))
    assert (repair.state, "0 of 4 nodes of rack r0" in repair.reason) == (RepairState.FAILED, True)


def test_one_rack_at_a_time(world: HotRack) -> None:
    first = capped(world)
    second = world.heats(OTHER_RACK)
    world.plans(second)
    world.settle(30)
    assert world.cluster.capped == {"n0", "n1", "n2", "n3"}
    assert "1 repair of a rack, the limit is 1" in world.repair(second).reason
    world.thermometer.celsius = 60
    world.ends(first.id)
    world.settle(60)
    assert world.cluster.capped == {"n4", "n5", "n6", "n7"}


def test_a_node_that_dies_while_it_is_capped_does_not_keep_the_others_capped(world: HotRack) -> None:
    incident = capped(world)
    world.cluster.gone = {"n0"}
    world.thermometer.celsius = 60
    world.ends(incident.id)
    world.settle(30)
    assert world.cluster.capped == {"n0"}
    assert world.state(incident.id) == RepairState.RESTORING


def test_a_cordon_of_a_person_is_left_alone_and_its_node_not_drained(world: HotRack) -> None:
    incident = capped(world)
    world.cluster.machines["n1"].cordon = "ada"
    world.control.step_done(incident.id, actor="bob", now=world.now)
    world.settle(60)
    assert (world.has_drained(), world.cluster.machines["n1"].cordon) == (["n0", "n2", "n3"], "ada")
    world.thermometer.celsius = 60
    world.ends(incident.id)
    world.settle(60)
    assert [name for name, machine in world.cluster.machines.items() if machine.cordon] == ["n1"]


def test_a_person_who_rejects_the_repair_gets_the_full_power_back(world: HotRack) -> None:
    incident = capped(world)
    world.control.reject(incident.id, "the room is fine", actor="ada", now=world.now)
    world.settle(30)
    assert (world.cluster.capped, world.state(incident.id)) == (set(), RepairState.REJECTED)


def test_a_hub_that_is_killed_continues_where_it_was(world: HotRack) -> None:
    incident = world.heats()
    world.plans(incident)
    world.settle(3)
    world.restart()
    world.settle(30)
    assert len(world.cluster.capped) == 4
    world.control.step_done(incident.id, actor="ada", now=world.now)
    world.settle(4)
    world.restart()
    world.thermometer.celsius = 60
    world.ends(incident.id)
    world.settle(90)
    assert (world.cluster.capped, world.cluster.ours()) == (set(), [])


def test_the_same_incident_is_not_repaired_again_after_it_was_repaired(world: HotRack) -> None:
    incident = capped(world)
    world.thermometer.celsius = 60
    world.ends(incident.id)
    world.settle(30)
    assert world.plans(incident) is None


def test_a_node_that_is_drained_for_its_rack_is_repaired_afterwards(world: HotRack) -> None:
    incident = capped(world)
    world.control.step_done(incident.id, actor="ada", now=world.now)
    world.settle(60)
    broken = world.breaks("n0")
    world.take(broken)
    world.settle(30)
    repair = world.repair(broken)
    reason = f"n0 is drained by {incident.id}.1 for rack r0"
    assert (repair.state, reason in repair.reason) == (RepairState.APPROVED, True)


def test_the_shipped_limits_allow_the_whole_plan_in_a_dry_run(world: HotRack) -> None:
    """In mode `suggest` nothing is touched, and each call of each node is in the plan."""
    repair = world.plans(world.heats(), Mode.SUGGEST)
    world.settle(10)
    assert repair is not None
    assert (world.cluster.calls, len(repair.actions)) == ([], 4 + 1 + 2 * 4)
