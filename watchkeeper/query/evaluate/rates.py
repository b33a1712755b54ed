"""rate, increase, delta and similar functions: how fast a series changes in a window.

They depend on the first and last sample of a window, and on how much a counter lost by resets between them, which is
computed for all windows at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from watchkeeper.query.engine import Floats, Mask, Millis
from watchkeeper.query.evaluate.values import Vector, Windows
from watchkeeper.query.evaluate.windows import (
    Edges,
    SlotPicker,
    edges,
    group_edges,
    iterate_pieces,
    pick,
    pick_or_zero,
    previous_slots,
    select_rows,
    times_at,
)
from watchkeeper.store.columns import Ints

# A gap at a window's edge longer than this many sample intervals means that the series started or ended
# there; then half an interval is assumed (Prometheus, promql/functions.go, extrapolatedRate).
EDGE_GAP_INTERVALS = 1.1
# Resets with a smaller sum cannot overflow the largest float, whose last bit is 2e292.
OVERFLOW_SAFE_SUM = 1e290


def _changes(windows: Windows) -> Vector:
    """How often the value differs from the previous value; NaN equals NaN here."""
    if windows.usable is None and (windows.values[:, 1:] == windows.values[:, :-1]).all():
        edge = edges(windows)
        return Vector(windows.series, np.zeros(edge.count.shape), edge.count >= 1)
    values, before, has_before = _with_previous(windows)
    differs = has_before & (values != before) & ~(np.isnan(values) & np.isnan(before))
    return _count_in_windows(windows, differs)


def _resets(windows: Windows) -> Vector:
    values, before, has_before = _with_previous(windows)
    return _count_in_windows(windows, has_before & (values < before))


@dataclass(frozen=True, slots=True, eq=False)
class _Geometry:
    """The times of each group's windows as extrapolation needs them; durations are in seconds."""

    edge: Edges
    first: SlotPicker
    last: SlotPicker
    sampled_seconds: Floats
    start_gap: Floats
    end_gap: Floats
    # A difference times `factor` is the increase over the whole window, or the rate if `divisor_seconds` is not 1.
    factor: Floats
    divisor_seconds: float
    # The longest gap before a first sample, divided by the shortest sampled time.
    max_gap_ratio: float


def _geometry(windows: Windows, edge: Edges, times: Millis, *, divisor_seconds: float) -> _Geometry:
    first_ms, last_ms = pick(times, edge.first), pick(times, edge.last)
    sampled_seconds = (last_ms - first_ms) / 1000
    interval = sampled_seconds / (edge.count - 1)
    start_gap = (first_ms - (windows.ends_ms - windows.range_ms)) / 1000
    end_gap = (windows.ends_ms - last_ms) / 1000
    threshold = interval * EDGE_GAP_INTERVALS
    start_gap, end_gap = (np.where(gap >= threshold, interval / 2, gap) for gap in (start_gap, end_gap))
    has_two = edge.count >= 2
    shortest, longest = sampled_seconds.min(initial=np.inf, where=has_two), start_gap.max(initial=0.0, where=has_two)
    return _Geometry(
        edge,
        SlotPicker(edge.first),
        SlotPicker(edge.last),
        sampled_seconds,
        start_gap,
        end_gap,
        factor=(sampled_seconds + start_gap + end_gap) / sampled_seconds / divisor_seconds,
        divisor_seconds=divisor_seconds,
        max_gap_ratio=float(longest / shortest),
    )


def _extrapolate_windows(windows: Windows, *, is_counter: bool, is_rate: bool) -> Vector:
    shape = (len(windows.series), len(windows.ends_ms))
    values, has_two = np.zeros(shape), np.zeros(shape, dtype=bool)
    if windows.times.shape[1] == 0:
        return Vector(windows.series, values, has_two)
    divisor_seconds = windows.range_ms / 1000 if is_rate else 1.0
    with np.errstate(all="ignore"):
        # Without missing samples all series of a group have the same times, so they are processed once per group.
        shared = (
            _geometry(windows, group_edges(windows), windows.times, divisor_seconds=divisor_seconds)
            if windows.usable is None
            else None
        )
        for rows in iterate_pieces(windows):
            part = select_rows(windows, rows)
            geometry = shared or _geometry(part, edges(part), part.times[part.groups], divisor_seconds=divisor_seconds)
            geometry_rows = part.groups if shared else np.arange(len(part.groups))
            values[rows] = _extrapolate_rows(part, geometry, geometry_rows, is_counter=is_counter)
            has_two[rows] = (geometry.edge.count >= 2)[geometry_rows]
    return Vector(windows.series, values, has_two)


