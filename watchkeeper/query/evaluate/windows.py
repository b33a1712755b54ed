"""Select from stored columns what PromQL reads at each step: the newest sample, or a window of samples.

Bounds are computed once per group of series with the same times, then applied to all its series; groups with the same
scrape schedule mostly have the same bounds, and then whole columns are read at once (`SlotPicker`). Range functions
read either the edges of a window (`edges`) or all its samples (`reduce`), which are arranged as series × steps × slots,
one piece of limited size at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from watchkeeper.kit import allowance
from watchkeeper.query.engine import Floats, Mask, Millis
from watchkeeper.query.evaluate.values import Vector, Windows
from watchkeeper.store import columns as stored
from watchkeeper.store.columns import Ints
from watchkeeper.store.histograms import Cells
from watchkeeper.store.sample_columns import Columns

T = TypeVar("T", bound=np.generic)

# Samples per piece: half a megabyte of values and intermediate results stay in the CPU cache.
PIECE_SAMPLES = 1 << 16
# The memory of one sample of a piece, with intermediate results; one window may be larger than a piece.
PIECE_BYTES = 64
# With more different bounds than this, series are read one at a time.
MAX_KINDS = 64
TRUE = bytes([True])


def bounds(times: Millis, at_ms: Millis) -> Ints:
    """For each group and step, how many of the group's times are at or before the step."""
    steps = len(at_ms)
    if steps == 1:
        return np.asarray(np.count_nonzero(times <= at_ms[0], axis=1))[:, None]
    if len(times) == 1:
        return np.asarray(times[0].searchsorted(at_ms, side="right"))[None, :]
    step_ms = int(at_ms[1] - at_ms[0])
    if step_ms <= 0 or len(times) * times.shape[1] < PIECE_SAMPLES // 64 or (np.diff(at_ms) != step_ms).any():
        return np.array([row.searchsorted(at_ms, side="right") for row in times]).reshape(len(times), steps)
    # The first step at or after each time; how many times are at or before a step is then a running count.
    first = np.clip(-((at_ms[0] - times) // step_ms), 0, steps)
    first += np.arange(len(times))[:, None] * (steps + 1)
    time_counts = np.bincount(first.ravel(), minlength=len(times) * (steps + 1)).reshape(len(times), steps + 1)
    return np.cumsum(time_counts[:, :steps], axis=1)


def has_nan(values: Floats) -> bool:
    """Whether any value is NaN, without building a mask: the minimum is NaN if any value is NaN."""
    return bool(values.size) and math.isnan(values.min())


def pick(table: npt.NDArray[T], slots: Ints) -> npt.NDArray[T]:
    """`table[s, slots[s, t]]`; five times as fast as `take_along_axis`."""
    return table[np.arange(len(table))[:, None], slots]


class SlotPicker:
    """Picks slots by group; groups with the same slots are read together."""

    def __init__(self, slots: Ints) -> None:
        self._slots = slots
        if len(slots) <= 1 or (slots == slots[0]).all():
            self._distinct_slots, self._kind_of = list(slots[:1]), np.zeros(len(slots), dtype=np.int64)
            return
        if slots.shape[1] == 1:
            kinds, self._kind_of = np.unique(slots[:, 0], return_inverse=True)
            self._distinct_slots = list(kinds[:, None])
            return
        numbers: dict[bytes, int] = {}
        self._kind_of = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in slots], dtype=np.int64)
        self._distinct_slots = [np.frombuffer(kind, dtype=np.int64) for kind in numbers]

    def pick_rows(self, values: Floats, groups: Ints) -> Floats:
        """`values[s, slots[groups[s], t]]`; a view if all groups have the same consecutive slots."""
        if len(self._distinct_slots) == 1:
            return _columns(values, self._distinct_slots[0])
        if len(self._distinct_slots) > MAX_KINDS:
            return pick(values, self._slots[groups])
        out = np.empty((len(values), self._slots.shape[1]))
        kinds = self._kind_of[groups]
        for number in np.unique(kinds).tolist():
            rows = np.flatnonzero(kinds == number)
            out[rows] = _columns(values[rows], self._distinct_slots[number])
        return out


def _columns(values: Floats, slots: Ints) -> Floats:
    first, count = int(slots[0]), len(slots)
    if slots[-1] - first == count - 1 and (slots == np.arange(first, first + count)).all():
        return values[:, first : first + count]
    return values.take(slots, axis=1)


