"""Guards: each lets the last one in and refuses the next, with both numbers in its message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.remediate.cluster import nodes
from watchkeeper.kit import quiet_hours
from watchkeeper.model.fleet import Node, Place
from watchkeeper.model.repairs import RepairSwitch
from watchkeeper.model.trust import Mode
from watchkeeper.remediate import guards
from watchkeeper.remediate.guards import (
    FleetAvailability,
    GuardInputs,
    GuardLimits,
    GuardRefusal,
    Quorum,
    RepairRequest,
    RepairStart,
    count_availability,
    find_refusals,
)

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
FLEET = nodes(20, per_rack=5, pools=2)
NONE = GuardLimits(100, 100, 1000, attempts=1000, breaker_nodes=1000, domains=())


def place(name: str) -> Place:
    return Place("main", node=name)


def out(*names: str) -> Mapping[Place, str]:
    return {place(name): "ada" for name in names}


def refusals(request: RepairRequest, availability: FleetAvailability, limits: GuardLimits) -> list[GuardRefusal]:
    return list(find_refusals(GuardInputs(request, availability, limits, NOW)))


def refusal_texts(
    limits: GuardLimits, *out_names: str, node: str = "n0", mode: Mode = Mode.ACT, **more: object
) -> list[str]:
    availability = count_availability(FLEET, out(*out_names), **more)  # type: ignore[arg-type]
    request = RepairRequest(place(node), "gpu_fell_off_bus", mode)
    return [f"{refusal.guard}: {refusal.text}" for refusal in refusals(request, availability, limits)]


def test_a_pool_gives_up_no_more_than_its_share() -> None:
    limits = replace(NONE, pool_percent=20)
    assert refusal_texts(limits, "n2") == []
    assert refusal_texts(limits, "n2", "n4") == [
        "pool share: 2 of 10 nodes of pool pool-0 are out of service, one more is 3, the limit is 2 (20 %)"
    ]
    assert refusal_texts(limits, "n1", "n3") == []


def test_the_fleet_gives_up_no_more_than_its_share() -> None:
    limits = replace(NONE, fleet_percent=10)
    assert refusal_texts(limits, "n1") == []
    assert refusal_texts(limits, "n1", "n2") == [
        "fleet share: 2 of 20 nodes of the fleet are out of service, one more is 3, the limit is 2 (10 %)"
    ]


def test_a_node_that_is_out_already_takes_no_further_place() -> None:
    assert refusal_texts(replace(NONE, fleet_percent=10), "n1", "n0") == []


def test_a_small_pool_may_always_give_up_one_unless_the_share_is_nothing() -> None:
    assert (
        guards.out_of_service_budget(4, 20),
        guards.out_of_service_budget(4, 0),
        guards.out_of_service_budget(1000, 20),
    ) == (1, 0, 200)


def test_two_nodes_of_one_rack_are_never_out_at_once() -> None:
    limits = replace(NONE, domains=("rack",))
    assert refusal_texts(limits, "n5") == []
    assert refusal_texts(limits, "n1") == ["domain: n1 in rack r0 is out of service: 1 in that rack, the limit is 1"]


def test_only_nodes_of_the_cluster_whose_scheduler_is_asked_are_repaired() -> None:
    assert refusal_texts(replace(NONE, cluster="main")) == []
    (refused,) = refusal_texts(replace(NONE, cluster="east"))
    assert refused.startswith("cluster: n0 is in cluster main, but this hub repairs east (fleet.cluster)")


def test_so_many_repairs_begin_within_a_time() -> None:
    limits = replace(NONE, starts=2)
    starts = [RepairStart(NOW - timedelta(minutes=minutes), place("n9"), "x") for minutes in (90, 59, 1)]
    assert refusal_texts(limits, starts=starts[:2]) == []
    assert refusal_texts(limits, starts=starts) == ["rate: 2 repairs started within 1h, the limit is 2"]


def test_a_node_is_not_repaired_again_and_again_for_one_cause() -> None:
    limits = replace(NONE, attempts=2)
    starts = [RepairStart(NOW - timedelta(days=days), place("n0"), "gpu_fell_off_bus") for days in (8, 6, 1)]
    assert refusal_texts(limits, starts=starts[:2]) == []
    assert refusal_texts(limits, starts=starts) == [
        "attempts: 2 repairs of n0 within 1w, the limit is 2: hand it over to the vendor"
    ]
    assert refusal_texts(limits, node="n1", starts=starts) == []


def test_a_pool_keeps_the_gpus_that_its_jobs_need() -> None:
    quorum = Quorum("llm", "pool-0", 64)
    limits = replace(NONE, quorums=(quorum,))
    assert refusal_texts(limits, "n2") == []
    assert refusal_texts(limits, "n2", "n4") == [
        "quorum: pool pool-0 would have 56 healthy GPUs left, jobs of llm need 64"
    ]
    sick = {place("n6"): 1}
    assert refusal_texts(limits, "n2", faulty_gpus=sick) == [
        "quorum: pool pool-0 would have 63 healthy GPUs left, jobs of llm need 64"
    ]


def test_a_node_with_an_unknown_number_of_gpus_is_refused() -> None:
    availability = count_availability([Node("main", "n0", "pool-0")], {})
    limits = replace(NONE, quorums=(Quorum("llm", "pool-0", 8),))
    assert [refusal.guard for refusal in refusals(RepairRequest(place("n0"), "x", Mode.ACT), availability, limits)] == [
        "quorum"
    ]


def test_a_node_that_the_inventory_does_not_know_is_left_alone() -> None:
    assert refusal_texts(NONE, node="stranger") == [
        "inventory: stranger is not in the inventory of 20 nodes, so no budget covers it"
    ]


def test_quiet_hours_refuse_automatic_starts_only() -> None:
    limits = replace(NONE, quiet_hours=(quiet_hours.parse("Mon-Fri 11:00-13:00"),))
    assert refusal_texts(limits) == ["quiet hours: it is Mon 12:00 UTC, within the quiet hours Mon-Fri 11:00-13:00"]
    assert refusal_texts(limits, mode=Mode.ASK) == []


@pytest.mark.parametrize(
    ("text", "at", "holds"),
    [
        ("22:00-06:00", "2026-05-04T23:00", True),
        ("22:00-06:00", "2026-05-04T05:59", True),
        ("22:00-06:00", "2026-05-04T06:00", False),
        ("Fri 22:00-06:00", "2026-05-09T05:00", True),
        ("Fri 22:00-06:00", "2026-05-08T05:00", False),
        ("Sat-Mon 00:00-24:00", "2026-05-04T12:00", True),
        ("Sat-Mon 00:00-24:00", "2026-05-05T12:00", False),
    ],
)
def test_hours_past_midnight_belong_to_the_day_they_began_on(text: str, at: str, holds: bool) -> None:
    assert quiet_hours.parse(text).contains(datetime.fromisoformat(f"{at}:00+00:00")) is holds


@pytest.mark.parametrize("text", ["10-12", "25:00-26:00", "Foo 10:00-12:00", "10:60-12:00", ""])
def test_hours_that_no_day_has_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"such as 22:00-06:00|an invalid time|days are"):
        quiet_hours.parse(text)


def test_the_breaker_opens_over_distinct_nodes_and_stays_open() -> None:
    limits = replace(NONE, breaker_nodes=2)
    requested_at = {place("n1"): NOW, place("n2"): NOW, place("n3"): NOW - timedelta(minutes=11)}
    assert guards.breaker_trip_reason(requested_at, limits, since=None, now=NOW) is None
    requested_at[place("n4")] = NOW
    why = guards.breaker_trip_reason(requested_at, limits, since=None, now=NOW)
    assert why == "3 nodes requested a repair within 10m, the limit is 2"
    assert guards.breaker_trip_reason(requested_at, limits, since=NOW, now=NOW) is None
    tripped = refusal_texts(NONE, switch=RepairSwitch(tripped_at=NOW, tripped_why=why))
    assert tripped == [
        f"breaker: the circuit breaker tripped at 2026-05-04 12:00Z: {why}; `watchkeeper act reset` closes it"
    ]


def test_a_stopped_hub_starts_nothing_and_says_who_stopped_it() -> None:
    switch = RepairSwitch(stopped_at=NOW, stopped_by="ada", stopped_why="power work")
    assert refusal_texts(NONE, switch=switch)[0].startswith(
        "stop: ada halted all repairs at 2026-05-04 12:00Z (power work)"
    )


def test_a_repair_that_leaves_the_node_in_service_needs_no_share() -> None:
    availability = count_availability(FLEET, out("n1", "n2", "n3"))
    request = RepairRequest(place("n0"), "thermal_throttle", Mode.ACT, takes_node_out=False)
    assert refusals(request, availability, replace(NONE, fleet_percent=5)) == []


@given(st.sets(st.integers(0, 19), max_size=20), st.integers(0, 100), st.integers(0, 100))
def test_whatever_is_out_a_start_never_exceeds_a_share(gone: set[int], pool: int, fleet: int) -> None:
    names = [f"n{at}" for at in gone if at != 0]
    if not refusal_texts(replace(NONE, pool_percent=pool, fleet_percent=fleet), *names):
        assert len(names) + 1 <= guards.out_of_service_budget(20, fleet)
        assert sum(int(name[1:]) % 2 == 0 for name in names) + 1 <= guards.out_of_service_budget(10, pool)


def test_budgets_refuse_while_cordoned_nodes_are_unknown() -> None:
    blind = ["kubernetes has never answered"]
    assert refusal_texts(NONE, unreadable=blind) == [
        "schedulers: unknown which of the 20 nodes others have cordoned: kubernetes has never answered"
    ]


def test_what_takes_no_node_out_does_not_wait_for_a_silent_scheduler() -> None:
    availability = count_availability(FLEET, {}, unreadable=["slurm has never answered"])
    request = RepairRequest(place("n0"), "app_illegal_access", Mode.ACT, takes_node_out=False)
    assert refusals(request, availability, NONE) == []


def unmapped(name: str, *out_names: str, node: str) -> list[str]:
    """The refusals in a fleet with racks if the rack of one node is unknown."""
    fleet = [replace(member, domains={}) if member.name == name else member for member in FLEET]
    request = RepairRequest(place(node), "gpu_fell_off_bus", Mode.ACT)
    refused = refusals(request, count_availability(fleet, out(*out_names)), replace(NONE, domains=("rack",)))
    return [refusal.text for refusal in refused]


def test_a_node_of_an_unknown_rack_goes_out_alone() -> None:
    assert unmapped("n0", node="n0") == []
    assert unmapped("n0", "n7", node="n0") == [
        "the rack of n0 is unknown, and n7 is out of service: the limit is 1 node per rack"
    ]
    assert unmapped("n7", "n7", node="n0") == [
        "the rack of n7 is unknown, and n7 is out of service: the limit is 1 node per rack"
    ]


def test_a_fleet_without_racks_has_none_to_protect() -> None:
    fleet = [replace(member, domains={}) for member in FLEET]
    request = RepairRequest(place("n0"), "gpu_fell_off_bus", Mode.ACT)
    assert refusals(request, count_availability(fleet, out("n7")), replace(NONE, domains=("rack",))) == []


def test_of_a_fleet_of_one_node_that_node_may_be_repaired() -> None:
    request = RepairRequest(place("n0"), "gpu_fell_off_bus", Mode.ACT)
    assert refusals(request, count_availability(FLEET[:1], {}), GuardLimits()) == []
