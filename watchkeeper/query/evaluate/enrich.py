"""`info(v, {…})`: series with the labels that info metrics such as `target_info` have about the same target.

Who is meant is told by the labels `instance` and `job`; of several series of one info metric the newest sample counts.
The evaluator fetches both sides, as of the time that the base series are looked at (promql/info.go of Prometheus).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from watchkeeper import errors
from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.query.engine import Mask, Matcher, MatchOp, Millis
from watchkeeper.query.evaluate.values import DROPPED_NAME, Vector, label_of, merge_duplicates
from watchkeeper.query.promql import ast
from watchkeeper.query.promql.patterns import matches
from watchkeeper.store.columns import Ints
from watchkeeper.store.series import Pairs, SeriesSet

IDENTIFYING = ("instance", "job")
DEFAULT = Matcher(METRIC_NAME, MatchOp.EQUAL, "target_info")
# What an info metric is called, where a selector says only what it is not called.
USUAL = Matcher(METRIC_NAME, MatchOp.REGEX, ".+_info")
EXCLUDING = (MatchOp.NOT_EQUAL, MatchOp.NOT_REGEX)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which info metrics are asked for, and which of their labels; all where none is named."""

    names: tuple[Matcher, ...]
    labels: tuple[Matcher, ...]

    @property
    def selector(self) -> ast.Selector:
        return ast.Selector(None, (*self.names, *self.labels))

    @property
    def is_required(self) -> bool:
        """Whether a series without info is left out."""
        return any(not matches(matcher, "") for matcher in self.labels)

    def is_source(self, pairs: Pairs) -> bool:
        """Info metrics are not enriched themselves."""
        return all(matches(matcher, label_of(pairs, METRIC_NAME)) for matcher in self.names)


def wanted(selector: ast.Selector | None) -> Wanted:
    asked = () if selector is None else selector.matchers
    names = tuple(matcher for matcher in asked if matcher.name == METRIC_NAME)
    rest = tuple(matcher for matcher in asked if matcher.name != METRIC_NAME)
    if all(matcher.op in EXCLUDING for matcher in names):
        names = (*names, USUAL) if names else (DEFAULT,)
    return Wanted(names, rest)


def pinned(expr: ast.Expr) -> Iterator[ast.Selector | ast.Subquery]:
    """Whatever moves the time of the first selector of an expression, from the outside to the inside."""
    while not isinstance(expr, ast.Selector):
        if isinstance(expr, ast.Subquery):
            yield expr
        if isinstance(expr, ast.RangeSelector):
            expr = expr.selector
            continue
        inner = [part for part in _children(expr) if not isinstance(part, ast.Number | ast.String)]
        if not inner:
            return
        expr = inner[0]
    yield expr


def _children(expr: ast.Expr) -> Sequence[ast.Expr]:
    if isinstance(expr, ast.FunctionCall):
        return expr.args
    if isinstance(expr, ast.Binary):
        return expr.left, expr.right
    return () if isinstance(expr, ast.Number | ast.String) else (expr.expr,)  # type: ignore[union-attr]


def enriched(vector: Vector, about: Vector, sample_ms: Millis, asked: Wanted) -> Vector:
    """The vector with the labels of info series that have a sample at the same steps."""
    if about.histograms is not None and about.present.any():
        raise errors.QueryError("this should be an info metric, with float samples; it has native histograms")
    sources = _by_target(about.series)
    rows: list[int] = []
    sets: list[Pairs] = []
    masks: list[Mask] = []
    for row, pairs in enumerate(vector.series.pairs):
        found = {} if asked.is_source(pairs) else sources.get(_target(pairs), {})
        for chosen, at in _choices(found, about.present, sample_ms):
            if asked.is_required and not len(chosen) and not asked.is_source(pairs):
                continue
            rows.append(row)
            sets.append(_with_labels(pairs, [about.series.pairs[source] for source in chosen], asked))
            masks.append(vector.present[row] & at)
    picked = np.array(rows, dtype=np.int64)
    present = np.stack(masks) if masks else np.zeros((0, vector.values.shape[1]), dtype=bool)
    histograms = None if vector.histograms is None else vector.histograms[picked]
    return merge_duplicates(Vector(SeriesSet(sets), vector.values[picked], present, histograms))


def _target(pairs: Pairs) -> tuple[str, ...]:
    return tuple(label_of(pairs, name) for name in IDENTIFYING)


def _by_target(series: SeriesSet) -> dict[tuple[str, ...], dict[str, list[int]]]:
    """Rows of info series by target and metric; those that name no target say nothing."""
    found: dict[tuple[str, ...], dict[str, list[int]]] = {}
    for row, pairs in enumerate(series.pairs):
        if any(target := _target(pairs)):
            found.setdefault(target, {}).setdefault(label_of(pairs, METRIC_NAME), []).append(row)
    return found


def _choices(found: dict[str, list[int]], present: Mask, sample_ms: Millis) -> Iterator[tuple[Ints, Mask]]:
    """Each set of info series that counts at some steps, with these steps; an empty set where there is none."""
    steps = present.shape[1]
    newest = np.full((len(found), steps), -1, dtype=np.int64)
    for at, rows in enumerate(found.values()):
        times = np.where(present[rows], sample_ms[rows], -1)
        best = times.max(axis=0)
        if ((times == best) & (best >= 0)).sum(axis=0).max(initial=0) > 1:
            raise errors.QueryError("found duplicate series for info metric: two have the same target and time")
        newest[at] = np.where(best >= 0, np.array(rows)[times.argmax(axis=0)], -1)
    kinds, of = np.unique(newest, axis=1, return_inverse=True) if len(found) else (newest[:, :1], np.zeros(steps))
    for number in range(kinds.shape[1]):
        kind = kinds[:, number]
        yield kind[kind >= 0], np.asarray(of).ravel() == number


def _with_labels(pairs: Pairs, sources: Sequence[Pairs], asked: Wanted) -> Pairs:
    own, names = dict(pairs), {matcher.name for matcher in asked.labels}
    added: dict[str, str] = {}
    for source in sources:
        for name, value in source:
            is_meant = name in names if names else name not in IDENTIFYING
            if name in (METRIC_NAME, DROPPED_NAME) or name in own or not is_meant:
                continue
            if added.setdefault(name, value) != value:
                raise errors.QueryError(
                    f"conflicting label: {name} is {added[name]!r} in one info metric, {value!r} in another"
                )
    return tuple(sorted({**own, **added}.items()))
