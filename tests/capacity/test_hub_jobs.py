"""Jobs out of what a hub has recorded: stretches of minutes, schedulers' times where they fit, nothing twice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.capacity import hub_jobs, jobs
from watchkeeper.model import workloads
from watchkeeper.model.labels import Labels
from watchkeeper.query.engine import Frame, QueryResult, ResultType

STEP = 300
DAY = 86_400.0


def read_records(
    held: list[tuple[float, float]],
    listed: Sequence[workloads.ScheduledWorkload] = (),
    *,
    of_chunk: int = 10_000,
) -> jobs.JobRecords:
    """The record of one Slurm job that held so many GPUs at each of these seconds, told in chunks."""
    history = hub_jobs.WorkloadHistory(STEP)
    labels = [Labels({"cluster": "main", "workload_kind": "slurm_job", "workload": "4711"})]
    for start in range(0, len(held), of_chunk):
        part = held[start : start + of_chunk]
        times = np.array([round(at * 1000) for at, _ in part])
        values = np.array([[gpus for _, gpus in part]])
        history.add_result(
            QueryResult(ResultType.MATRIX, Frame(labels, times, values, np.ones(values.shape, dtype=np.bool_)))
        )
    return history.build_records(0.0, DAY, listed)


def steps(first: int, last: int, gpus: float = 8.0) -> list[tuple[float, float]]:
    return [(float(at * STEP), gpus) for at in range(first, last)]


def test_a_stretch_is_a_job_and_a_long_pause_begins_another() -> None:
    recorded_jobs = read_records([*steps(10, 20), *steps(40, 46, 4.0)]).jobs
    assert [(job.id, job.submitted, job.seconds, job.shape.gpus) for job in recorded_jobs] == [
        ("main/4711", 3000.0, 3000.0, 8.0),
        ("main/4711/2", 12_000.0, 1800.0, 4.0),
    ]
    assert [job.started for job in recorded_jobs] == [None, None]


def test_a_short_silence_of_the_hub_does_not_end_a_job() -> None:
    (job,) = read_records([*steps(10, 20), *steps(21, 30)]).jobs
    assert job.seconds == 20 * STEP


def test_half_a_gpu_is_a_share_and_what_holds_nothing_is_no_job() -> None:
    assert read_records(steps(1, 5, 0.5)).jobs[0].shape.slice_milli == 500
    assert read_records(steps(1, 5, 0.0)).jobs == ()


def test_what_runs_at_an_edge_of_the_window_is_counted_as_such() -> None:
    records = read_records(steps(0, round(DAY / STEP)))
    assert (records.counts["began_before"], records.counts["without_end"]) == (1, 1)


def test_a_scheduler_that_still_lists_a_job_says_when_it_came() -> None:
    work = workloads.Workload(workloads.WorkloadKind.SLURM_JOB, "4711")
    scheduled = workloads.ScheduledWorkload(
        "main", work, workloads.WorkloadState.RUNNING, 8, requested_at=1000.0, started_at=2900.0
    )
    (job,) = read_records(steps(10, 20), [scheduled]).jobs
    assert (job.submitted, job.started, job.seconds) == (1000.0, 2900.0, 3100.0)
    # An earlier run under the same name is not the one that is listed.
    assert read_records([*steps(10, 20), *steps(100, 110)], [scheduled]).counts["wait_known"] == 0


@given(st.lists(st.tuples(st.integers(0, 280), st.integers(1, 40)), min_size=1, max_size=6), st.integers(1, 60))
def test_how_the_record_is_cut_into_answers_changes_nothing(spells: list[tuple[int, int]], of_chunk: int) -> None:
    held = {at: 8.0 for first, count in spells for at in range(first, min(288, first + count))}
    points = [(float(at * STEP), gpus) for at, gpus in sorted(held.items())]
    assert read_records(points, of_chunk=of_chunk).jobs == read_records(points).jobs
