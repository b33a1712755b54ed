"""The interface of query engines, which rules, pages, reports and checks use.

Results are columns: label sets, times, and a matrix of values with a presence mask. Absent is
`present=False`, never NaN, because NaN is a value in PromQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from watchkeeper import errors
from watchkeeper.model.exemplars import Exemplar
from watchkeeper.model.histograms import Histogram
from watchkeeper.model.labels import Labels
from watchkeeper.store import index, interfaces
from watchkeeper.store.histograms import Cells

if TYPE_CHECKING:
    from watchkeeper.store import durable

Floats = npt.NDArray[np.float64]
Millis = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Matcher: TypeAlias = index.Matcher
MatchOp: TypeAlias = index.MatchOp
# Each selector is a list of matchers; a series matches any of them.
Selectors: TypeAlias = Sequence[Sequence[Matcher]]
# The longest label value that a query may create: four times the longest one that is stored.
MAX_LABEL_CHARACTERS = 16_384
RawSeries: TypeAlias = tuple[Labels, Millis, Floats | list[float | Histogram]]


class ResultType(StrEnum):
    VECTOR = "vector"
    MATRIX = "matrix"
    SCALAR = "scalar"
    STRING = "string"


@dataclass(frozen=True, slots=True)
class QueryRange:
    """The start, end (both included) and step of a range query, in milliseconds."""

    start_ms: int
    end_ms: int
    step_ms: int

    def __post_init__(self) -> None:
        if self.step_ms <= 0:
            raise ValueError(f"step is {self.step_ms} ms, it must be above 0")
        if self.end_ms < self.start_ms:
            raise ValueError("end is before start")

    @property
    def steps(self) -> int:
        return (self.end_ms - self.start_ms) // self.step_ms + 1

    @property
    def times(self) -> Millis:
        return np.arange(self.start_ms, self.end_ms + 1, self.step_ms, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """Series over a time axis: `values[s, t]` exists if `present[s, t]`; cells of `histograms` are not `present`."""

    labels: Sequence[Labels]
    times_ms: Millis
    values: Floats
    present: Mask
    histograms: Cells | None = None

    def rows(self) -> Iterator[tuple[Labels, Millis, Floats]]:
        for row, labels in enumerate(self.labels):
            mask = self.present[row]
            yield labels, self.times_ms[mask], self.values[row][mask]

    def raw_rows(self) -> Iterator[RawSeries]:
        """Each series with its numbers, or with a list of numbers and histograms if it has histograms."""
        for row, (labels, times, values) in enumerate(self.rows()):
            cells = [] if self.histograms is None else self.histograms[row].tolist()
            histograms = {at_ms: cell for at_ms, cell in zip(self.times_ms.tolist(), cells, strict=False) if cell}
            if not histograms:
                yield labels, times, values
                continue
            numbers: dict[int, float | Histogram] = dict(zip(times.tolist(), values.tolist(), strict=True))
            mixed = sorted((numbers | histograms).items())
            yield labels, np.array([at_ms for at_ms, _ in mixed]), [value for _, value in mixed]


@dataclass(frozen=True, slots=True, eq=False)
class QueryResult:
    """The result of a query. A scalar is a frame of one row without labels; a string has only `text`.

    `warnings` mean that the result may be wrong, `infos` that the expression may be wrong.
    """

    kind: ResultType
    frame: Frame
    text: str | None = None
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()

    def latest(self) -> dict[Labels, float]:
        """The last present value of each series; for an instant query, its result."""
        frame = self.frame
        if not len(frame.times_ms):
            return {}
        last = len(frame.times_ms) - 1 - np.argmax(frame.present[:, ::-1], axis=1)
        values = np.take_along_axis(frame.values, last[:, None], axis=1)[:, 0].tolist()
        rows = np.flatnonzero(frame.present.any(axis=1)).tolist()
        return {frame.labels[row]: values[row] for row in rows}

    def latest_histograms(self) -> dict[Labels, Histogram]:
        """Series whose last sample is a native histogram, which `latest` omits."""
        cells = self.frame.histograms
        if cells is None or not len(self.frame.times_ms):
            return {}
        rows = zip(self.frame.labels, cells[:, -1].tolist(), strict=True)
        return {labels: cell for labels, cell in rows if cell is not None}


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """The limits of an engine, so that callers can check a query before they send it; None means no limit."""

    max_samples: int | None = 50_000_000
    # A sample counts once for each window of an `..._over_time` function that contains it.
    max_window_samples: int | None = 1_000_000_000
    # Prometheus' limit of 11,000 intervals between steps; Grafana requests exactly that many.
    max_steps: int | None = 11_001
    max_expression_bytes: int | None = 64 * 1024
    max_depth: int | None = 100
    max_series: int | None = 1_000_000
    # The memory of all results that an evaluation holds at once; functions need up to four times their result for a
    # moment.
    max_bytes: int | None = 1 << 30
    lookback_ms: int = interfaces.LOOKBACK_MS
    # The step of `expr[1h:]`: Prometheus' default evaluation interval.
    subquery_step_ms: int = 60_000

    def check_steps(self, span: QueryRange) -> None:
        if self.max_steps is not None and span.steps > self.max_steps:
            raise errors.QueryLimit(
                f"the query has {span.steps} steps, the limit is {self.max_steps}",
                remedy="Use a larger step or a shorter time range",
            )


class InstantEngine(Protocol):
    """PromQL at one time, as rules need it; raises QueryError or StoreError, never a library's error."""

    def instant(self, expr: str, at_ms: int) -> QueryResult: ...


