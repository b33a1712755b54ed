"""People's words: a yes is for one plan and for a time, a no undoes, a stop is at once and survives a restart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.remediate.cluster import Troubles
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


def asked(world: World, node: str = "n1") -> Repair:
    made = world.take(world.breaks(node))
    assert made is not None
    world.cluster.machines[node].is_sick = False
    return made


def test_nothing_is_called_before_a_person_says_yes(world: World) -> None:
    repair = asked(world)
    world.settle(10)
    assert (world.state(repair.incident), world.cluster.calls) == ("planned", [])
    world.control.approve(repair.incident, repair.digest, actor="ada", now=world.now)
    world.settle(30)
    assert world.state(repair.incident) == "done"
    assert f"ada approved plan {repair.digest}" in world.story(repair.incident)


def test_a_yes_to_another_plan_is_no_yes(world: World) -> None:
    repair = asked(world)
    with pytest.raises(InvalidTransition, match=f"the approval is for plan 123, but the plan is now {repair.digest}"):
        world.control.approve(repair.incident, "123", actor="ada", now=world.now)


def test_a_plan_that_changes_needs_a_new_yes(tmp_path: Path) -> None:
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


def test_a_yes_that_guards_hold_up_for_too_long_expires(tmp_path: Path) -> None:
    world = World(tmp_path, mode=Mode.ASK, limits=limits(pool_percent=0))
    repair = asked(world)
    approved = world.control.approve(repair.incident, repair.digest, actor="ada", now=world.now)
    assert approved.reason.startswith(
        "Refused by pool share: 0 of 2 nodes of pool pool-1 are out of service, one more is 1"
    )
    world.settle(3, seconds=1800)
    assert world.state(repair.incident) == "planned"
    assert "Planned: The approval by ada expired" in world.story(repair.incident)
    again = world.control.approve(repair.incident, repair.digest, actor="bob", now=world.now)
    assert again.reason.startswith("Refused by pool share: "), "whoever says yes again hears why nothing happens"
    world.close()


def test_a_suggestion_is_carried_out_by_people(world: World) -> None:
    made = world.take(world.breaks("n1"), Mode.SUGGEST)
    assert made is not None
    with pytest.raises(InvalidTransition, match="the mode is suggest"):
        world.control.approve(made.id, made.digest, actor="ada", now=world.now)


def test_a_plan_that_begins_with_a_look_asks_although_the_mode_is_act(world: World) -> None:
    made = world.take(world.breaks("n1", "gpu_missing"), Mode.ACT)
    assert made is not None
    assert (made.mode, made.state) == ("ask", "planned")
    world.control.approve(made.id, made.digest, actor="ada", now=world.now)
    world.settle(5)
    assert world.cluster.ours() == ["n1"]


def test_a_no_before_the_reboot_undoes_the_cordon(world: World) -> None:
    world.cluster.troubles = Troubles(slow=1.0)
    repair = asked(world)
    world.control.approve(repair.id, repair.digest, actor="ada", now=world.now)
    world.settle(5)
    assert world.cluster.ours() == ["n1"]
    world.control.reject(repair.incident, "the job must end first", actor="bob", now=world.now)
    world.settle(5)
    assert (world.state(repair.incident), world.cluster.ours()) == ("rejected", [])


def test_a_reboot_cannot_be_taken_back(world: World) -> None:
    repair = asked(world)
    world.control.approve(repair.id, repair.digest, actor="ada", now=world.now)
    world.settle(6)
    with pytest.raises(InvalidTransition, match="the repair is validating and cannot be undone"):
        world.control.reject(repair.incident, "oh", actor="bob", now=world.now)


def test_a_rejected_repair_comes_back_only_when_a_person_wants_it(world: World) -> None:
    repair = asked(world)
    world.control.reject(repair.incident, "no", actor="ada", now=world.now)
    incident = world.journal.incident(repair.incident)
    assert incident is not None
    assert world.take(incident) is None
    want = world.wants(incident)
    assert want is not None
    second = world.control.retry(want, actor="ada", now=world.now)
    assert (second.id, second.actions[0].mark) == ("INC-1.2", "watchkeeper:INC-1/2.1-cordon")


def test_a_word_about_nothing_says_what_there_is(world: World) -> None:
    with pytest.raises(HubError, match="no repair for INC-9"):
        world.control.reject("INC-9", "x", actor="ada", now=world.now)


def test_the_breaker_stops_everything_until_a_person_closes_it(tmp_path: Path) -> None:
    world = World(tmp_path, 12, limits(breaker_nodes=3))
    for node in range(6):
        asked(world, f"n{node}")
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


def test_to_stop_twice_is_fine_and_to_resume_what_runs_is_not(world: World) -> None:
    world.control.stop("a", actor="ada", now=world.now)
    world.control.stop("b", actor="bob", now=world.now)
    assert world.repairs.switch.stopped_by == "bob"
    world.control.resume(actor="ada", now=world.now)
    with pytest.raises(InvalidTransition, match="repairs are not halted"):
        world.control.resume(actor="ada", now=world.now)


def test_settings_that_became_more_careful_end_what_waits_and_freeze_what_runs(tmp_path: Path) -> None:
    world = World(tmp_path, limits=limits(starts=1))
    world.cluster.troubles = Troubles(slow=1.0)
    running, waiting = asked(world, "n1"), asked(world, "n2")
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


def test_what_policy_approved_asks_again_when_the_mode_is_lowered_to_ask(tmp_path: Path) -> None:
    world = World(tmp_path, limits=limits(pool_percent=0))
    repair = asked(world)
    assert world.state(repair.id) == "approved"
    world.mode_decision = ModeDecision(Mode.ASK, "mode ask by remediate.mode")
    world.step()
    changed = world.repairs.find(repair.id)
    assert changed is not None
    assert (changed.state, changed.mode, changed.approved_by) == ("planned", "ask", None)
    world.close()


def test_a_no_that_comes_while_a_frozen_repair_is_looked_at_is_not_lost(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.cluster.troubles = Troubles(slow=1.0)
    repair = asked(world)
    world.settle(5)
    assert world.state(repair.id) == "draining"

    def mode_decision(one: Repair) -> ModeDecision:
        if one.state == "draining":
            world.control.reject(one.id, "not tonight", actor="ada", now=world.now)
        return ModeDecision(Mode.OBSERVE, "mode observe by remediate.mode")

    world.repairs._dependencies = replace(world.repairs._dependencies, current_mode=mode_decision)
    world.repairs.advance(repair.id, world.now)
    assert world.state(repair.id) == "restoring"
    world.close()


def test_a_yes_that_comes_during_a_call_is_kept(tmp_path: Path) -> None:
    world = World(tmp_path)
    repair, perform = asked(world), world.cluster.perform

    def interrupted(action: Action) -> ActionOutcome:
        found = world.repairs.find(repair.id)
        if action.kind is ActionKind.DRAIN and found is not None and found.approved_by == "policy":
            world.control.approve(repair.id, repair.digest, actor="ada", now=world.now)
        return perform(action)

    world.cluster.perform = interrupted  # type: ignore[method-assign]
    world.settle(10)
    assert "drain n1" in world.cluster.calls
    found = world.repairs.find(repair.id)
    assert found is not None
    assert found.approved_by == "ada"
    world.close()
