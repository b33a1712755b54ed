"""Plans that reboot one node name each other, in a field; journals of before that field say it in the text only."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from watchkeeper.model import actions, fleet, incidents, trust
from watchkeeper.remediate import plan

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
NODE = fleet.Place("main", node="n1")


def plan_of(id: str, *kinds: actions.ActionKind) -> actions.Plan:
    owner = incidents.IncidentId(id)
    receipts = tuple(
        actions.Receipt(
            actions.Action(actions.ActionId(f"{id}-{at}"), kind, NODE, owner, "why"),
            NOON,
            actions.Result.DESCRIBED,
            f"{kind} n1",
        )
        for at, kind in enumerate(kinds, 1)
    )
    return actions.Plan(owner, "gpu_fell_off_bus", trust.Mode.OBSERVE, NOON, "", receipts)


PLAN = plan_of("INC-12", actions.ActionKind.CORDON, actions.ActionKind.REBOOT)


def texts(plan: actions.Plan) -> list[str]:
    return [receipt.text for receipt in plan.receipts]


def test_only_the_reboot_is_shared_and_says_with_whom() -> None:
    made = plan.with_shared_incidents(PLAN, ["INC-3", "INC-1"])
    assert [receipt.shared_with for receipt in made.receipts] == [(), ("INC-1", "INC-3")]
    assert texts(made) == ["cordon n1", "reboot n1 (also planned for INC-1, INC-3: one reboot is enough)"]
    assert plan.rebooted_nodes(made) == {NODE}
    assert plan.with_shared_incidents(PLAN, []) == PLAN


def test_one_more_joins_those_that_are_named_already() -> None:
    made = plan.with_shared_incidents(plan.with_shared_incidents(PLAN, ["INC-3"]), ["INC-1"])
    assert made == plan.with_shared_incidents(PLAN, ["INC-1", "INC-3"])


def test_an_incident_is_not_taken_for_one_whose_name_begins_like_it() -> None:
    made = plan.with_shared_incidents(plan_of("INC-2", actions.ActionKind.REBOOT), ["INC-12"])
    assert (plan.is_shared_with(made, "INC-12"), plan.is_shared_with(made, "INC-1")) == (True, False)


def test_a_plan_is_another_one_with_other_steps_or_other_companions() -> None:
    assert plan.have_same_steps(PLAN, replace(PLAN, made_at=NOON.replace(hour=13), next_step="other words"))
    assert not plan.have_same_steps(PLAN, None)
    assert not plan.have_same_steps(PLAN, plan_of("INC-12", actions.ActionKind.CORDON))
    assert not plan.have_same_steps(PLAN, plan.with_shared_incidents(PLAN, ["INC-1"]))


def test_a_plan_of_a_journal_without_the_field_is_understood_by_its_text() -> None:
    written = plan.with_shared_incidents(PLAN, ["INC-1", "INC-3"])
    old = replace(written, receipts=tuple(replace(receipt, shared_with=()) for receipt in written.receipts))
    assert (plan.is_shared_with(old, "INC-3"), plan.is_shared_with(old, "INC-2")) == (True, False)
    assert plan.have_same_steps(old, written)
    assert plan.with_shared_incidents(old, ["INC-4"]) == plan.with_shared_incidents(PLAN, ["INC-1", "INC-3", "INC-4"])
