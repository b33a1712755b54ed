"""What is not known refuses, what is not allowed any more waits, and what is not ours is left alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.remediate.cluster import Troubles
from tests.remediate.world import World
from watchkeeper.errors import ActionFailed, InvalidTransition, StoreError
from watchkeeper.model.repairs import Repair
from watchkeeper.model.trust import Mode
from watchkeeper.remediate import policy
from watchkeeper.remediate.driver import NodeObservation
from watchkeeper.remediate.trust_rules import ModeDecision


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def begun(world: World, mode: Mode = Mode.ACT) -> Repair:
    """A repair of n1, cordoned and about to be drained."""
    incident = world.breaks("n1")
    made = world.take(incident, mode)
    assert made is not None
    if mode is Mode.ASK:
        world.control.approve(made.id, made.digest, actor="ada", now=world.now)
    world.step()
    world.step()
    assert world.cluster.calls == ["cordon n1"]
    world.cluster.machines["n1"].is_sick = False
    repair = world.repairs.find(made.id)
    assert repair is not None
    return repair


def test_a_node_that_cannot_be_observed_is_not_drained_or_rebooted(world: World) -> None:
    made = begun(world)
    world.cluster.troubles = Troubles(observe=1.0)
    world.settle(20)
    assert world.cluster.calls == ["cordon n1"]
    assert "the cluster does not answer" in world.repairs.active_repairs()[0].waits_for[0]
    world.cluster.troubles = Troubles()
    world.settle(30)
    assert world.state(made.incident) == "done"


def test_a_node_unobserved_for_too_long_stays_cordoned_with_an_open_incident(world: World) -> None:
    made = begun(world)
    world.cluster.troubles = Troubles(observe=1.0)
    world.settle(80, seconds=60)
    assert world.state(made.id) == "failed"
    assert "the limit is 3600 s; blocked on: the state of n1 is unknown" in world.repairs.active_repairs()[0].reason


def test_an_automatic_repair_continues_in_mode_ask_only_after_approval(world: World) -> None:
    made = begun(world)
    world.mode_decision = ModeDecision(Mode.ASK, "mode ask by remediate.mode")
    world.settle(20)
    assert world.cluster.calls == ["cordon n1"]
    assert world.repairs.active_repairs()[0].waits_for == ("approval (mode ask by remediate.mode)",)
    with pytest.raises(InvalidTransition, match="the approval is for plan"):
        world.control.approve(made.id, "another", actor="ada", now=world.now)
    world.control.approve(made.id, made.digest, actor="ada", now=world.now)
    world.settle(30)
    assert world.state(made.incident) == "done"


def test_an_approved_repair_continues_in_mode_ask(world: World) -> None:
    made = begun(world, Mode.ASK)
    world.mode_decision = ModeDecision(Mode.ASK, "mode ask by remediate.mode")
    world.settle(30)
    assert world.state(made.incident) == "done"


def test_in_mode_ask_our_cordon_is_removed_without_approval(world: World) -> None:
    made = begun(world)
    world.mode_decision = ModeDecision(Mode.ASK, "mode ask by remediate.mode")
    world.ends(made.incident)
    world.settle(10)
    assert world.cluster.ours() == ["n1"]
    world.control.approve(made.id, made.digest, actor="ada", now=world.now)
    world.settle(10)
    assert (world.state(made.incident), world.cluster.ours()) == ("rolled_back", [])


def test_a_node_that_a_lowered_mode_leaves_cordoned_keeps_an_open_incident(world: World) -> None:
    made = begun(world)
    world.mode_decision = ModeDecision(Mode.OBSERVE, "mode observe by remediate.mode")
    world.ends(made.incident)
    world.settle(5)
    assert world.cluster.ours() == ["n1"]
    assert world.reported[0].fields["repair"] == made.id


def test_a_clock_set_back_does_not_prolong_an_approval(world: World) -> None:
    world.limits = replace(world.limits, fleet_percent=0)
    world.open()
    incident = world.breaks("n1")
    made = world.take(incident, Mode.ASK)
    assert made is not None
    world.control.approve(made.id, made.digest, actor="ada", now=world.now)
    world.now -= timedelta(hours=5)
    world.step()
    assert world.state(made.id) == "planned"
    assert "clock was set back" in world.repairs.active_repairs()[0].reason


def test_a_clock_set_back_does_not_delay_a_repair(world: World) -> None:
    made = begun(world)
    world.cluster.troubles = Troubles(before=1.0)
    world.step()
    world.cluster.troubles = Troubles()
    world.now -= timedelta(hours=5)
    world.settle(30)
    assert world.state(made.incident) == "done"


def test_the_mark_of_another_hub_with_the_same_number_is_not_ours(world: World) -> None:
    first = world.breaks("n0")
    world.take(first)
    world.settle(30)
    assert world.state(first.id) == "done"
    foreign = f"watchkeeper:{first.id}/1-cordon"
    second = world.breaks("n1")
    world.cluster.machines["n1"].cordon = foreign
    world.take(second)
    world.settle(30)
    assert world.cluster.machines["n1"].cordon == foreign
    assert world.state(second.id) == "rolled_back"


def test_a_halt_that_the_journal_refuses_is_in_force(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(world)

    def full(*_: object, **__: object) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(world.journal, "save_switch", full)
        with pytest.raises(StoreError):
            world.control.stop("let me look", actor="ada", now=world.now)
    world.settle(20)
    assert world.repairs.switch.is_stopped
    assert world.cluster.calls == ["cordon n1"]
    world.control.resume(actor="ada", now=world.now)
    world.settle(30)
    assert world.cluster.calls[-1] == "uncordon n1"


def test_nothing_is_called_for_an_intent_that_the_journal_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    incident = world.breaks("n1")

    def gone(*_: object, **__: object) -> None:
        raise StoreError("the disk is gone")

    with monkeypatch.context() as broken:
        broken.setattr(world.journal, "record", gone)
        broken.setattr(world.journal, "open_incident_ids", gone)
        broken.setattr(world.journal, "active_repairs", gone)
        with pytest.raises(StoreError):
            world.take(incident)
    for repair in world.repairs.active_repairs():
        world.repairs.advance(repair.id, world.now)
    assert world.cluster.calls == []
    world.settle(5)
    assert world.cluster.calls == []


def test_a_stray_cordon_is_found_after_the_cluster_was_unreachable_for_hours(world: World) -> None:
    made = begun(world)
    world.control.reject(made.id, "no", actor="ada", now=world.now)
    world.settle(5)
    assert world.state(made.incident) == "rejected"
    world.cluster.troubles = Troubles(observe=1.0)
    world.settle(3, seconds=3600)
    world.cluster.machines["n1"].cordon = made.actions[0].mark
    world.cluster.troubles = Troubles()
    world.settle(5, seconds=301)
    assert world.cluster.ours() == []


def test_an_unreachable_cluster_is_checked_for_stray_cordons_only_once(world: World) -> None:
    for name in ("n0", "n1", "n2"):
        made = world.take(world.breaks(name), Mode.ASK)
        assert made is not None
        world.control.reject(made.id, "no", actor="ada", now=world.now)
    queried: list[str] = []

    def silent(place: object) -> NodeObservation:
        queried.append(str(place))
        raise ActionFailed("no answer within 5 s")

    world.cluster.observe = silent  # type: ignore[method-assign]
    world.step()
    assert len(queried) == 1


def test_a_gpu_drain_without_a_cordon_is_not_taken_for_a_lost_cordon(world: World) -> None:
    text = '[cause.ecc_uncorrectable]\nsteps = [{action = "drain", why = "x", arguments = {scope = "gpu"}}]'
    world.policy = policy.parse(text, where="test", base=world.policy)
    incident = world.breaks("n1", "ecc_uncorrectable")
    world.cluster.troubles = Troubles(slow=1.0)
    made = world.take(incident)
    assert made is not None
    world.settle(5)
    assert world.state(made.id) == "draining"
    world.cluster.troubles = Troubles()
    world.settle(5)
    assert world.state(made.incident) == "done"


def test_downtime_of_the_hub_does_not_count_towards_a_time_limit(world: World) -> None:
    made = begun(world)
    world.cluster.troubles = Troubles(slow=1.0)
    world.settle(3)
    world.now += timedelta(hours=5)
    world.restart()
    world.settle(3)
    assert world.state(made.incident) == "draining"
    world.cluster.troubles = Troubles()
    world.settle(30)
    assert world.state(made.incident) == "done"
