"""Which GPUs are read, which are suspect, and which faults are reported, in manual time."""

from __future__ import annotations

import itertools
from collections import defaultdict

from tests.support.fake_nvml.driver import UUID
from watchkeeper.agent.gpus.reader_watch import ReaderLimits, ReaderWatch
from watchkeeper.readers.nvml.families import Cadence

LIMITS = ReaderLimits(interval_seconds=1.0)


def identity(index: int) -> dict[str, str]:
    return {"uuid": UUID(index), "pci": f"00000000:{index:02X}:00.0"}


def answer(watch: ReaderWatch, index: int, now: float, *, lost: str | None = None, uuid: int | None = None) -> None:
    watch.record_answered(
        index, now=now, duration_seconds=0.005, identity=identity(index if uuid is None else uuid), lost=lost
    )


def opened(count: int, now: float = 0.0) -> ReaderWatch:
    """A watch over GPUs that have all answered once."""
    watch = ReaderWatch(LIMITS)
    watch.record_opened(count, now)
    for index in range(count):
        answer(watch, index, now)
    return watch


def faults_of(watch: ReaderWatch, now: float) -> list[tuple[str, str | None]]:
    return [(trouble.cause, trouble.uuid) for trouble in watch.faults(now)]


def test_a_hung_gpu_is_skipped_and_is_a_fault() -> None:
    watch = opened(3)
    watch.record_hung(1, "nvmlDeviceGetTemperature", waited_seconds=0.5, now=10.5)
    assert watch.gpus_to_read() == [0, 2]
    (trouble,) = watch.faults(10.5)
    assert (trouble.cause, trouble.uuid, trouble.since) == ("driver_call_hung", UUID(1), 10.5)
    assert trouble.evidence == f"nvmlDeviceGetTemperature on {UUID(1)} at 00000000:01:00.0 did not return in 0.5 s"


def test_sixteen_gpus_and_one_that_hangs_for_ten_minutes() -> None:
    watch, now, sick = opened(16), 0.0, 7
    answered: dict[int, list[float]] = defaultdict(lambda: [0.0])
    for round_at in range(1, 601):
        now = max(now, float(round_at))
        if watch.next_suspect(now) == sick:
            watch.record_probed(sick, succeeded=True, now=now)  # the worst case: it answers the probe and hangs again
        for index in watch.gpus_to_read():
            if index == sick:
                now += watch.answer_seconds(index)
                watch.record_hung(index, "nvmlDeviceGetTemperature", waited_seconds=0.5, now=now)
                now += 0.3  # the next reader starts
                watch.record_opened(16, now)
            else:
                answer(watch, index, now)
                answered[index].append(now)
                now += 0.005
    for times in answered.values():
        gaps = [after - before for before, after in itertools.pairwise(times)]
        assert max(gaps) < 2 * LIMITS.interval_seconds
    assert len(answered) == 15
    # Ten minutes of it cost a handful of readers, because the pause doubles.
    assert ("driver_call_hung", UUID(sick)) in faults_of(watch, now)


def test_the_pause_before_a_suspect_is_probed_again_doubles_up_to_its_limit() -> None:
    watch, now, waits = opened(2), 0.0, []
    watch.record_hung(0, "nvmlInit", waited_seconds=0.5, now=now)
    for _ in range(9):
        start = now
        while watch.next_suspect(now) is None:
            now += 1.0
        waits.append(now - start)
        watch.record_probed(0, succeeded=False, now=now)
    assert waits == [10, 20, 40, 80, 160, 320, 600, 600, 600]
    assert watch.faults(now)[0].since == 0.0


def test_a_suspect_that_answers_is_read_like_the_others() -> None:
    watch = opened(2)
    watch.record_hung(0, "nvmlInit", waited_seconds=0.5, now=0.0)
    watch.record_probed(0, succeeded=True, now=10.0)
    assert watch.gpus_to_read() == [0, 1]
    assert not watch.faults(10.0)


