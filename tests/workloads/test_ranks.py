"""Ranks side by side: by how long they compute, or by their GPUs alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.model.jobs import RankState
from watchkeeper.workloads.ranks import RankReading, compare_ranks, group_state


def gang(*looks: tuple[float, float], steps: tuple[float, ...] = ()) -> list[RankReading]:
    return [
        RankReading(
            rank, f"n{rank // 8}", str(rank % 8), f"GPU-{rank}", active, percent, 500.0, *steps[rank : rank + 1]
        )
        for rank, (percent, active) in enumerate(looks)
    ]


WORKS, SPINS, IDLES = (98.0, 0.8), (100.0, 0.11), (0.0, 0.0)


def test_a_rank_that_computes_a_tenth_longer_is_the_straggler() -> None:
    shown, slow = compare_ranks(gang(*[WORKS] * 8, steps=(1.0, 1.01, 0.99, 1.0, 1.02, 1.1, 1.0, 0.99)))
    assert slow is not None
    assert (slow.rank, slow.node, slow.gpu, slow.uuid) == (5, "n0", "5", "GPU-5")
    assert slow.score == pytest.approx(0.1, abs=0.015)
    assert [rank.state for rank in shown].count(RankState.SLOW) == 1


def test_a_quarter_that_is_slower_alike_is_a_part_of_the_model() -> None:
    shown, slow = compare_ranks(gang(*[WORKS] * 8, steps=(1.0, 1.0, 1.0, 1.0, 1.0, 1.2, 1.2, 1.2)))
    assert slow is None
    assert {rank.state for rank in shown} == {RankState.WORKS}


def test_the_idle_gpu_among_spinning_ones_is_named_without_job_metrics() -> None:
    shown, slow = compare_ranks([replace(reading, rank=None) for reading in gang(*[SPINS] * 7, IDLES)])
    assert slow is not None
    assert (slow.rank, slow.uuid, slow.why) == (None, "GPU-7", "is idle while 7 of 8 GPUs spin in a collective")
    assert group_state(shown) == "hung"


def test_the_computing_gpu_among_spinning_ones_is_named() -> None:
    shown, slow = compare_ranks(gang(SPINS, SPINS, WORKS, SPINS))
    assert slow is not None
    assert slow.rank == 2
    assert group_state(shown) == ""


def test_a_gpu_that_is_busier_than_all_others_never_waits_for_them() -> None:
    _, slow = compare_ranks(gang(*[(99.0, 0.70 + 0.005 * (at % 3)) for at in range(7)], (100.0, 0.80)))
    assert slow is not None
    assert (slow.rank, "keeps its SMs busy" in slow.why) == (7, True)


def test_a_rank_without_metrics_is_missing_and_blocks_the_others() -> None:
    readings = gang(*[SPINS] * 4)
    shown, slow = compare_ranks([*readings[:3], replace(readings[3], is_missing=True)])
    assert slow is not None
    assert slow.rank == 3
    assert shown[3].state is RankState.MISSING


def test_replicas_of_a_service_do_not_wait_for_each_other() -> None:
    assert compare_ranks(gang(WORKS, IDLES, WORKS, WORKS), is_synchronous=False)[1] is None


def test_without_profiling_fields_busy_is_neither_work_nor_waiting() -> None:
    shown, slow = compare_ranks(
        [RankReading(0, utilisation_percent=100.0), RankReading(1, utilisation_percent=100.0), RankReading(2)]
    )
    assert slow is None
    assert {rank.state for rank in shown} == {RankState.UNKNOWN}
    assert group_state(shown) == ""


def unprofiled(*looks: tuple[float, float], **metrics: float) -> list[RankReading]:
    return [
        RankReading(rank, f"n{rank}", "0", f"GPU-{rank}", None, percent, watts, **metrics)
        for rank, (percent, watts) in enumerate(looks)
    ]


@pytest.mark.parametrize("limits", [{"limit_watts": 700.0}, {"usual_watts": 650.0}], ids=["limit", "its own past"])
def test_without_profiling_fields_power_shows_which_rank_waits(limits: dict[str, float]) -> None:
    shown, slow = compare_ranks(unprofiled(*[(100.0, 150.0)] * 7, (0.0, 120.0), **limits))
    assert slow is not None
    assert (slow.rank, slow.why) == (7, "is idle while 7 of 8 GPUs spin in a collective")
    assert group_state(shown) == "hung"
    at_work, straggler = compare_ranks(unprofiled(*[(99.0, 500.0)] * 8, **limits))
    assert (straggler, {rank.state for rank in at_work}) == (None, {RankState.WORKS})


@pytest.mark.parametrize(("look", "does"), [(WORKS, "still computes"), (SPINS, "waits in a collective")])
def test_the_only_one_that_does_something_is_named_where_the_job_is_stuck(look: tuple[float, float], does: str) -> None:
    readings = gang(IDLES, IDLES, look, IDLES)
    assert compare_ranks(readings)[1] is None
    slow = compare_ranks(readings, is_stuck=True)[1]
    assert slow is not None
    assert (slow.rank, slow.why) == (2, f"{does} while 3 of 4 GPUs are idle")


def test_gpus_that_look_alike_leave_it_to_the_cpus_and_links_of_their_nodes() -> None:
    readings = unprofiled(*[(0.0, 120.0)] * 4)
    by_cpu = [replace(reading, cpu_share=0.6 if reading.node == "n2" else 0.02) for reading in readings]
    slow = compare_ranks(by_cpu, is_stuck=True)[1]
    assert slow is not None
    assert (slow.node, slow.why) == ("n2", "keeps 60% of its CPUs busy, the others 2%")
    by_link = [replace(reading, network_bytes=3e9 if reading.node == "n1" else 0.0) for reading in readings]
    slow = compare_ranks(by_link, is_stuck=True)[1]
    assert slow is not None
    assert (slow.node, slow.why) == ("n1", "sends 3000 MB/s over InfiniBand, the others 0 MB/s")


def on_three_nodes(readings: list[RankReading], *, taken: float, others: float) -> list[RankReading]:
    """Three nodes of four GPUs, of which the last rank's has so many of its CPUs taken."""
    return [
        replace(reading, node=f"n{at // 4}", cpu_share=taken if at >= 8 else others)
        for at, reading in enumerate(readings)
    ]


