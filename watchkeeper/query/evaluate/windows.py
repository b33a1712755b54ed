"""From stored columns to what PromQL sees at each step: the newest sample, or a window of samples.

Bounds are found once per group of series that share their times, then spread over the series. Range
functions either look at the edges of a window (`edges`) or at all its samples (`reduce`), which are laid
out as series × steps × slots, a bounded piece at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from watchkeeper.query.engine import Floats, Mask, Millis
from watchkeeper.query.evaluate.values import Vector, Windows
from watchkeeper.store import columns as stored
from watchkeeper.store.columns import Ints
from watchkeeper.store.reading import Columns

# Samples laid out at once: 8 MB of values stay near the processor.
PIECE = 1 << 20


def bounds(times: Millis, at_ms: Millis) -> Ints:
    """For each group and step, how many of the group's times are at or before the step."""
    if len(at_ms) == 1:
        return np.asarray(np.count_nonzero(times <= at_ms[0], axis=1))[:, None]
    out = np.empty((len(times), len(at_ms)), dtype=np.int64)
    for group, row in enumerate(times):
        out[group] = np.searchsorted(row, at_ms, side="right")
    return out


def newest(columns: Columns, at_ms: Millis, *, lookback_ms: int) -> tuple[Vector, Millis]:
    """The newest sample of each series at each step, unless it is too old or a stale marker; and its time."""
    slots = bounds(columns.times, at_ms) - 1
    groups = columns.groups[:, None]
    if columns.times.shape[1] == 0:
        shape = (len(columns.series), len(at_ms))
        return Vector(columns.series, np.zeros(shape), np.zeros(shape, dtype=bool)), np.zeros(shape, dtype=np.int64)
    has_nan = bool(np.isnan(columns.values).any())
    absent = stored.is_absent(columns.values) if has_nan else None
    if absent is not None and absent.any():
        slots = np.take_along_axis(_filled_from_left(~absent), np.maximum(slots[columns.groups], 0), axis=1)
        slots = np.where(bounds(columns.times, at_ms)[columns.groups] > 0, slots, -1)
        times = columns.times[groups, np.maximum(slots, 0)]
        present = (slots >= 0) & (times > at_ms - lookback_ms)
    else:
        group_times = np.take_along_axis(columns.times, np.maximum(slots, 0), axis=1)
        present = ((slots >= 0) & (group_times > at_ms - lookback_ms))[columns.groups]
        slots, times = slots[columns.groups], group_times[columns.groups]
    values = np.take_along_axis(columns.values, np.maximum(slots, 0), axis=1)
    if has_nan:
        present &= ~stored.is_stale(values)
    return Vector(columns.series, values, present), times


