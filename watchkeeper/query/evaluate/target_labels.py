"""`info(v, {…})`: add the labels of info metrics such as `target_info` of the same target.

The labels `instance` and `job` identify the target; of several series of one info metric the newest sample is used.
The evaluator reads both sides at the evaluation time of the base series (promql/info.go of Prometheus).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from watchkeeper import errors
from watchkeeper.kit import allowance
from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.query.engine import Mask, Matcher, MatchOp, Millis
from watchkeeper.query.evaluate.values import CELL_BYTES, DROPPED_NAME, LABEL_BYTES, Vector, label_of, merge_duplicates
from watchkeeper.query.promql import ast, walk
from watchkeeper.query.promql.patterns import matches
from watchkeeper.store.columns import Ints
from watchkeeper.store.series import Pairs, SeriesSet

IDENTIFYING = ("instance", "job")
TARGET_INFO = Matcher(METRIC_NAME, MatchOp.EQUAL, "target_info")
# The names of info metrics, if the selector has only negative name matchers.
ANY_INFO_METRIC = Matcher(METRIC_NAME, MatchOp.REGEX, ".+_info")
EXCLUDING = (MatchOp.NOT_EQUAL, MatchOp.NOT_REGEX)


@dataclass(frozen=True, slots=True)
class LabelSources:
    """The selected info metrics and labels; without label matchers all labels are added."""

    names: tuple[Matcher, ...]
    labels: tuple[Matcher, ...]

    @property
    def selector(self) -> ast.Selector:
        return ast.Selector(None, (*self.names, *self.labels))

    @property
    def is_required(self) -> bool:
        """Whether a series without info labels is dropped."""
        return any(not matches(matcher, "") for matcher in self.labels)

    def is_source(self, pairs: Pairs) -> bool:
        """Whether a series is itself an info metric, which gets no info labels."""
        return all(matches(matcher, label_of(pairs, METRIC_NAME)) for matcher in self.names)


def parse_label_sources(selector: ast.Selector | None) -> LabelSources:
    matchers = () if selector is None else selector.matchers
    names = tuple(matcher for matcher in matchers if matcher.name == METRIC_NAME)
    label_matchers = tuple(matcher for matcher in matchers if matcher.name != METRIC_NAME)
    if all(matcher.op in EXCLUDING for matcher in names):
        names = (*names, ANY_INFO_METRIC) if names else (TARGET_INFO,)
    return LabelSources(names, label_matchers)


def time_modifiers(expr: ast.Expr) -> Iterator[ast.Selector | ast.Subquery]:
    """The nodes whose @ or offset applies to the first selector of an expression, outermost first."""
    while not isinstance(expr, ast.Selector):
        if isinstance(expr, ast.Subquery):
            yield expr
        children = [expr.expr] if isinstance(expr, ast.Aggregate) else walk.iterate_children(expr)
        operands = [child for child in children if not isinstance(child, ast.Number | ast.String)]
        if not operands:
            return
        expr = operands[0]
    yield expr


def add_target_labels(vector: Vector, info: Vector, sample_ms: Millis, label_sources: LabelSources) -> Vector:
    """Add to each series the labels of its info series, at the steps where these have a sample."""
    if info.histograms is not None and info.present.any():
        raise errors.QueryError("this should be an info metric, with float samples; it has native histograms")
    # The rows of info series by target and metric name; info series without a target are ignored.
    sources: dict[tuple[str, ...], dict[str, list[int]]] = {}
    for row, pairs in enumerate(info.series.pairs):
        if any(target := _target(pairs)):
            sources.setdefault(target, {}).setdefault(label_of(pairs, METRIC_NAME), []).append(row)
    rows: list[int] = []
    label_sets: list[Pairs] = []
    masks: list[Mask] = []
    for row, pairs in enumerate(allowance.watch(vector.series.pairs)):
        rows_by_metric = {} if label_sources.is_source(pairs) else sources.get(_target(pairs), {})
        for source_rows, at_steps in _source_sets(rows_by_metric, info.present, sample_ms):
            if label_sources.is_required and not len(source_rows) and not label_sources.is_source(pairs):
                continue
            allowance.use_labels(LABEL_BYTES + CELL_BYTES * vector.values.shape[1])
            rows.append(row)
            label_sets.append(_add_labels(pairs, [info.series.pairs[source] for source in source_rows], label_sources))
            masks.append(vector.present[row] & at_steps)
    base_rows = np.array(rows, dtype=np.int64)
    present = np.stack(masks) if masks else np.zeros((0, vector.values.shape[1]), dtype=bool)
    histograms = None if vector.histograms is None else vector.histograms[base_rows]
    return merge_duplicates(Vector(SeriesSet(label_sets), vector.values[base_rows], present, histograms))


def _target(pairs: Pairs) -> tuple[str, ...]:
    return tuple(label_of(pairs, name) for name in IDENTIFYING)


def _source_sets(rows_by_metric: dict[str, list[int]], present: Mask, sample_ms: Millis) -> Iterator[tuple[Ints, Mask]]:
    """Each set of info series that applies at some steps, with these steps; empty if no info series has a sample."""
    steps = present.shape[1]
    newest = np.full((len(rows_by_metric), steps), -1, dtype=np.int64)
    for index, rows in enumerate(rows_by_metric.values()):
        times = np.where(present[rows], sample_ms[rows], -1)
        newest_ms = times.max(axis=0)
        if ((times == newest_ms) & (newest_ms >= 0)).sum(axis=0).max(initial=0) > 1:
            raise errors.QueryError("found duplicate series for info metric: two have the same target and time")
        newest[index] = np.where(newest_ms >= 0, np.array(rows)[times.argmax(axis=0)], -1)
    kinds, kind_of = (
        np.unique(newest, axis=1, return_inverse=True) if len(rows_by_metric) else (newest[:, :1], np.zeros(steps))
    )
    for number in range(kinds.shape[1]):
        kind = kinds[:, number]
        yield kind[kind >= 0], np.asarray(kind_of).ravel() == number


def _add_labels(pairs: Pairs, sources: Sequence[Pairs], label_sources: LabelSources) -> Pairs:
    labels, names = dict(pairs), {matcher.name for matcher in label_sources.labels}
    added: dict[str, str] = {}
    for source in sources:
        for name, value in source:
            is_requested = name in names if names else name not in IDENTIFYING
            if name in (METRIC_NAME, DROPPED_NAME) or name in labels or not is_requested:
                continue
            if added.setdefault(name, value) != value:
                raise errors.QueryError(
                    f"conflicting label: {name} is {added[name]!r} in one info metric, {value!r} in another"
                )
    return tuple(sorted({**labels, **added}.items()))
