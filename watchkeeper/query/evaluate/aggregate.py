"""Aggregations: reduce each group to one series, or select series of each group.

Rows are sorted by group once; then NumPy reduces the rows of each group for all steps. Native histograms can be summed,
averaged, counted and selected; other aggregations drop them and add an info.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np

from watchkeeper import errors
from watchkeeper.kit import allowance
from watchkeeper.model import histograms
from watchkeeper.model.histograms import CombinedHistogram, Histogram
from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.query.engine import Floats, Mask
from watchkeeper.query.evaluate import compensated_sums, label_hash
from watchkeeper.query.evaluate.grouping import Groups, group, group_sizes, reduce_groups
from watchkeeper.query.evaluate.notes import Notes, format_go_number
from watchkeeper.query.evaluate.over_time import divide_sums, sorted_quantile
from watchkeeper.query.evaluate.values import (
    CELL_BYTES,
    Scalar,
    Text,
    Vector,
    empty_vector,
    label_of,
    native_mask,
    with_label,
)
from watchkeeper.query.promql import ast
from watchkeeper.store.columns import Ints
from watchkeeper.store.series import Pairs, SeriesSet

# Rows that fit into the CPU cache together, for some hundred steps.
TRANSPOSED_ROWS = 256
Reduction = Callable[[Floats, Mask, Groups], Floats]


def aggregate(node: ast.Aggregate, vector: Vector, parameter: Scalar | Text | None, *, notes: Notes) -> Vector:
    if isinstance(parameter, Text) and node.is_without and parameter.value in node.grouping:
        # As in Prometheus, `without` removes the new label.
        return aggregate(replace(node, op="count", parameter=None), vector, None, notes=notes)
    vector = _drop_unsupported(node, vector, notes)
    groups = group(vector.series, node.grouping, is_on=not node.is_without)
    if isinstance(parameter, Scalar):
        _check_parameter(node, parameter.values, notes)
    if not len(vector.series):
        return empty_vector(vector.values.shape[1])
    if isinstance(parameter, Text):
        return _count_values(vector, groups, parameter.value)
    if parameter is not None and node.op != "quantile":
        chosen = SELECTIONS[node.op](vector, groups, parameter.values)
        return chosen if vector.histograms is None else replace(chosen, histograms=vector.histograms)
    numbers = vector.floats if node.op in COMBINERS else vector
    values, present = groups.sort_by_group(numbers.values), groups.sort_by_group(numbers.present)
    with np.errstate(all="ignore"):
        if parameter is not None:
            result = _quantile(values, present, groups, parameter.values)
        else:
            result = REDUCTIONS[node.op](values, present, groups)
    reduced = Vector(groups.series, result, _any(present, groups))
    if vector.histograms is None or node.op not in COMBINERS:
        return reduced
    return _merge_histograms(reduced, node, vector, groups=groups, notes=notes)


def _any(present: Mask, groups: Groups) -> Mask:
    if present.all():
        return np.ones((len(groups), present.shape[1]), dtype=bool)
    return reduce_groups(np.logical_or, present, groups.starts)


def _filled(values: Floats, present: Mask, fill: float) -> Floats:
    return values if present.all() else np.where(present, values, fill)


def _count(_: Floats, present: Mask, groups: Groups) -> Floats:
    if present.all():
        sizes = group_sizes(groups.starts, len(present)).astype(np.float64)
        return np.broadcast_to(sizes[:, None], (len(groups), present.shape[1]))
    return reduce_groups(np.add, present.astype(np.float64), groups.starts)


def _sum(values: Floats, present: Mask, groups: Groups) -> Floats:
    return compensated_sums.sum_groups(_filled(values, present, 0.0), groups.starts)


def _avg(values: Floats, present: Mask, groups: Groups) -> Floats:
    sums, count = _sum(values, present, groups), _count(values, present, groups)
    if np.isfinite(sums).all():
        return sums / np.maximum(count, 1)
    sizes = np.repeat(np.maximum(count, 1), group_sizes(groups.starts, len(values)), axis=0)
    scaled = compensated_sums.sum_groups(_filled(values, present, 0.0) / sizes, groups.starts)
    return divide_sums(sums, count.astype(np.int64), scaled)


def _stdvar(values: Floats, present: Mask, groups: Groups) -> Floats:
    """The mean squared deviation; values count from the maximum, so that equal values give exactly 0."""
    sizes = group_sizes(groups.starts, len(values))
    count = np.maximum(_count(values, present, groups), 1)
    shifted = np.where(present, values - np.repeat(_max(values, present, groups), sizes, axis=0), 0.0)
    middle = reduce_groups(np.add, shifted, groups.starts) / count
    deviation = np.where(present, shifted - np.repeat(middle, sizes, axis=0), 0.0)
    return reduce_groups(np.add, deviation * deviation, groups.starts) / count


def _min(values: Floats, present: Mask, groups: Groups) -> Floats:
    return reduce_groups(np.fmin, _filled(values, present, np.nan), groups.starts)


def _max(values: Floats, present: Mask, groups: Groups) -> Floats:
    return reduce_groups(np.fmax, _filled(values, present, np.nan), groups.starts)


def _group(values: Floats, _: Mask, groups: Groups) -> Floats:
    return np.ones((len(groups), values.shape[1]))


REDUCTIONS: dict[str, Reduction] = {
    "sum": _sum,
    "avg": _avg,
    "count": _count,
    "min": _min,
    "max": _max,
    "group": _group,
    "stddev": lambda values, present, groups: np.sqrt(_stdvar(values, present, groups)),
    "stdvar": _stdvar,
}


def _quantile(values: Floats, present: Mask, groups: Groups, quantiles: Floats) -> Floats:
    out = np.empty((len(groups), values.shape[1]))
    for number, (low, high) in enumerate(pairwise([*groups.starts.tolist(), len(values)])):
        allowance.check()
        out[number] = sorted_quantile(_transpose(values[low:high]), present[low:high].T, quantiles)
    return out


def _transpose(table: Floats) -> Floats:
    """Transpose to steps × series, some series at a time: the values of a step are then adjacent for sorting."""
    out = np.empty(table.shape[::-1])
    for row in range(0, len(table), TRANSPOSED_ROWS):
        out[:, row : row + TRANSPOSED_ROWS] = table[row : row + TRANSPOSED_ROWS].T
    return out


def _count_values(vector: Vector, groups: Groups, label: str) -> Vector:
    if not label:
        raise errors.QueryError("count_values needs a label name, it is empty")
    if vector.histograms is not None:
        return _count_mixed_values(vector, groups, label)
    rows, steps = np.nonzero(vector.present)
    # Compare bits: 0 and -0 are different label values.
    bits, value_index = np.unique(vector.values[rows, steps].view(np.int64), return_inverse=True)
    distinct = bits.view(np.float64)
    cells = groups.group_of_row[rows] * max(len(distinct), 1) + value_index
    cell_kinds, kind_of = np.unique(cells, return_inverse=True)
    allowance.require(CELL_BYTES * len(cell_kinds) * vector.values.shape[1])
    counts = np.zeros((len(cell_kinds), vector.values.shape[1]))
    np.add.at(counts, (kind_of, steps), 1.0)
    # If the label is also a grouping label, some groups are merged.
    row_by_pairs: dict[Pairs, int] = {}
    owners = np.empty(len(cell_kinds), dtype=np.int64)
    for index, kind in enumerate(allowance.watch(cell_kinds.tolist())):
        owner, value = divmod(kind, max(len(distinct), 1))
        pairs = with_label(groups.series.pairs[owner], label, format_value(float(distinct[value])))
        owners[index] = row_by_pairs.setdefault(pairs, len(row_by_pairs))
    total = np.zeros((len(row_by_pairs), counts.shape[1]))
    np.add.at(total, owners, counts)
    return Vector(SeriesSet(list(row_by_pairs)), total, total > 0)


def _count_mixed_values(vector: Vector, groups: Groups, label: str) -> Vector:
    assert vector.histograms is not None
    counts: dict[Pairs, Floats] = {}
    for row, step in allowance.watch(np.argwhere(vector.present).tolist()):
        histogram = vector.histograms[row, step]
        text = format_value(vector.values[row, step]) if histogram is None else _format_histogram(histogram)
        pairs = with_label(groups.series.pairs[groups.group_of_row[row]], label, text)
        allowance.require(CELL_BYTES * vector.values.shape[1] * len(counts))
        counts.setdefault(pairs, np.zeros(vector.values.shape[1]))[step] += 1
    totals = np.stack(list(counts.values())) if counts else np.empty((0, vector.values.shape[1]))
    return Vector(SeriesSet(list(counts)), totals, totals > 0)


# Other aggregations support only numbers.
COMBINERS = {"sum": histograms.sum_histograms, "avg": histograms.average_histograms}
SELECTING = frozenset({"limitk", "limit_ratio"})
COUNTING = frozenset({"count", "group", "count_values"})
RANKED = frozenset({"topk", "bottomk"})

# For each group and step the histograms, each with its metric name.
HistogramsByCell = dict[tuple[int, int], list[tuple[str, Histogram]]]


def _drop_unsupported(node: ast.Aggregate, vector: Vector, notes: Notes) -> Vector:
    if vector.histograms is None or node.op in COMBINERS or node.op in SELECTING or node.op in COUNTING:
        return vector
    if native_mask(vector).any():
        notes.note(f"ignored histogram in {node.op} aggregation", node if node.op in RANKED else node.expr)
    return vector.floats


def _merge_histograms(result: Vector, node: ast.Aggregate, vector: Vector, *, groups: Groups, notes: Notes) -> Vector:
    """Add the sums or averages of histograms to those of numbers."""
    assert vector.histograms is not None
    values, present = np.array(result.values), np.array(result.present)
    cells = np.full(values.shape, None, dtype=object)
    members_by_cell: HistogramsByCell = defaultdict(list)
    for row, step in allowance.watch(np.argwhere(native_mask(vector)).tolist()):
        name = label_of(vector.series.pairs[row], METRIC_NAME)
        members_by_cell[int(groups.group_of_row[row]), step].append((name, vector.histograms[row, step]))
    for (number, step), members in allowance.watch(members_by_cell.items()):
        combined = None
        if present[number, step]:
            notes.warn("encountered a mix of histograms and floats for aggregation", node.expr)
        else:
            combined = _combine(COMBINERS[node.op], members, node.expr, notes=notes)
        cells[number, step], present[number, step] = combined, combined is not None
    return Vector(result.series, values, present, cells)


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


def _format_histogram(histogram: Histogram) -> str:
    """Format a histogram as the label value of `count_values`."""
    parts = [f"count:{format_go_number(histogram.count)}", f"sum:{format_go_number(histogram.sum)}"]
    for bucket in histogram.buckets():
        if bucket.population:
            has_lower, has_upper = histogram.bound_inclusion(bucket)
            lower, upper, count = map(format_go_number, bucket)
            parts.append(f"{'[' if has_lower else '('}{lower},{upper}{']' if has_upper else ')'}:{count}")
    return "{" + ", ".join(parts) + "}"


def format_value(value: float) -> str:
    """Format a number as Go's `%f` with the fewest digits: 100000000000000000000000, 0.5, +Inf."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    text = np.format_float_positional(value, trim="-")
    return "-0" if value == 0 and math.copysign(1, value) < 0 else text