class Engine(InstantEngine, Protocol):
    """PromQL over stored samples, and an appender; raises the errors of `InstantEngine`."""

    @property
    def appender(self) -> interfaces.Appender:
        """The appender that writes the samples which this engine queries."""
        ...

    @property
    def local(self) -> LocalEngine | None:
        """Reads beyond PromQL; None if a remote server keeps the samples."""

    def for_rules(self) -> InstantEngine:
        """The engine for rule evaluation, which may query a local cache."""
        ...

    def range(self, expr: str, span: QueryRange) -> QueryResult: ...

    def series(self, matchers: Selectors, start_ms: int, end_ms: int) -> list[Labels]:
        """Label sets of series with samples in the time range that match any of the selectors."""
        ...

    def label_names(self, matchers: Selectors, start_ms: int, end_ms: int) -> list[str]:
        """Label names of the series that match; of all series if there are no selectors."""
        ...

    def label_values(self, name: str, matchers: Selectors, *, start_ms: int, end_ms: int) -> list[str]: ...

    def metadata(self) -> dict[str, tuple[str, str, str]]:
        """Type, help and unit of each metric with metadata."""
        ...

    def exemplars(self, matchers: Selectors, start_ms: int, end_ms: int) -> list[tuple[Labels, list[Exemplar]]]:
        """Exemplars of series that match any of the selectors, with start ≤ time ≤ end."""
        ...

    def limits(self) -> QueryLimits: ...

    def close(self) -> None:
        """Close files and connections; samples of a local store are on disk afterwards."""
        ...


class LocalEngine(Protocol):
    """Reads beyond PromQL, for engines whose samples are in this process."""

    # The hub sets the store of its data directory here.
    head: durable.SampleStore

    def range_if_cheap(self, expr: str, span: QueryRange) -> QueryResult | None:
        """The result of a range query that is cheaper than a thread switch; None if it may take longer."""
        ...

    def latest_samples(self, matchers: Sequence[Matcher], at_ms: int) -> list[interfaces.AnySample]:
        """The newest sample of each series that is not stale, with its time."""
        ...

    def raw_samples(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int) -> Iterator[RawSeries]:
        """Every stored sample with start < time ≤ end, including stale markers."""
        ...

    def with_lookback(self, lookback_ms: int) -> Engine:
        """The same engine with another lookback, for one query."""
        ...
