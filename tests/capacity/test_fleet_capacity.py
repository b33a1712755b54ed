"""Capacity now: fragmentation, waits, and what would do for a workload."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.capacity import advice, fleet_capacity, rightsizing
from watchkeeper.capacity.fleet_capacity import NodeCapacity, WaitingRequest
from watchkeeper.capacity.jobs import RecordedJob
from watchkeeper.capacity.rightsizing import RightsizingAction, WorkloadUse
from watchkeeper.capacity.simulated_fleet import FleetNode, GpuRequest

H100, L40S = "NVIDIA H100 80GB HBM3", "NVIDIA L40S"


def test_eight_free_gpus_on_eight_nodes_start_no_job_of_eight() -> None:
    capacity = fleet_capacity.summarise_capacity([NodeCapacity(f"n{at}", 8, 7) for at in range(8)])
    assert (capacity.free_gpus, capacity.allocated_gpus, capacity.stranded_share) == (8, 56, 1.0)
    assert [(room.gpus, room.jobs, room.stranded_gpus) for room in capacity.shapes] == [
        (1, 8, 0),
        (2, 0, 8),
        (4, 0, 8),
        (8, 0, 8),
    ]


def test_a_node_out_of_service_has_nothing_free_and_is_named() -> None:
    capacity = fleet_capacity.summarise_capacity(
        [NodeCapacity("n1", 8, 0, is_in_service=False, unavailable_reason="drained"), NodeCapacity("n2", 8, 0)]
    )
    assert (capacity.gpus, capacity.in_service_gpus, capacity.free_gpus) == (16, 8, 8)
    assert capacity.out_of_service == (("n1", 8, "drained"),)


def test_a_gpu_that_a_scheduler_cannot_give_is_out_of_service_and_not_gone() -> None:
    capacity = fleet_capacity.summarise_capacity([NodeCapacity("n1", 8, 5, lost=1), NodeCapacity("n2", 8, 8)])
    assert (capacity.gpus, capacity.in_service_gpus, capacity.allocated_gpus, capacity.free_gpus) == (16, 15, 13, 2)
    assert capacity.out_of_service == (("n1", 1, fleet_capacity.LOST),)


def test_a_job_that_waits_counts_where_nobody_says_since_when() -> None:
    (wait,) = fleet_capacity.queue_waits([WaitingRequest(8, None, None), WaitingRequest(8, 40.0, None)], now=100.0)
    assert (wait.waiting, wait.longest_seconds, wait.started) == (2, 60.0, 0)


@given(st.lists(st.integers(0, 16), max_size=30), st.integers(1, 16))
def test_usable_and_stranded_gpus_are_all_that_are_free(free: list[int], shape: int) -> None:
    [room] = fleet_capacity.count_by_shape(free, [shape])
    assert room.usable_gpus + room.stranded_gpus == sum(free)
    assert room.usable_gpus == room.jobs * shape
    assert room.jobs == sum(count // shape for count in free)


def test_waits_are_told_by_shape_for_those_who_wait_and_those_who_started() -> None:
    requests = [
        WaitingRequest(8, 0.0, None),
        WaitingRequest(8, 50.0, None),
        WaitingRequest(8, 0.0, 40.0),
        WaitingRequest(1, 0.0, 2.0),
    ]
    single, eight = fleet_capacity.queue_waits(requests, now=100.0)
    assert (single.waiting, single.longest_seconds, single.p50_seconds) == (0, None, 2.0)
    assert (eight.waiting, eight.longest_seconds, eight.started, eight.p95_seconds) == (2, 100.0, 1, 40.0)


def test_a_table_of_jobs_gives_the_same_picture_at_a_time() -> None:
    jobs = [
        RecordedJob("a", 0.0, 100.0, GpuRequest(6000), started=0.0),
        RecordedJob("b", 10.0, 100.0, GpuRequest(4000), started=None),
    ]
    recorded = fleet_capacity.capacity_from_tables([FleetNode("n1", 8)], jobs, at=50.0)
    assert [(node.gpus, node.allocated) for node in recorded.nodes] == [(8, 6)]
    assert recorded.requests == [WaitingRequest(6, 0.0, 0.0), WaitingRequest(4, 10.0, None)]
    assert not recorded.unplaced


RIGHTSIZED = [
    (WorkloadUse("train", 1, H100, 0.7, 0.9, 60_000, 81_559), RightsizingAction.KEEP, ""),
    (WorkloadUse("idle", 4, H100, 0.0, 0.001, 60_000, 81_559), RightsizingAction.GIVE_BACK, ""),
    (WorkloadUse("small", 1, H100, 0.05, 0.1, 4_000, 81_559), RightsizingAction.MIG, "1g.10gb"),
    (WorkloadUse("wide", 1, H100, 0.05, 0.1, 14_000, 81_559), RightsizingAction.MIG, "1g.20gb"),
    (WorkloadUse("middle", 1, H100, 0.2, 0.3, 30_000, 81_559), RightsizingAction.MIG, "3g.40gb"),
    (WorkloadUse("full memory", 1, H100, 0.05, 0.1, 70_000, 81_559), RightsizingAction.KEEP, ""),
    (WorkloadUse("long context", 1, H100, 0.1, 0.2, 36_000, 60_000), RightsizingAction.SMALLER_GPU, "NVIDIA L40S"),
    (WorkloadUse("steady", 1, L40S, 0.2, 0.3, 8_000, 46_068), RightsizingAction.MPS, ""),
    (WorkloadUse("notebook", 1, L40S, 0.02, 0.3, 8_000, 46_068), RightsizingAction.TIME_SLICING, ""),
    (WorkloadUse("wide job", 8, H100, 0.2, 0.3, 8_000, 81_559), RightsizingAction.FEWER_GPUS, ""),
    (WorkloadUse("dark", 1, H100, None, None, 8_000, 81_559), RightsizingAction.UNKNOWN, ""),
    (WorkloadUse("half dark", 1, H100, 0.1, 0.1, None, None), RightsizingAction.UNKNOWN, ""),
    (WorkloadUse("beside others", 1, H100, 0.1, 0.1, 4_000, 81_559, is_shared=True), RightsizingAction.KEEP, ""),
    (WorkloadUse("busy slice", 1, H100, 0.7, 0.9, 4_000, 40_448, slice="3g.40gb"), RightsizingAction.KEEP, ""),
    (WorkloadUse("idle slice", 1, H100, 0.0, 0.0, 400, 9_984, slice="1g.10gb"), RightsizingAction.GIVE_BACK, ""),
    (
        WorkloadUse("large slice", 1, H100, 0.1, 0.2, 4_000, 40_448, slice="3g.40gb"),
        RightsizingAction.SMALLER_SLICE,
        "1g.10gb",
    ),
    (
        WorkloadUse("wide slice", 1, H100, 0.3, 0.4, 30_000, 40_448, slice="4g.40gb"),
        RightsizingAction.SMALLER_SLICE,
        "3g.40gb",
    ),
    (WorkloadUse("small slice", 1, H100, 0.1, 0.2, 4_000, 9_984, slice="1g.10gb"), RightsizingAction.KEEP, ""),
    (
        WorkloadUse("slice of a stranger", 1, "NVIDIA X1", 0.1, 0.2, 4_000, 9_984, slice="1g.10gb"),
        RightsizingAction.KEEP,
        "",
    ),
]


@pytest.mark.parametrize(("use", "fit", "profile"), RIGHTSIZED)
def test_what_would_do_follows_from_what_was_used(use: WorkloadUse, fit: RightsizingAction, profile: str) -> None:
    advised = rightsizing.advise(use)
    assert (advised.fit, advised.profile) == (fit, profile)
    assert advised.why


def test_what_a_slice_would_save_is_a_part_of_a_gpu() -> None:
    idle = rightsizing.advise(WorkloadUse("idle", 1, H100, 0.0, 0.0, 400, 9_984, slice="1g.10gb"))
    large = rightsizing.advise(WorkloadUse("large", 1, H100, 0.1, 0.2, 4_000, 40_448, slice="3g.40gb"))
    assert (idle.saves_gpus, large.saves_gpus) == (round(1 / 7, 3), round(1 / 2 - 1 / 7, 3))
    assert rightsizing.plan_repartitions([idle, large]) == []


def test_workloads_that_fit_into_slices_share_as_few_gpus_as_a_gpu_can_be_cut_into() -> None:
    small = [rightsizing.advise(WorkloadUse(f"s{at}", 1, H100, 0.05, 0.1, 4_000, 81_559)) for at in range(8)]
    [cut] = rightsizing.plan_repartitions(small)
    assert (cut.workloads, cut.gpus_to_cut, cut.frees_gpus, cut.slices) == (8, 2, 6, {"1g.10gb": 8})


def test_advice_says_what_could_be_had_without_a_new_gpu() -> None:
    capacity = fleet_capacity.summarise_capacity([NodeCapacity(f"n{at}", 8, 6) for at in range(8)])
    [piece] = advice.advise_on_capacity(capacity, ())
    assert (piece.action, piece.gpus) == ("defragment", 16)
    assert advice.advise_on_capacity(fleet_capacity.summarise_capacity([]), ()) == []


def test_slices_share_a_gpu_where_they_can_lie_beside_each_other() -> None:
    half = [rightsizing.advise(WorkloadUse("half", 1, H100, 0.2, 0.3, 30_000, 81_559))]
    larger = [rightsizing.advise(WorkloadUse("larger", 1, H100, 0.3, 0.4, 30_000, 81_559))]
    small = [rightsizing.advise(WorkloadUse(f"s{at}", 1, H100, 0.05, 0.1, 4_000, 81_559)) for at in range(2)]
    [cut] = rightsizing.plan_repartitions(half + larger)
    assert (cut.gpus_to_cut, cut.slices) == (1, {"3g.40gb": 1, "4g.40gb": 1})
    [cut] = rightsizing.plan_repartitions(half + half + small)
    assert (cut.gpus_to_cut, cut.frees_gpus) == (2, 2)


def test_a_gpu_of_four_slices_is_cut_into_quarters() -> None:
    advised = rightsizing.advise(WorkloadUse("small", 1, "NVIDIA A30", 0.1, 0.18, 4_000, 24_576))
    assert (advised.profile, advised.saves_gpus) == ("1g.6gb", 0.75)
    assert "1/4 of the SMs" in advised.why


@pytest.mark.parametrize("model", ["NVIDIA GB300", "NVIDIA L40S", ""])
def test_a_model_that_the_table_does_not_have_is_not_cut(model: str) -> None:
    assert rightsizing.list_profiles(model) == []


def test_advice_never_names_the_whole_gpu_or_its_media_engines() -> None:
    names = [cut.name for cut in rightsizing.list_profiles(H100)]
    assert names == ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb"]
