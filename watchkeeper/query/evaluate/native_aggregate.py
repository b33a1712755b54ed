"""Aggregations of vectors that have native histograms among their samples; `aggregate` hands those over.

Histograms are added up and averaged, counted, and chosen; where an aggregation means numbers only, they are left out
and an info says so. A group with numbers and histograms has no sum.
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
from watchkeeper.query.evaluate.notes import Notes, go_number
from watchkeeper.query.evaluate.values import Vector, is_none, label_of
from watchkeeper.query.promql import ast

# The others take numbers only.
ADDED = {"sum": histograms.sum_histograms, "avg": histograms.average_histograms}
CHOSEN = frozenset({"limitk", "limit_ratio"})
COUNTED = frozenset({"count", "group", "count_values"})
RANKED = frozenset({"topk", "bottomk"})

# Of a group and a step the histograms, each with the metric it is of.
Gathered = dict[tuple[int, int], list[tuple[str, Histogram]]]


def native(vector: Vector) -> Mask:
    """Where a vector that has histograms has one."""
    assert vector.histograms is not None
    return vector.present & ~is_none(vector.histograms)


def left_out(node: ast.Aggregate, vector: Vector, notes: Notes) -> Vector:
    """The vector as an aggregation takes it: without histograms where it cannot."""
    if vector.histograms is None or node.op in ADDED or node.op in CHOSEN or node.op in COUNTED:
        return vector
    if native(vector).any():
        notes.tell(f"ignored histogram in {node.op} aggregation", node if node.op in RANKED else node.expr)
    return vector.floats


def put_into(result: Vector, node: ast.Aggregate, vector: Vector, *, groups: Groups, notes: Notes) -> Vector:
    """Sums or averages of numbers, with those of histograms in their places."""
    assert vector.histograms is not None
    values, present = np.array(result.values), np.array(result.present)
    cells = np.full(values.shape, None, dtype=object)
    for (number, step), found in _gathered(vector, groups).items():
        added = None
        if present[number, step]:
            notes.warn("encountered a mix of histograms and floats for aggregation", node.expr)
        else:
            added = _added(ADDED[node.op], found, node.expr, notes=notes)
        cells[number, step], present[number, step] = added, added is not None
    return Vector(result.series, values, present, cells)


def _gathered(vector: Vector, groups: Groups) -> Gathered:
    assert vector.histograms is not None
    found: Gathered = defaultdict(list)
    for row, step in np.argwhere(native(vector)).tolist():
        name = label_of(vector.series.pairs[row], METRIC_NAME)
        found[int(groups.of[row]), step].append((name, vector.histograms[row, step]))
    return found


def _added(
    add: Callable[[list[Histogram]], CombinedHistogram],
    found: list[tuple[str, Histogram]],
    about: ast.Expr,
    *,
    notes: Notes,
) -> Histogram | None:
    try:
        combined = add([histogram for _, histogram in found])
    except histograms.IncompatibleHistograms:
        is_custom = found[0][1].is_custom
        odd = next(name for name, histogram in found if histogram.is_custom != is_custom)
        notes.doubt_schemas(odd, about)
        return None
    notes.doubt_combined(combined, about, operation="aggregation")
    return combined.histogram.compacted()


def text(histogram: Histogram) -> str:
    """A histogram as `count_values` has it in a label."""
    parts = [f"count:{go_number(histogram.count)}", f"sum:{go_number(histogram.sum)}"]
    for bucket in histogram.buckets():
        if bucket.population:
            has_lower, has_upper = histogram.bound_inclusion(bucket)
            lower, upper, count = map(go_number, bucket)
            parts.append(f"{'[' if has_lower else '('}{lower},{upper}{']' if has_upper else ')'}:{count}")
    return "{" + ", ".join(parts) + "}"
