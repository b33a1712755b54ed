"""Calls of functions whose arguments have native histograms among their samples; the evaluator hands those over.

Some functions know histograms themselves, some of ranges have a second half for them, and all others see the numbers
only, as in Prometheus.
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

# Functions that take histograms as they are.
KNOWING = frozenset(
    {
        *("histogram_avg", "histogram_count", "histogram_fraction", "histogram_quantile", "histogram_quantiles"),
        *("histogram_stddev", "histogram_stdvar", "histogram_sum"),
        *("label_join", "label_replace", "sort_by_label", "sort_by_label_desc"),
    }
)


# A histogram takes as long as this many numbers: 50 µs to 200 µs.
COST = 250
COUNTING = frozenset({"increase", "rate"})
# Counter resets that collide in a sum are told where a query wants count or sum of histograms only: elsewhere
# Prometheus does not know of them (its issue 15346), and a sum is then of unknown kind without a word.
TELLING_RESETS = {
    **dict.fromkeys(("histogram_avg", "histogram_count", "histogram_sum"), True),
    **dict.fromkeys(("histogram_fraction", "histogram_quantile", "histogram_quantiles"), False),
    **dict.fromkeys(("histogram_stddev", "histogram_stdvar"), False),
}


def without_resets(cells: Cells) -> Cells:
    """Histograms that do not say that they are counter resets."""
    out = cells.copy()
    for cell in map(tuple, np.argwhere(~is_none(cells)).tolist()):
        if cells[cell].hint is ResetHint.RESET:
            out[cell] = replace(cells[cell], hint=ResetHint.UNKNOWN)
    return out


def cost(args: Sequence[Value], steps: int) -> int:
    """What results of histograms cost, counted in samples."""
    return sum(
        COST * len(arg.series) * steps
        for arg in args
        if isinstance(arg, (Vector, Windows)) and arg.histograms is not None
    )


def has_histograms(value: Value) -> bool:
    return isinstance(value, (Vector, Windows)) and value.histograms is not None


def negated(cells: Cells) -> Cells:
    """Histograms with the other sign, which are gauges."""
    out = np.full(cells.shape, None, dtype=object)
    for cell in map(tuple, np.argwhere(~is_none(cells)).tolist()):
        out[cell] = cells[cell].scaled(-1.0)
    return out


def call(function: PromFunction, invocation: Invocation) -> Value:
    """The value of a function with histograms among its arguments."""
    name = invocation.call.function
    if name in KNOWING:
        return function(invocation)
    numbers = tuple(arg.floats if isinstance(arg, (Vector, Windows)) else arg for arg in invocation.args)
    about, notes = invocation.call.args[0], invocation.notes
    windows = next((arg for arg in invocation.args if isinstance(arg, Windows) and arg.histograms is not None), None)
    if windows is not None and name in native_windows.FUNCTIONS:
        # What is said about windows of numbers may be about some that hold histograms, too.
        result = function(replace(invocation, args=numbers, notes=Notes()))
        assert isinstance(result, Vector)
        found = native_windows.put_into(result, name, windows, about=about, notes=notes)
        if name in COUNTING:
            rows = np.flatnonzero(found.floats.present.any(axis=1)).tolist()
            notes.doubt_counters(dict.fromkeys(label_of(found.series.pairs[row], METRIC_NAME) for row in rows), about)
        return found
    if windows is not None:
        native_windows.doubt_ignored(windows, about=about, notes=notes)
    return function(replace(invocation, args=numbers))
