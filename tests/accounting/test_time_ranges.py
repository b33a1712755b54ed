"""Windows that tile a time have slots that tile it, whatever overlaps, is missing, or a clock change does to a day."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.accounting import time_ranges

BERLIN = ZoneInfo("Europe/Berlin")
starts = st.lists(st.integers(0, 500), min_size=1, max_size=20, unique=True).map(sorted)


@given(starts, st.integers(1, 120), st.lists(st.integers(-50, 700), min_size=2, max_size=6, unique=True).map(sorted))
def test_any_partition_of_a_window_covers_as_much_as_the_window(at: list[int], length: int, cuts: list[int]) -> None:
    slots = np.array(at, dtype=float)
    whole = time_ranges.cover(slots, length, since=cuts[0], until=cuts[-1])
    pieces = [time_ranges.cover(slots, length, since=since, until=until) for since, until in itertools.pairwise(cuts)]
    assert np.sum(pieces, axis=0) == pytest.approx(whole, abs=1e-12)


@given(starts, st.integers(1, 120), st.integers(-50, 300), st.integers(1, 400))
def test_cover_is_what_counting_each_second_finds(at: list[int], length: int, since: int, seconds: int) -> None:
    counted = dict.fromkeys(at, 0)
    for second in range(since, since + seconds):
        # The newest slot that has begun has the second, if it has not ended.
        newest = max((start for start in at if start <= second), default=None)
        if newest is not None and second < newest + length:
            counted[newest] += 1
    covered = time_ranges.cover(np.array(at, dtype=float), length, since=since, until=since + seconds) * length
    assert covered == pytest.approx([counted[start] for start in at])


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-11-15", 24)])
def test_a_day_ends_at_its_zones_midnight_also_when_clocks_change(day: str, hours: int) -> None:
    noon = datetime.fromisoformat(f"{day}T12:00:00").replace(tzinfo=BERLIN).timestamp()
    hours_by_day = {
        name: (end - start) / 3600
        for name, start, end in time_ranges.split_days(noon - 36 * 3600, noon + 36 * 3600, BERLIN)
    }
    assert hours_by_day[day] == hours


@given(st.integers(0, 2_000_000_000), st.integers(1, 40 * 86_400))
def test_days_of_a_zone_tile_the_window(since: int, seconds: int) -> None:
    ranges = [(start, end) for _, start, end in time_ranges.split_days(since, since + seconds, BERLIN)]
    assert ranges[0][0] == since
    assert ranges[-1][1] == since + seconds
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ranges))


def test_a_month_begins_and_ends_at_midnight_of_its_zone() -> None:
    start, end = time_ranges.month_range("2026-12", BERLIN)
    assert datetime.fromtimestamp(start, UTC).isoformat() == "2026-11-30T23:00:00+00:00"
    assert datetime.fromtimestamp(end, UTC).isoformat() == "2026-12-31T23:00:00+00:00"
    with pytest.raises(ValueError, match="does not match"):
        time_ranges.month_range("December", BERLIN)


def test_gaps_are_what_no_slot_covers() -> None:
    assert time_ranges.find_gaps([(10, 20), (15, 30), (40, 50)], since=0, until=60) == [(0, 10), (30, 40), (50, 60)]


def test_slots_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="order"):
        time_ranges.cover(np.array([5.0, 1.0]), 1, since=0, until=9)


@pytest.mark.parametrize("text", ["9999-12", "0001-01"])
def test_a_month_at_an_end_of_the_calendar_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a month between"):
        time_ranges.month_range(text, ZoneInfo("Asia/Tokyo"))
