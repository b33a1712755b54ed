"""The replay against a simulator that is too simple to be wrong, and the laws that every replay keeps."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from watchkeeper.capacity.jobs import RecordedJob
from watchkeeper.capacity.replay import QueuePolicy, replay
from watchkeeper.capacity.simulated_fleet import GPU_MILLI, FleetNode, GpuRequest

SIZES = [200, 500, 1000, 1000, 2000, 4000, 6000]
nodes_drawn = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from(["", "a", "b"])),
    min_size=1,
    max_size=3,
)
jobs_drawn = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 8), st.sampled_from(SIZES), st.sampled_from([(), ("a",), ("a", "b")])),
    max_size=12,
)


def fleet(drawn: list[tuple[int, str]]) -> list[FleetNode]:
    return [FleetNode(f"n{at}", gpus, model=model) for at, (gpus, model) in enumerate(drawn)]


def recorded(drawn: list[tuple[int, int, int, tuple[str, ...]]]) -> list[RecordedJob]:
    rows = sorted(enumerate(drawn), key=lambda row: (row[1][0], f"{row[0]:03}"))
    return [
        RecordedJob(f"{at:03}", float(came), float(long), GpuRequest(milli, models))
        for at, (came, long, milli, models) in rows
    ]


class Brute:
    """Every GPU is a number of its own, every second is looked at, and every choice is made by trying all."""

    def __init__(self, nodes: list[FleetNode]) -> None:
        self.nodes = nodes
        self.rooms = [[GPU_MILLI] * node.gpus for node in nodes]
        self.opened: dict[tuple[int, int], int] = {}

    def place(self, shape: GpuRequest) -> list[tuple[int, int, int]] | None:
        allowed = [at for at, node in enumerate(self.nodes) if not shape.models or node.model in shape.models]
        if shape.milli < GPU_MILLI:
            return self._share(shape.milli, allowed)
        return self._whole(shape.milli // GPU_MILLI, allowed) or self._spread(shape.milli // GPU_MILLI, allowed)

    def _share(self, milli: int, allowed: list[int]) -> list[tuple[int, int, int]] | None:
        begun = [
            (room, self.opened[at, gpu], at, gpu)
            for at in allowed
            for gpu, room in enumerate(self.rooms[at])
            if milli <= room < GPU_MILLI
        ]
        if begun:
            _, _, at, gpu = min(begun)
            self.rooms[at][gpu] -= milli
            return [(at, gpu, milli)]
        taken = self._whole(1, allowed)
        if taken is None:
            return None
        at, gpu, _ = taken[0]
        self.rooms[at][gpu] = GPU_MILLI - milli
        self.opened[at, gpu] = max(self.opened.values(), default=0) + 1
        return [(at, gpu, milli)]

    def free(self, at: int) -> list[int]:
        return [gpu for gpu, room in enumerate(self.rooms[at]) if room == GPU_MILLI]

    def _take(self, at: int, count: int) -> list[tuple[int, int, int]]:
        chosen = self.free(at)[:count]
        for gpu in chosen:
            self.rooms[at][gpu] = 0
        return [(at, gpu, GPU_MILLI) for gpu in chosen]

    def _whole(self, count: int, allowed: list[int]) -> list[tuple[int, int, int]] | None:
        fits = [(len(self.free(at)), at) for at in allowed if len(self.free(at)) >= count]
        return self._take(min(fits)[1], count) if fits else None

    def _spread(self, count: int, allowed: list[int]) -> list[tuple[int, int, int]] | None:
        for model in sorted({self.nodes[at].model for at in allowed}):
            of_model = [at for at in allowed if self.nodes[at].model == model]
            largest = max(self.nodes[at].gpus for at in of_model)
            whole = [at for at in of_model if len(self.free(at)) == largest][: count // largest]
            left = count - largest * len(whole)
            rest = [(len(self.free(at)), at) for at in of_model if at not in whole and len(self.free(at)) >= left]
            if whole and (left == 0 or rest):
                taken = [part for at in whole for part in self._take(at, largest)]
                return taken + (self._take(min(rest)[1], left) if left else [])
        return None

    def give_back(self, parts: list[tuple[int, int, int]]) -> None:
        for at, gpu, milli in parts:
            self.rooms[at][gpu] += milli


def brute_starts(jobs: list[RecordedJob], nodes: list[FleetNode], policy: QueuePolicy) -> list[float]:
    fresh = {job.shape: _fits_alone(job.shape, nodes) for job in jobs}
    world, starts = Brute(nodes), [math.nan] * len(jobs)
    running: list[tuple[float, list[tuple[int, int, int]]]] = []
    waiting: list[int] = []
    # A job of no length ends in the second in which it starts: look at every second until nothing happens in it.
    for second in range(400):
        came = [at for at, job in enumerate(jobs) if job.submitted == second and fresh[job.shape]]
        while True:
            ended = [job_end for job_end in running if job_end[0] <= second]
            running = [job_end for job_end in running if job_end[0] > second]
            for _, held in ended:
                world.give_back(held)
            waiting += came
            for at in list(waiting):
                parts = world.place(jobs[at].shape)
                if parts is None and policy is QueuePolicy.FIFO:
                    break
                if parts is not None:
                    waiting.remove(at)
                    starts[at] = float(second)
                    running.append((second + jobs[at].seconds, parts))
            if not came and not ended:
                break
            came = []
    return starts


def _fits_alone(shape: GpuRequest, nodes: list[FleetNode]) -> bool:
    return Brute(nodes).place(shape) is not None


@examples(150)
@given(nodes_drawn, jobs_drawn, st.sampled_from(list(QueuePolicy)))
def test_a_replay_starts_each_job_when_the_simple_simulator_does(
    drawn_nodes: list[tuple[int, str]], drawn_jobs: list[tuple[int, int, int, tuple[str, ...]]], policy: QueuePolicy
) -> None:
    nodes, jobs = fleet(drawn_nodes), recorded(drawn_jobs)
    outcome = replay(jobs, nodes, policy=policy)
    np.testing.assert_array_equal(outcome.starts, brute_starts(jobs, nodes, policy))


@examples(100)
@given(nodes_drawn, jobs_drawn, st.sampled_from(list(QueuePolicy)))
def test_gpu_hours_are_neither_lost_nor_made_and_never_more_than_there_are(
    drawn_nodes: list[tuple[int, str]], drawn_jobs: list[tuple[int, int, int, tuple[str, ...]]], policy: QueuePolicy
) -> None:
    nodes, jobs = fleet(drawn_nodes), recorded(drawn_jobs)
    outcome = replay(jobs, nodes, policy=policy)
    requested = sum(job.seconds * job.shape.gpus for at, job in enumerate(jobs) if at not in outcome.never_fits)
    assert outcome.gpu_seconds(0, 1000) == pytest.approx(requested)
    assert not len(outcome.used_gpus) or outcome.used_gpus.max() <= outcome.gpus
    assert not len(outcome.used_gpus) or outcome.used_gpus[-1] == 0
    assert np.isnan(outcome.starts).sum() == len(outcome.never_fits)
    assert all(outcome.starts[at] >= job.submitted for at, job in enumerate(jobs) if at not in outcome.never_fits)


def test_a_small_job_passes_a_large_one_only_with_backfill() -> None:
    jobs = [RecordedJob(str(at), float(at), 10.0, GpuRequest(gpus * GPU_MILLI)) for at, gpus in enumerate((6, 8, 2))]
    nodes = [FleetNode("n1", 8)]
    assert replay(jobs, nodes, policy=QueuePolicy.BACKFILL).starts.tolist() == [0, 12, 2]
    assert replay(jobs, nodes, policy=QueuePolicy.FIFO).starts.tolist() == [0, 10, 20]


def test_free_gpus_on_two_nodes_start_no_job_that_needs_one_node() -> None:
    jobs = [RecordedJob(str(at), 0.0, 10.0, GpuRequest(gpus * GPU_MILLI)) for at, gpus in enumerate((6, 6, 4))]
    assert replay(jobs, [FleetNode("n1", 8), FleetNode("n2", 8)]).starts.tolist() == [0, 0, 10]


def test_a_job_that_fits_into_a_slice_leaves_whole_gpus_to_others() -> None:
    small = [RecordedJob(str(at), 0.0, 10.0, GpuRequest(GPU_MILLI, slice_milli=140)) for at in range(7)]
    large = [RecordedJob("z", 1.0, 10.0, GpuRequest(7 * GPU_MILLI))]
    cut = FleetNode("n1", 8, sliced_gpus=1, slices_of_gpu=7)
    assert replay([*small, *large], [cut]).starts.tolist() == [0] * 7 + [1]
    assert replay([*small, *large], [FleetNode("n1", 8)]).starts[-1] == 10
