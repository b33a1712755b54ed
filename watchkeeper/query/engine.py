"""The interface every rule, page, report and check asks through, whichever engine answers.

Answers are columnar: label sets, times, and a values matrix with a presence mask. Absent is
`present=False`, never NaN, because NaN is a value in PromQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from watchkeeper.model.exemplars import Exemplar
from watchkeeper.model.histograms import Histogram
from watchkeeper.model.labels import Labels
from watchkeeper.store import interfaces
from watchkeeper.store.histograms import Cells

Floats = npt.NDArray[np.float64]
Millis = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
RawSeries: TypeAlias = tuple[Labels, Millis, Floats | list[float | Histogram]]


class ResultType(StrEnum):
    """What an expression answers, in Prometheus' words."""

    VECTOR = "vector"
    MATRIX = "matrix"
    SCALAR = "scalar"
    STRING = "string"


class MatchOp(StrEnum):
    EQUAL = "="
    NOT_EQUAL = "!="
    REGEX = "=~"
    NOT_REGEX = "!~"


@dataclass(frozen=True, slots=True)
class Matcher:
    """One label condition of a selector; a label that is absent has the empty value."""

    name: str
    op: MatchOp
    value: str

    def __hash__(self) -> int:
        # Rules ask for the same selectors again and again, and an enum takes its time to be hashed.
        return hash((self.name, self.value))


