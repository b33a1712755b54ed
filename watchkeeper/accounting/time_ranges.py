"""Time cut into pieces: which part of each recorded slot lies in a window, what is covered twice, what not at all.

A slot has a start and a length. Slots may overlap (a restart, two evaluators) and leave gaps; `cover` gives each moment
to one slot at most, so that windows that tile a time have slots that tile it too. Days are cut where a zone's midnight
is, also when that day has 23 or 25 hours. `tally` and `job_files` measure with these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

Seconds = npt.NDArray[np.float64]
# Rules are evaluated a little after the full minute or hour; a busy hub needs seconds.
LATE_SECONDS = 10.0


def snap(times: Seconds, length: float) -> Seconds:
    """Times that are a few seconds after a full length, as the full length that was meant."""
    full = np.floor(times / length) * length
    return np.where(times - full <= min(LATE_SECONDS, 0.2 * length), full, times)


def cover(starts: Seconds, length: float, *, since: float, until: float) -> Seconds:
    """How much of each slot counts in a window, from 0 to 1; a slot ends at the latest where the next one starts."""
    if not len(starts):
        return np.zeros(0)
    following = np.append(starts[1:], np.inf)
    if np.any(following < starts):
        raise ValueError("slots must be in the order of their starts")
    ends = np.minimum(np.minimum(starts + length, following), until)
    shares: Seconds = np.clip(ends - np.maximum(starts, since), 0.0, None) / length
    return shares


def gaps(slots: Sequence[tuple[float, float]], *, since: float, until: float) -> list[tuple[float, float]]:
    """The pieces of a window that no slot (start, end) covers."""
    found, at = [], since
    for start, end in sorted(slots):
        if start >= until:
            break
        if start > at:
            found.append((at, start))
        at = max(at, end)
    if at < until:
        found.append((at, until))
    return found


def days(since: float, until: float, zone: ZoneInfo) -> Iterator[tuple[str, float, float]]:
    """The calendar days of a zone that a window touches, each with the part of it that lies in the window."""
    day = datetime.fromtimestamp(since, zone).date()
    while True:
        start = datetime(day.year, day.month, day.day, tzinfo=zone).timestamp()
        following = day + timedelta(days=1)
        end = datetime(following.year, following.month, following.day, tzinfo=zone).timestamp()
        if start >= until:
            return
        yield day.isoformat(), max(start, since), min(end, until)
        day = following


def month(text: str, zone: ZoneInfo) -> tuple[float, float]:
    """Start and end of a month such as `2026-11` in a zone; ValueError for anything else."""
    first = datetime.strptime(text, "%Y-%m").replace(tzinfo=zone)
    # `2026-1` would give a month two names.
    if not 1970 <= first.year < 9999 or len(text) != len("2026-11"):
        raise ValueError(f"nothing is counted in {text}")
    following = (first.replace(day=28) + timedelta(days=4)).replace(day=1)
    return first.timestamp(), following.timestamp()
