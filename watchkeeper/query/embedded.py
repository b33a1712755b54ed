"""The embedded engine: PromQL over the samples that this process keeps, without a server.

The hub makes one and gives it to rules, pages, reports and checks. Queries may run in any number of
threads while the scraper appends: the store copies what a query reads under its lock (`store.head.head`).
Parsed expressions are kept, because rules ask the same ones again and again.
"""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np

from watchkeeper import errors
from watchkeeper.model.exemplars import Exemplar
from watchkeeper.model.histograms import HistogramSample
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query.engine import Frame, Matcher, Millis, QueryLimits, QueryRange, QueryResult, RawSeries, ResultType
from watchkeeper.query.evaluate.evaluator import Evaluator
from watchkeeper.query.evaluate.values import Scalar, Text, Value, Vector, Windows, is_none, without_dropped
from watchkeeper.query.promql import ast, patterns
from watchkeeper.query.promql.parser import parse
from watchkeeper.store import interfaces
from watchkeeper.store.columns import NEVER_MS, Ints, is_absent, is_stale

MAX_PARSED_EXPRESSIONS = 2048
# Points of an answer that the event loop makes itself: 0.3 ms.
MAX_CHEAP_POINTS = 8_000


class EmbeddedEngine:
    """Implements `query.engine.Engine` and `LocalEngine` over one store: memory, or memory with its past on disk."""

    def __init__(self, head: interfaces.SampleStore, limits: QueryLimits = QueryLimits()) -> None:  # noqa: B008 (frozen)
        self.head = head
        self._limits = limits
        self._parsed: OrderedDict[str, ast.Expr] = OrderedDict()
        self._parsed_lock = threading.Lock()

    def close(self) -> None:
        """Let go of what the store holds open; what it was given is then on disk."""
        self.head.close()

    def limits(self) -> QueryLimits:
        return self._limits

    @property
    def appender(self) -> interfaces.SampleStore:
        return self.head

    @property
    def local(self) -> EmbeddedEngine:
        return self

    def for_rules(self) -> EmbeddedEngine:
        return self

    def instant(self, expr: str, at_ms: int) -> QueryResult:
        tree = self._parse(expr)
        times = np.array([at_ms], dtype=np.int64)
        asked = Evaluator(self.head, self._limits, span=QueryRange(at_ms, at_ms, 1))
        value = asked.evaluate(tree, times)
        warnings, infos = (*self.head.warnings(), *asked.notes.warnings(expr)), asked.notes.infos(expr)
        if isinstance(value, Windows):
            return QueryResult(ResultType.MATRIX, _raw_frame(value), warnings=warnings, infos=infos)
        if isinstance(value, Text):
            return QueryResult(
                ResultType.STRING, Frame([], times[:0], np.empty((0, 0)), np.empty((0, 0), dtype=bool)), value.value
            )
        kind = ResultType.SCALAR if isinstance(value, Scalar) else ResultType.VECTOR
        return QueryResult(kind, _frame(value, times), warnings=warnings, infos=infos)

    def range(self, expr: str, span: QueryRange) -> QueryResult:
        steps = (span.end_ms - span.start_ms) // span.step_ms + 1
        if self._limits.max_steps is not None and steps > self._limits.max_steps:
            raise errors.QueryLimit(
                f"the query has {steps} steps, the limit is {self._limits.max_steps}",
                remedy="Use a larger step or a shorter time",
            )
        tree = self._parse(expr)
        asked = Evaluator(self.head, self._limits, span=span)
        value = asked.evaluate(tree, span.times)
        if isinstance(value, (Windows, Text)):
            kind = "range vector" if isinstance(value, Windows) else "string"
            raise errors.QueryError(
                f'invalid expression type "{kind}" for range query, must be Scalar or instant Vector',
                remedy="Put a function such as rate() around it",
            )
        warnings, infos = (*self.head.warnings(), *asked.notes.warnings(expr)), asked.notes.infos(expr)
        return QueryResult(ResultType.MATRIX, _frame(value, span.times), warnings=warnings, infos=infos)

    def range_if_cheap(self, expr: str, span: QueryRange) -> QueryResult | None:
        """The answer where it is there sooner than another thread would be; None where it may take longer.

        A panel of one node is: a selector of few series that was asked before. The way to a thread and back takes
        0.15 ms, a third of what such an answer does, and far more on a busy machine.
        """
        tree = self._parsed.get(expr)
        if not isinstance(tree, ast.Selector) or tree.offset_ms or tree.offset_by or tree.at is not None:
            return None
        steps = (span.end_ms - span.start_ms) // span.step_ms + 1
        count = self.head.cached_series_count(tree.matchers, span.start_ms - self._limits.lookback_ms)
        return self.range(expr, span) if count is not None and count * steps <= MAX_CHEAP_POINTS else None

    def series(self, matchers: Sequence[Sequence[Matcher]], start_ms: int, end_ms: int) -> list[Labels]:
        found = {labels for each in matchers for labels in self.head.series(each, start_ms, end_ms)}
        return sorted(found)

    def label_names(self, matchers: Sequence[Sequence[Matcher]], start_ms: int, end_ms: int) -> list[str]:
        return sorted({name for each in matchers or [()] for name in self.head.label_names(each, start_ms, end_ms)})

    def label_values(
        self, name: str, matchers: Sequence[Sequence[Matcher]], *, start_ms: int, end_ms: int
    ) -> list[str]:
        found = (self.head.label_values(name, each, start_ms, end_ms=end_ms) for each in matchers or [()])
        return sorted({value for values in found for value in values})

    def latest_samples(self, matchers: Sequence[Matcher], at_ms: int) -> list[interfaces.AnySample]:
        """The newest sample of each series that is not stale, with its own time; what /federate hands on."""
        series, times, values = self.head.latest(matchers, at_ms - self._limits.lookback_ms, at_ms)
        cells = self.head.find_histograms(values)
        rows = np.flatnonzero(~is_absent(values) & ~is_stale(values)).tolist()
        native = [None] * len(rows) if cells is None else cells[rows].tolist()
        found = zip(series.labels_of(rows), times[rows].tolist(), values[rows].tolist(), native, strict=True)
        return [
            Sample(labels, own_ms, value) if cell is None else HistogramSample(labels, own_ms, cell)
            for labels, own_ms, value, cell in found
        ]

    def raw_samples(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int) -> Iterator[RawSeries]:
        """Every stored sample with start < time ≤ end, stale markers too; what a recording holds.

        A series that has native histograms comes with a list of them and of numbers, every other with numbers only.
        """
        found = self.head.select(matchers, start_ms, end_ms, max_samples=self._limits.max_samples)
        cells = self.head.find_histograms(found.values)
        for row, labels in enumerate(found.series.labels_of(range(len(found.series)))):
            times, values = found.times[found.groups[row]], found.values[row]
            held = (times != NEVER_MS) & ~is_absent(values)
            if not held.any():
                continue
            native = None if cells is None or is_none(cells[row]).all() else cells[row][held].tolist()
            if native is None:
                yield labels, times[held], values[held]
            else:
                mixed = zip(native, values[held].tolist(), strict=True)
                yield labels, times[held], [number if cell is None else cell for cell, number in mixed]

    def with_lookback(self, lookback_ms: int) -> EmbeddedEngine:
        """The same samples seen with another lookback; for one question."""
        other = copy.copy(self)
        other._limits = dataclasses.replace(self._limits, lookback_ms=lookback_ms)
        return other

    def metadata(self) -> dict[str, tuple[str, str, str]]:
        """Type, help and unit of each metric that a target described."""
        return self.head.metadata.descriptions()

    def exemplars(
        self, matchers: Sequence[Sequence[Matcher]], start_ms: int, end_ms: int
    ) -> list[tuple[Labels, list[Exemplar]]]:
        """What is kept of the series that one of the selectors means, with start ≤ time ≤ end."""

        def is_meant(series: Labels) -> bool:
            return any(all(patterns.matches(one, series.get(one.name, "")) for one in each) for each in matchers)

        return self.head.exemplars.select(is_meant, start_ms, end_ms)

    def _parse(self, expr: str) -> ast.Expr:
        with self._parsed_lock:
            known = self._parsed.get(expr)
            if known is not None:
                self._parsed.move_to_end(expr)
                return known
        tree = parse(expr, self._limits)
        with self._parsed_lock:
            self._parsed[expr] = tree
            if len(self._parsed) > MAX_PARSED_EXPRESSIONS:
                self._parsed.popitem(last=False)
        return tree


