"""Allocated idle GPUs: the owner is warned, has time, and keeps the GPUs by using them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remediate.world import World, limits
from watchkeeper.errors import SettingsError
from watchkeeper.model.actions import ActionKind
from watchkeeper.model.incidents import Incident
from watchkeeper.model.trust import Mode
from watchkeeper.remediate import policy, validation
from watchkeeper.remediate.reclaim import Exemptions
from watchkeeper.remediate.trust_rules import ModeDecision

NOTEBOOK = ("research/nb-1",)
HOUR = 3600.0
RECLAIM = policy.set_owner_wait(policy.load(reclaim=True), "1h")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, policy=RECLAIM)
    yield made
    made.close()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[World]:
    """Two reclaims an hour, and a breaker that opens for three nodes."""
    made = World(tmp_path, policy=RECLAIM, limits=limits(reclaims=2, breaker_nodes=2))
    yield made
    made.close()


def held_idle(world: World, node: str = "n1", *, gpu: str = "GPU-1", pods: tuple[str, ...] = NOTEBOOK) -> Incident:
    return world.breaks(node, "gpu_idle_waste", gpu=gpu, workloads=pods)


def called(world: World, kind: str) -> int:
    return sum(call.startswith(f"{kind} ") for call in world.cluster.calls)


def test_nothing_is_taken_unless_it_is_switched_on() -> None:
    assert [step.action for step in policy.load().steps("gpu_idle_waste")] == [ActionKind.NOTIFY_OWNER]
    with pytest.raises(SettingsError, match="reclaiming is off"):
        policy.set_owner_wait(policy.load(reclaim=True), None)


def test_the_owner_is_warned_and_has_an_hour_before_the_reclaim(world: World) -> None:
    made = world.take(held_idle(world))
    assert made is not None
    world.settle(70)
    assert (world.state(made.incident), called(world, "warn_owner"), called(world, "reclaim")) == ("warning", 1, 0)
    repair = world.repairs.find(made.incident)
    assert repair is not None
    assert "until 13:00Z to use it again" in repair.waits_for[0]
    world.settle(100, seconds=60)
    assert (world.state(made.incident), called(world, "warn_owner"), called(world, "reclaim")) == ("done", 1, 1)


def test_a_gpu_in_use_again_is_not_reclaimed(world: World) -> None:
    made = world.take(held_idle(world))
    assert made is not None
    world.settle(30, seconds=60)
    world.used.add("research/nb-1")
    world.settle(90, seconds=60)
    assert (world.state(made.incident), called(world, "reclaim")) == ("rolled_back", 0)
    repair = world.repairs.find(made.incident)
    assert repair is not None
    assert repair.reason == "In use again, not reclaimed: research/nb-1 at work"


def test_an_incident_that_ends_in_the_waiting_time_takes_nothing(world: World) -> None:
    incident = held_idle(world)
    made = world.take(incident)
    assert made is not None
    world.settle(10, seconds=60)
    world.ends(incident.id)
    world.settle(90, seconds=60)
    assert (world.state(made.incident), called(world, "reclaim")) == ("rolled_back", 0)


def test_a_gpu_without_samples_is_not_reclaimed(world: World) -> None:
    made = world.take(held_idle(world))
    assert made is not None
    world.settle(30, seconds=60)
    world.idle = validation.CheckState.UNKNOWN
    world.settle(120, seconds=60)
    assert (world.state(made.incident), called(world, "reclaim")) == ("rolled_back", 0)


def test_a_reclaim_can_be_rejected_while_the_owner_has_time(world: World) -> None:
    made = world.take(held_idle(world))
    assert made is not None
    world.settle(5, seconds=60)
    world.control.reject(made.id, "a talk tomorrow", actor="ada", now=world.now)
    world.settle(90, seconds=60)
    assert (world.state(made.incident), called(world, "reclaim")) == ("rejected", 0)


def test_in_mode_ask_no_warning_is_sent_without_approval(world: World) -> None:
    made = world.take(held_idle(world), Mode.ASK)
    assert made is not None
    world.settle(10, seconds=60)
    assert world.cluster.calls == []
    world.control.approve(made.id, made.digest, actor="ada", now=world.now)
    world.settle(40)
    assert world.state(made.incident) == "warning"


def test_a_restarted_hub_gives_the_owner_the_whole_time_again(world: World) -> None:
    made = world.take(held_idle(world))
    assert made is not None
    world.settle(55, seconds=60)
    world.restart()
    world.settle(50, seconds=60)
    assert (world.state(made.incident), called(world, "warn_owner"), called(world, "reclaim")) == ("warning", 1, 0)
    world.settle(20, seconds=60)
    assert (world.state(made.incident), called(world, "warn_owner"), called(world, "reclaim")) == ("done", 1, 1)


def test_the_gpus_of_one_workload_are_one_reclaim_and_two_workloads_are_two(world: World) -> None:
    first = world.take(held_idle(world, gpu="GPU-1"))
    same = world.take(held_idle(world, gpu="GPU-2"))
    other = world.take(held_idle(world, gpu="GPU-3", pods=("vision/nb-9",)))
    assert first is not None
    assert same is not None
    assert other is not None
    assert (same.id, other.id != first.id) == (first.id, True)


def test_a_sick_node_is_repaired_although_an_owner_has_time(world: World) -> None:
    idle = world.take(held_idle(world))
    world.settle(40)
    sick = world.take(world.breaks("n1", "gpu_fell_off_bus", gpu="GPU-2"))
    assert idle is not None
    assert sick is not None
    assert sick.id != idle.id
    world.step()
    assert world.state(sick.id) != "planned"


def test_many_idle_nodes_open_no_breaker_and_wait_for_their_own_rate(small: World) -> None:
    world = small
    made = [world.take(held_idle(world, f"n{at}", pods=(f"research/nb-{at}",))) for at in range(4)]
    world.settle(40)
    assert sorted(world.state(repair.id) for repair in made if repair) == ["approved", "approved", "warning", "warning"]
    assert not world.repairs.switch.is_tripped
    waits = next(repair for repair in world.repairs.active_repairs() if repair.state == "approved")
    assert waits.reason == "Refused by rate: 2 reclaims started within 1h, the limit is 2"
    broken = world.take(world.breaks("n3"))
    assert broken is not None
    assert world.state(broken.id) != "approved"


def test_what_the_driver_refuses_leaves_nothing_behind(world: World) -> None:
    made = world.take(held_idle(world, pods=()))
    assert made is None


@pytest.mark.parametrize("pattern", ["research/*", "team=science", "*/nb-?"])
def test_who_is_exempt_keeps_idle_gpus(world: World, pattern: str) -> None:
    want = world.wants(held_idle(world))
    assert want is not None
    exempt = Exemptions((pattern,), lambda _: "science")
    mode_decision = exempt.limit_mode(want.allowed, want.actions)
    assert mode_decision == ModeDecision(
        Mode.OBSERVE, f"research/nb-1 is exempt from reclaiming: remediate.reclaim_exempt has `{pattern}`"
    )
    assert Exemptions(("vision/*",)).limit_mode(want.allowed, want.actions) == want.allowed


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ('{ action = "reclaim", why = "x" }', "reclaims a GPU without a warning; add a warn_owner before it"),
        ('{ action = "warn_owner", why = "x", arguments = { wait = "soon" } }', "arguments.wait"),
        (
            '{ action = "warn_owner", why = "x" }, { action = "reclaim", why = "x", arguments = { how = "shout" } }',
            "use one of scale_down, requeue, cancel",
        ),
    ],
)
def test_a_reclaim_without_a_warning_is_an_error(steps: str, problem: str) -> None:
    with pytest.raises(SettingsError) as raised:
        policy.parse(f"[cause.gpu_idle_waste]\nsteps = [{steps}]", where="mine.toml", base=policy.load())
    assert problem in str(raised.value)


def test_only_waste_is_taken_back() -> None:
    steps = '{ action = "warn_owner", why = "x" }, { action = "reclaim", why = "x" }'
    with pytest.raises(SettingsError, match="needs a cause of the family waste"):
        policy.parse(f"[cause.training_stalled]\nsteps = [{steps}]", where="mine.toml", base=policy.load())


def test_a_pool_may_have_its_own_time_and_way(world: World) -> None:
    text = """[pool.pool-1.cause.gpu_idle_waste]
steps = [{ action = "warn_owner", why = "x", arguments = { wait = "5m" } },
         { action = "reclaim", why = "x", arguments = { how = "cancel" } }]"""
    world.policy = policy.set_owner_wait(policy.parse(text, where="mine.toml", base=RECLAIM), "1h")
    made = world.take(held_idle(world, "n1"))
    assert made is not None
    world.settle(8, seconds=60)
    assert (world.state(made.incident), made.actions[-1].arguments["how"]) == ("done", "cancel")
