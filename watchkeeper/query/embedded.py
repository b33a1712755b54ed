"""The embedded engine: PromQL over the samples in this process, without a server.

Queries may run in any number of threads while the scraper appends: the store copies what a query reads under its lock
(`store.head.head`). Parsed expressions are cached, because rules use the same expressions repeatedly.
"""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from watchkeeper import errors
from watchkeeper.kit import allowance
from watchkeeper.model.exemplars import Exemplar
from watchkeeper.model.histograms import HistogramSample
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query.engine import (
    Frame,
    Matcher,
    Millis,
    QueryLimits,
    QueryRange,
    QueryResult,
    RawSeries,
    ResultType,
    Selectors,
)
from watchkeeper.query.evaluate.evaluator import Evaluator
from watchkeeper.query.evaluate.values import (
    CELL_BYTES,
    Scalar,
    Text,
    Value,
    Vector,
    Windows,
    is_none,
    without_dropped,
)
from watchkeeper.query.promql import ast, patterns
from watchkeeper.query.promql.parser import parse
from watchkeeper.store import interfaces
from watchkeeper.store.columns import NEVER_MS, Ints, is_absent, is_stale

if TYPE_CHECKING:
    from watchkeeper.store import durable

MAX_PARSED_EXPRESSIONS = 2048
# A tree takes about a hundred times the memory of its text: generated queries of 64 KiB would fill the memory.
MAX_PARSED_CHARACTERS = 4096
# A label set in a list of series: its texts are shared, but an answer contains all of them.
LISTED_SERIES_BYTES = 1000
# Points of a result that the event loop computes without a thread: 0.3 ms.
MAX_CHEAP_POINTS = 8_000


class EmbeddedEngine:
    """Implements `query.engine.Engine` and `LocalEngine` over one store: in memory, or in memory and on disk."""

    def __init__(self, head: durable.SampleStore, limits: QueryLimits = QueryLimits()) -> None:  # noqa: B008 (frozen)
        self.head = head
        self._limits = limits
        self._parsed: OrderedDict[str, ast.Expr] = OrderedDict()
        self._parsed_lock = threading.Lock()

    def close(self) -> None:
        self.head.close()

    def limits(self) -> QueryLimits:
        return self._limits

    @property
    def appender(self) -> durable.SampleStore:
        return self.head

    @property
    def local(self) -> EmbeddedEngine:
        return self

    def for_rules(self) -> EmbeddedEngine:
        return self

    def instant(self, expr: str, at_ms: int) -> QueryResult:
        tree = self._parse(expr)
        times = np.array([at_ms], dtype=np.int64)
        evaluator = Evaluator(self.head, self._limits, span=QueryRange(at_ms, at_ms, 1))
        with evaluator.memory:
            value = evaluator.evaluate(tree, times)
            if isinstance(value, Text):
                no_samples = Frame([], times[:0], np.empty((0, 0)), np.empty((0, 0), dtype=bool))
                return QueryResult(ResultType.STRING, no_samples, value.value)
            frame = _raw_frame(value) if isinstance(value, Windows) else _frame(value, times)
        kinds = {Windows: ResultType.MATRIX, Scalar: ResultType.SCALAR}
        return self._result(kinds.get(type(value), ResultType.VECTOR), frame, evaluator, expr)

    def range(self, expr: str, span: QueryRange) -> QueryResult:
        self._limits.check_steps(span)
        tree = self._parse(expr)
        evaluator = Evaluator(self.head, self._limits, span=span)
        with evaluator.memory:
            value = evaluator.evaluate(tree, span.times)
            if isinstance(value, (Windows, Text)):
                kind = "range vector" if isinstance(value, Windows) else "string"
                raise errors.QueryError(
                    f'invalid expression type "{kind}" for range query, must be Scalar or instant Vector',
                    remedy="Apply a function such as rate()",
                )
            frame = _frame(value, span.times)
        return self._result(ResultType.MATRIX, frame, evaluator, expr)

    def _result(self, kind: ResultType, frame: Frame, evaluator: Evaluator, expr: str) -> QueryResult:
        warnings = (*self.head.warnings(), *evaluator.notes.warnings(expr))
        return QueryResult(kind, frame, warnings=warnings, infos=evaluator.notes.infos(expr))

    def range_if_cheap(self, expr: str, span: QueryRange) -> QueryResult | None:
        # Panels of one node are cheap: a selector of few series that was queried before. A thread switch takes 0.15 ms,
        # a third of the time of such a query, and far more on a busy machine.
        tree = self._parsed.get(expr)
        if not isinstance(tree, ast.Selector) or tree.offset_ms or tree.offset_expr or tree.at is not None:
            return None
        count = self.head.cached_series_count(tree.matchers, span.start_ms - self._limits.lookback_ms)
        return self.range(expr, span) if count is not None and count * span.steps <= MAX_CHEAP_POINTS else None

    def series(self, matchers: Selectors, start_ms: int, end_ms: int) -> list[Labels]:
        memory, label_sets = allowance.Memory(self._limits.max_bytes), set[Labels]()
        for selector in matchers:
            allowance.check()
            label_sets.update(self.head.series(selector, start_ms, end_ms))
            memory.require(LISTED_SERIES_BYTES * len(label_sets))
        return sorted(label_sets)

    def label_names(self, matchers: Selectors, start_ms: int, end_ms: int) -> list[str]:
        return sorted(
            {
                name
                for selector in _watch_each(matchers or [()])
                for name in self.head.label_names(selector, start_ms, end_ms)
            }
        )

    def label_values(self, name: str, matchers: Selectors, *, start_ms: int, end_ms: int) -> list[str]:
        selectors = _watch_each(matchers or [()])
        value_lists = (self.head.label_values(name, selector, start_ms, end_ms=end_ms) for selector in selectors)
        return sorted({value for values in value_lists for value in values})

    def latest_samples(self, matchers: Sequence[Matcher], at_ms: int) -> list[interfaces.AnySample]:
        series, times, values = self.head.latest(matchers, at_ms - self._limits.lookback_ms, at_ms)
        cells = self.head.find_histograms(values)
        rows = np.flatnonzero(~is_absent(values) & ~is_stale(values)).tolist()
        native = [None] * len(rows) if cells is None else cells[rows].tolist()
        newest = zip(series.labels_of(rows), times[rows].tolist(), values[rows].tolist(), native, strict=True)
        return [
            Sample(labels, sample_ms, value) if cell is None else HistogramSample(labels, sample_ms, cell)
            for labels, sample_ms, value, cell in newest
        ]

    def raw_samples(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int) -> Iterator[RawSeries]:
        """Every stored sample with start < time ≤ end, also stale markers; as a list if some are histograms."""
        columns = self.head.select(matchers, start_ms, end_ms, max_samples=self._limits.max_samples)
        cells = self.head.find_histograms(columns.values)
        for row, labels in enumerate(columns.series.labels_of(range(len(columns.series)))):
            times, values = columns.times[columns.groups[row]], columns.values[row]
            is_sample = (times != NEVER_MS) & ~is_absent(values)
            if not is_sample.any():
                continue
            native = None if cells is None or is_none(cells[row]).all() else cells[row][is_sample].tolist()
            if native is None:
                yield labels, times[is_sample], values[is_sample]
            else:
                mixed = zip(native, values[is_sample].tolist(), strict=True)
                yield labels, times[is_sample], [number if cell is None else cell for cell, number in mixed]

    def with_lookback(self, lookback_ms: int) -> EmbeddedEngine:
        engine = copy.copy(self)
        engine._limits = dataclasses.replace(self._limits, lookback_ms=lookback_ms)
        return engine

    def metadata(self) -> dict[str, tuple[str, str, str]]:
        return self.head.metadata.descriptions()

    def exemplars(self, matchers: Selectors, start_ms: int, end_ms: int) -> list[tuple[Labels, list[Exemplar]]]:
        def is_selected(series: Labels) -> bool:
            allowance.check()
            return any(
                all(patterns.matches(matcher, series.get(matcher.name, "")) for matcher in selector)
                for selector in matchers
            )

        return self.head.exemplars.select(is_selected, start_ms, end_ms)

    def _parse(self, expr: str) -> ast.Expr:
        with self._parsed_lock:
            cached = self._parsed.get(expr)
            if cached is not None:
                self._parsed.move_to_end(expr)
                return cached
        tree = parse(expr, self._limits)
        if len(expr) > MAX_PARSED_CHARACTERS:
            return tree
        with self._parsed_lock:
            self._parsed[expr] = tree
            if len(self._parsed) > MAX_PARSED_EXPRESSIONS:
                self._parsed.popitem(last=False)
        return tree