def _frame(value: Value, times: Millis) -> Frame:
    """What is present of a value: rows that are absent throughout are left out."""
    if isinstance(value, Scalar):
        return Frame([Labels()], times, value.values[None, :], np.ones((1, len(times)), dtype=bool))
    assert isinstance(value, Vector)
    value = without_dropped(value)
    is_shown = value.present.any(axis=1)
    if value.histograms is None and is_shown.all():
        return Frame(value.series.register.labels_of(value.series.ids.tolist()), times, value.values, value.present)
    return _shown(value, np.flatnonzero(is_shown), times)


def _shown(value: Vector, rows: Ints, times: Millis) -> Frame:
    labels, values, present = value.series.labels_of(rows.tolist()), value.values[rows], value.present[rows]
    if value.histograms is None:
        return Frame(labels, times, values, present)
    cells = value.histograms[rows]
    cells[~present] = None
    return Frame(labels, times, values, present & is_none(cells), cells)


def _raw_frame(found: Windows) -> Frame:
    """The samples of a range selector's one window, on an axis of all their times."""
    width = found.values.shape[1]
    slots = np.arange(width)
    mask = ((slots >= found.lows[:, :1]) & (slots < found.highs[:, :1]))[found.groups]
    if found.usable is not None:
        mask = mask & found.usable
    rows, columns = np.nonzero(mask)
    axis, places = np.unique(found.times[found.groups[rows], columns], return_inverse=True)
    values, present = np.zeros((len(mask), len(axis))), np.zeros((len(mask), len(axis)), dtype=bool)
    values[rows, places] = found.values[rows, columns]
    present[rows, places] = True
    cells = None
    if found.histograms is not None:
        cells = np.full(values.shape, None, dtype=object)
        cells[rows, places] = found.histograms[rows, columns]
    shown = without_dropped(Vector(found.series, values, present, cells))
    return _shown(shown, np.flatnonzero(shown.present.any(axis=1)), axis)