def _extrapolate_rows(windows: Windows, geometry: _Geometry, geometry_rows: Ints, *, is_counter: bool) -> Floats:
    """The difference of each window's edges, extrapolated to the whole window."""
    first = geometry.first.pick_rows(windows.values, geometry_rows)
    last = geometry.last.pick_rows(windows.values, geometry_rows)
    result = last - first
    if is_counter:
        result = _add_resets(result, windows, geometry.edge, geometry_rows=geometry_rows)
    # A counter is never negative, so it is not extrapolated below 0. Most counters are far above 0.
    if not is_counter or first.min(initial=np.inf) > 2 * geometry.max_gap_ratio * result.max(initial=0.0):
        return np.asarray(result * geometry.factor[geometry_rows])
    sampled_seconds, start_gap = geometry.sampled_seconds[geometry_rows], geometry.start_gap[geometry_rows]
    zero_gap = np.where((result > 0) & (first >= 0), sampled_seconds * (first / result), start_gap)
    start_gap = np.where(zero_gap < start_gap, zero_gap, start_gap)
    return np.asarray(
        result
        * ((sampled_seconds + start_gap + geometry.end_gap[geometry_rows]) / sampled_seconds / geometry.divisor_seconds)
    )


def _add_resets(result: Floats, windows: Windows, edge: Edges, *, geometry_rows: Ints) -> Floats:
    """Add to differences of counters what they lost by resets in each window: the values before the resets."""
    if windows.usable is None and not (windows.values[:, 1:] < windows.values[:, :-1]).any():
        return result
    values, before, has_before = _with_previous(windows)
    with np.errstate(invalid="ignore"):
        fell = has_before & (values < before)
    if not fell.any():
        return result
    falls, so_far = before[fell], np.cumsum(fell, axis=1, dtype=np.int64)
    earlier_rows = (np.cumsum(so_far[:, -1]) - so_far[:, -1])[:, None]
    low, high = (earlier_rows + pick(so_far, slots[geometry_rows]) for slots in (edge.first, edge.last))
    if not np.abs(falls).sum() < OVERFLOW_SAFE_SUM:
        # Add resets one after the other as Prometheus does: near the largest float the order changes the result.
        added = np.array(result)
        for nth in range(int((high - low).max(initial=0))):
            has_more = low + nth < high
            added[has_more] += falls[low[has_more] + nth]
        return added
    # Sums by window: a difference of running sums would lose a small reset after a large one.
    sums = np.add.reduceat(np.append(falls, 0.0), np.stack([low, high], axis=-1).reshape(-1))[::2]
    return result + np.where(high > low, sums.reshape(low.shape), 0.0)


def _between_last_two(windows: Windows, *, is_rate: bool) -> Vector:
    """The change between the last two samples; for a rate, the counter starts at 0 after a reset."""
    edge = edges(windows)
    previous = np.maximum(pick_or_zero(previous_slots(windows), edge.last), 0)
    last, before = pick_or_zero(windows.values, edge.last), pick_or_zero(windows.values, previous)
    elapsed_ms = times_at(windows, edge.last) - times_at(windows, previous)
    with np.errstate(all="ignore"):
        result = last - before
        if is_rate:
            result = np.where(last < before, last, result) / (elapsed_ms / 1000)
    return Vector(windows.series, result, (edge.count >= 2) & (elapsed_ms > 0))


def _with_previous(windows: Windows) -> tuple[Floats, Floats, Mask]:
    """Each value, the value of the previous sample, and whether both are samples."""
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
    return windows.values, pick(windows.values, np.maximum(previous, 0)), has_before


def _count_in_windows(windows: Windows, is_event: Mask) -> Vector:
    """Count events after the first sample of each window, up to its last sample."""
    edge = edges(windows)
    running = np.cumsum(is_event, axis=1, dtype=np.int64)
    count = pick_or_zero(running, edge.last) - pick_or_zero(running, edge.first)
    return Vector(windows.series, count.astype(np.float64), edge.count >= 1)


FUNCTIONS: dict[str, Callable[[Windows], Vector]] = {
    "changes": _changes,
    "delta": partial(_extrapolate_windows, is_counter=False, is_rate=False),
    "idelta": partial(_between_last_two, is_rate=False),
    "increase": partial(_extrapolate_windows, is_counter=True, is_rate=False),
    "irate": partial(_between_last_two, is_rate=True),
    "rate": partial(_extrapolate_windows, is_counter=True, is_rate=True),
    "resets": _resets,
}
