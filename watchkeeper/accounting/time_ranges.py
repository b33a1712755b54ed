"""Compute time ranges: the part of each slot in a window, gaps between slots, and the days and months of a time zone.

Slots can overlap (a restart, two hubs) and leave gaps. `cover` assigns each moment to at most one slot, so that
adjacent windows count no moment twice. Days start at midnight of the time zone, also if a day has 23 or 25 hours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

Seconds = npt.NDArray[np.float64]
# Rules are evaluated shortly after the full minute or hour; a busy hub needs seconds.
LATE_SECONDS = 10.0


def snap(times: Seconds, length: float) -> Seconds:
    """Round down times that are a few seconds after a multiple of `length`."""
    full = np.floor(times / length) * length
    return np.where(times - full <= min(LATE_SECONDS, 0.2 * length), full, times)


def cover(starts: Seconds, length: float, *, since: float, until: float) -> Seconds:
    """Return the share of each slot in a window, 0 to 1; a slot ends at the latest where the next one starts."""
    if not len(starts):
        return np.zeros(0)
    following = np.append(starts[1:], np.inf)
    if np.any(following < starts):
        raise ValueError("slots must be in the order of their starts")
    ends = np.minimum(np.minimum(starts + length, following), until)
    shares: Seconds = np.clip(ends - np.maximum(starts, since), 0.0, None) / length
    return shares


def find_gaps(slots: Sequence[tuple[float, float]], *, since: float, until: float) -> list[tuple[float, float]]:
    uncovered, covered_until = [], since
    for start, end in sorted(slots):
        if start >= until:
            break
        if start > covered_until:
            uncovered.append((covered_until, start))
        covered_until = max(covered_until, end)
    if covered_until < until:
        uncovered.append((covered_until, until))
    return uncovered


def split_days(since: float, until: float, zone: ZoneInfo) -> Iterator[tuple[str, float, float]]:
    """Yield each calendar day of a time zone that overlaps the window, with the part inside the window."""
    day = datetime.fromtimestamp(since, zone).date()
    while True:
        start = datetime(day.year, day.month, day.day, tzinfo=zone).timestamp()
        next_day = day + timedelta(days=1)
        end = datetime(next_day.year, next_day.month, next_day.day, tzinfo=zone).timestamp()
        if start >= until:
            return
        yield day.isoformat(), max(start, since), min(end, until)
        day = next_day


def month_range(text: str, zone: ZoneInfo) -> tuple[float, float]:
    """Return start and end of a month such as `2026-11` in a time zone; raise ValueError if `text` is no month."""
    first = datetime.strptime(text, "%Y-%m").replace(tzinfo=zone)
    # strptime accepts `2026-1` too, which would be a second name of the same month.
    if not 1970 <= first.year < 9999 or len(text) != len("2026-11"):
        raise ValueError(f"{text} is not a month between 1970-01 and 9998-12")
    next_month = (first.replace(day=28) + timedelta(days=4)).replace(day=1)
    return first.timestamp(), next_month.timestamp()