def newest_samples(columns: Columns, at_ms: Millis, *, lookback_ms: int) -> tuple[Vector, Callable[[], Millis]]:
    """The newest sample at each step within the lookback, not a stale marker, and a function that returns the times."""
    shape = (len(columns.series), len(at_ms))
    if columns.times.shape[1] == 0 or not len(columns.series):
        no_samples = Vector(columns.series, np.zeros(shape), np.zeros(shape, dtype=bool))
        return no_samples, lambda: np.zeros(shape, dtype=np.int64)
    groups, slots = columns.groups, bounds(columns.times, at_ms) - 1
    may_have_gaps = has_nan(columns.values)
    absent = stored.is_absent(columns.values) if may_have_gaps else None
    if absent is not None and absent.any():
        own_slots = pick(_nearest_usable_before(~absent), np.maximum(slots[groups], 0))
        own_slots = np.where(slots[groups] >= 0, own_slots, -1)
        times = columns.times[groups[:, None], np.maximum(own_slots, 0)]
        present = (own_slots >= 0) & (times > at_ms - lookback_ms)
        values = pick(columns.values, np.maximum(own_slots, 0))
        histograms = _cells_at(columns, np.maximum(own_slots, 0))
        return Vector(columns.series, values, present & ~stored.is_stale(values), histograms), lambda: times
    has_slot, slots = slots >= 0, np.maximum(slots, 0)
    group_times = pick(columns.times, slots)
    values = SlotPicker(slots).pick_rows(columns.values, groups)
    is_present = has_slot & (group_times > at_ms - lookback_ms)
    # A mask that is True everywhere uses one byte and is read-only.
    present = (
        np.ndarray((len(groups), is_present.shape[1]), np.bool_, TRUE, strides=(0, 0))
        if is_present.all()
        else is_present[groups]
    )
    if may_have_gaps:
        present = present & ~stored.is_stale(values)
    histograms = _cells_at(columns, slots[groups]) if columns.histograms is not None else None
    return Vector(columns.series, values, present, histograms), lambda: group_times[groups]


def _cells_at(columns: Columns, slots: Ints) -> Cells | None:
    return None if columns.histograms is None else pick(columns.histograms, slots)


def build_windows(columns: Columns, ends_ms: Millis, *, range_ms: int) -> Windows:
    """The windows of `range_ms` before each end, open on the left; stale markers are not samples."""
    usable = None
    if has_nan(columns.values):
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
        histograms=columns.histograms,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Edges:
    """The number of samples of each window, and the slots of its first and last sample; ignore slots if count is 0."""

    count: Ints
    first: Ints
    last: Ints


def group_edges(windows: Windows) -> Edges:
    """The edges of each group's windows, if every slot has a sample."""
    limit = max(windows.times.shape[1] - 1, 0)
    lows, highs = windows.lows, windows.highs
    return Edges(highs - lows, np.minimum(lows, limit), np.maximum(highs - 1, 0))


def edges(windows: Windows) -> Edges:
    lows, highs, groups = windows.lows, windows.highs, windows.groups
    width = windows.values.shape[1]
    if windows.usable is None:
        shared = group_edges(windows)
        return Edges(shared.count[groups], shared.first[groups], shared.last[groups])
    lows, highs = lows[groups], highs[groups]
    running = np.zeros((len(groups), width + 1), dtype=np.int64)
    np.cumsum(windows.usable, axis=1, out=running[:, 1:])
    count = pick(running, highs) - pick(running, lows)
    last = pick(_nearest_usable_before(windows.usable), np.maximum(highs - 1, 0))
    first = pick(_nearest_usable_after(windows.usable), np.minimum(lows, width - 1))
    return Edges(count, np.minimum(first, width - 1), np.maximum(last, 0))


