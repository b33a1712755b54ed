"""Binary operators between scalars and vectors, and vector matching.

Matching depends only on labels, so all pairs of rows with matching labels are computed once and cached with the left
series set. Which pairs have samples at a step is then computed for all steps at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from watchkeeper import errors
from watchkeeper.kit import allowance
from watchkeeper.kit.own_metrics import escape
from watchkeeper.model.labels import Labels, quote_name
from watchkeeper.query.engine import Floats, Mask
from watchkeeper.query.evaluate import native_operators
from watchkeeper.query.evaluate.grouping import Groups, group, group_sizes
from watchkeeper.query.evaluate.native_operators import Results, Side
from watchkeeper.query.evaluate.notes import Notes
from watchkeeper.query.evaluate.values import CELL_BYTES, NAMES, Scalar, Vector, drop_name, empty_vector, with_series
from watchkeeper.query.promql.ast import Binary, Matching, MatchKind
from watchkeeper.query.promql.types import TRIMS
from watchkeeper.store.columns import Ints
from watchkeeper.store.series import Pairs, SeriesSet

# The default limit of series of an engine; more pairs mean that the matching labels do not identify series.
MAX_PAIRS = 1_000_000
ARITHMETIC: dict[str, Callable[[Floats, Floats], Floats]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,
    "^": np.power,
    "atan2": np.arctan2,
}
COMPARISONS: dict[str, Callable[[Floats, Floats], Mask]] = {
    "==": np.equal,
    "!=": np.not_equal,
    ">": np.greater,
    "<": np.less,
    ">=": np.greater_equal,
    "<=": np.less_equal,
}


def combine(node: Binary, left: Vector | Scalar, right: Vector | Scalar, *, notes: Notes) -> Vector | Scalar:
    with np.errstate(all="ignore"):
        if isinstance(left, Scalar) and isinstance(right, Scalar):
            if node.op in COMPARISONS:
                return Scalar(COMPARISONS[node.op](left.values, right.values).astype(np.float64))
            return Scalar(ARITHMETIC[node.op](left.values, right.values))
        if isinstance(left, Vector) and isinstance(right, Vector):
            matching = node.matching or Matching()
            if node.op in SET_OPERATORS:
                return SET_OPERATORS[node.op](left, right, matching)
            return _combine_vectors(node, left, right, matching=matching, notes=notes)
        if isinstance(left, Vector):
            return _with_scalar(node, left, left.values, right.values, notes=notes)
        assert isinstance(right, Vector)
        return _with_scalar(node, right, left.values, right.values, notes=notes)


def _with_scalar(node: Binary, vector: Vector, left: Floats, right: Floats, *, notes: Notes) -> Vector:
    operands = (Side(values, vector.histograms if values is vector.values else None) for values in (left, right))
    results = _apply(node, *operands, matched=vector.present, kept_values=vector.values, notes=notes)
    result = Vector(vector.series, results.values, results.present, results.histograms)
    return drop_name(result) if node.op in ARITHMETIC or node.returns_bool else result


def _apply(node: Binary, left: Side, right: Side, *, matched: Mask, kept_values: Floats, notes: Notes) -> Results:
    """Apply an operator to matched samples; a comparison keeps samples of `kept_values`."""
    if node.op in ARITHMETIC:
        results = Results(ARITHMETIC[node.op](left.values, right.values), matched)
    elif node.op in TRIMS:
        results = Results(kept_values, np.zeros(matched.shape, dtype=bool))
        matched = native_operators.exclude_numbers(node, left, right, matched=matched, notes=notes)
    else:
        holds = COMPARISONS[node.op](left.values, right.values)
        results = (
            Results(holds.astype(np.float64), matched) if node.returns_bool else Results(kept_values, matched & holds)
        )
    if left.histograms is None and right.histograms is None:
        return results
    return native_operators.merge_histograms(results, node, left, right, matched=matched, notes=notes)


def _combine_vectors(node: Binary, left: Vector, right: Vector, *, matching: Matching, notes: Notes) -> Vector:
    if matching.fill_left is not None or matching.fill_right is not None:
        left, right = _fill_missing(left, right, matching)
    steps = left.values.shape[1]
    # As in Prometheus, a step at which one side is empty has no result and no error.
    has_both = np.asarray(left.present.any(axis=0) & right.present.any(axis=0))
    if not has_both.any():
        return empty_vector(steps)
    is_swapped = matching.kind is MatchKind.ONE_TO_MANY
    many_side, one_side = (right, left) if is_swapped else (left, right)
    one_groups = group(one_side.series, matching.labels, is_on=matching.is_on)
    _refuse_duplicates(one_side, one_groups, has_both, side="left" if is_swapped else "right")
    drops_name = node.op in ARITHMETIC or node.returns_bool
    pairs = many_side.series.derive_with(
        one_side.series,
        ("pairs", matching, drops_name),
        lambda: _build_pairs(many_side.series, one_side.series, matching=matching, drops_name=drops_name),
    )
    # Two operands, whether each is present, and the result.
    allowance.require(2 * CELL_BYTES * len(pairs.many_rows) * steps)
    left_operand, right_operand = _select_rows(many_side, pairs.many_rows), _select_rows(one_side, pairs.one_rows)
    if is_swapped:
        left_operand, right_operand = right_operand, left_operand
    present = many_side.present[pairs.many_rows] & one_side.present[pairs.one_rows]
    if matching.kind is MatchKind.ONE_TO_ONE:
        _refuse_implicit_many(pairs, present)
    results = _apply(node, left_operand, right_operand, matched=present, kept_values=left_operand.values, notes=notes)
    combined = Vector(pairs.series, results.values, results.present, results.histograms)
    if matching.kind is MatchKind.ONE_TO_ONE and not pairs.has_repeats:
        # The result labels are the matching labels, which are unique.
        return combined
    try:
        return with_series(combined, pairs.series)
    except errors.QueryError as error:
        raise errors.QueryError(
            "multiple matches for labels: grouping labels must ensure unique matches",
            remedy="Match on more labels, or include fewer labels in group_left or group_right",
        ) from error


def _fill_missing(left: Vector, right: Vector, matching: Matching) -> tuple[Vector, Vector]:
    """Both sides, with a fill value for each group that only the other side has at a step."""
    left_groups, right_groups, right_of_left, left_of_right = _match_groups(left, right, matching)
    missing_right = _group_presence(left, left_groups, np.arange(len(left_groups))) & ~_group_presence(
        right, right_groups, right_of_left
    )
    missing_left = _group_presence(right, right_groups, np.arange(len(right_groups))) & ~_group_presence(
        left, left_groups, left_of_right
    )
    fills = matching.fill_left, matching.fill_right
    # Prometheus swaps the sides of group_right, but not the fill values (its fill-modifier.test).
    fill_left, fill_right = reversed(fills) if matching.kind is MatchKind.ONE_TO_MANY else fills
    return (
        _append_filled(left, right_groups.series, missing_left, fill=fill_left),
        _append_filled(right, left_groups.series, missing_right, fill=fill_right),
    )


def _append_filled(vector: Vector, filled_series: SeriesSet, present: Mask, *, fill: float | None) -> Vector:
    if fill is None:
        return vector
    allowance.require(CELL_BYTES * (present.size + vector.present.size))
    filled = Vector(filled_series, np.full(present.shape, fill), present)
    return Vector(
        vector.series.derive_with(filled_series, "filled", lambda: _concatenate(vector.series, filled_series)),
        np.concatenate([vector.values, filled.values]),
        np.concatenate([vector.present, filled.present]),
        native_operators.stack_histograms(vector, filled),
    )


def _select_rows(vector: Vector, rows: Ints) -> Side:
    return Side(vector.values[rows], None if vector.histograms is None else vector.histograms[rows])


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """Pairs of rows with the same matching labels, and the label sets of their results."""

    many_rows: Ints
    one_rows: Ints
    group_of_pair: Ints
    series: SeriesSet
    # Whether a group of the "many" side has more than one pair.
    has_repeats: bool


def _build_pairs(many_side: SeriesSet, one_side: SeriesSet, *, matching: Matching, drops_name: bool) -> _Pairs:
    many_groups = group(many_side, matching.labels, is_on=matching.is_on)
    one_groups = group(one_side, matching.labels, is_on=matching.is_on)
    partner = _find_rows(many_groups.series, one_groups.series)[many_groups.group_of_row]
    sizes = np.append(group_sizes(one_groups.starts, len(one_side)), 0)[partner]
    pairs = int(sizes.sum())
    if pairs > MAX_PAIRS:
        raise errors.QueryLimit(
            f"vector matching has {pairs} pairs of series, the limit is {MAX_PAIRS}",
            remedy="Match on more labels, or aggregate one side first",
        )
    many_side.register.charge(pairs)
    many_rows = np.repeat(np.arange(len(many_side)), sizes)
    # The pairs of a row are adjacent, and use the rows of its partner group in order.
    nth = np.arange(len(many_rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    one_rows = one_groups.order[one_groups.starts[partner[many_rows]] + nth]
    many_labels, one_labels = _result_labels(many_side, one_side, matching, drops_name=drops_name)
    if matching.include:
        series = many_labels.register.combine_with(
            one_labels.register, many_labels.ids[many_rows], partners=one_labels.ids[one_rows]
        )
    else:
        series = many_labels.register.select(many_labels.ids[many_rows])
    group_of_pair = many_groups.group_of_row[many_rows]
    return _Pairs(many_rows, one_rows, group_of_pair, series, len(np.unique(group_of_pair)) < len(group_of_pair))


def _result_labels(
    many_side: SeriesSet, one_side: SeriesSet, matching: Matching, *, drops_name: bool
) -> tuple[SeriesSet, SeriesSet]:
    """The labels that each row contributes to its results: for the "one" side only the included labels."""
    names, include = frozenset(matching.labels), frozenset(matching.include)

    def keep(pairs: Pairs) -> Pairs:
        kept = [pair for pair in pairs if pair[0] not in include and not (drops_name and pair[0] in NAMES)]
        if matching.kind is MatchKind.ONE_TO_ONE:
            kept = [pair for pair in kept if (pair[0] in names) == matching.is_on]
        return tuple(kept)

    def carry(pairs: Pairs) -> Pairs:
        return tuple([pair for pair in pairs if pair[0] in include])

    return many_side.mapped(("kept", matching, drops_name), keep), one_side.mapped(("carried", include), carry)


def _refuse_duplicates(vector: Vector, groups: Groups, has_both: Mask, *, side: str) -> None:
    if len(groups) == len(vector.series):
        return
    present = (vector.present & has_both)[groups.order]
    counts = np.add.reduceat(present.astype(np.int64), groups.starts, axis=0)
    if (counts > 1).any():
        number, step = np.argwhere(counts > 1)[0].tolist()
        rows = np.flatnonzero((groups.group_of_row == number) & vector.present[:, step])[:2].tolist()
        first, second = vector.series.labels_of(rows)
        [shared] = groups.series.labels_of([number])
        raise errors.QueryError(
            f"found duplicate series for the match group {_format_labels(shared)} on the {side} hand-side of the "
            f"operation: [{_format_labels(first)}, {_format_labels(second)}];many-to-many matching not allowed: "
            "matching labels must be unique on one side",
            remedy="Match on more labels, or aggregate one side first",
        )


def _format_labels(labels: Labels) -> str:
    """Format a label set as Prometheus does in this message, truncated."""
    text = "{" + ", ".join(f'{quote_name(name)}="{escape(value)}"' for name, value in labels.pairs) + "}"
    return text if len(text) <= errors.QUOTE_LIMIT else f"{text[: errors.QUOTE_LIMIT]}…"


def _refuse_implicit_many(pairs: _Pairs, present: Mask) -> None:
    if not pairs.has_repeats:
        return
    order = np.argsort(pairs.group_of_pair, kind="stable")
    starts = np.flatnonzero(np.diff(pairs.group_of_pair[order], prepend=-1))
    if (np.add.reduceat(present[order].astype(np.int64), starts, axis=0) > 1).any():
        raise errors.QueryError(
            "multiple matches for labels: many-to-one matching must be explicit (group_left/group_right)",
            remedy="Use group_left or group_right, or match on more labels",
        )


def _match_groups(left: Vector, right: Vector, matching: Matching) -> tuple[Groups, Groups, Ints, Ints]:
    """The groups of both sides, and for each group its number on the other side, or -1."""
    left_groups = group(left.series, matching.labels, is_on=matching.is_on)
    right_groups = group(right.series, matching.labels, is_on=matching.is_on)
    return (
        left_groups,
        right_groups,
        _find_rows(left_groups.series, right_groups.series),
        _find_rows(right_groups.series, left_groups.series),
    )


def _find_rows(series: SeriesSet, other: SeriesSet) -> Ints:
    """For each label set its row in the other series set, or -1."""

    def build() -> Ints:
        row_of = np.full(len(other.register) + 1, -1, dtype=np.int64)
        row_of[other.ids] = np.arange(len(other))
        # A label set that is not in the other register has the number after its last one.
        return row_of[series.register.numbers_in(other.register)[series.ids]]

    return series.derive_with(other, "link", build)


def _group_presence(vector: Vector, groups: Groups, group_numbers: Ints) -> Mask:
    """For each group number, the steps at which any of its series is present; never for -1."""
    out = np.zeros((len(group_numbers), vector.present.shape[1]), dtype=bool)
    if len(groups):
        present = np.logical_or.reduceat(vector.present[groups.order], groups.starts, axis=0)
        out[group_numbers >= 0] = present[group_numbers[group_numbers >= 0]]
    return out


def _filter_by_partner(left: Vector, right: Vector, matching: Matching, *, keeps_partners: bool) -> Vector:
    """Keep the samples with a partner on the right (`and`), or those without (`unless`)."""
    if not (left.present.any() and right.present.any()):
        return empty_vector(left.values.shape[1]) if keeps_partners else left
    left_groups, right_groups, right_of_left, _ = _match_groups(left, right, matching)
    partner = _group_presence(right, right_groups, right_of_left)[left_groups.group_of_row]
    present = left.present & (partner if keeps_partners else ~partner)
    return Vector(left.series, left.values, present, left.histograms)


def _or(left: Vector, right: Vector, matching: Matching) -> Vector:
    # Most alert expressions are empty: then there is nothing to combine.
    if not (left.present.any() and right.present.any()):
        return left if left.present.any() else right
    allowance.require(CELL_BYTES * (left.present.size + right.present.size))
    left_groups, right_groups, _, left_of_right = _match_groups(left, right, matching)
    partner = _group_presence(left, left_groups, left_of_right)[right_groups.group_of_row]
    series = left.series.derive_with(right.series, "or", lambda: _concatenate(left.series, right.series))
    joined = Vector(
        series,
        np.concatenate([left.values, right.values]),
        np.concatenate([left.present, right.present & ~partner]),
        native_operators.stack_histograms(left, right),
    )
    return with_series(joined, series)


def _concatenate(left: SeriesSet, right: SeriesSet) -> SeriesSet:
    register, left_numbers, right_numbers = left.register.merge_with(right.register)
    return register.select(np.concatenate([left_numbers[left.ids], right_numbers[right.ids]]))


SET_OPERATORS: dict[str, Callable[[Vector, Vector, Matching], Vector]] = {
    "and": partial(_filter_by_partner, keeps_partners=True),
    "or": _or,
    "unless": partial(_filter_by_partner, keeps_partners=False),
}
