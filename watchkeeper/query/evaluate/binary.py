"""Binary operators between scalars and vectors, and how two vectors find each other.

Partners depend on labels only, so all pairs of rows that could ever meet are worked out once and kept with
the left series set. Whether they do meet is then a question of presence, for all steps at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from watchkeeper import errors
from watchkeeper.kit.own_metrics import escape
from watchkeeper.model.labels import Labels, quote_name
from watchkeeper.query.engine import Floats, Mask
from watchkeeper.query.evaluate import native_operators
from watchkeeper.query.evaluate.grouping import Groups, group, sizes_of
from watchkeeper.query.evaluate.native_operators import Results, Side
from watchkeeper.query.evaluate.notes import Notes
from watchkeeper.query.evaluate.values import NAMES, Scalar, Vector, drop_name, empty, relabelled
from watchkeeper.query.promql.ast import Binary, Matching, MatchKind
from watchkeeper.query.promql.types import TRIMS
from watchkeeper.store.columns import Ints
from watchkeeper.store.series import Pairs, SeriesSet

# As many as an engine has series by default; pairs beyond that come from labels that do not tell series apart.
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
            return _meet(node, left, right, matching=matching, notes=notes)
        if isinstance(left, Vector):
            return _with_scalar(node, left, left.values, right.values, notes=notes)
        assert isinstance(right, Vector)
        return _with_scalar(node, right, left.values, right.values, notes=notes)


def _with_scalar(node: Binary, vector: Vector, left: Floats, right: Floats, *, notes: Notes) -> Vector:
    sides = (Side(values, vector.histograms if values is vector.values else None) for values in (left, right))
    found = _outcome(node, *sides, met=vector.present, kept=vector.values, notes=notes)
    result = Vector(vector.series, found.values, found.present, found.histograms)
    return drop_name(result) if node.op in ARITHMETIC or node.returns_bool else result


def _outcome(node: Binary, left: Side, right: Side, *, met: Mask, kept: Floats, notes: Notes) -> Results:
    """What an operator makes of samples that have met; a comparison keeps samples of `kept`."""
    if node.op in ARITHMETIC:
        found = Results(ARITHMETIC[node.op](left.values, right.values), met)
    elif node.op in TRIMS:
        found = Results(kept, np.zeros(met.shape, dtype=bool))
        met = native_operators.refuse_numbers(node, left, right, met=met, notes=notes)
    else:
        holds = COMPARISONS[node.op](left.values, right.values)
        found = Results(holds.astype(np.float64), met) if node.returns_bool else Results(kept, met & holds)
    if left.histograms is None and right.histograms is None:
        return found
    return native_operators.put_into(found, node, left, right, met=met, notes=notes)


def _meet(node: Binary, left: Vector, right: Vector, *, matching: Matching, notes: Notes) -> Vector:
    """An arithmetic or comparison operator between two vectors."""
    if matching.fill_left is not None or matching.fill_right is not None:
        left, right = _filled(left, right, matching)
    steps = left.values.shape[1]
    # As in Prometheus, a step at which one side is empty has no result and no complaint.
    live = np.asarray(left.present.any(axis=0) & right.present.any(axis=0))
    if not live.any():
        return empty(steps)
    is_swapped = matching.kind is MatchKind.ONE_TO_MANY
    many, one = (right, left) if is_swapped else (left, right)
    one_groups = group(one.series, matching.labels, is_on=matching.is_on)
    _refuse_duplicates(one, one_groups, live, side="left" if is_swapped else "right")
    drops_name = node.op in ARITHMETIC or node.returns_bool
    pairs = many.series.derive_with(
        one.series,
        ("pairs", matching, drops_name),
        lambda: _pair(many.series, one.series, matching=matching, drops_name=drops_name),
    )
    lhs, rhs = _side(many, pairs.many), _side(one, pairs.one)
    if is_swapped:
        lhs, rhs = rhs, lhs
    present = many.present[pairs.many] & one.present[pairs.one]
    if matching.kind is MatchKind.ONE_TO_ONE:
        _refuse_many(pairs, present)
    found = _outcome(node, lhs, rhs, met=present, kept=lhs.values, notes=notes)
    met = Vector(pairs.series, found.values, found.present, found.histograms)
    if matching.kind is MatchKind.ONE_TO_ONE and not pairs.has_repeats:
        # Each has what is compared in its labels, and nothing else has the same.
        return met
    try:
        return relabelled(met, pairs.series)
    except errors.QueryError as error:
        raise errors.QueryError(
            "multiple matches for labels: grouping labels must ensure unique matches",
            remedy="Match on more labels, or carry over fewer with group_left or group_right",
        ) from error


def _filled(left: Vector, right: Vector, matching: Matching) -> tuple[Vector, Vector]:
    """Both sides, with a sample for each group that only the other side has at a step."""
    ours, theirs, there, back = _shared(left, right, matching)
    missing_right = _any_of(left, ours, np.arange(len(ours))) & ~_any_of(right, theirs, there)
    missing_left = _any_of(right, theirs, np.arange(len(theirs))) & ~_any_of(left, ours, back)
    fills = matching.fill_left, matching.fill_right
    # Prometheus turns the sides of group_right round, and the fills not (its fill-modifier.test).
    fill_left, fill_right = reversed(fills) if matching.kind is MatchKind.ONE_TO_MANY else fills
    return (
        _with_rows(left, theirs.series, missing_left, fill=fill_left),
        _with_rows(right, ours.series, missing_right, fill=fill_right),
    )


def _with_rows(vector: Vector, more: SeriesSet, present: Mask, *, fill: float | None) -> Vector:
    if fill is None:
        return vector
    filled = Vector(more, np.full(present.shape, fill), present)
    return Vector(
        vector.series.derive_with(more, "filled", lambda: _joined(vector.series, more)),
        np.concatenate([vector.values, filled.values]),
        np.concatenate([vector.present, filled.present]),
        native_operators.stacked(vector, filled),
    )


def _side(vector: Vector, rows: Ints) -> Side:
    return Side(vector.values[rows], None if vector.histograms is None else vector.histograms[rows])


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """Rows of both sides that have the same signature, side by side, and the label sets they become."""

    many: Ints
    one: Ints
    of: Ints
    series: SeriesSet
    # Whether a group of the many side has more than one pair.
    has_repeats: bool


def _pair(many: SeriesSet, one: SeriesSet, *, matching: Matching, drops_name: bool) -> _Pairs:
    ours = group(many, matching.labels, is_on=matching.is_on)
    theirs = group(one, matching.labels, is_on=matching.is_on)
    partner = _link(ours.series, theirs.series)[ours.of]
    sizes = np.append(sizes_of(theirs.starts, len(one)), 0)[partner]
    _refuse_product(int(sizes.sum()))
    many_rows = np.repeat(np.arange(len(many)), sizes)
    # Pairs of a row lie together, and take the rows of its partner group one after the other.
    nth = np.arange(len(many_rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    one_rows = theirs.order[theirs.starts[partner[many_rows]] + nth]
    kept, carried = _results(many, one, matching, drops_name=drops_name)
    if matching.include:
        series = kept.register.combine_with(carried.register, kept.ids[many_rows], partners=carried.ids[one_rows])
    else:
        series = kept.register.select(kept.ids[many_rows])
    of = ours.of[many_rows]
    return _Pairs(many_rows, one_rows, of, series, len(np.unique(of)) < len(of))


def _refuse_product(pairs: int) -> None:
    if pairs > MAX_PAIRS:
        raise errors.QueryLimit(
            f"both sides together have {pairs} pairs of series with the same labels, the limit is {MAX_PAIRS}",
            remedy="Match on more labels, or aggregate one side first",
        )


def _results(many: SeriesSet, one: SeriesSet, matching: Matching, *, drops_name: bool) -> tuple[SeriesSet, SeriesSet]:
    """What each row of both sides gives to its results: the many side its labels, the other what is carried over."""
    names, include = frozenset(matching.labels), frozenset(matching.include)

    def keep(pairs: Pairs) -> Pairs:
        kept = [pair for pair in pairs if pair[0] not in include and not (drops_name and pair[0] in NAMES)]
        if matching.kind is MatchKind.ONE_TO_ONE:
            kept = [pair for pair in kept if (pair[0] in names) == matching.is_on]
        return tuple(kept)

    def carry(pairs: Pairs) -> Pairs:
        return tuple([pair for pair in pairs if pair[0] in include])

    return many.mapped(("kept", matching, drops_name), keep), one.mapped(("carried", include), carry)


def _refuse_duplicates(vector: Vector, groups: Groups, live: Mask, *, side: str) -> None:
    if len(groups) == len(vector.series):
        return
    present = (vector.present & live)[groups.order]
    counts = np.add.reduceat(present.astype(np.int64), groups.starts, axis=0)
    if (counts > 1).any():
        number, step = np.argwhere(counts > 1)[0].tolist()
        rows = np.flatnonzero((groups.of == number) & vector.present[:, step])[:2].tolist()
        first, second = vector.series.labels_of(rows)
        [shared] = groups.series.labels_of([number])
        raise errors.QueryError(
            f"found duplicate series for the match group {_shown(shared)} on the {side} hand-side of the operation: "
            f"[{_shown(first)}, {_shown(second)}];many-to-many matching not allowed: matching labels must be unique on "
            "one side",
            remedy="Match on more labels, or aggregate one side first",
        )


def _shown(labels: Labels) -> str:
    """A label set as Prometheus writes it in this message, cut to a readable length."""
    text = "{" + ", ".join(f'{quote_name(name)}="{escape(value)}"' for name, value in labels.pairs) + "}"
    return text if len(text) <= errors.QUOTE_LIMIT else f"{text[: errors.QUOTE_LIMIT]}…"


def _refuse_many(pairs: _Pairs, present: Mask) -> None:
    if not pairs.has_repeats:
        return
    order = np.argsort(pairs.of, kind="stable")
    starts = np.flatnonzero(np.diff(pairs.of[order], prepend=-1))
    if (np.add.reduceat(present[order].astype(np.int64), starts, axis=0) > 1).any():
        raise errors.QueryError(
            "multiple matches for labels: many-to-one matching must be explicit (group_left/group_right)",
            remedy="Say group_left or group_right, or match on more labels",
        )


def _shared(left: Vector, right: Vector, matching: Matching) -> tuple[Groups, Groups, Ints, Ints]:
    """The groups of both sides, and for each group of one side its number on the other, or -1."""
    ours = group(left.series, matching.labels, is_on=matching.is_on)
    theirs = group(right.series, matching.labels, is_on=matching.is_on)
    return ours, theirs, _link(ours.series, theirs.series), _link(theirs.series, ours.series)


def _link(series: SeriesSet, other: SeriesSet) -> Ints:
    """For each label set its row in the other set, or -1."""

    def build() -> Ints:
        row_of = np.full(len(other.register) + 1, -1, dtype=np.int64)
        row_of[other.ids] = np.arange(len(other))
        # A label set that the other register does not know is found at its end.
        return row_of[series.register.numbers_in(other.register)[series.ids]]

    return series.derive_with(other, "link", build)


def _any_of(vector: Vector, groups: Groups, wanted: Ints) -> Mask:
    """For each wanted group, at which steps any of its series is present; never for group -1."""
    out = np.zeros((len(wanted), vector.present.shape[1]), dtype=bool)
    if len(groups):
        present = np.logical_or.reduceat(vector.present[groups.order], groups.starts, axis=0)
        out[wanted >= 0] = present[wanted[wanted >= 0]]
    return out


def _and(left: Vector, right: Vector, matching: Matching) -> Vector:
    if not (left.present.any() and right.present.any()):
        return empty(left.values.shape[1])
    ours, theirs, there, _ = _shared(left, right, matching)
    partner = _any_of(right, theirs, there)[ours.of]
    return Vector(left.series, left.values, left.present & partner, left.histograms)


def _unless(left: Vector, right: Vector, matching: Matching) -> Vector:
    if not (left.present.any() and right.present.any()):
        return left
    ours, theirs, there, _ = _shared(left, right, matching)
    partner = _any_of(right, theirs, there)[ours.of]
    return Vector(left.series, left.values, left.present & ~partner, left.histograms)


def _or(left: Vector, right: Vector, matching: Matching) -> Vector:
    # Nearly all rules look for what is nowhere: then there is nothing to bring together.
    if not (left.present.any() and right.present.any()):
        return left if left.present.any() else right
    ours, theirs, _, back = _shared(left, right, matching)
    partner = _any_of(left, ours, back)[theirs.of]
    series = left.series.derive_with(right.series, "or", lambda: _joined(left.series, right.series))
    joined = Vector(
        series,
        np.concatenate([left.values, right.values]),
        np.concatenate([left.present, right.present & ~partner]),
        native_operators.stacked(left, right),
    )
    return relabelled(joined, series)


def _joined(left: SeriesSet, right: SeriesSet) -> SeriesSet:
    """The rows of both, one after the other."""
    register, ours, theirs = left.register.merge_with(right.register)
    return register.select(np.concatenate([ours[left.ids], theirs[right.ids]]))


SET_OPERATORS = {"and": _and, "or": _or, "unless": _unless}