def _check_parameter(node: ast.Aggregate, parameters: Floats, notes: Notes) -> None:
    """Refuse a k that is NaN or not an int64, and a ratio that is NaN; warn about a quantile out of range."""
    assert node.parameter is not None
    # As in Prometheus, only the smallest parameter below 0 and the largest one above 0 are reported.
    outermost = np.array([np.minimum(parameters.min(), 0), np.maximum(parameters.max(), 0)])
    if node.op == "quantile":
        notes.check_quantiles(outermost, node.parameter)
        return
    subject = "Ratio" if node.op == "limit_ratio" else "Parameter"
    if np.isnan(parameters).any():
        raise errors.QueryError(f"{subject} value is NaN", remedy="Use a finite number")
    if node.op == "limit_ratio":
        notes.check_ratios(outermost, node.parameter)
    elif (large := parameters[np.abs(parameters) >= 2.0**63]).size:
        direction = "over" if large[0] > 0 else "under"
        raise errors.QueryError(f"Scalar value {large[0]:g} {direction}flows int64", remedy="Use a smaller number")


def _extremes(vector: Vector, groups: Groups, parameters: Floats, *, sign: float) -> Vector:
    """The first k series of each group in the order of `sign × value`, NaN last; an instant query is sorted."""
    keep = np.zeros(vector.present.shape, dtype=bool)
    order = np.empty(0, dtype=np.int64)
    for step, limit in enumerate(parameters.astype(np.int64).tolist()):
        allowance.check()
        rows = np.flatnonzero(vector.present[:, step])
        sort_keys = sign * vector.values[rows, step]
        order = rows[np.lexsort((sort_keys, np.isnan(sort_keys), groups.group_of_row[rows]))]
        keep[order[_rank(groups.group_of_row[order]) < limit], step] = True
    selected = Vector(vector.series, vector.values, keep)
    is_instant = len(parameters) == 1
    return selected.select_rows(order[keep[order].ravel()]) if is_instant else selected


