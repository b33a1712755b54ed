"""Where the wall time of a job went."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.model.jobs import Goodput, LostReason
from watchkeeper.workloads.goodput import LearnedPace, ProgressPoint, account_time

USUAL = LearnedPace(2.0, 60.0, 90.0)


def points(*values: float | None, every: float = 60.0) -> list[ProgressPoint]:
    return [ProgressPoint(at * every, value) for at, value in enumerate(values)]


def lost(accounted: Goodput) -> dict[str, float]:
    return {lost_time.reason.value: lost_time.seconds for lost_time in accounted.lost}


def test_a_job_that_steps_all_the_time_loses_nothing() -> None:
    accounted = account_time(points(0, 30, 60, 90), USUAL)
    assert (accounted.share, accounted.steps, lost(accounted)) == (1.0, 90, {})


def test_a_checkpoint_is_a_pause_and_ten_minutes_are_a_stall() -> None:
    accounted = account_time(points(0, 30, 30, 60, *[60] * 10, 90), USUAL)
    assert lost(accounted) == {"pause": 60.0, "stall": 600.0}
    assert accounted.share == pytest.approx(180 / 840)


def test_a_process_that_restarts_is_a_failure_and_a_restart() -> None:
    accounted = account_time(points(0, 30, None, None, 0, 0, 30), USUAL)
    assert lost(accounted) == {"failure": 120.0, "restart": 120.0}


def test_the_first_minutes_after_a_rank_died_are_a_failure_and_no_checkpoint() -> None:
    died = [ProgressPoint(at * 15.0, 30.0 * min(at, 4), lacks_ranks=at > 5) for at in range(13)]
    accounted = account_time(died, LearnedPace(0.5, None, None))
    assert lost(accounted) == {"failure": 120.0}


def test_a_rank_that_came_back_was_a_failure_and_then_a_restart() -> None:
    progress = [
        ProgressPoint(0, 0),
        ProgressPoint(60, 30),
        ProgressPoint(120, 30, lacks_ranks=True),
        ProgressPoint(180, 30),
        ProgressPoint(240, 60),
    ]
    assert lost(account_time(progress, USUAL)) == {"failure": 60.0, "restart": 60.0}


def test_what_an_alert_called_a_stall_is_one_however_short_it_is() -> None:
    progress = [
        ProgressPoint(0, 0),
        ProgressPoint(60, 30),
        ProgressPoint(75, 30),
        ProgressPoint(90, 30, is_stalled=True),
        ProgressPoint(105, 30, is_stalled=True),
    ]
    assert lost(account_time(progress, USUAL)) == {"stall": 45.0}


def test_a_stall_that_a_restart_ended_stays_a_stall() -> None:
    stalled = [ProgressPoint(at * 60.0, 30.0, is_stalled=at > 2) for at in range(1, 11)]
    progress = [ProgressPoint(0, 0), *stalled, ProgressPoint(660, None), ProgressPoint(720, 0), ProgressPoint(780, 30)]
    assert lost(account_time(progress, USUAL)) == {"stall": 540.0, "failure": 60.0, "restart": 60.0}


def test_an_open_gap_is_a_pause_only_if_the_job_reports_it() -> None:
    progress = [ProgressPoint(0, 0), ProgressPoint(60, 30), ProgressPoint(120, 30)]
    assert lost(account_time(progress, USUAL)) == {"unknown": 60.0}
    assert lost(account_time([*progress[:2], ProgressPoint(120, 30, is_paused=True)], USUAL)) == {"pause": 60.0}


def test_a_step_that_is_longer_than_the_time_between_two_looks_loses_nothing() -> None:
    """Steps of a minute, looked at every 15 s: three of four looks see no step end."""
    progress = [ProgressPoint(at * 15.0, float(at // 4)) for at in range(41)]
    accounted = account_time(progress, LearnedPace(60.0, 60.0, 150.0))
    assert (accounted.share, accounted.steps, lost(accounted)) == (1.0, 10, {})


def test_steps_that_take_longer_than_usual_lose_what_they_are_longer() -> None:
    assert lost(account_time(points(0, 15, 30), USUAL)) == {"unknown": 60.0}


@pytest.mark.parametrize("pace", [LearnedPace(2.0, None, None), LearnedPace(5.0, None, None)])
def test_a_wait_for_input_is_not_productive_even_if_the_job_has_always_waited(pace: LearnedPace) -> None:
    starved = [ProgressPoint(at * 60.0, 12.0 * at, waited=36.0 * at) for at in range(6)]
    accounted = account_time(starved, pace)
    assert (accounted.share, lost(accounted)) == (0.4, {"input": 180.0})


def test_the_longest_time_without_a_step_includes_the_stall_that_is_not_over() -> None:
    progress = [ProgressPoint(at * 15.0, 5.0 * min(at, 20), is_stalled=at > 22) for at in range(37)]
    assert account_time(progress, LearnedPace(3.0, 16.0, None)).longest_pause_seconds == 240.0
    assert account_time(progress[:21], LearnedPace(3.0, 16.0, None)).longest_pause_seconds == 16.0


def test_waiting_in_the_queue_is_part_of_the_wall_time() -> None:
    accounted = account_time(points(0, 30), USUAL, queue_seconds=60.0)
    assert (accounted.wall_seconds, accounted.share, lost(accounted)) == (120.0, 0.5, {"queue": 60.0})


def test_without_steps_goodput_is_unknown() -> None:
    accounted = account_time(points(None, None), USUAL)
    assert (accounted.share, accounted.productive_seconds, accounted.lost) == (None, None, ())
    assert account_time(points(0, 30), LearnedPace(None, None, None)).share is None


@given(st.lists(st.none() | st.floats(0, 50), min_size=1, max_size=40), st.floats(0.1, 100))
def test_what_was_productive_and_what_was_lost_sum_to_the_wall_time(made: list[float | None], step: float) -> None:
    total, values = 0.0, [0.0]
    for value in made:
        total += value or 0.0
        values.append(total if value is not None else None)  # type: ignore[arg-type]
    accounted = account_time(points(*values), LearnedPace(step, None, None))
    if accounted.productive_seconds is not None:
        assert accounted.productive_seconds + sum(lost(accounted).values()) == pytest.approx(accounted.wall_seconds)
        assert set(lost(accounted)) <= set(LostReason)
