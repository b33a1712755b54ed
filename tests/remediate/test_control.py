"""People's words: a yes is for one plan and for a time, a no undoes, a stop is at once and survives a restart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.remediate.cluster import Machine, Troubles
from tests.remediate.world import World, limits
from watchkeeper.errors import HubError, InvalidTransition
from watchkeeper.model.actions import Action, ActionKind
from watchkeeper.model.repairs import Repair
from watchkeeper.model.trust import Mode
from watchkeeper.remediate.driver import ActionOutcome
from watchkeeper.remediate.policy import load, parse
from watchkeeper.remediate.trust_rules import ModeDecision


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, mode=Mode.ASK)
    yield world
    world.close()


def plan_in_ask_mode(world: World, node: str = "n1") -> Repair:
    made = world.take(world.breaks(node))
    assert made is not None
    world.cluster.machines[node].is_sick = False
    return made


def test_nothing_is_called_before_approval(world: World) -> None:
    repair = plan_in_ask_mode(world)
    world.settle(10)
    assert (world.state(repair.incident), world.cluster.calls) == ("planned", [])
    world.control.approve(repair.incident, repair.digest, actor="ada", now=world.now)
    world.settle(30)
    assert world.state(repair.incident) == "done"
    assert f"ada approved plan {repair.digest}" in world.story(repair.incident)


def test_an_approval_of_another_plan_is_refused(world: World) -> None:
    repair = plan_in_ask_mode(world)
    with pytest.raises(InvalidTransition, match=f"the approval is for plan 123, but the plan is now {repair.digest}"):
        world.control.approve(repair.incident, "123", actor="ada", now=world.now)


def test_a_changed_plan_needs_a_new_approval(tmp_path: Path) -> None:
    world = World(tmp_path, mode=Mode.ASK, limits=limits(pool_percent=0))
    incident = world.breaks("n1")
    first = world.take(incident)
    assert first is not None
    world.control.approve(incident.id, first.digest, actor="ada", now=world.now)
    assert world.state(incident.id) == "approved"
    reset = '[cause.gpu_fell_off_bus]\nsteps = [{ action = "cordon", why = "x" }, { action = "inspect", why = "y" }]'
    world.policy = parse(reset, where="mine.toml", base=load())
    world.take(incident)
    changed = world.repairs.find(incident.id)
    assert changed is not None
    assert (changed.state, changed.approved_by) == ("planned", None)
    assert changed.digest != first.digest
    world.close()


def test_an_approval_expires_while_guards_refuse(tmp_path: Path) -> None:
    world = World(tmp_path, mode=Mode.ASK, limits=limits(pool_percent=0))
    repair = plan_in_ask_mode(world)
    approved = world.control.approve(repair.incident, repair.digest, actor="ada", now=world.now)
    assert approved.reason.startswith(
        "Refused by pool share: 0 of 2 nodes of pool pool-1 are out of service, one more is 1"
    )
    world.settle(3, seconds=1800)
    assert world.state(repair.incident) == "planned"
    assert "Planned: The approval by ada expired" in world.story(repair.incident)
    again = world.control.approve(repair.incident, repair.digest, actor="bob", now=world.now)
    assert again.reason.startswith("Refused by pool share: "), "a second approval shows why nothing happens"
    world.close()


def test_a_suggested_plan_cannot_be_approved(world: World) -> None:
    made = world.take(world.breaks("n1"), Mode.SUGGEST)
    assert made is not None
    with pytest.raises(InvalidTransition, match="the mode is suggest"):
        world.control.approve(made.id, made.digest, actor="ada", now=world.now)


def test_a_plan_that_starts_with_a_manual_step_needs_approval_in_mode_act(world: World) -> None:
    made = world.take(world.breaks("n1", "gpu_missing"), Mode.ACT)
    assert made is not None
    assert (made.mode, made.state) == ("ask", "planned")
    world.control.approve(made.id, made.digest, actor="ada", now=world.now)
    world.settle(5)
    assert world.cluster.ours() == ["n1"]


def test_rejecting_before_the_reboot_undoes_the_cordon(world: World) -> None:
    world.cluster.troubles = Troubles(slow=1.0)
    repair = plan_in_ask_mode(world)
    world.control.approve(repair.id, repair.digest, actor="ada", now=world.now)
    world.settle(5)
    assert world.cluster.ours() == ["n1"]
    world.control.reject(repair.incident, "the job must end first", actor="bob", now=world.now)
    world.settle(5)
    assert (world.state(repair.incident), world.cluster.ours()) == ("rejected", [])


def test_a_reboot_cannot_be_undone(world: World) -> None:
    repair = plan_in_ask_mode(world)
    world.control.approve(repair.id, repair.digest, actor="ada", now=world.now)
    world.settle(9)
    with pytest.raises(InvalidTransition, match="the repair is validating and cannot be undone"):
        world.control.reject(repair.incident, "oh", actor="bob", now=world.now)


def running(world: World, steps: int) -> Repair:
    repair = plan_in_ask_mode(world)
    world.control.approve(repair.id, repair.digest, actor="ada", now=world.now)
    world.settle(steps)
    return repair


@pytest.mark.parametrize("restarts", [False, True])
def test_a_stopped_repair_makes_no_call_until_it_is_resumed(world: World, restarts: bool) -> None:
    world.cluster.troubles = Troubles(slow=1.0)
    repair = running(world, 5)
    stopped = world.control.stop_repair("INC-1", "let me look", actor="bob", now=world.now)
    assert stopped.reason == (
        "Stopped by bob: let me look. n1 stays cordoned; the step drain has begun, and its last call may still take "
        "effect. `act resume INC-1` continues it; `act reject` undoes it"
    )
    calls = list(world.cluster.calls)
    world.cluster.troubles = Troubles()
    if restarts:
        world.restart()
    world.settle(60, seconds=120)
    kept = world.repairs.find(repair.id)
    assert kept is not None
    assert (world.cluster.calls, kept.state, kept.activity) == (calls, "draining", "stopped by bob while draining n1")
    assert kept.waits_for == ("stopped by bob: let me look",)
    assert world.repairs.active_repair(repair.incident) is not None
    world.control.resume_repair("INC-1", actor="bob", now=world.now)
    world.settle(40)
    assert (world.state(repair.incident), world.cluster.ours()) == ("done", [])
    assert "bob stopped the repair, which was draining n1: let me look" in world.story("INC-1")


def test_a_stop_during_a_call_takes_effect_after_it(world: World) -> None:
    effect = world.cluster._effect

    def stopping(action: Action, machine: Machine) -> ActionOutcome:
        if action.kind is ActionKind.DRAIN:
            world.control.stop_repair("INC-1", "no", actor="bob", now=world.now)
        return effect(action, machine)

    world.cluster._effect = stopping  # type: ignore[method-assign]
    repair = running(world, 20)
    stopped = world.repairs.find(repair.id)
    assert stopped is not None
    assert (stopped.stopped_by, world.cluster.calls) == ("bob", ["cordon n1", "drain n1"])


def test_a_stopped_repair_is_undone_by_a_rejection_and_ends_when_a_user_uncordons_the_node(world: World) -> None:
    world.cluster.troubles = Troubles(slow=1.0)
    rejected = running(world, 5)
    world.control.stop_repair(rejected.id, "no", actor="bob", now=world.now)
    world.control.reject(rejected.id, "not this one", actor="bob", now=world.now)
    world.settle(10)
    assert (world.state(rejected.incident), world.cluster.ours()) == ("rejected", [])
    freed = running(world, 5)
    world.control.stop_repair(freed.id, "no", actor="bob", now=world.now)
    world.cluster.machines["n1"].cordon = None
    world.settle(10)
    assert world.state(freed.incident) == "failed"


def test_only_a_repair_that_has_its_node_is_stopped_once(world: World) -> None:
    repair = plan_in_ask_mode(world)
    with pytest.raises(InvalidTransition, match="the repair is planned; only one that runs can be stopped"):
        world.control.stop_repair(repair.id, "no", actor="bob", now=world.now)
    world.control.approve(repair.id, repair.digest, actor="ada", now=world.now)
    world.settle(9)
    stopped = world.control.stop_repair(repair.id, "no", actor="bob", now=world.now)
    assert stopped.reason == (
        "Stopped by bob: no. n1 stays cordoned; its validation has not ended. `act resume INC-1` continues it; "
        "it cannot be undone; if you uncordon n1 yourself, it ends"
    )
    with pytest.raises(InvalidTransition, match="the repair is stopped by bob while validating n1"):
        world.control.stop_repair(repair.id, "no", actor="bob", now=world.now)
    world.control.resume_repair(repair.id, actor="bob", now=world.now)
    with pytest.raises(InvalidTransition, match="the repair is not stopped"):
        world.control.resume_repair(repair.id, actor="bob", now=world.now)


def test_a_rejected_repair_is_retried_only_by_a_person(world: World) -> None:
    repair = plan_in_ask_mode(world)
    world.control.reject(repair.incident, "no", actor="ada", now=world.now)
    incident = world.journal.incident(repair.incident)
    assert incident is not None
    assert world.take(incident) is None
    want = world.wants(incident)
    assert want is not None
    second = world.control.retry(want, actor="ada", now=world.now)
    assert (second.id, second.actions[0].mark) == ("INC-1.2", "watchkeeper:INC-1/2.1-cordon")


def test_an_unknown_repair_id_is_refused_with_the_way_to_list_repairs(world: World) -> None:
    with pytest.raises(HubError, match="no repair for INC-9"):
        world.control.reject("INC-9", "x", actor="ada", now=world.now)


def test_the_breaker_stops_all_starts_until_a_person_resets_it(tmp_path: Path) -> None:
    world = World(tmp_path, 12, limits(breaker_nodes=3))
    for node in range(6):
        plan_in_ask_mode(world, f"n{node}")
    world.settle(5)
    assert world.repairs.switch.tripped_why == "4 nodes requested a repair within 10m, the limit is 3"
    assert len(world.cluster.ours()) == 3
    world.restart()
    world.settle(5)
    assert world.repairs.switch.is_tripped
    world.control.reset(actor="ada", now=world.now)
    world.settle(2)
    assert len(world.cluster.ours()) == 6
    world.close()


def test_halting_twice_is_allowed_and_resuming_without_a_halt_is_not(world: World) -> None:
    world.control.stop("a", actor="ada", now=world.now)
    world.control.stop("b", actor="bob", now=world.now)
    assert world.repairs.switch.stopped_by == "bob"
    world.control.resume(actor="ada", now=world.now)
    with pytest.raises(InvalidTransition, match="repairs are not halted"):
        world.control.resume(actor="ada", now=world.now)


def test_a_lowered_mode_ends_waiting_repairs_and_blocks_running_ones(tmp_path: Path) -> None:
    world = World(tmp_path, limits=limits(starts=1))
    world.cluster.troubles = Troubles(slow=1.0)
    running, waiting = plan_in_ask_mode(world, "n1"), plan_in_ask_mode(world, "n2")
    world.settle(5)
    calls = len(world.cluster.calls)
    world.mode_decision = ModeDecision(Mode.OBSERVE, "mode observe by remediate.mode")
    world.restart()
    world.settle(5)
    assert (world.state(running.id), world.state(waiting.incident)) == ("draining", "rolled_back")
    assert len(world.cluster.calls) == calls
    frozen = world.repairs.find(running.id)
    assert frozen is not None
    assert frozen.waits_for == ("Auto-repair: off (mode observe by remediate.mode)",)
    world.close()


def test_an_automatic_approval_needs_a_person_after_the_mode_is_lowered_to_ask(tmp_path: Path) -> None:
    world = World(tmp_path, limits=limits(pool_percent=0))
    repair = plan_in_ask_mode(world)
    assert world.state(repair.id) == "approved"
    world.mode_decision = ModeDecision(Mode.ASK, "mode ask by remediate.mode")
    world.step()
    changed = world.repairs.find(repair.id)
    assert changed is not None
    assert (changed.state, changed.mode, changed.approved_by) == ("planned", "ask", None)
    world.close()


def test_a_rejection_during_the_check_of_a_blocked_repair_is_kept(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.cluster.troubles = Troubles(slow=1.0)
    repair = plan_in_ask_mode(world)
    world.settle(5)
    assert world.state(repair.id) == "draining"

    def mode_decision(repair: Repair) -> ModeDecision:
        if repair.state == "draining":
            world.control.reject(repair.id, "not tonight", actor="ada", now=world.now)
        return ModeDecision(Mode.OBSERVE, "mode observe by remediate.mode")

    world.repairs._dependencies = replace(world.repairs._dependencies, current_mode=mode_decision)
    world.repairs.advance(repair.id, world.now)
    assert world.state(repair.id) == "restoring"
    world.close()


def test_an_approval_during_a_call_is_kept(tmp_path: Path) -> None:
    world = World(tmp_path)
    repair, perform = plan_in_ask_mode(world), world.cluster.perform

    def interrupted(action: Action) -> ActionOutcome:
        current = world.repairs.find(repair.id)
        if action.kind is ActionKind.DRAIN and current is not None and current.approved_by == "policy":
            world.control.approve(repair.id, repair.digest, actor="ada", now=world.now)
        return perform(action)

    world.cluster.perform = interrupted  # type: ignore[method-assign]
    world.settle(10)
    assert "drain n1" in world.cluster.calls
    current = world.repairs.find(repair.id)
    assert current is not None
    assert current.approved_by == "ada"
    world.close()