def _watch_each(selectors: Selectors) -> Iterator[Sequence[Matcher]]:
    for selector in selectors:
        allowance.check()
        yield selector


def _frame(value: Value, times: Millis) -> Frame:
    """Convert a value to a frame, without rows that are absent at every step."""
    if isinstance(value, Scalar):
        return Frame([Labels()], times, value.values[None, :], np.ones((1, len(times)), dtype=bool))
    assert isinstance(value, Vector)
    value = without_dropped(value)
    has_values = value.present.any(axis=1)
    if value.histograms is None and has_values.all():
        return Frame(value.series.register.labels_of(value.series.ids.tolist()), times, value.values, value.present)
    return _frame_of_rows(value, np.flatnonzero(has_values), times)


def _frame_of_rows(value: Vector, rows: Ints, times: Millis) -> Frame:
    labels, values, present = value.series.labels_of(rows.tolist()), value.values[rows], value.present[rows]
    if value.histograms is None:
        return Frame(labels, times, values, present)
    cells = value.histograms[rows]
    cells[~present] = None
    return Frame(labels, times, values, present & is_none(cells), cells)


def _raw_frame(windows: Windows) -> Frame:
    width = windows.values.shape[1]
    slots = np.arange(width)
    mask = ((slots >= windows.lows[:, :1]) & (slots < windows.highs[:, :1]))[windows.groups]
    if windows.usable is not None:
        mask = mask & windows.usable
    rows, slots_used = np.nonzero(mask)
    axis, positions = np.unique(windows.times[windows.groups[rows], slots_used], return_inverse=True)
    allowance.require(CELL_BYTES * len(mask) * len(axis))
    values, present = np.zeros((len(mask), len(axis))), np.zeros((len(mask), len(axis)), dtype=bool)
    values[rows, positions] = windows.values[rows, slots_used]
    present[rows, positions] = True
    cells = None
    if windows.histograms is not None:
        cells = np.full(values.shape, None, dtype=object)
        cells[rows, positions] = windows.histograms[rows, slots_used]
    vector = without_dropped(Vector(windows.series, values, present, cells))
    return _frame_of_rows(vector, np.flatnonzero(vector.present.any(axis=1)), axis)
