"""Clocks that are passed as parameters."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.manual_clock import ManualClock, settle
from watchkeeper.kit import clock

START = datetime(2026, 1, 31, 9, tzinfo=UTC)


def wake_ups(delays: list[float], advances: list[float]) -> list[tuple[float, float]]:
    """Sleep all delays at once, advance, and tell who woke in which order with the time they saw."""
    woken: list[tuple[float, float]] = []

    async def story() -> None:
        manual = ManualClock(START)

        async def sleeper(delay: float) -> None:
            await manual.sleep(delay)
            woken.append((delay, (manual.now() - START).total_seconds()))

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(sleeper(delay)) for delay in delays]
            await settle()
            for seconds in advances:
                await manual.advance(seconds)
            for task in tasks:
                task.cancel()

    asyncio.run(story())
    return woken


@given(st.lists(st.integers(0, 50), max_size=6), st.lists(st.integers(0, 30), max_size=4))
def test_sleepers_wake_in_the_order_of_their_deadlines_and_see_their_own_time(
    delays: list[int], advances: list[int]
) -> None:
    woken = wake_ups([float(delay) for delay in delays], [float(seconds) for seconds in advances])
    expected = sorted(float(delay) for delay in delays if advances and delay <= sum(advances))
    assert woken == [(delay, delay) for delay in expected]


def test_a_sleeper_that_sleeps_again_within_one_advance_wakes_twice() -> None:
    async def story() -> list[datetime]:
        manual, wake_times = ManualClock(START), []

        async def ticker() -> None:
            for _ in range(3):
                await manual.sleep(10)
                wake_times.append(manual.now())

        task = asyncio.create_task(ticker())
        await settle()
        await manual.advance(25)
        task.cancel()
        return wake_times

    assert asyncio.run(story()) == [START + timedelta(seconds=10), START + timedelta(seconds=20)]


def test_a_scaled_clock_runs_faster_from_its_epoch_on() -> None:
    epoch = time.time() - 10
    fast = clock.ScaledClock(speed=60, epoch_seconds=epoch)
    passed = fast.now().timestamp() - epoch
    # Up to a minute may pass between two lines of a test.
    assert 600 <= passed < 600 + 60 * 60


def test_two_clocks_with_one_epoch_and_speed_agree() -> None:
    first_clock = clock.ScaledClock(speed=100, epoch_seconds=START.timestamp())
    second_clock = clock.ScaledClock(speed=first_clock.speed, epoch_seconds=first_clock.epoch_seconds)
    first, second, third = first_clock.now(), second_clock.now(), first_clock.now()
    assert first <= second <= third


@pytest.mark.parametrize("speed", [0.0, -1.0])
def test_a_clock_that_stands_or_runs_backwards_is_refused(speed: float) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        clock.ScaledClock(speed=speed)


@given(st.integers(min_value=0, max_value=4_102_444_800_000))
def test_milliseconds_survive_the_way_through_datetime(at_ms: int) -> None:
    assert clock.to_ms(clock.from_ms(at_ms)) == at_ms
