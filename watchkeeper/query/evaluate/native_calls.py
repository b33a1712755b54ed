"""Call functions whose arguments contain native histograms.

Some functions support histograms, some range functions have a second implementation here for windows, and all
others read only the numbers, as in Prometheus. The evaluator calls this module.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np

from watchkeeper.kit import allowance
from watchkeeper.model import histograms
from watchkeeper.model.histograms import CombinedHistogram, Histogram, ResetHint
from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.query.evaluate.notes import Notes
from watchkeeper.query.evaluate.rates import EDGE_GAP_INTERVALS
from watchkeeper.query.evaluate.values import Invocation, PromFunction, Value, Vector, Windows, is_none, label_of
from watchkeeper.query.promql import ast
from watchkeeper.store.histograms import Cells

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
        """All samples if all are histograms; None and a warning if some are numbers."""
        native_samples = [sample for sample in self.samples if isinstance(sample, Histogram)]
        if len(native_samples) == len(self.samples):
            return native_samples
        self.notes.warn_mixed_samples(self.name, self.about)
        return None

    def combine(self, add: Callable[[list[Histogram]], CombinedHistogram]) -> Histogram | None:
        samples = self.histograms
        if samples is None:
            return None
        try:
            combined = add(samples)
        except histograms.IncompatibleHistograms:
            self.notes.warn_mixed_schemas(self.name, self.about)
            return None
        self.notes.note_combined(combined, self.about, operation="aggregation")
        return combined.histogram

    def subtract(self, left: Histogram, right: Histogram) -> Histogram | None:
        """Subtract two samples; reset hints are ignored, because callers handle resets."""
        try:
            difference = histograms.subtract_histograms(left, right)
        except histograms.IncompatibleHistograms:
            self.notes.warn_mixed_schemas(self.name, self.about)
            return None
        self.notes.note_combined(difference._replace(is_conflicting=False), self.about, operation="subtraction")
        return difference.histogram


Compute: TypeAlias = Callable[[Window], Number | None]


def _rate(window: Window) -> Number | None:
    increase = _extrapolate(window, is_counter=True)
    return None if increase is None else increase.divided((window.end_ms - window.start_ms) / 1000)


def _extrapolate(window: Window, *, is_counter: bool) -> Histogram | None:
    samples = window.histograms
    if samples is None or len(samples) < 2:
        return None
    increase = _observed_increase(window, samples, is_counter=is_counter)
    if increase is None:
        return None
    times = window.times_ms
    sampled = (times[-1] - times[0]) / 1000
    interval = sampled / (len(times) - 1)
    to_start, to_end = (times[0] - window.start_ms) / 1000, (window.end_ms - times[-1]) / 1000
    limit = interval * EDGE_GAP_INTERVALS
    to_start, to_end = (interval / 2 if gap >= limit else gap for gap in (to_start, to_end))
    if is_counter and increase.count > 0 and samples[0].count >= 0:
        # A counter is never negative, so it is not extrapolated below 0.
        to_start = min(to_start, sampled * (samples[0].count / increase.count))
    return replace(increase.scaled((sampled + to_start + to_end) / sampled), hint=ResetHint.GAUGE)


def _observed_increase(window: Window, samples: list[Histogram], *, is_counter: bool) -> Histogram | None:
    """The increase from the first sample to the last, including resets."""
    first, last = samples[0], samples[-1]
    if not is_counter:
        if ResetHint.GAUGE is not first.hint or ResetHint.GAUGE is not last.hint:
            window.notes.warn_wrong_kind(window.name, window.about, expected_kind="gauge")
        increase = window.subtract(last, first)
        return None if increase is None else increase.compacted()
    if any(sample.hint is ResetHint.GAUGE for sample in samples):
        window.notes.warn_wrong_kind(window.name, window.about, expected_kind="counter")
    if samples[1].is_reset_after(first):
        # Samples before the reset do not count, nor does their layout.
        first = Histogram(schema=samples[1].schema, bounds=samples[1].bounds)
    if any(sample.is_custom != first.is_custom for sample in samples[1:]):
        window.notes.warn_mixed_schemas(window.name, window.about)
        return None
    schema = min(sample.schema for sample in (first, *samples[1:]))
    increase = window.subtract(last if last.is_custom else last.coarsened(schema), first)
    previous = first
    for sample in samples[1:]:
        if increase is not None and sample.is_reset_after(previous):
            total = histograms.sum_histograms([increase, previous])
            window.notes.note_combined(total._replace(is_conflicting=False), window.about, operation="addition")
            increase = total.histogram
        previous = sample
    return None if increase is None else increase.compacted()


def _last_difference(window: Window, *, is_rate: bool) -> Number | None:
    if len(window.samples) < 2:
        return None
    previous, last = window.samples[-2:]
    seconds = (window.times_ms[-1] - window.times_ms[-2]) / 1000
    if not isinstance(previous, Histogram) and not isinstance(last, Histogram):
        change = last if is_rate and last < previous else last - previous
        return change / seconds if is_rate else change
    if not isinstance(previous, Histogram) or not isinstance(last, Histogram):
        window.notes.warn_mixed_samples(window.name, window.about)
        return None
    gauges = [sample.hint is ResetHint.GAUGE for sample in (previous, last)]
    if any(gauges) if is_rate else not all(gauges):
        window.notes.warn_wrong_kind(window.name, window.about, expected_kind="counter" if is_rate else "gauge")
    change_histogram = last if is_rate and last.is_reset_after(previous) else window.subtract(last, previous)
    if change_histogram is None:
        return None
    result = replace(change_histogram.compacted(), hint=ResetHint.GAUGE)
    return result.divided(seconds) if is_rate else result


def _changes(window: Window) -> Number | None:
    # NaN equals NaN here.
    return _count_pairs(
        window,
        lambda now, before: not now.is_same(before),
        lambda now, before: now != before and not (math.isnan(now) and math.isnan(before)),
    )


def _count_pairs(
    window: Window, of_histograms: Callable[[Histogram, Histogram], bool], of_numbers: Callable[[float, float], bool]
) -> float:
    """Count the pairs of consecutive samples that satisfy a condition; a change between number and histogram counts."""
    count = 0
    for before, now in zip(window.samples, window.samples[1:], strict=False):
        if isinstance(now, Histogram) and isinstance(before, Histogram):
            count += of_histograms(now, before)
        elif isinstance(now, Histogram) or isinstance(before, Histogram):
            count += 1
        else:
            count += of_numbers(now, before)
    return float(count)


FUNCTIONS: dict[str, Compute] = {
    "rate": _rate,
    "increase": partial(_extrapolate, is_counter=True),
    "delta": partial(_extrapolate, is_counter=False),
    "irate": partial(_last_difference, is_rate=True),
    "idelta": partial(_last_difference, is_rate=False),
    "changes": _changes,
    "resets": partial(_count_pairs, of_histograms=Histogram.is_reset_after, of_numbers=operator.lt),
    "sum_over_time": lambda window: window.combine(histograms.sum_histograms),
    "avg_over_time": lambda window: window.combine(histograms.average_histograms),
    "count_over_time": lambda window: float(len(window.samples)),
    "present_over_time": lambda _: 1.0,
    "first_over_time": lambda window: window.samples[0],
    "last_over_time": lambda window: window.samples[-1],
    "ts_of_first_over_time": lambda window: window.times_ms[0] / 1000,
    "ts_of_last_over_time": lambda window: window.times_ms[-1] / 1000,
}


def _merge_results(result: Vector, function: str, windows: Windows, *, about: ast.Expr, notes: Notes) -> Vector:
    values, present = np.array(result.values), np.array(result.present)
    cells = np.full(values.shape, None, dtype=object)
    compute = FUNCTIONS[function]
    for row, step, window in _native_windows(windows, about=about, notes=notes):
        value = compute(window)
        cells[row, step] = value if isinstance(value, Histogram) else None
        values[row, step] = value if isinstance(value, float) else np.nan
        present[row, step] = value is not None
    return Vector(result.series, values, present, cells)


def _native_windows(windows: Windows, *, about: ast.Expr, notes: Notes) -> list[tuple[int, int, Window]]:
    assert windows.histograms is not None
    is_native = ~is_none(windows.histograms)
    usable = np.ones(is_native.shape, dtype=bool) if windows.usable is None else windows.usable
    native_windows = []
    for row in np.flatnonzero((is_native & usable).any(axis=1)).tolist():
        group = int(windows.groups[row])
        name = label_of(windows.series.pairs[row], METRIC_NAME)
        for step, end_ms in enumerate(allowance.watch(windows.ends_ms.tolist())):
            slots = np.arange(windows.lows[group, step], windows.highs[group, step])
            slots = slots[usable[row, slots]]
            if not is_native[row, slots].any():
                continue
            cells = windows.histograms[row, slots].tolist()
            numbers = windows.values[row, slots].tolist()
            samples = [number if cell is None else cell for cell, number in zip(cells, numbers, strict=True)]
            times_ms = windows.times[group, slots].tolist()
            window = Window(times_ms, samples, end_ms - windows.range_ms, end_ms, name, about, notes)
            native_windows.append((row, step, window))
    return native_windows


# Functions that support histograms themselves.
HISTOGRAM_FUNCTIONS = frozenset(
    {
        *("histogram_avg", "histogram_count", "histogram_fraction", "histogram_quantile", "histogram_quantiles"),
        *("histogram_stddev", "histogram_stdvar", "histogram_sum"),
        *("label_join", "label_replace", "sort_by_label", "sort_by_label_desc"),
    }
)


# A histogram takes as much time as this many numbers: 50 µs to 200 µs.
SAMPLES_PER_HISTOGRAM = 250
COUNTER_FUNCTIONS = frozenset({"increase", "rate"})
# Prometheus warns about conflicting counter resets only if a query needs just the count or sum of histograms: elsewhere
# it does not decode the reset hint (its issue 15346).
NEEDS_RESETS = {
    **dict.fromkeys(("histogram_avg", "histogram_count", "histogram_sum"), True),
    **dict.fromkeys(("histogram_fraction", "histogram_quantile", "histogram_quantiles"), False),
    **dict.fromkeys(("histogram_stddev", "histogram_stdvar"), False),
}


def map_histograms(cells: Cells, change: Callable[[Histogram], Histogram]) -> Cells:
    out = cells.copy()
    for cell in map(tuple, allowance.watch(np.argwhere(~is_none(cells)).tolist())):
        out[cell] = change(cells[cell])
    return out


def clear_reset_hint(histogram: Histogram) -> Histogram:
    """Replace the hint of a counter reset by unknown."""
    return replace(histogram, hint=ResetHint.UNKNOWN) if histogram.hint is ResetHint.RESET else histogram


def estimate_cost(args: Sequence[Value], steps: int) -> int:
    """The cost of results with histograms, in samples."""
    return sum(
        SAMPLES_PER_HISTOGRAM * len(arg.series) * steps
        for arg in args
        if isinstance(arg, (Vector, Windows)) and arg.histograms is not None
    )


def has_histograms(value: Value) -> bool:
    return isinstance(value, (Vector, Windows)) and value.histograms is not None


def call_function(function: PromFunction, invocation: Invocation) -> Value:
    name = invocation.call.function
    if name in HISTOGRAM_FUNCTIONS:
        return function(invocation)
    numbers = tuple(arg.floats if isinstance(arg, (Vector, Windows)) else arg for arg in invocation.args)
    about, notes = invocation.call.args[0], invocation.notes
    windows = next((arg for arg in invocation.args if isinstance(arg, Windows) and arg.histograms is not None), None)
    if windows is not None and name in FUNCTIONS:
        # Without the notes of this call: they may refer to windows that also have histograms.
        number_result = function(replace(invocation, args=numbers, notes=Notes()))
        assert isinstance(number_result, Vector)
        merged = _merge_results(number_result, name, windows, about=about, notes=notes)
        if name in COUNTER_FUNCTIONS:
            rows = np.flatnonzero(merged.floats.present.any(axis=1)).tolist()
            names = dict.fromkeys(label_of(merged.series.pairs[row], METRIC_NAME) for row in rows)
            notes.check_counter_names(names, about)
        return merged
    if windows is not None:
        # An info for each metric whose histograms are ignored because a window also contains numbers.
        for _, _, window in _native_windows(windows, about=about, notes=notes):
            if any(not isinstance(sample, Histogram) for sample in window.samples):
                problem = "ignored histograms in a range containing both floats and histograms"
                notes.note(f'{problem} for metric name "{window.name}"', about)
    return function(replace(invocation, args=numbers))
