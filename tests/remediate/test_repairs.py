"""Repairs, told as stories: what happens from a plan to a healthy node, and everything that can come in between."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.remediate.cluster import Troubles
from tests.remediate.walk import Killed
from tests.remediate.world import World, limits
from watchkeeper.errors import ActionFailed
from watchkeeper.model import fleet
from watchkeeper.model.actions import Action, ActionKind
from watchkeeper.model.trust import Mode
from watchkeeper.remediate import repairs
from watchkeeper.remediate.driver import ActionOutcome, NodeObservation
from watchkeeper.remediate.validation import CheckResult, CheckState

CALLS = ["cordon n1", "drain n1", "reboot n1", "uncordon n1"]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def broken(world: World, cause: str = "gpu_fell_off_bus", *, heals: bool = True) -> str:
    """An incident at n1 whose repair has begun."""
    incident = world.breaks("n1", cause)
    world.take(incident)
    world.cluster.machines["n1"].is_sick = not heals
    return incident.id


def test_a_lost_gpu_is_cordoned_drained_rebooted_validated_and_given_back(world: World) -> None:
    id = broken(world)
    world.settle(30)
    assert (world.state(id), world.cluster.calls) == ("done", CALLS)
    assert world.cluster.machines["n1"].cordon is None
    assert world.journal.verify() is None
    assert "Done: All steps are done; the node passed validation" in world.story(id)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["cordon", "drain", "reboot", "uncordon"])
def test_a_hub_killed_around_a_call_continues_and_repeats_no_effect(world: World, kind: str, when: str) -> None:
    effect, deaths = world.cluster._effect, [kind]

    def deadly(action: Action, machine: object) -> ActionOutcome:
        if when == "before" and action.kind in deaths:
            deaths.clear()
            raise Killed
        done = effect(action, machine)  # type: ignore[arg-type]
        if action.kind in deaths:
            deaths.clear()
            raise Killed
        return done

    world.cluster._effect = deadly  # type: ignore[method-assign, assignment]
    id = broken(world)
    with pytest.raises(Killed):
        world.settle(30)
    world.restart()
    world.settle(30)
    assert (world.state(id), world.cluster.ours()) == ("done", [])
    assert set(world.cluster.effects.values()) == {1}


def test_a_drain_that_never_ends_fails_with_what_blocks_it(world: World) -> None:
    world.cluster.troubles = Troubles(slow=1.0)
    id = broken(world)
    world.settle(80, seconds=60)
    repair = world.repairs.find(id)
    assert repair is not None
    assert (repair.state, repair.has_cordon) == ("failed", True)
    assert repair.reason.startswith("drain timed out after 36")
    assert repair.reason.endswith("the limit is 3600 s; blocked on: job-0")
    world.ends(id)
    world.settle(5, seconds=60)
    assert (world.state(id), world.cluster.ours()) == ("rolled_back", [])


def test_an_unreachable_api_server_is_retried(world: World) -> None:
    id = broken(world)
    world.settle(2)
    world.cluster.troubles = Troubles(before=1.0)
    world.settle(60)
    assert 2 < len(world.cluster.calls) < 15
    world.cluster.troubles = Troubles()
    world.settle(90)
    assert world.state(id) == "done"


def test_credentials_that_stay_expired_end_in_a_failure_with_the_reason(world: World) -> None:
    def expired(action: Action) -> ActionOutcome:
        raise ActionFailed(f"{action.kind}: 401 Unauthorized")

    world.cluster.perform = expired  # type: ignore[method-assign]
    id = broken(world)
    world.settle(40, seconds=10)
    assert world.state(id) == "failed"
    assert any("the limit is 120 s" in text and "401 Unauthorized" in text for text in world.story(id))
    assert world.cluster.ours() == []


def test_a_driver_that_breaks_is_an_error_of_that_step_only(world: World) -> None:
    def broken_driver(_: Action) -> ActionOutcome:
        raise RuntimeError("list index out of range")

    world.cluster.perform = broken_driver  # type: ignore[method-assign]
    id = broken(world)
    world.settle(40, seconds=10)
    assert world.state(id) == "failed"


def test_an_uncordon_by_a_user_ends_the_repair(world: World) -> None:
    world.cluster.troubles = Troubles(slow=1.0)
    id = broken(world)
    world.settle(5)
    world.cluster.machines["n1"].cordon = None
    world.settle(20)
    assert world.state(id) == "failed"
    assert any("Our cordon of n1 was removed by another user" in text for text in world.story(id))
    assert world.cluster.machines["n1"].cordon is None


def test_a_node_cordoned_by_another_user_is_not_changed(world: World) -> None:
    world.cluster.machines["n1"].cordon = "ada"
    id = broken(world)
    world.settle(20)
    assert world.state(id) == "rolled_back"
    assert world.cluster.machines["n1"].cordon == "ada"
    assert "Rolled back: n1 is already cordoned by ada" in world.story(id)
    assert "drain n1" not in world.cluster.calls


def test_a_node_that_is_deleted_ends_its_repair(world: World) -> None:
    world.cluster.troubles = Troubles(slow=1.0)
    id = broken(world)
    world.settle(5)
    world.cluster.machines["n1"].exists = False
    world.settle(5)
    assert (world.state(id), world.repairs.active_repairs()) == ("failed", [])
    assert any("n1 no longer exists" in text for text in world.story(id))


def test_a_replaced_machine_with_the_same_name_ends_the_repair(world: World) -> None:
    world.cluster.troubles = Troubles(slow=1.0)
    id = broken(world)
    world.settle(5)
    machine = world.cluster.machines["n1"]
    machine.incarnation, machine.cordon = 2, machine.cordon
    world.settle(5)
    assert world.state(id) == "failed"
    assert any("replaced by another machine" in text for text in world.story(id))


def test_an_incident_that_ends_by_itself_has_its_cordon_taken_off(world: World) -> None:
    world.cluster.troubles = Troubles(slow=1.0)
    id = broken(world)
    world.settle(5)
    assert world.cluster.ours() == ["n1"]
    world.ends(id)
    world.settle(5)
    assert (world.state(id), world.cluster.ours()) == ("rolled_back", [])
    assert "reboot n1" not in world.cluster.calls


def test_an_incident_that_its_own_repair_ends_is_validated_all_the_same(world: World) -> None:
    id = broken(world)
    world.settle(9)
    assert world.state(id) == "validating"
    world.ends(id)
    world.settle(30)
    assert (world.state(id), world.cluster.ours()) == ("done", [])


def test_a_node_that_does_not_pass_stays_out_and_has_an_open_incident(world: World) -> None:
    world.cluster.dice.random = lambda: 0.0  # type: ignore[method-assign]
    id = broken(world, heals=False)
    world.settle(6)
    world.ends(id)
    world.settle(10)
    assert (world.state(id), world.cluster.ours()) == ("failed", ["n1"])
    assert [event.fields["cause"] for event in world.reported] == ["gpu_fell_off_bus"]
    assert "stays out of service after its repair: Validation failed" in world.reported[0].text


@pytest.mark.parametrize("restarts", [False, True])
def test_a_reboot_is_in_progress_until_the_boot_is_observed(world: World, restarts: bool) -> None:
    world.boot = CheckResult("booted", CheckState.UNKNOWN, "n1 has not booted since 12:00:03Z")
    id = broken(world)
    world.settle(100)
    if restarts:
        world.restart()
        world.settle(3)
    repair = world.repairs.find(id)
    assert repair is not None
    assert (repair.state, repair.activity) == ("acting", "rebooting n1")
    assert repair.waits_for == ("n1 has not booted since 12:00:03Z",)
    assert world.boot_since is not None
    assert world.boot_since <= repair.receipts[-1].at
    world.boot = CheckResult("booted", CheckState.PASSED, "n1 booted at 12:01:35Z")
    world.settle(3)
    assert world.state(id) == "validating"
    assert "n1 booted at 12:01:35Z" in world.story(id)
    assert world.cluster.calls.count("reboot n1") == 1


def test_a_node_that_does_not_boot_fails_its_repair_and_stays_cordoned(world: World) -> None:
    world.boot = CheckResult("booted", CheckState.UNKNOWN, "n1 has not booted since 12:00:03Z")
    id = broken(world)
    world.settle(70, seconds=30)
    repair = world.repairs.find(id)
    assert repair is not None
    assert (repair.state, world.cluster.ours()) == ("failed", ["n1"])
    assert repair.reason.endswith("the limit is 1800 s; blocked on: n1 has not booted since 12:00:03Z")


def test_without_a_source_of_boots_a_repair_says_so_and_continues(world: World) -> None:
    id = broken(world)
    world.settle(30)
    assert "The reboot was ordered; no source of this hub reports when n1 boots" in world.story(id)
    assert world.state(id) == "done"


def test_a_hub_restarted_during_validation_checks_before_it_times_out(world: World) -> None:
    id = broken(world)
    while world.state(id) != "validating":
        world.step()
    world.now += timedelta(days=1)
    world.restart()
    world.settle(30)
    assert (world.state(id), world.cluster.calls) == ("done", CALLS)


def test_two_incidents_of_one_node_share_one_repair(world: World) -> None:
    first = broken(world)
    second = world.breaks("n1", "ecc_uncorrectable")
    world.cluster.machines["n1"].is_sick = False
    world.take(second)
    world.settle(30)
    assert world.cluster.calls == CALLS
    assert world.take(second) is None
    assert f"{first}.1 is already repairing n1: this incident shares it" in world.story(second.id)


def test_a_fault_that_returns_gets_another_attempt_until_there_were_enough(tmp_path: Path) -> None:
    world = World(tmp_path, limits=limits(attempts=2))
    id = broken(world)
    for _ in range(3):
        world.settle(30)
        world.ends(id)
        world.step()
        world.take(world.reopens(id))
        world.cluster.machines["n1"].is_sick = False
    assert world.cluster.calls.count("reboot n1") == 2
    repair = world.repairs.find(id)
    assert repair is not None
    assert repair.reason == "Refused by attempts: 2 repairs of n1 within 1w, the limit is 2: hand it over to the vendor"
    world.close()


def test_a_manual_step_waits_for_a_person_and_the_cordon_for_the_incident(world: World) -> None:
    id = broken(world, "cooling_failure")
    world.settle(10)
    waiting = world.repairs.find(id)
    assert waiting is not None
    assert waiting.waits_for == ("Manual: inspect GPU-1 on n1 (Fans, air baffles or coolant may have failed)",)
    world.control.step_done(id, actor="ada", now=world.now)
    world.settle(10)
    assert (world.state(id), world.cluster.ours()) == ("acting", ["n1"])
    world.ends(id)
    world.settle(10)
    assert (world.state(id), world.cluster.ours()) == ("done", [])


def test_a_lowered_power_limit_is_restored_at_the_end(world: World) -> None:
    id = broken(world, "thermal_throttle")
    world.settle(5)
    assert world.cluster.calls == ["lower_power n1"]
    world.ends(id)
    world.settle(5)
    assert (world.state(id), world.cluster.calls) == ("done", ["lower_power n1", "lower_power n1"])
    repair = world.repairs.find(id)
    assert repair is not None
    assert repair.receipts[-1].action.arguments == {"restore": "default"}


def test_a_cordon_that_takes_effect_late_is_found_and_removed(world: World) -> None:
    id = broken(world)
    repair = world.repairs.find(id)
    assert repair is not None
    world.control.reject(id, "not now", actor="ada", now=world.now)
    world.settle(5)
    world.cluster.machines["n1"].cordon = repair.actions[0].mark
    world.settle(10, seconds=60)
    assert (world.state(id), world.cluster.ours()) == ("rejected", [])


def test_a_node_is_observed_for_an_hour_after_its_repair(world: World) -> None:
    incident = world.breaks("n1")
    world.take(incident)
    world.cluster.machines["n1"].is_sick = False
    world.settle()
    world.ends(incident.id)
    world.settle(5)
    assert world.repairs.active_repairs() == []
    late, looked = world.repairs._stray_cordons, list[str]()

    def observe(place: fleet.Place) -> NodeObservation:
        looked.append(str(place.node))
        return world.cluster.observe(place)

    for minutes in (10, 30, 90, 120):
        late.check_nodes(observe, lambda _: False, world.now + timedelta(minutes=minutes))
    assert looked == ["n1", "n1", "n1"]


@pytest.mark.slow
def test_hundreds_of_incidents_at_once_stay_within_the_budget(tmp_path: Path) -> None:
    world = World(tmp_path, 400, limits(pool_percent=5, fleet_percent=2))
    with world.journal.transaction():
        for node in world.nodes:
            world.take(world.breaks(node.name))
    for machine in world.cluster.machines.values():
        machine.is_sick = False
    for _ in range(40):
        world.step(2)
        assert len(world.cluster.ours()) <= 8
    assert world.cluster.most_ours == 8
    world.close()


def test_a_first_cordon_needs_no_observation_and_no_tick(world: World) -> None:
    looks: list[str] = []
    observe = world.cluster.observe
    world.cluster.observe = lambda place: looks.append(str(place)) or observe(place)  # type: ignore[method-assign, func-returns-value]
    made = world.take(world.breaks("n1"))
    assert made is not None
    assert made.state == "cordoning"
    world.repairs.advance(made.id, world.now)
    assert (world.cluster.ours(), looks) == (["n1"], [])


def test_a_plan_for_people_only_is_no_repair(world: World) -> None:
    assert world.take(world.breaks("n1", "node_down")) is None
    assert world.take(world.breaks("n1", "cuda_oom")) is None


def test_the_number_of_waiting_repairs_is_limited(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repairs, "MAX_ACTIVE_REPAIRS", 1)
    assert world.take(world.breaks("n1"), Mode.ASK) is not None
    assert world.take(world.breaks("n2"), Mode.ASK) is None


def test_every_call_is_in_the_journal_before_it_is_made(world: World) -> None:
    starts: list[bool] = []
    perform = world.cluster.perform

    def checked(action: Action) -> ActionOutcome:
        kept = world.journal.active_repairs()[0]
        starts.append(kept.is_begun and (kept.state == "restoring" or kept.action == action))
        return perform(action)

    world.cluster.perform = checked  # type: ignore[method-assign]
    broken(world)
    world.settle(30)
    assert starts == [True] * 4
    assert ActionKind.REBOOT in [step.kind for step in world.journal.latest_repairs()[0].actions]


def test_a_stop_during_a_repair_does_not_count_against_its_step(world: World) -> None:
    world.cluster.troubles = Troubles(slow=1.0)
    id = broken(world)
    world.settle(5)
    world.control.stop("power work", actor="ada", now=world.now)
    calls = len(world.cluster.calls)
    world.settle(10, seconds=3600)
    assert len(world.cluster.calls) == calls
    world.restart()
    world.settle(5)
    assert len(world.cluster.calls) == calls
    world.control.resume(actor="ada", now=world.now)
    world.settle(1)
    assert world.state(id) == "draining"
    world.now += timedelta(hours=2)
    world.settle(1)
    assert world.state(id) == "failed"
