"""Every trouble that a cluster can give ends in a defined state, with its reason on the incident and nothing left.

The words are those of the drivers (tests/remediate/drivers has them from real servers); here they last for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.remediate.cluster import Troubles
from tests.remediate.walk import Killed
from tests.remediate.world import World
from watchkeeper.errors import ActionFailed
from watchkeeper.model.actions import Action, ActionKind
from watchkeeper.model.fleet import Place
from watchkeeper.remediate.driver import ActionOutcome, NodeObservation

AWAY = "GET /api/v1/nodes/n1 to the Kubernetes API server failed: Connection refused"
CONFLICT = "another client changed the node between read and patch, 5 times"
BUDGET = "pod web/a: blocked by a disruption budget: web needs 1 healthy pods and has 1 currently"
ENDLESS = "pod train/b: should have terminated 900 s ago, blocked by its finalizers example.com/wait"
EXPIRED = "it rejected our credentials: Unauthorized"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def waits(world: World, kind: ActionKind, why: str) -> None:
    """From now on this kind of call is never complete."""
    perform = world.cluster.perform

    def endless(action: Action) -> ActionOutcome:
        if action.kind is not kind:
            return perform(action)
        return ActionOutcome(f"{action.kind} is blocked", is_complete=False, waits_for=(why,))

    world.cluster.perform = endless  # type: ignore[method-assign]


def away(world: World) -> None:
    """From the first drain on, every observation and call fails."""
    observe, perform, cluster = world.cluster.observe, world.cluster.perform, world.cluster

    def unseen(place: Place) -> NodeObservation:
        if "drain n1" in cluster.calls:
            raise ActionFailed(AWAY)
        return observe(place)

    def uncalled(action: Action) -> ActionOutcome:
        if "drain n1" in cluster.calls or action.kind is ActionKind.DRAIN:
            cluster.calls.append(f"{action.kind} n1")
            raise ActionFailed(AWAY)
        return perform(action)

    cluster.observe, cluster.perform = unseen, uncalled  # type: ignore[method-assign]


def anew(world: World) -> None:
    machine = world.cluster.machines["n1"]
    machine.incarnation, machine.cordon = machine.incarnation + 1, None


def uncordoned(world: World) -> None:
    world.cluster.machines["n1"].cordon = None


AT_ONCE: dict[str, tuple[Callable[[World], None], str]] = {
    "the API server is gone mid-drain": (away, "drain timed out after 36"),
    "conflicts": (
        lambda world: waits(world, ActionKind.CORDON, CONFLICT),
        f"the limit is 120 s; blocked on: {CONFLICT}",
    ),
    "a budget that never allows": (lambda world: waits(world, ActionKind.DRAIN, BUDGET), BUDGET),
    "a pod that never ends": (lambda world: waits(world, ActionKind.DRAIN, ENDLESS), ENDLESS),
    "expired credentials": (lambda world: waits(world, ActionKind.CORDON, EXPIRED), EXPIRED),
}
MID_DRAIN: dict[str, tuple[Callable[[World], None], str]] = {
    "deleted and made again": (anew, "n1 was replaced by another machine with the same name: the repair ends"),
    "uncordoned under our hands": (uncordoned, "Our cordon of n1 was removed by another user"),
}


def begin(world: World) -> str:
    incident = world.breaks("n1")
    world.take(incident)
    return incident.id


@pytest.mark.slow
@pytest.mark.parametrize("trouble", AT_ONCE)
def test_a_lasting_failure_ends_the_repair_with_its_reason(world: World, trouble: str) -> None:
    begins, reason = AT_ONCE[trouble]
    observe, perform = world.cluster.observe, world.cluster.perform
    begins(world)
    id = begin(world)
    world.settle(150, seconds=30)
    assert world.state(id) == "failed"
    assert any(reason in text for text in world.story(id)), world.story(id)
    world.cluster.observe, world.cluster.perform = observe, perform  # type: ignore[method-assign]
    world.ends(id)
    world.settle(20, seconds=60)
    assert (world.cluster.ours(), world.repairs.active_repairs()) == ([], [])


@pytest.mark.parametrize("trouble", MID_DRAIN)
def test_a_node_that_is_no_longer_ours_is_released_with_the_reason(world: World, trouble: str) -> None:
    world.cluster.troubles = Troubles(slow=1.0)
    id = begin(world)
    world.settle(5)
    assert world.state(id) == "draining"
    MID_DRAIN[trouble][0](world)
    calls = len(world.cluster.calls)
    world.settle(20, seconds=30)
    assert (world.state(id), world.repairs.active_repairs(), len(world.cluster.calls)) == ("failed", [], calls)
    assert any(MID_DRAIN[trouble][1] in text for text in world.story(id)), world.story(id)
    assert world.cluster.machines["n1"].cordon is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_no_repair_is_lost_whatever_goes_wrong_for_a_while(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, 12)
    world.cluster.dice.seed(seed)
    world.cluster.troubles = Troubles(before=0.2, after=0.2, observe=0.2, slow=0.5)
    effect, dice = world.cluster._effect, world.cluster.dice

    def deadly(action: Action, machine: object) -> ActionOutcome:
        if dice.random() < 0.05:
            raise Killed
        return effect(action, machine)  # type: ignore[arg-type]

    world.cluster._effect = deadly  # type: ignore[method-assign]
    ids = []
    for node in world.nodes:
        ids.append(world.breaks(node.name).id)
        world.cluster.machines[node.name].is_sick = False
        for _ in range(5):
            try:
                world.take(world.journal.incident(ids[-1]))  # type: ignore[arg-type]
                world.step(1)
            except Killed:
                world.restart()
    world.cluster._effect, world.cluster.troubles = effect, Troubles()  # type: ignore[method-assign]
    world.settle(60, seconds=10)
    assert {world.state(id) for id in ids} == {"done"}
    assert (world.cluster.ours(), world.repairs.active_repairs()) == ([], [])
    assert set(world.cluster.effects.values()) == {1}
    world.close()
