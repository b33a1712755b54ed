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
    edges,
    group_edges,
    only_rows,
    pieces,
    previous_slots,
    times_at,
    values_at,
)
from watchkeeper.store.columns import Ints

# A gap at a window's edge that is longer than this many sample intervals means that the series began
# or ended there; then half an interval is assumed (Prometheus, promql/functions.go, extrapolatedRate).
EDGE_GAP_INTERVALS = 1.1


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
    values, before, has_before = _with_previous(windows)
    differs = has_before & (values != before) & ~(np.isnan(values) & np.isnan(before))
    return _counted(windows, differs)


def resets(windows: Windows) -> Vector:
    """How often the value is below the one before it."""
    values, before, has_before = _with_previous(windows)
    return _counted(windows, has_before & (values < before))


@dataclass(frozen=True, slots=True, eq=False)
class _Geometry:
    """What extrapolation needs to know of the times of each window; durations are in seconds."""

    edge: Edges
    sampled: Floats
    to_start: Floats
    to_end: Floats


def _geometry(windows: Windows, edge: Edges, times: Millis) -> _Geometry:
    first_ms, last_ms = np.take_along_axis(times, edge.first, axis=1), np.take_along_axis(times, edge.last, axis=1)
    sampled = (last_ms - first_ms) / 1000
    interval = sampled / (edge.count - 1)
    to_start = (first_ms - (windows.ends_ms - windows.range_ms)) / 1000
    to_end = (windows.ends_ms - last_ms) / 1000
    threshold = interval * EDGE_GAP_INTERVALS
    to_start, to_end = (np.where(gap >= threshold, interval / 2, gap) for gap in (to_start, to_end))
    return _Geometry(edge, sampled, to_start, to_end)


def _extrapolated(windows: Windows, *, is_counter: bool, is_rate: bool) -> Vector:
    shape = (len(windows.series), len(windows.ends_ms))
    values, enough = np.zeros(shape), np.zeros(shape, dtype=bool)
    if windows.times.shape[1] == 0:
        return Vector(windows.series, values, enough)
    with np.errstate(all="ignore"):
        # Without holes all series of a group have the same times, so the work on times is done once per group.
        shared = _geometry(windows, group_edges(windows), windows.times) if windows.usable is None else None
        for rows in pieces(windows):
            part = only_rows(windows, rows)
            own = shared or _geometry(part, edges(part), part.times[part.groups])
            of = part.groups if shared else np.arange(len(part.groups))
            values[rows] = _result(part, own, of, is_counter=is_counter)
            enough[rows] = (own.edge.count >= 2)[of]
        if is_rate:
            values /= windows.range_ms / 1000
    return Vector(windows.series, values, enough)


def _result(windows: Windows, geometry: _Geometry, of: Ints, *, is_counter: bool) -> Floats:
    """The difference of each window's edges, stretched to the whole window."""
    edge = Edges(geometry.edge.count[of], geometry.edge.first[of], geometry.edge.last[of])
    first, last = values_at(windows, edge.first), values_at(windows, edge.last)
    sampled, to_start = geometry.sampled[of], geometry.to_start[of]
    result = last - first
    if is_counter:
        result = result + _lost_by_resets(windows, edge)
        # A counter was never below 0: do not extrapolate to before that.
        to_zero = np.where((result > 0) & (first >= 0), sampled * (first / result), to_start)
        to_start = np.where(to_zero < to_start, to_zero, to_start)
    return result * ((sampled + to_start + geometry.to_end[of]) / sampled)


def _lost_by_resets(windows: Windows, edge: Edges) -> Floats | float:
    """What counters lost in each window: the sum of the values they fell from."""
    values, before, has_before = _with_previous(windows)
    with np.errstate(invalid="ignore"):
        fell = has_before & (values < before)
    if not fell.any():
        return 0.0
    lost = np.cumsum(np.where(fell, before, 0.0), axis=1)
    at_last, at_first = (np.take_along_axis(lost, slots, axis=1) for slots in (edge.last, edge.first))
    return np.asarray(at_last - at_first)


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
    return windows.values, np.take_along_axis(windows.values, np.maximum(previous, 0), axis=1), has_before


def _counted(windows: Windows, happened: Mask) -> Vector:
    """How often something happened after the first sample of each window, up to its last."""
    edge = edges(windows)
    running = np.cumsum(happened, axis=1, dtype=np.int64)
    count = _along(running, edge.last) - _along(running, edge.first)
    return Vector(windows.series, count.astype(np.float64), edge.count >= 1)


def _along(columns: Ints, slots: Ints) -> Ints:
    if columns.shape[1] == 0:
        return np.zeros(slots.shape, dtype=np.int64)
    return np.take_along_axis(columns, slots, axis=1)
