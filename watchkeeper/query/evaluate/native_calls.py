"""Call functions whose arguments contain native histograms.

Some functions support histograms, some range functions have a second implementation in `native_windows`, and all
others read only the numbers, as in Prometheus. The evaluator calls this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from watchkeeper.model.histograms import ResetHint
from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.query.evaluate import native_windows
from watchkeeper.query.evaluate.invocation import Invocation, PromFunction
from watchkeeper.query.evaluate.notes import Notes
from watchkeeper.query.evaluate.values import Value, Vector, Windows, is_none, label_of
from watchkeeper.store.histograms import Cells

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


def clear_reset_hints(cells: Cells) -> Cells:
    """Replace the hint of a counter reset by unknown."""
    out = cells.copy()
    for cell in map(tuple, np.argwhere(~is_none(cells)).tolist()):
        if cells[cell].hint is ResetHint.RESET:
            out[cell] = replace(cells[cell], hint=ResetHint.UNKNOWN)
    return out


def estimate_cost(args: Sequence[Value], steps: int) -> int:
    """The cost of results with histograms, in samples."""
    return sum(
        SAMPLES_PER_HISTOGRAM * len(arg.series) * steps
        for arg in args
        if isinstance(arg, (Vector, Windows)) and arg.histograms is not None
    )


def has_histograms(value: Value) -> bool:
    return isinstance(value, (Vector, Windows)) and value.histograms is not None


def negate(cells: Cells) -> Cells:
    """Negate histograms; the results are gauges."""
    out = np.full(cells.shape, None, dtype=object)
    for cell in map(tuple, np.argwhere(~is_none(cells)).tolist()):
        out[cell] = cells[cell].scaled(-1.0)
    return out


def call_function(function: PromFunction, invocation: Invocation) -> Value:
    """Call a function whose arguments contain histograms."""
    name = invocation.call.function
    if name in HISTOGRAM_FUNCTIONS:
        return function(invocation)
    numbers = tuple(arg.floats if isinstance(arg, (Vector, Windows)) else arg for arg in invocation.args)
    about, notes = invocation.call.args[0], invocation.notes
    windows = next((arg for arg in invocation.args if isinstance(arg, Windows) and arg.histograms is not None), None)
    if windows is not None and name in native_windows.FUNCTIONS:
        # Without the notes of this call: they may refer to windows that also have histograms.
        number_result = function(replace(invocation, args=numbers, notes=Notes()))
        assert isinstance(number_result, Vector)
        merged = native_windows.merge_results(number_result, name, windows, about=about, notes=notes)
        if name in COUNTER_FUNCTIONS:
            rows = np.flatnonzero(merged.floats.present.any(axis=1)).tolist()
            notes.check_counter_names(
                dict.fromkeys(label_of(merged.series.pairs[row], METRIC_NAME) for row in rows), about
            )
        return merged
    if windows is not None:
        native_windows.note_ignored_histograms(windows, about=about, notes=notes)
    return function(replace(invocation, args=numbers))
