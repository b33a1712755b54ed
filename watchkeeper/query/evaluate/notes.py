"""Warnings and infos of a query: the result may be wrong, or the expression may be wrong.

The evaluator creates one `Notes` per query and passes it to functions that check their input; the engine adds the
lines to the result. The sentences are Prometheus' own (util/annotations/annotations.go), because people search for
them, and Grafana shows them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from watchkeeper.model.histograms import CombinedHistogram
from watchkeeper.query.engine import Floats
from watchkeeper.query.promql import ast
from watchkeeper.query.promql.parse_errors import line_and_column

# The maximum of each kind in Prometheus' HTTP API.
MAX_SHOWN = 10
# A subquery has millions of steps, and each may have another quantile.
MAX_QUANTILES = 1000
COUNTER_ENDINGS = ("_total", "_sum", "_count", "_bucket")


class Notes:
    """Collects warnings and infos, each sentence once per position, in the order of first occurrence."""

    def __init__(self) -> None:
        self._warnings: dict[tuple[str, int], None] = {}
        self._infos: dict[tuple[str, int], None] = {}

    def warn(self, sentence: str, about: ast.Expr) -> None:
        self._warnings[f"PromQL warning: {sentence}", about.position] = None

    def note(self, sentence: str, about: ast.Expr) -> None:
        self._infos[f"PromQL info: {sentence}", about.position] = None

    def check_quantiles(self, quantiles: Floats, about: ast.Expr) -> None:
        out_of_range = quantiles[~((quantiles >= 0) & (quantiles <= 1))]
        for quantile in np.unique(out_of_range)[:MAX_QUANTILES].tolist():
            self.warn(f"quantile value should be between 0 and 1, got {format_go_number(quantile)}", about)

    def check_ratios(self, ratios: Floats, about: ast.Expr) -> None:
        for ratio in np.unique(ratios[np.abs(ratios) > 1]).tolist():
            capped = "1" if ratio > 0 else "-1"
            self.warn(
                f"ratio value should be between -1 and 1, got {format_go_number(ratio)}, capping to {capped}", about
            )

    def check_counter_names(self, names: Iterable[str], about: ast.Expr) -> None:
        for name in names:
            if name and not name.endswith(COUNTER_ENDINGS):
                ending = "/".join(COUNTER_ENDINGS)
                self.note(f'metric might not be a counter, name does not end in {ending}: "{name}"', about)

    def warn_mixed_samples(self, name: str, about: ast.Expr) -> None:
        self.warn(f'encountered a mix of histograms and floats for metric name "{name}"', about)

    def warn_mixed_schemas(self, name: str, about: ast.Expr) -> None:
        problem = "vector contains a mix of histograms with exponential and custom buckets schemas"
        self.warn(f'{problem} for metric name "{name}"', about)

    def warn_wrong_kind(self, name: str, about: ast.Expr, *, expected_kind: str) -> None:
        self.warn(f'this native histogram metric is not a {expected_kind}: "{name}"', about)

    def note_combined(self, combined: CombinedHistogram, about: ast.Expr, *, operation: str) -> None:
        """Add notes about problems that occurred when histograms were added or subtracted."""
        if combined.is_conflicting:
            self.warn(f"conflicting counter resets during histogram {operation}", about)
        if combined.is_reconciled:
            self.note(f"mismatched custom buckets were reconciled during {operation}", about)

    def warn_sort_ineffective(self, about: ast.Expr) -> None:
        self.warn("sort is ineffective for range queries since results are always ordered by labels", about)

    def warnings(self, expr: str) -> tuple[str, ...]:
        return _format_lines(self._warnings, expr, kind="warning")

    def infos(self, expr: str) -> tuple[str, ...]:
        return _format_lines(self._infos, expr, kind="info")


def _format_lines(sentences: Iterable[tuple[str, int]], expr: str, *, kind: str) -> tuple[str, ...]:
    placed = ((sentence, line_and_column(expr, position)) for sentence, position in sentences)
    lines = [f"{sentence} ({line}:{column})" for sentence, (line, column) in placed]
    omitted = len(lines) - MAX_SHOWN
    return (*lines[:MAX_SHOWN], f"{omitted} more {kind} annotations omitted") if omitted > 0 else tuple(lines)


def for_metric(name: str) -> str:
    return f' for metric name "{name}"' if name else ""


def format_go_number(value: float) -> str:
    """Format a number as Go's %g does."""
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return np.format_float_positional(value, trim="-")
    return np.format_float_scientific(value, trim="-", exp_digits=2)
