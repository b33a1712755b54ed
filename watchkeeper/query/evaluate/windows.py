"""From stored columns to what PromQL sees at each step: the newest sample, or a window of samples.

Bounds are found once per group of series that share their times, then spread over the series; groups scraped on
one schedule mostly have the same bounds, and then whole columns are read at once (`Picks`). Range functions either
look at the edges of a window (`edges`) or at all its samples (`reduce`), which are laid out as series × steps ×
slots, a bounded piece at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from watchkeeper.query.engine import Floats, Mask, Millis
from watchkeeper.query.evaluate.values import Vector, Windows
from watchkeeper.store import columns as stored
from watchkeeper.store.columns import Ints
from watchkeeper.store.histograms import Cells
from watchkeeper.store.sample_columns import Columns

T = TypeVar("T", bound=np.generic)

# Samples laid out at once: half a megabyte of values, and what is made of them, stay in the processor's own cache.
PIECE = 1 << 16
# Groups with more different bounds than this are read one series at a time.
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
    if step_ms <= 0 or len(times) * times.shape[1] < PIECE // 64 or (np.diff(at_ms) != step_ms).any():
        return np.array([row.searchsorted(at_ms, side="right") for row in times]).reshape(len(times), steps)
    # The first step that sees each time; how many times a step sees is then a running count.
    first = np.clip(-((at_ms[0] - times) // step_ms), 0, steps)
    first += np.arange(len(times))[:, None] * (steps + 1)
    seen = np.bincount(first.ravel(), minlength=len(times) * (steps + 1)).reshape(len(times), steps + 1)
    return np.cumsum(seen[:, :steps], axis=1)


def has_nan(values: Floats) -> bool:
    """Whether any value is NaN, without a mask of all of them: the smallest of numbers and a NaN is NaN."""
    return bool(values.size) and math.isnan(values.min())


def picked(table: npt.NDArray[T], slots: Ints) -> npt.NDArray[T]:
    """`table[s, slots[s, t]]`: what `take_along_axis` picks, which takes five times as long to find that out."""
    return table[np.arange(len(table))[:, None], slots]


def everywhere(rows: int, steps: int) -> Mask:
    """True at every step of every row; one byte, and read-only."""
    return np.ndarray((rows, steps), np.bool_, TRUE, strides=(0, 0))


class Picks:
    """The slots that each group wants; groups that want the same ones are one kind, and are read together."""

    def __init__(self, slots: Ints) -> None:
        self._slots = slots
        if len(slots) <= 1 or (slots == slots[0]).all():
            self._kinds, self._kind_of = list(slots[:1]), np.zeros(len(slots), dtype=np.int64)
            return
        if slots.shape[1] == 1:
            kinds, self._kind_of = np.unique(slots[:, 0], return_inverse=True)
            self._kinds = list(kinds[:, None])
            return
        numbers: dict[bytes, int] = {}
        self._kind_of = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in slots], dtype=np.int64)
        self._kinds = [np.frombuffer(kind, dtype=np.int64) for kind in numbers]

    def of(self, values: Floats, groups: Ints) -> Floats:
        """`values[s, slots[groups[s], t]]`; a view where all groups have the same slots in a row."""
        if len(self._kinds) == 1:
            return _columns(values, self._kinds[0])
        if len(self._kinds) > MAX_KINDS:
            return picked(values, self._slots[groups])
        out = np.empty((len(values), self._slots.shape[1]))
        kinds = self._kind_of[groups]
        for number in np.unique(kinds).tolist():
            rows = np.flatnonzero(kinds == number)
            out[rows] = _columns(values[rows], self._kinds[number])
        return out


def _columns(values: Floats, slots: Ints) -> Floats:
    first, count = int(slots[0]), len(slots)
    if slots[-1] - first == count - 1 and (slots == np.arange(first, first + count)).all():
        return values[:, first : first + count]
    return values.take(slots, axis=1)


def newest(columns: Columns, at_ms: Millis, *, lookback_ms: int) -> tuple[Vector, Callable[[], Millis]]:
    """The newest sample of each series at each step, unless it is too old or a stale marker; and a way to its times."""
    shape = (len(columns.series), len(at_ms))
    if columns.times.shape[1] == 0 or not len(columns.series):
        nothing = Vector(columns.series, np.zeros(shape), np.zeros(shape, dtype=bool))
        return nothing, lambda: np.zeros(shape, dtype=np.int64)
    groups, slots = columns.groups, bounds(columns.times, at_ms) - 1
    may_lack = has_nan(columns.values)
    absent = stored.is_absent(columns.values) if may_lack else None
    if absent is not None and absent.any():
        own = picked(_filled_from_left(~absent), np.maximum(slots[groups], 0))
        own = np.where(slots[groups] >= 0, own, -1)
        times = columns.times[groups[:, None], np.maximum(own, 0)]
        present = (own >= 0) & (times > at_ms - lookback_ms)
        values = picked(columns.values, np.maximum(own, 0))
        histograms = _cells_at(columns, np.maximum(own, 0))
        return Vector(columns.series, values, present & ~stored.is_stale(values), histograms), lambda: times
    has_slot, slots = slots >= 0, np.maximum(slots, 0)
    group_times = picked(columns.times, slots)
    values = Picks(slots).of(columns.values, groups)
    present = _spread(has_slot & (group_times > at_ms - lookback_ms), groups)
    if may_lack:
        present = present & ~stored.is_stale(values)
    histograms = _cells_at(columns, slots[groups]) if columns.histograms is not None else None
    return Vector(columns.series, values, present, histograms), lambda: group_times[groups]


def _cells_at(columns: Columns, slots: Ints) -> Cells | None:
    return None if columns.histograms is None else picked(columns.histograms, slots)


def _spread(holds: Mask, groups: Ints) -> Mask:
    """What holds of each group, for each of its series; read-only where it holds of all."""
    return everywhere(len(groups), holds.shape[1]) if holds.all() else holds[groups]


def over(columns: Columns, ends_ms: Millis, *, range_ms: int) -> Windows:
    """The window of `range_ms` up to each end, open on the left; stale markers are not samples."""
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
    count = picked(before, highs) - picked(before, lows)
    last = picked(_filled_from_left(windows.usable), np.maximum(highs - 1, 0))
    first = picked(_filled_from_right(windows.usable), np.minimum(lows, width - 1))
    return Edges(count, np.minimum(first, width - 1), np.maximum(last, 0))


def pieces(windows: Windows) -> Iterator[slice]:
    """Rows of windows in pieces of a bounded number of results."""
    rows = max(1, PIECE // max(1, len(windows.ends_ms), windows.values.shape[1]))
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
    """Windows laid out: `values[s, t, k]` is the k-th slot of the window, a sample where `inside[s, t, k]`.

    `inside` is None where every slot is a sample. Times are those of groups: `group_times[of[s], t, k]`.
    """

    values: Floats
    inside: Mask | None
    group_times: Millis
    of: Ints
    ends_ms: Millis
    steps: slice

    @property
    def mask(self) -> Mask:
        return np.broadcast_to(np.True_, self.values.shape) if self.inside is None else self.inside

    @property
    def times(self) -> Millis:
        return self.group_times[self.of]

    @property
    def count(self) -> Ints:
        if self.inside is None:
            return np.full(self.values.shape[:-1], self.values.shape[-1], dtype=np.int64)
        return np.asarray(np.count_nonzero(self.inside, axis=-1))

    def filled(self, fill: float) -> Floats:
        """The values, with `fill` where there is no sample."""
        return self.values if self.inside is None else np.where(self.inside, self.values, fill)

    @property
    def first(self) -> Floats:
        """The first sample of each window; means nothing where there is none."""
        if self.inside is None:
            return self.values[..., 0]
        return np.take_along_axis(self.values, np.argmax(self.inside, axis=-1)[..., None], axis=-1)[..., 0]


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
    """The samples of some windows, each in a stretch of `widest` slots that begins earlier at the end of a row."""
    local, of = np.unique(windows.groups[rows], return_inverse=True)
    lows, highs = windows.lows[local, steps], windows.highs[local, steps]
    starts = np.minimum(lows, windows.values.shape[1] - widest)
    slots = starts[:, :, None] + np.arange(widest)
    inside = (slots >= lows[:, :, None]) & (slots < highs[:, :, None])
    mask = None if inside.all() else inside[of]
    times = np.lib.stride_tricks.sliding_window_view(windows.times, widest, axis=1)[local[:, None], starts]
    values = _stretches(windows.values[rows], starts[of], widest)
    if windows.usable is not None:
        usable = _stretches(windows.usable[rows], starts[of], widest)
        mask = usable if mask is None else mask & usable
    return Piece(values, mask, times, of, windows.ends_ms[steps], steps)


def _stretches(table: npt.NDArray[T], starts: Ints, width: int) -> npt.NDArray[T]:
    """`width` cells of each row from each start on; a view where every row has one and begins with it."""
    if starts.shape[1] == 1 and not starts.any():
        return table[:, None, :width]
    seen = np.lib.stride_tricks.sliding_window_view(table, width, axis=1)
    return seen[np.arange(len(table))[:, None], starts]


def _along(columns: Floats, slots: Ints) -> Floats:
    if columns.shape[1] == 0:
        return np.zeros(slots.shape)
    return picked(columns, slots)


def _filled_from_left(usable: Mask) -> Ints:
    """For each slot the nearest usable one at or before it, -1 if there is none."""
    slots = np.where(usable, np.arange(usable.shape[1]), -1)
    return np.maximum.accumulate(slots, axis=1)


def _filled_from_right(usable: Mask) -> Ints:
    width = usable.shape[1]
    slots = np.where(usable, np.arange(width), width)
    return np.minimum.accumulate(slots[:, ::-1], axis=1)[:, ::-1]