def test_no_fifth_reader_is_started_while_four_are_stuck() -> None:
    watch = opened(2)
    watch.record_hung(0, "nvmlInit", waited_seconds=0.5, now=0.0)
    watch.record_abandoned(3, now=100.0)
    assert watch.may_start(100.0)
    assert watch.next_suspect(100.0) is None, "a probe that sticks would take the last place"
    watch.record_abandoned(4, now=101.0)
    assert not watch.may_start(101.0)
    stuck = watch.faults(120.0)[-1]
    assert (stuck.cause, stuck.uuid, stuck.since) == ("driver_call_hung", None, 101.0)
    assert "4 reader processes are stuck in the driver, the limit is 4" in stuck.evidence
    watch.record_abandoned(3, now=130.0)
    assert watch.may_start(130.0)


def test_when_no_gpu_answers_the_node_has_a_fault() -> None:
    watch = opened(2)
    for index in range(2):
        watch.record_hung(index, "nvmlDeviceGetTemperature", waited_seconds=0.5, now=1.0)
    assert ("driver_call_hung", None) in faults_of(watch, 1.0)


def test_a_reader_that_does_not_start_is_a_fault_within_two_intervals() -> None:
    watch = opened(2)
    watch.record_starting(100.0)
    assert not watch.faults(101.9)
    assert faults_of(watch, 102.1) == [("driver_call_hung", None)]
    watch.record_opened(2, 103.0)
    assert not watch.faults(103.0)


def test_a_driver_that_cannot_be_opened_has_a_cause_and_is_retried_with_backoff() -> None:
    watch = ReaderWatch(LIMITS)
    watch.record_open_failed("LIB_RM_VERSION_MISMATCH", "Driver/library version mismatch", now=0.0)
    watch.record_open_failed("LIB_RM_VERSION_MISMATCH", "Driver/library version mismatch", now=5.0)
    (trouble,) = watch.faults(5.0)
    assert (trouble.cause, trouble.since) == ("driver_library_mismatch", 0.0)
    assert not watch.may_start(6.0)
    assert watch.may_start(7.0)
    watch.record_opened(1, 8.0)
    assert not watch.faults(8.0)


def test_a_lost_gpu_is_a_fault_and_a_new_reader_looks_for_it() -> None:
    watch = opened(2)
    answer(watch, 1, 5.0, lost="nvmlDeviceGetTemperature")
    assert faults_of(watch, 5.0) == [("gpu_fell_off_bus", UUID(1))]
    assert not watch.is_renewal_due(59.0)
    assert watch.is_renewal_due(60.0)
    watch.record_opened(1, 61.0)
    answer(watch, 0, 61.0)
    (gone,) = watch.faults(61.0)
    assert (gone.cause, gone.uuid, gone.since) == ("gpu_fell_off_bus", UUID(1), 5.0)
    assert f"NVML lists 1 GPUs; {UUID(1)} at" in gone.evidence


def test_a_gpu_that_nvml_no_longer_lists_is_missing_until_it_returns() -> None:
    watch = opened(2)
    watch.record_opened(1, 10.0)
    answer(watch, 0, 10.0, uuid=1)
    assert faults_of(watch, 10.0) == [("gpu_missing", UUID(0))]
    watch.record_opened(2, 20.0)
    for index in range(2):
        answer(watch, index, 20.0)
    assert not watch.faults(20.0)


def test_slow_calls_of_different_gpus_fall_into_different_rounds() -> None:
    watch = opened(8)
    first = [watch.due_cadences(index, 0.0) for index in range(8)]
    assert all(Cadence.SLOW in cadences for cadences in first)
    rounds = [
        sum(Cadence.SLOW in watch.due_cadences(index, now) for index in range(8)) for now in map(float, range(1, 101))
    ]
    assert max(rounds) <= 2
    assert 72 <= sum(rounds) <= 80


def test_the_first_answer_of_a_gpu_may_take_as_long_as_before() -> None:
    watch = ReaderWatch(LIMITS)
    watch.record_opened(2, 0.0)
    assert watch.answer_seconds(0) == LIMITS.start_seconds
    watch.record_answered(0, now=2.0, duration_seconds=2.0, identity=identity(0), lost=None)
    assert watch.answer_seconds(0) == LIMITS.answer_seconds
    assert watch.answer_seconds(1) == 8.0