@dataclass(frozen=True, slots=True)
class QueryRange:
    """A range query's times: start, end (both included) and step, in milliseconds."""

    start_ms: int
    end_ms: int
    step_ms: int

    def __post_init__(self) -> None:
        if self.step_ms <= 0:
            raise ValueError(f"step of {self.step_ms} ms must be above 0")
        if self.end_ms < self.start_ms:
            raise ValueError("end is before start")

    @property
    def times(self) -> Millis:
        return np.arange(self.start_ms, self.end_ms + 1, self.step_ms, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """Series over a time axis: `values[s, t]` belongs to `labels[s]` at `times_ms[t]` where `present[s, t]`.

    Native histograms are no numbers: they stand in `histograms`, where there are any, and are not `present`.
    """

    labels: Sequence[Labels]
    times_ms: Millis
    values: Floats
    present: Mask
    histograms: Cells | None = None

    def __post_init__(self) -> None:
        shape = (len(self.labels), len(self.times_ms))
        if self.values.shape != shape or self.present.shape != shape:
            raise ValueError(f"frame of {shape} has values {self.values.shape} and present {self.present.shape}")

    def rows(self) -> Iterator[tuple[Labels, Millis, Floats]]:
        """Each series with the times and values that are present."""
        for at, labels in enumerate(self.labels):
            mask = self.present[at]
            yield labels, self.times_ms[mask], self.values[at][mask]

    def raw_rows(self) -> Iterator[RawSeries]:
        """Each series with all that is present: numbers, or a list of numbers and histograms where it has those."""
        for at, (labels, times, values) in enumerate(self.rows()):
            cells = [] if self.histograms is None else self.histograms[at].tolist()
            native = {at_ms: cell for at_ms, cell in zip(self.times_ms.tolist(), cells, strict=False) if cell}
            if not native:
                yield labels, times, values
                continue
            found: dict[int, float | Histogram] = dict(zip(times.tolist(), values.tolist(), strict=True))
            mixed = sorted((found | native).items())
            yield labels, np.array([at_ms for at_ms, _ in mixed]), [value for _, value in mixed]


@dataclass(frozen=True, slots=True, eq=False)
class QueryResult:
    """What an engine says. A scalar is a frame of one row without labels; a string has only `text`.

    `warnings` say that the answer may be wrong, `infos` that the question may be.
    """

    kind: ResultType
    frame: Frame
    text: str | None = None
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()

    def latest(self) -> dict[Labels, float]:
        """The last present value of each series: what an instant query answered."""
        frame = self.frame
        if not len(frame.times_ms):
            return {}
        last = len(frame.times_ms) - 1 - np.argmax(frame.present[:, ::-1], axis=1)
        values = np.take_along_axis(frame.values, last[:, None], axis=1)[:, 0].tolist()
        rows = np.flatnonzero(frame.present.any(axis=1)).tolist()
        return {frame.labels[row]: values[row] for row in rows}

    def latest_histograms(self) -> dict[Labels, Histogram]:
        """Series whose last sample is a native histogram, which `latest` leaves out."""
        cells = self.frame.histograms
        if cells is None or not len(self.frame.times_ms):
            return {}
        rows = zip(self.frame.labels, cells[:, -1].tolist(), strict=True)
        return {labels: cell for labels, cell in rows if cell is not None}


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """What this engine refuses, so that a caller can say it before asking; None means no limit."""

    max_samples: int | None = 50_000_000
    # Each sample counts as often as a window of an `..._over_time` holds it.
    max_window_samples: int | None = 1_000_000_000
    # Prometheus' limit, which counts the ways from one step to the next; Grafana asks for exactly so many.
    max_steps: int | None = 11_001
    max_expression_bytes: int | None = 64 * 1024
    max_depth: int | None = 100
    max_series: int | None = 1_000_000
    lookback_ms: int = interfaces.LOOKBACK_MS
    # What `expr[1h:]` means without a step: Prometheus' default evaluation interval.
    subquery_step_ms: int = 60_000


class InstantEngine(Protocol):
    """PromQL at one time, which is all that rules ask; QueryError or StoreError, never a library's error."""

    def instant(self, expr: str, at_ms: int) -> QueryResult: ...


class Engine(InstantEngine, Protocol):
    """PromQL over stored samples, and the way to write some; errors are those of `InstantEngine`."""

    @property
    def appender(self) -> interfaces.Appender:
        """Where samples go that this engine answers from."""
        ...

    @property
    def local(self) -> LocalEngine | None:
        """What can be asked beyond PromQL; None where a server keeps the samples."""

    def for_rules(self) -> InstantEngine:
        """The engine that rules ask: some answer them from nearer by than all others."""
        ...

    def range(self, expr: str, span: QueryRange) -> QueryResult: ...

    def series(self, matchers: Sequence[Sequence[Matcher]], start_ms: int, end_ms: int) -> list[Labels]:
        """Label sets of series with samples in the time; each inner list is one selector, the outer one is `or`."""
        ...

    def label_names(self, matchers: Sequence[Sequence[Matcher]], start_ms: int, end_ms: int) -> list[str]:
        """Names of labels of the series that match; of all series where there are no selectors."""
        ...

    def label_values(
        self, name: str, matchers: Sequence[Sequence[Matcher]], *, start_ms: int, end_ms: int
    ) -> list[str]: ...

    def metadata(self) -> dict[str, tuple[str, str, str]]:
        """Type, help and unit of each metric that a target described."""
        ...

    def exemplars(
        self, matchers: Sequence[Sequence[Matcher]], start_ms: int, end_ms: int
    ) -> list[tuple[Labels, list[Exemplar]]]:
        """What is kept of the series that one of the selectors means, with start ≤ time ≤ end."""
        ...

    def limits(self) -> QueryLimits: ...

    def close(self) -> None:
        """Let go of files and connections; what was appended is then on disk, where one is ours."""
        ...


class LocalEngine(Protocol):
    """What an engine can answer beside PromQL because the samples are in this process."""

    # The hub puts the store of its data directory here.
    head: interfaces.SampleStore

    def range_if_cheap(self, expr: str, span: QueryRange) -> QueryResult | None:
        """The answer where it is there sooner than another thread would be; None where it may take longer."""
        ...

    def latest_samples(self, matchers: Sequence[Matcher], at_ms: int) -> list[interfaces.AnySample]:
        """The newest sample of each series that is not stale, with its own time."""
        ...

    def raw_samples(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int) -> Iterator[RawSeries]:
        """Every stored sample with start < time ≤ end, stale markers too."""
        ...

    def with_lookback(self, lookback_ms: int) -> Engine:
        """The same samples seen with another lookback; for one question."""
        ...