def _rank(owners: Ints) -> Ints:
    """The rank of each row within its group; the rows of a group are adjacent."""
    if not len(owners):
        return owners
    begins = np.flatnonzero(np.concatenate([[True], owners[1:] != owners[:-1]]))
    sizes = np.diff(np.append(begins, len(owners)))
    return np.arange(len(owners)) - np.repeat(begins, sizes)


def _limitk(vector: Vector, groups: Groups, parameters: Floats) -> Vector:
    keep = np.zeros(vector.present.shape, dtype=bool)
    for step, limit in enumerate(parameters.astype(np.int64).tolist()):
        allowance.check()
        rows = groups.order[vector.present[groups.order, step]]
        keep[rows[_rank(groups.group_of_row[rows]) < limit], step] = True
    return Vector(vector.series, vector.values, keep)


def _limit_ratio(vector: Vector, _: Groups, parameters: Floats) -> Vector:
    """A share of the series, selected by a hash of their labels; -r selects exactly the series that 1-r omits."""
    ratios = np.clip(parameters, -1.0, 1.0)
    hashes = vector.series.derive("hash_offsets", label_hash.hash_fractions)[:, None]
    chosen = np.where(ratios >= 0, hashes < ratios, hashes >= 1.0 + ratios)
    return Vector(vector.series, vector.values, vector.present & chosen)


SELECTIONS: dict[str, Callable[[Vector, Groups, Floats], Vector]] = {
    "topk": partial(_extremes, sign=-1.0),
    "bottomk": partial(_extremes, sign=1.0),
    "limitk": _limitk,
    "limit_ratio": _limit_ratio,
}
