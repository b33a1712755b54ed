"""Range functions over windows that have native histograms among their samples.

Numbers are computed in columns as ever; then each window that holds a histogram is looked at by itself, sample by
sample. Histograms are rare, and what Prometheus says about windows that hold both kinds differs from function to
function (promql/functions.go). `native_calls` calls `put_into` with the result of the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from watchkeeper.model import histograms
from watchkeeper.model.histograms import CombinedHistogram, Histogram, ResetHint
from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.query.evaluate.notes import Notes
from watchkeeper.query.evaluate.rates import EDGE_GAP_INTERVALS
from watchkeeper.query.evaluate.values import Vector, Windows, is_none, label_of
from watchkeeper.query.promql import ast

Number: TypeAlias = float | Histogram


@dataclass(frozen=True, slots=True)
class Window:
    """The samples of one series in one window, at least one of which is a histogram."""

    times_ms: list[int]
    samples: list[Number]
    start_ms: int
    end_ms: int
    name: str
    about: ast.Expr
    notes: Notes

    @property
    def histograms(self) -> list[Histogram] | None:
        """All samples, if all are histograms; where some are numbers, nothing, and a warning."""
        found = [sample for sample in self.samples if isinstance(sample, Histogram)]
        if len(found) == len(self.samples):
            return found
        self.notes.doubt_mixed_samples(self.name, self.about)
        return None

    def combined(self, add: Callable[[list[Histogram]], CombinedHistogram], found: list[Histogram]) -> Histogram | None:
        try:
            combined = add(found)
        except histograms.IncompatibleHistograms:
            self.notes.doubt_schemas(self.name, self.about)
            return None
        self.notes.doubt_combined(combined, self.about, operation="aggregation")
        return combined.histogram

    def difference(self, left: Histogram, right: Histogram) -> Histogram | None:
        """What lies between two samples; resets are seen to elsewhere, so hints may say what they like."""
        try:
            found = histograms.subtract_histograms(left, right)
        except histograms.IncompatibleHistograms:
            self.notes.doubt_schemas(self.name, self.about)
            return None
        self.notes.doubt_combined(found._replace(is_conflicting=False), self.about, operation="subtraction")
        return found.histogram


Compute: TypeAlias = Callable[[Window], Number | None]


def _rate(window: Window) -> Number | None:
    found = _extrapolated(window, is_counter=True)
    return None if found is None else found.divided((window.end_ms - window.start_ms) / 1000)


def _increase(window: Window) -> Number | None:
    return _extrapolated(window, is_counter=True)


def _delta(window: Window) -> Number | None:
    return _extrapolated(window, is_counter=False)


def _extrapolated(window: Window, *, is_counter: bool) -> Histogram | None:
    found = window.histograms
    if found is None or len(found) < 2:
        return None
    grown = _grown(window, found, is_counter=is_counter)
    if grown is None:
        return None
    times = window.times_ms
    sampled = (times[-1] - times[0]) / 1000
    interval = sampled / (len(times) - 1)
    to_start, to_end = (times[0] - window.start_ms) / 1000, (window.end_ms - times[-1]) / 1000
    limit = interval * EDGE_GAP_INTERVALS
    to_start, to_end = (interval / 2 if gap >= limit else gap for gap in (to_start, to_end))
    if is_counter and grown.count > 0 and found[0].count >= 0:
        # A counter was never below 0, so it is not extrapolated to before that.
        to_start = min(to_start, sampled * (found[0].count / grown.count))
    return replace(grown.scaled((sampled + to_start + to_end) / sampled), hint=ResetHint.GAUGE)


def _grown(window: Window, found: list[Histogram], *, is_counter: bool) -> Histogram | None:
    """How much was observed from the first sample to the last, resets included."""
    first, last = found[0], found[-1]
    if not is_counter:
        if ResetHint.GAUGE is not first.hint or ResetHint.GAUGE is not last.hint:
            window.notes.doubt_kind(window.name, window.about, wanted="gauge")
        grown = window.difference(last, first)
        return None if grown is None else grown.compacted()
    if any(one.hint is ResetHint.GAUGE for one in found):
        window.notes.doubt_kind(window.name, window.about, wanted="counter")
    if found[1].is_reset_after(first):
        # Whatever was before the reset does not count, not even its layout.
        first = Histogram(schema=found[1].schema, bounds=found[1].bounds)
    if any(one.is_custom != first.is_custom for one in found[1:]):
        window.notes.doubt_schemas(window.name, window.about)
        return None
    schema = min(one.schema for one in (first, *found[1:]))
    grown = window.difference(last if last.is_custom else last.coarsened(schema), first)
    before = first
    for one in found[1:]:
        if grown is not None and one.is_reset_after(before):
            grown = _plus(window, grown, before)
        before = one
    return None if grown is None else grown.compacted()


def _plus(window: Window, grown: Histogram, lost: Histogram) -> Histogram:
    added = histograms.sum_histograms([grown, lost])
    window.notes.doubt_combined(added._replace(is_conflicting=False), window.about, operation="addition")
    return added.histogram


def _irate(window: Window) -> Number | None:
    return _between_last_two(window, is_rate=True)


def _idelta(window: Window) -> Number | None:
    return _between_last_two(window, is_rate=False)


def _between_last_two(window: Window, *, is_rate: bool) -> Number | None:
    if len(window.samples) < 2:
        return None
    before, last = window.samples[-2:]
    seconds = (window.times_ms[-1] - window.times_ms[-2]) / 1000
    if not isinstance(before, Histogram) and not isinstance(last, Histogram):
        grown = last if is_rate and last < before else last - before
        return grown / seconds if is_rate else grown
    if not isinstance(before, Histogram) or not isinstance(last, Histogram):
        window.notes.doubt_mixed_samples(window.name, window.about)
        return None
    gauges = [one.hint is ResetHint.GAUGE for one in (before, last)]
    if any(gauges) if is_rate else not all(gauges):
        window.notes.doubt_kind(window.name, window.about, wanted="counter" if is_rate else "gauge")
    grown_by = last if is_rate and last.is_reset_after(before) else window.difference(last, before)
    if grown_by is None:
        return None
    result = replace(grown_by.compacted(), hint=ResetHint.GAUGE)
    return result.divided(seconds) if is_rate else result


def _changes(window: Window) -> Number | None:
    return _counted(window, lambda now, before: not now.is_same(before), lambda now, before: not _is_same(now, before))


def _resets(window: Window) -> Number | None:
    return _counted(window, lambda now, before: now.is_reset_after(before), lambda now, before: now < before)


def _is_same(now: float, before: float) -> bool:
    return now == before or (math.isnan(now) and math.isnan(before))


def _counted(
    window: Window, of_histograms: Callable[[Histogram, Histogram], bool], of_numbers: Callable[[float, float], bool]
) -> float:
    """How often something happened from one sample to the next; another kind of sample is always something."""
    count = 0
    for before, now in zip(window.samples, window.samples[1:], strict=False):
        if isinstance(now, Histogram) and isinstance(before, Histogram):
            count += of_histograms(now, before)
        elif isinstance(now, Histogram) or isinstance(before, Histogram):
            count += 1
        else:
            count += of_numbers(now, before)
    return float(count)


def _sum(window: Window) -> Number | None:
    found = window.histograms
    return None if found is None else window.combined(histograms.sum_histograms, found)


def _avg(window: Window) -> Number | None:
    found = window.histograms
    return None if found is None else window.combined(histograms.average_histograms, found)


FUNCTIONS: dict[str, Compute] = {
    "rate": _rate,
    "increase": _increase,
    "delta": _delta,
    "irate": _irate,
    "idelta": _idelta,
    "changes": _changes,
    "resets": _resets,
    "sum_over_time": _sum,
    "avg_over_time": _avg,
    "count_over_time": lambda window: float(len(window.samples)),
    "present_over_time": lambda _: 1.0,
    "first_over_time": lambda window: window.samples[0],
    "last_over_time": lambda window: window.samples[-1],
    "ts_of_first_over_time": lambda window: window.times_ms[0] / 1000,
    "ts_of_last_over_time": lambda window: window.times_ms[-1] / 1000,
}


def put_into(result: Vector, function: str, windows: Windows, *, about: ast.Expr, notes: Notes) -> Vector:
    """What numbers alone gave, with the results of windows that hold histograms in their places."""
    values, present = np.array(result.values), np.array(result.present)
    cells = np.full(values.shape, None, dtype=object)
    compute = FUNCTIONS[function]
    for row, step, window in _native(windows, about=about, notes=notes):
        found = compute(window)
        cells[row, step] = found if isinstance(found, Histogram) else None
        values[row, step] = found if isinstance(found, float) else np.nan
        present[row, step] = found is not None
    return Vector(result.series, values, present, cells)


def doubt_ignored(windows: Windows, *, about: ast.Expr, notes: Notes) -> None:
    """Say of which metrics histograms are left out, because numbers stand beside them in a window."""
    for _, _, window in _native(windows, about=about, notes=notes):
        if any(not isinstance(sample, Histogram) for sample in window.samples):
            notes.doubt_ignored(window.name, about)


def _native(windows: Windows, *, about: ast.Expr, notes: Notes) -> list[tuple[int, int, Window]]:
    """The windows that hold a histogram, with their rows and steps."""
    assert windows.histograms is not None
    is_native = ~is_none(windows.histograms)
    usable = np.ones(is_native.shape, dtype=bool) if windows.usable is None else windows.usable
    found = []
    for row in np.flatnonzero((is_native & usable).any(axis=1)).tolist():
        group = int(windows.groups[row])
        name = label_of(windows.series.pairs[row], METRIC_NAME)
        for step, end_ms in enumerate(windows.ends_ms.tolist()):
            slots = np.arange(windows.lows[group, step], windows.highs[group, step])
            slots = slots[usable[row, slots]]
            if not is_native[row, slots].any():
                continue
            cells = windows.histograms[row, slots].tolist()
            numbers = windows.values[row, slots].tolist()
            samples = [number if cell is None else cell for cell, number in zip(cells, numbers, strict=True)]
            times_ms = windows.times[group, slots].tolist()
            window = Window(times_ms, samples, end_ms - windows.range_ms, end_ms, name, about, notes)
            found.append((row, step, window))
    return found
