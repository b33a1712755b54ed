"""What is said beside an answer: warnings, where it may be wrong, and infos, where the question may be.

The evaluator makes one `Notes` per query and hands it to whatever can doubt its input; the engine puts the
lines into the answer. The sentences are Prometheus' own (util/annotations/annotations.go), because people
search for them, and Grafana shows them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from watchkeeper.model.histograms import CombinedHistogram
from watchkeeper.query.engine import Floats
from watchkeeper.query.promql import ast
from watchkeeper.query.promql.mistakes import place

# As many of each kind as Prometheus' HTTP API shows.
SHOWN = 10
COUNTER_ENDINGS = ("_total", "_sum", "_count", "_bucket")
MONOTONICITY = (
    "input to histogram_quantile needed to be fixed for monotonicity "
    "(see https://prometheus.io/docs/prometheus/latest/querying/functions/#histogram_quantile)"
)


class Notes:
    """Each sentence once per place, in the order in which it came up."""

    def __init__(self) -> None:
        self._warnings: dict[tuple[str, int], None] = {}
        self._infos: dict[tuple[str, int], None] = {}

    def warn(self, sentence: str, about: ast.Expr) -> None:
        self._warnings[f"PromQL warning: {sentence}", about.position] = None

    def tell(self, sentence: str, about: ast.Expr) -> None:
        self._infos[f"PromQL info: {sentence}", about.position] = None

    def doubt_quantiles(self, quantiles: Floats, about: ast.Expr) -> None:
        wrong = quantiles[~((quantiles >= 0) & (quantiles <= 1))]
        for quantile in np.unique(wrong).tolist():
            self.warn(f"quantile value should be between 0 and 1, got {go_number(quantile)}", about)

    def doubt_ratios(self, ratios: Floats, about: ast.Expr) -> None:
        for ratio in np.unique(ratios[np.abs(ratios) > 1]).tolist():
            capped = "1" if ratio > 0 else "-1"
            self.warn(f"ratio value should be between -1 and 1, got {go_number(ratio)}, capping to {capped}", about)

    def doubt_counters(self, names: Iterable[str], about: ast.Expr) -> None:
        for name in names:
            if name and not name.endswith(COUNTER_ENDINGS):
                ending = "/".join(COUNTER_ENDINGS)
                self.tell(f'metric might not be a counter, name does not end in {ending}: "{name}"', about)

    def doubt_bucket(self, name: str, bound: str, about: ast.Expr) -> None:
        of = f'bucket label "le" is missing or has a malformed value of "{bound}"'
        self.warn(of + _for_metric(name), about)

    def doubt_monotonicity(self, name: str, about: ast.Expr) -> None:
        self.tell(MONOTONICITY + _for_metric(name), about)

    def doubt_native(self, doubt: str, name: str, about: ast.Expr) -> None:
        self.tell(doubt + _for_metric(name), about)

    def doubt_mixed_buckets(self, name: str, about: ast.Expr) -> None:
        self.warn("vector contains a mix of classic and native histograms" + _for_metric(name), about)

    def doubt_mixed_samples(self, name: str, about: ast.Expr) -> None:
        self.warn(f'encountered a mix of histograms and floats for metric name "{name}"', about)

    def doubt_schemas(self, name: str, about: ast.Expr) -> None:
        what = "vector contains a mix of histograms with exponential and custom buckets schemas"
        self.warn(f'{what} for metric name "{name}"', about)

    def doubt_kind(self, name: str, about: ast.Expr, *, wanted: str) -> None:
        self.warn(f'this native histogram metric is not a {wanted}: "{name}"', about)

    def doubt_combined(self, found: CombinedHistogram, about: ast.Expr, *, operation: str) -> None:
        """What adding or subtracting histograms had to put up with."""
        if found.is_conflicting:
            self.warn(f"conflicting counter resets during histogram {operation}", about)
        if found.is_reconciled:
            self.tell(f"mismatched custom buckets were reconciled during {operation}", about)

    def doubt_ignored(self, name: str, about: ast.Expr) -> None:
        what = "ignored histograms in a range containing both floats and histograms"
        self.tell(f'{what} for metric name "{name}"', about)

    def doubt_order(self, about: ast.Expr) -> None:
        self.warn("sort is ineffective for range queries since results are always ordered by labels", about)

    def warnings(self, expr: str) -> tuple[str, ...]:
        return _lines(self._warnings, expr, kind="warning")

    def infos(self, expr: str) -> tuple[str, ...]:
        return _lines(self._infos, expr, kind="info")


def _lines(notes: Iterable[tuple[str, int]], expr: str, *, kind: str) -> tuple[str, ...]:
    placed = ((sentence, place(expr, position)) for sentence, position in notes)
    lines = [f"{sentence} ({line}:{column})" for sentence, (line, column) in placed]
    more = len(lines) - SHOWN
    return (*lines[:SHOWN], f"{more} more {kind} annotations omitted") if more > 0 else tuple(lines)


def _for_metric(name: str) -> str:
    return f' for metric name "{name}"' if name else ""


def go_number(value: float) -> str:
    """A number as Go's %g writes it."""
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return np.format_float_positional(value, trim="-")
    return np.format_float_scientific(value, trim="-", exp_digits=2)
