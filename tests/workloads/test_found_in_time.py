"""Stalls and slow ranks under the shipped rules: found in time, and nothing is cried at a pause that is usual."""

from __future__ import annotations

import pytest

from tests.workloads.rehearsal import IDLES, SPINS, WORKS, Job, Pause, Rehearsal

pytestmark = pytest.mark.timeout(180)
AT = 3000
# A checkpoint that every rank waits for, one that rank 0 writes while the others wait in a barrier, and a validation.
ALL_IDLE, RANK_0_WRITES = Pause(900, 40), Pause(900, 120, SPINS, IDLES)
VALIDATION = Pause(1250, 400, WORKS, WORKS)
PAUSES = {0.5: (), 4: (ALL_IDLE,), 7: (RANK_0_WRITES,), 20: (VALIDATION,), 60: ()}
STALLED = (
    *(Job(step, name=f"stalls-{step:g}", pauses=pauses, stalls_at=AT) for step, pauses in PAUSES.items()),
    Job(5, name="without-profiling", pauses=(ALL_IDLE, VALIDATION), stalls_at=AT, has_profiling=False),
)
SILENT = (
    Job(4, name="starved-storage", pauses=(Pause(900, 10),), stalls_at=AT, stall_looks=IDLES),
    Job(4, name="stops-long", pauses=(ALL_IDLE,), stalls_at=AT, stall_looks=IDLES),
)
HEALTHY = (
    Job(2, name="writes", pauses=(RANK_0_WRITES,)),
    Job(3, name="validates", pauses=(VALIDATION, Pause(700, 60))),
    Job(5, name="both", pauses=(Pause(800, 90), VALIDATION)),
    Job(2, name="says-so", pauses=(Pause(420, 200), Pause(1100, 300, SPINS, SPINS)), says_pauses=True),
    Job(45, name="huge"),
    Job(2, name="writes-unprofiled", pauses=(RANK_0_WRITES,), has_profiling=False),
    Job(3, name="validates-unprofiled", pauses=(Pause(2000, 580, WORKS, WORKS), Pause(700, 60)), has_profiling=False),
)
LATE = tuple(Job(2, name=f"late-{ranks}", ranks=ranks, slow_rank=ranks - 1, slow=0.1, slow_from=AT) for ranks in (2, 8))


@pytest.fixture(scope="module")
def rehearsal() -> Rehearsal:
    rehearsal = Rehearsal((*STALLED, *SILENT, *HEALTHY, *LATE))
    rehearsal.run(AT + 320)
    return rehearsal


@pytest.mark.slow
@pytest.mark.parametrize("job", STALLED, ids=lambda job: job.name)
def test_a_hang_is_found_within_a_minute_or_three_steps_after_the_last_one(rehearsal: Rehearsal, job: Job) -> None:
    last = max(job.steps(AT + 320))
    [seconds] = rehearsal.seconds_after(job, "TrainingJobStalled", since=0)
    assert AT <= seconds <= last + max(60, 3 * job.step)


@pytest.mark.slow
def test_gpus_that_do_nothing_are_a_stall_as_soon_as_no_usual_pause_explains_it(rehearsal: Rehearsal) -> None:
    quick, patient = SILENT
    assert rehearsal.seconds_after(quick, "TrainingJobStalled", since=AT)[0] <= 60
    assert 60 < rehearsal.seconds_after(patient, "TrainingJobStalled", since=AT)[0] <= 1.25 * (40 + 15) + 45


@pytest.mark.slow
@pytest.mark.parametrize("job", HEALTHY, ids=lambda job: job.name)
def test_checkpoints_validation_and_long_steps_are_no_stall(rehearsal: Rehearsal, job: Job) -> None:
    assert [fired for fired in rehearsal.fired if fired[0] == job.name] == []


@pytest.mark.slow
@pytest.mark.parametrize("job", LATE, ids=lambda job: job.name)
def test_a_rank_a_tenth_slower_is_found_within_five_minutes(rehearsal: Rehearsal, job: Job) -> None:
    [seconds] = rehearsal.seconds_after(job, "TrainingRankSlow", since=AT)
    assert 0 < seconds <= 300


@pytest.mark.slow
def test_only_the_late_rank_is_named(rehearsal: Rehearsal) -> None:
    answer = rehearsal.engine.instant("watchkeeper:training_rank_slow:ratio", (1_800_000_000 + AT + 315) * 1000)
    assert {(labels["job_name"], labels["rank"]) for labels in answer.latest()} == {("late-2", "1"), ("late-8", "7")}
    assert all(0.05 < value < 0.15 for value in answer.latest().values())