def over(columns: Columns, ends_ms: Millis, *, range_ms: int) -> Windows:
    """The window of `range_ms` up to each end, open on the left; stale markers are not samples."""
    usable = None
    if np.isnan(columns.values).any():
        usable = ~(stored.is_absent(columns.values) | stored.is_stale(columns.values))
        usable = None if usable.all() else usable
    return Windows(
        series=columns.series,
        groups=columns.groups,
        times=columns.times,
        values=columns.values,
        usable=usable,
        lows=bounds(columns.times, ends_ms - range_ms),
        highs=bounds(columns.times, ends_ms),
        ends_ms=ends_ms,
        range_ms=range_ms,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Edges:
    """How many samples each window has, and the slots of its first and last one; those mean nothing at count 0."""

    count: Ints
    first: Ints
    last: Ints


def group_edges(windows: Windows) -> Edges:
    """The edges of each group's windows, where every slot holds a sample."""
    limit = max(windows.times.shape[1] - 1, 0)
    lows, highs = windows.lows, windows.highs
    return Edges(highs - lows, np.minimum(lows, limit), np.maximum(highs - 1, 0))


def edges(windows: Windows) -> Edges:
    """The edges of each series' windows."""
    lows, highs, groups = windows.lows, windows.highs, windows.groups
    width = windows.values.shape[1]
    if windows.usable is None:
        shared = group_edges(windows)
        return Edges(shared.count[groups], shared.first[groups], shared.last[groups])
    lows, highs = lows[groups], highs[groups]
    before = np.zeros((len(groups), width + 1), dtype=np.int64)
    np.cumsum(windows.usable, axis=1, out=before[:, 1:])
    count = np.take_along_axis(before, highs, axis=1) - np.take_along_axis(before, lows, axis=1)
    last = np.take_along_axis(_filled_from_left(windows.usable), np.maximum(highs - 1, 0), axis=1)
    first = np.take_along_axis(_filled_from_right(windows.usable), np.minimum(lows, width - 1), axis=1)
    return Edges(count, np.minimum(first, width - 1), np.maximum(last, 0))


def pieces(windows: Windows) -> Iterator[slice]:
    """Rows of windows in pieces of a bounded number of results."""
    rows = max(1, PIECE // 8 // max(1, len(windows.ends_ms), windows.values.shape[1]))
    for row in range(0, len(windows.series), rows):
        yield slice(row, row + rows)


def only_rows(windows: Windows, rows: slice) -> Windows:
    """Some rows of windows, without their labels."""
    usable = None if windows.usable is None else windows.usable[rows]
    return replace(windows, groups=windows.groups[rows], values=windows.values[rows], usable=usable)


def values_at(windows: Windows, slots: Ints) -> Floats:
    return _along(windows.values, slots)


def times_at(windows: Windows, slots: Ints) -> Millis:
    if windows.times.shape[1] == 0:
        return np.zeros(slots.shape, dtype=np.int64)
    return windows.times[windows.groups[:, None], slots]


def previous_slots(windows: Windows) -> Ints:
    """For each slot the slot of the sample before it in the same series, -1 if there is none."""
    count, width = windows.values.shape
    if windows.usable is None:
        return np.broadcast_to(np.arange(-1, width - 1), (count, width))
    previous = np.full((count, width), -1, dtype=np.int64)
    previous[:, 1:] = _filled_from_left(windows.usable)[:, :-1]
    return previous


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Windows laid out: `values[s, t, k]` is the k-th slot of the window, a sample where `mask[s, t, k]`."""

    values: Floats
    mask: Mask
    times: Millis
    ends_ms: Millis
    steps: slice

    @property
    def count(self) -> Ints:
        return np.asarray(np.count_nonzero(self.mask, axis=-1))

    def filled(self, fill: float) -> Floats:
        """The values, with `fill` where there is no sample."""
        return self.values if self.mask.all() else np.where(self.mask, self.values, fill)


def reduce(windows: Windows, compute: Callable[[Piece], Floats], *, at_least: int = 1) -> Vector:
    """One number per window from all its samples; absent where there are fewer than `at_least`."""
    shape = (len(windows.series), len(windows.ends_ms))
    values, present = np.zeros(shape), np.zeros(shape, dtype=bool)
    widest = int((windows.highs - windows.lows).max(initial=0))
    if widest == 0:
        return Vector(windows.series, values, present)
    steps = max(1, min(shape[1], PIECE // widest))
    rows = max(1, PIECE // (widest * steps))
    for row in range(0, shape[0], rows):
        for step in range(0, shape[1], steps):
            here = slice(row, row + rows), slice(step, step + steps)
            piece = _lay_out(windows, *here, widest)
            with np.errstate(all="ignore"):
                values[here] = compute(piece)
            present[here] = piece.count >= at_least
    return Vector(windows.series, values, present)


def _lay_out(windows: Windows, rows: slice, steps: slice, widest: int) -> Piece:
    groups = windows.groups[rows]
    lows, highs = windows.lows[:, steps], windows.highs[:, steps]
    width = windows.values.shape[1]
    ends = windows.ends_ms[steps]
    if len(ends) == 1 and not lows.any():
        # An instant query selects nothing but its window: no sample has to be moved.
        inside = np.arange(widest) < highs[:, :, None]
        mask = inside[groups]
        if windows.usable is not None:
            mask = mask & windows.usable[rows, None, :widest]
        return Piece(windows.values[rows, None, :widest], mask, windows.times[groups][:, None, :widest], ends, steps)
    slots = lows[:, :, None] + np.arange(widest)
    inside = slots < highs[:, :, None]
    slots = np.minimum(slots, width - 1)
    times = np.take_along_axis(windows.times[:, None, :], slots, axis=2)[groups]
    slots, mask = slots[groups], inside[groups]
    if windows.usable is not None:
        mask = mask & np.take_along_axis(windows.usable[rows, None, :], slots, axis=2)
    return Piece(np.take_along_axis(windows.values[rows, None, :], slots, axis=2), mask, times, ends, steps)


def _along(columns: Floats, slots: Ints) -> Floats:
    if columns.shape[1] == 0:
        return np.zeros(slots.shape)
    return np.take_along_axis(columns, slots, axis=1)


def _filled_from_left(usable: Mask) -> Ints:
    """For each slot the nearest usable one at or before it, -1 if there is none."""
    slots = np.where(usable, np.arange(usable.shape[1]), -1)
    return np.maximum.accumulate(slots, axis=1)


def _filled_from_right(usable: Mask) -> Ints:
    width = usable.shape[1]
    slots = np.where(usable, np.arange(width), width)
    return np.minimum.accumulate(slots[:, ::-1], axis=1)[:, ::-1]
