"""rate, increase, delta and their kin: how fast a series changed in a window.

They depend on the first and the last sample of a window, and on how much a counter lost by resets
in between, which a running sum over the series answers for every window at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from watchkeeper.query.engine import Floats, Mask, Millis
from watchkeeper.query.evaluate.values import Vector, Windows
from watchkeeper.query.evaluate.windows import (
    Edges,
    Picks,
    edges,
    group_edges,
    only_rows,
    picked,
    pieces,
    previous_slots,
    times_at,
    values_at,
)
from watchkeeper.store.columns import Ints

# A gap at a window's edge that is longer than this many sample intervals means that the series began
# or ended there; then half an interval is assumed (Prometheus, promql/functions.go, extrapolatedRate).
EDGE_GAP_INTERVALS = 1.1
# Falls that add up to less cannot carry a sum beyond the largest float, whose last bit is worth 2e292.
HARMLESS = 1e290


def rate(windows: Windows) -> Vector:
    return _extrapolated(windows, is_counter=True, is_rate=True)


def increase(windows: Windows) -> Vector:
    return _extrapolated(windows, is_counter=True, is_rate=False)


def delta(windows: Windows) -> Vector:
    return _extrapolated(windows, is_counter=False, is_rate=False)


def irate(windows: Windows) -> Vector:
    """The rate between the last two samples; after a reset the counter started from 0."""
    return _between_last_two(windows, is_rate=True)


def idelta(windows: Windows) -> Vector:
    return _between_last_two(windows, is_rate=False)


def changes(windows: Windows) -> Vector:
    """How often the value differs from the one before it; NaN equals NaN here."""
    if windows.usable is None and (windows.values[:, 1:] == windows.values[:, :-1]).all():
        edge = edges(windows)
        return Vector(windows.series, np.zeros(edge.count.shape), edge.count >= 1)
    values, before, has_before = _with_previous(windows)
    differs = has_before & (values != before) & ~(np.isnan(values) & np.isnan(before))
    return _counted(windows, differs)


def resets(windows: Windows) -> Vector:
    """How often the value is below the one before it."""
    values, before, has_before = _with_previous(windows)
    return _counted(windows, has_before & (values < before))


@dataclass(frozen=True, slots=True, eq=False)
class _Geometry:
    """What extrapolation needs to know of the times of each group's windows; durations are in seconds."""

    edge: Edges
    first: Picks
    last: Picks
    sampled: Floats
    to_start: Floats
    to_end: Floats
    # A difference times this is the increase over the whole window, or the rate: it is divided by `per` seconds.
    stretch: Floats
    per: float
    # The longest time before a first sample, in times of the shortest that was sampled.
    reach: float


def _geometry(windows: Windows, edge: Edges, times: Millis, *, per: float) -> _Geometry:
    first_ms, last_ms = picked(times, edge.first), picked(times, edge.last)
    sampled = (last_ms - first_ms) / 1000
    interval = sampled / (edge.count - 1)
    to_start = (first_ms - (windows.ends_ms - windows.range_ms)) / 1000
    to_end = (windows.ends_ms - last_ms) / 1000
    threshold = interval * EDGE_GAP_INTERVALS
    to_start, to_end = (np.where(gap >= threshold, interval / 2, gap) for gap in (to_start, to_end))
    has_two = edge.count >= 2
    shortest, longest = sampled.min(initial=np.inf, where=has_two), to_start.max(initial=0.0, where=has_two)
    return _Geometry(
        edge,
        Picks(edge.first),
        Picks(edge.last),
        sampled,
        to_start,
        to_end,
        stretch=(sampled + to_start + to_end) / sampled / per,
        per=per,
        reach=float(longest / shortest),
    )


def _extrapolated(windows: Windows, *, is_counter: bool, is_rate: bool) -> Vector:
    shape = (len(windows.series), len(windows.ends_ms))
    values, enough = np.zeros(shape), np.zeros(shape, dtype=bool)
    if windows.times.shape[1] == 0:
        return Vector(windows.series, values, enough)
    per = windows.range_ms / 1000 if is_rate else 1.0
    with np.errstate(all="ignore"):
        # Without holes all series of a group have the same times, so the work on times is done once per group.
        shared = _geometry(windows, group_edges(windows), windows.times, per=per) if windows.usable is None else None
        for rows in pieces(windows):
            part = only_rows(windows, rows)
            own = shared or _geometry(part, edges(part), part.times[part.groups], per=per)
            of = part.groups if shared else np.arange(len(part.groups))
            values[rows] = _result(part, own, of, is_counter=is_counter)
            enough[rows] = (own.edge.count >= 2)[of]
    return Vector(windows.series, values, enough)


