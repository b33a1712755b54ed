"""The first sentence about a job."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.workloads.boards import NOW, RANKS, SERIES, engine, report_inputs
from watchkeeper.model.jobs import JobReport, JobState, RankState, VerdictStatus
from watchkeeper.workloads import board, report
from watchkeeper.workloads.verdict import JobCause, decide_verdict

FELL_OFF = JobCause("gpu_fell_off_bus", "GPU 3 on n1 fell off the bus", "INC-1")
STARVED = JobCause("data_loader_starved", "GPUs pause between steps.", is_of_job=True)


def a_report(state: JobState = JobState.RUNNING, *, step_seconds_ago: float | None = 3, silent: int = 0) -> JobReport:
    source = engine({**SERIES, **RANKS})
    made = report.make_report(source, NOW, report_inputs(board.make_board(source, NOW, board.BoardInputs()), "4711"))
    last = None if step_seconds_ago is None else NOW - timedelta(seconds=step_seconds_ago)
    ranks = tuple(
        replace(rank, state=RankState.UNKNOWN if at < silent else RankState.WORKS) for at, rank in enumerate(made.ranks)
    )
    stalled_since = last if state in (JobState.HUNG, JobState.STALLED) else None
    line = replace(made.job, state=state, stalled_since=stalled_since)
    return replace(made, job=line, last_step_at=last, ranks=ranks, straggler=None)


def test_a_hung_job_names_its_fault_its_incident_and_the_time_of_its_last_step() -> None:
    decided = decide_verdict(a_report(JobState.HUNG, step_seconds_ago=240), NOW, FELL_OFF)
    assert (decided.status, decided.since, decided.cause, decided.incident) == (
        VerdictStatus.WRONG, NOW - timedelta(seconds=240), "gpu_fell_off_bus", "INC-1",
    )  # fmt: skip
    assert decided.sentence == ("No rank has finished a step since 11:56:00 UTC: GPU 3 on n1 fell off the bus (INC-1)")


def test_a_healthy_job_is_called_so_with_the_evidence() -> None:
    decided = decide_verdict(a_report(), NOW, None)
    assert (decided.status, decided.sentence) == (
        VerdictStatus.FINE, "Nothing is wrong: the last step finished 3 s ago, and all 4 ranks report",
    )  # fmt: skip


def test_a_fault_that_does_not_stop_the_steps_is_named_and_does_not_make_the_job_ill() -> None:
    decided = decide_verdict(a_report(), NOW, replace(FELL_OFF, cause="row_remap_pending", text="A row is bad"))
    assert decided.status is VerdictStatus.FINE
    assert decided.sentence.endswith("On its hardware: A row is bad (INC-1)")


@pytest.mark.parametrize(
    ("made", "cause", "status", "start"),
    [
        (a_report(step_seconds_ago=200), None, VerdictStatus.UNKNOWN, "No rank has finished a step since"),
        (a_report(step_seconds_ago=20), FELL_OFF, VerdictStatus.WRONG, "No rank has finished a step since"),
        (a_report(), STARVED, VerdictStatus.WRONG, "It has been slower than it should be: GPUs pause"),
        (a_report(silent=4), None, VerdictStatus.FINE, "It makes progress: the last step finished 3 s ago, and none"),
        (
            a_report(step_seconds_ago=20, silent=1),
            None,
            VerdictStatus.UNKNOWN,
            "No rank has finished a step since 11:59:40",
        ),
        (a_report(step_seconds_ago=None), None, VerdictStatus.FINE, "No problem found: all 4 ranks report, with SMs"),
        (a_report(step_seconds_ago=None, silent=1), None, VerdictStatus.UNKNOWN, "Whether it works is unknown: 3 of 4"),
        (a_report(JobState.UNKNOWN), FELL_OFF, VerdictStatus.WRONG, "No rank has finished a step and none reports"),
        (a_report(JobState.UNKNOWN, step_seconds_ago=None, silent=4), None, VerdictStatus.UNKNOWN, "Whether it runs"),
        (a_report(JobState.PAUSED), None, VerdictStatus.FINE, "It pauses"),
        (a_report(JobState.IDLE), None, VerdictStatus.WRONG, "Its GPUs have been idle"),
    ],
)
def test_what_is_not_measured_is_unknown_and_never_healthy(
    made: JobReport, cause: JobCause | None, status: VerdictStatus, start: str
) -> None:
    decided = decide_verdict(made, NOW, cause)
    assert decided.status is status
    assert decided.sentence.startswith(start)