def iterate_pieces(windows: Windows) -> Iterator[slice]:
    """Slices of rows, each with a limited number of results."""
    rows = max(1, PIECE_SAMPLES // max(1, len(windows.ends_ms), windows.values.shape[1]))
    for row in range(0, len(windows.series), rows):
        allowance.check()
        yield slice(row, row + rows)


def select_rows(windows: Windows, rows: slice) -> Windows:
    """Select rows of windows, but keep all their labels."""
    usable = None if windows.usable is None else windows.usable[rows]
    return replace(windows, groups=windows.groups[rows], values=windows.values[rows], usable=usable)


def times_at(windows: Windows, slots: Ints) -> Millis:
    if windows.times.shape[1] == 0:
        return np.zeros(slots.shape, dtype=np.int64)
    return windows.times[windows.groups[:, None], slots]


def previous_slots(windows: Windows) -> Ints:
    """For each slot the slot of the previous sample of the same series, or -1."""
    count, width = windows.values.shape
    if windows.usable is None:
        return np.broadcast_to(np.arange(-1, width - 1), (count, width))
    previous = np.full((count, width), -1, dtype=np.int64)
    previous[:, 1:] = _nearest_usable_before(windows.usable)[:, :-1]
    return previous


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Windows as an array: `values[s, t, k]` is the k-th slot of a window, and a sample if `inside[s, t, k]`.

    `inside` is None if every slot is a sample. Times are stored by group: `group_times[group_of_row[s], t, k]`.
    """

    values: Floats
    inside: Mask | None
    group_times: Millis
    group_of_row: Ints
    ends_ms: Millis
    steps: slice

    @property
    def mask(self) -> Mask:
        return np.broadcast_to(np.True_, self.values.shape) if self.inside is None else self.inside

    @property
    def times(self) -> Millis:
        return self.group_times[self.group_of_row]

    @property
    def count(self) -> Ints:
        if self.inside is None:
            return np.full(self.values.shape[:-1], self.values.shape[-1], dtype=np.int64)
        return np.asarray(np.count_nonzero(self.inside, axis=-1))

    def filled(self, fill: float) -> Floats:
        """The values, with `fill` in slots without a sample."""
        return self.values if self.inside is None else np.where(self.inside, self.values, fill)

    @property
    def first(self) -> Floats:
        """The first sample of each window; ignore it if the window has no samples."""
        if self.inside is None:
            return self.values[..., 0]
        return np.take_along_axis(self.values, np.argmax(self.inside, axis=-1)[..., None], axis=-1)[..., 0]


def reduce(windows: Windows, compute: Callable[[Piece], Floats], *, min_samples: int = 1) -> Vector:
    """Compute one number per window from all its samples; absent if there are fewer than `min_samples`."""
    shape = (len(windows.series), len(windows.ends_ms))
    values, present = np.zeros(shape), np.zeros(shape, dtype=bool)
    widest = int((windows.highs - windows.lows).max(initial=0))
    if widest == 0:
        return Vector(windows.series, values, present)
    steps = max(1, min(shape[1], PIECE_SAMPLES // widest))
    rows = max(1, PIECE_SAMPLES // (widest * steps))
    allowance.require(PIECE_BYTES * widest)
    for row in range(0, shape[0], rows):
        for step in range(0, shape[1], steps):
            allowance.check()
            area = slice(row, row + rows), slice(step, step + steps)
            piece = _lay_out(windows, *area, widest)
            with np.errstate(all="ignore"):
                values[area] = compute(piece)
            present[area] = piece.count >= min_samples
    return Vector(windows.series, values, present)


def _lay_out(windows: Windows, rows: slice, steps: slice, widest: int) -> Piece:
    """Arrange some windows as an array of `widest` slots each, which start earlier near the end of a row."""
    local, group_of_row = np.unique(windows.groups[rows], return_inverse=True)
    lows, highs = windows.lows[local, steps], windows.highs[local, steps]
    starts = np.minimum(lows, windows.values.shape[1] - widest)
    slots = starts[:, :, None] + np.arange(widest)
    inside = (slots >= lows[:, :, None]) & (slots < highs[:, :, None])
    mask = None if inside.all() else inside[group_of_row]
    times = np.lib.stride_tricks.sliding_window_view(windows.times, widest, axis=1)[local[:, None], starts]
    values = _cut_stretches(windows.values[rows], starts[group_of_row], widest)
    if windows.usable is not None:
        usable = _cut_stretches(windows.usable[rows], starts[group_of_row], widest)
        mask = usable if mask is None else mask & usable
    return Piece(values, mask, times, group_of_row, windows.ends_ms[steps], steps)


def _cut_stretches(table: npt.NDArray[T], starts: Ints, width: int) -> npt.NDArray[T]:
    """`width` cells of each row from each start; a view if every row has one start and it is 0."""
    if starts.shape[1] == 1 and not starts.any():
        return table[:, None, :width]
    stretches = np.lib.stride_tricks.sliding_window_view(table, width, axis=1)
    return stretches[np.arange(len(table))[:, None], starts]


def pick_or_zero(table: npt.NDArray[T], slots: Ints) -> npt.NDArray[T]:
    return pick(table, slots) if table.shape[1] else np.zeros(slots.shape, dtype=table.dtype)


def _nearest_usable_before(usable: Mask) -> Ints:
    """For each slot the nearest usable slot at or before it, or -1."""
    slots = np.where(usable, np.arange(usable.shape[1]), -1)
    return np.maximum.accumulate(slots, axis=1)


def _nearest_usable_after(usable: Mask) -> Ints:
    width = usable.shape[1]
    slots = np.where(usable, np.arange(width), width)
    return np.minimum.accumulate(slots[:, ::-1], axis=1)[:, ::-1]
