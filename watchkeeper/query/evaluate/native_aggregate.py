"""Aggregations of vectors that contain native histograms, for `aggregate`.

Histograms can be summed, averaged, counted and selected; other aggregations drop them and add an info. A group with
numbers and histograms has no sum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import numpy as np

from watchkeeper.model import histograms
from watchkeeper.model.histograms import CombinedHistogram, Histogram
from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.query.engine import Mask
from watchkeeper.query.evaluate.grouping import Groups
from watchkeeper.query.evaluate.notes import Notes, format_go_number
from watchkeeper.query.evaluate.values import Vector, is_none, label_of
from watchkeeper.query.promql import ast

# Other aggregations support only numbers.
COMBINERS = {"sum": histograms.sum_histograms, "avg": histograms.average_histograms}
SELECTING = frozenset({"limitk", "limit_ratio"})
COUNTING = frozenset({"count", "group", "count_values"})
RANKED = frozenset({"topk", "bottomk"})

# For each group and step the histograms, each with its metric name.
HistogramsByCell = dict[tuple[int, int], list[tuple[str, Histogram]]]


def native_mask(vector: Vector) -> Mask:
    """The cells of a vector that are histograms."""
    assert vector.histograms is not None
    return vector.present & ~is_none(vector.histograms)


def drop_unsupported(node: ast.Aggregate, vector: Vector, notes: Notes) -> Vector:
    """Drop histograms if the aggregation does not support them."""
    if vector.histograms is None or node.op in COMBINERS or node.op in SELECTING or node.op in COUNTING:
        return vector
    if native_mask(vector).any():
        notes.note(f"ignored histogram in {node.op} aggregation", node if node.op in RANKED else node.expr)
    return vector.floats


def merge_histograms(result: Vector, node: ast.Aggregate, vector: Vector, *, groups: Groups, notes: Notes) -> Vector:
    """Add the sums or averages of histograms to those of numbers."""
    assert vector.histograms is not None
    values, present = np.array(result.values), np.array(result.present)
    cells = np.full(values.shape, None, dtype=object)
    for (number, step), members in _gather(vector, groups).items():
        combined = None
        if present[number, step]:
            notes.warn("encountered a mix of histograms and floats for aggregation", node.expr)
        else:
            combined = _combine(COMBINERS[node.op], members, node.expr, notes=notes)
        cells[number, step], present[number, step] = combined, combined is not None
    return Vector(result.series, values, present, cells)


def _gather(vector: Vector, groups: Groups) -> HistogramsByCell:
    assert vector.histograms is not None
    members_by_cell: HistogramsByCell = defaultdict(list)
    for row, step in np.argwhere(native_mask(vector)).tolist():
        name = label_of(vector.series.pairs[row], METRIC_NAME)
        members_by_cell[int(groups.group_of_row[row]), step].append((name, vector.histograms[row, step]))
    return members_by_cell


def _combine(
    combine: Callable[[list[Histogram]], CombinedHistogram],
    members: list[tuple[str, Histogram]],
    about: ast.Expr,
    *,
    notes: Notes,
) -> Histogram | None:
    try:
        combined = combine([histogram for _, histogram in members])
    except histograms.IncompatibleHistograms:
        is_custom = members[0][1].is_custom
        name = next(name for name, histogram in members if histogram.is_custom != is_custom)
        notes.warn_mixed_schemas(name, about)
        return None
    notes.note_combined(combined, about, operation="aggregation")
    return combined.histogram.compacted()


def format_histogram(histogram: Histogram) -> str:
    """Format a histogram as the label value of `count_values`."""
    parts = [f"count:{format_go_number(histogram.count)}", f"sum:{format_go_number(histogram.sum)}"]
    for bucket in histogram.buckets():
        if bucket.population:
            has_lower, has_upper = histogram.bound_inclusion(bucket)
            lower, upper, count = map(format_go_number, bucket)
            parts.append(f"{'[' if has_lower else '('}{lower},{upper}{']' if has_upper else ')'}:{count}")
    return "{" + ", ".join(parts) + "}"