def _result(windows: Windows, geometry: _Geometry, of: Ints, *, is_counter: bool) -> Floats:
    """The difference of each window's edges, stretched to the whole window."""
    first, last = geometry.first.of(windows.values, of), geometry.last.of(windows.values, of)
    result = last - first
    if is_counter:
        result = _with_what_was_lost(result, windows, geometry.edge, of=of)
    # A counter was never below 0, so it is not extrapolated to before that. Most are far above it.
    if not is_counter or first.min(initial=np.inf) > 2 * geometry.reach * result.max(initial=0.0):
        return np.asarray(result * geometry.stretch[of])
    sampled, to_start = geometry.sampled[of], geometry.to_start[of]
    to_zero = np.where((result > 0) & (first >= 0), sampled * (first / result), to_start)
    to_start = np.where(to_zero < to_start, to_zero, to_start)
    return np.asarray(result * ((sampled + to_start + geometry.to_end[of]) / sampled / geometry.per))


def _with_what_was_lost(result: Floats, windows: Windows, edge: Edges, *, of: Ints) -> Floats:
    """Differences of counters with what they lost by resets in each window: the values they fell from."""
    if windows.usable is None and not (windows.values[:, 1:] < windows.values[:, :-1]).any():
        return result
    values, before, has_before = _with_previous(windows)
    with np.errstate(invalid="ignore"):
        fell = has_before & (values < before)
    if not fell.any():
        return result
    falls, so_far = before[fell], np.cumsum(fell, axis=1, dtype=np.int64)
    earlier_rows = (np.cumsum(so_far[:, -1]) - so_far[:, -1])[:, None]
    low, high = (earlier_rows + picked(so_far, slots[of]) for slots in (edge.first, edge.last))
    if not np.abs(falls).sum() < HARMLESS:
        return _added_in_turn(result, falls, low=low, high=high)
    # Sums of each window's own falls: a difference of running sums would lose a small fall after a large one.
    sums = np.add.reduceat(np.append(falls, 0.0), np.stack([low, high], axis=-1).reshape(-1))[::2]
    return result + np.where(high > low, sums.reshape(low.shape), 0.0)


def _added_in_turn(result: Floats, falls: Floats, *, low: Ints, high: Ints) -> Floats:
    """One fall after the other, as Prometheus adds: near the largest float their order decides what remains."""
    added = np.array(result)
    for place in range(int((high - low).max(initial=0))):
        has_more = low + place < high
        added[has_more] += falls[low[has_more] + place]
    return added


def _between_last_two(windows: Windows, *, is_rate: bool) -> Vector:
    edge = edges(windows)
    previous = np.maximum(_along(previous_slots(windows), edge.last), 0)
    last, before = values_at(windows, edge.last), values_at(windows, previous)
    elapsed_ms = times_at(windows, edge.last) - times_at(windows, previous)
    with np.errstate(all="ignore"):
        result = last - before
        if is_rate:
            result = np.where(last < before, last, result) / (elapsed_ms / 1000)
    return Vector(windows.series, result, (edge.count >= 2) & (elapsed_ms > 0))


def _with_previous(windows: Windows) -> tuple[Floats, Floats, Mask]:
    """Each value, the value of the sample before it, and whether both are samples."""
    previous = previous_slots(windows)
    has_before = previous >= 0
    if windows.usable is not None:
        has_before = has_before & windows.usable
    if windows.values.shape[1] == 0:
        return windows.values, windows.values, has_before
    if windows.usable is None:
        before = np.empty_like(windows.values)
        before[:, 0] = 0.0
        before[:, 1:] = windows.values[:, :-1]
        return windows.values, before, has_before
    return windows.values, picked(windows.values, np.maximum(previous, 0)), has_before


def _counted(windows: Windows, happened: Mask) -> Vector:
    """How often something happened after the first sample of each window, up to its last."""
    edge = edges(windows)
    running = np.cumsum(happened, axis=1, dtype=np.int64)
    count = _along(running, edge.last) - _along(running, edge.first)
    return Vector(windows.series, count.astype(np.float64), edge.count >= 1)


def _along(columns: Ints, slots: Ints) -> Ints:
    if columns.shape[1] == 0:
        return np.zeros(slots.shape, dtype=np.int64)
    return picked(columns, slots)