def test_a_slow_rank_on_the_one_node_without_free_cpus_is_short_of_cpu() -> None:
    readings = gang(*[WORKS] * 12, steps=(1.0,) * 11 + (1.5,))
    slow = compare_ranks(on_three_nodes(readings, taken=0.98, others=0.24))[1]
    assert slow is not None
    assert (slow.rank, slow.node, slow.is_short_of_cpu) == (11, "n2", True)
    assert slow.why == (
        "computes 50% longer than the others at each step: the CPUs of its node are 98% busy, those of the others 24%"
    )
    for taken, others in ((0.6, 0.24), (0.98, 0.9)):
        also_slow = compare_ranks(on_three_nodes(readings, taken=taken, others=others))[1]
        assert also_slow is not None
        assert (also_slow.rank, also_slow.is_short_of_cpu) == (11, False)


def test_a_rank_without_metrics_that_gets_its_work_late_is_named() -> None:
    readings = [replace(reading, rank=None) for reading in gang(*[(99.0, 0.55)] * 11, (66.0, 0.5))]
    slow = compare_ranks(on_three_nodes(readings, taken=0.98, others=0.24))[1]
    assert slow is not None
    assert (slow.uuid, slow.score, slow.is_short_of_cpu) == ("GPU-11", pytest.approx(0.5), True)
    assert slow.why.startswith("is idle while the others wait for it, which makes each step 50% longer")


def test_a_node_without_metrics_is_not_an_idle_node() -> None:
    readings = unprofiled(*[(0.0, 120.0)] * 4)
    partial = [replace(reading, cpu_share=None if reading.node == "n2" else 0.6) for reading in readings]
    assert compare_ranks(partial, is_stuck=True)[1] is None
    assert compare_ranks([replace(reading, cpu_share=0.6) for reading in readings], is_stuck=True)[1] is None


@given(st.lists(st.floats(95.0, 100.0), min_size=4, max_size=64))
def test_gpus_that_are_alike_busy_are_never_called_slow(percents: list[float]) -> None:
    assert compare_ranks(gang(*[(percent, 0.8) for percent in percents]))[1] is None


@given(st.lists(st.floats(0.97, 1.03), min_size=4, max_size=64), st.floats(0.01, 100))
def test_ranks_within_three_per_cent_are_never_called_slow(steps: list[float], scale: float) -> None:
    readings = gang(*[WORKS] * len(steps), steps=tuple(scale * step for step in steps))
    assert compare_ranks(readings)[1] is None
