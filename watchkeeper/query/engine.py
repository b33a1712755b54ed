"""The interface every rule, page, report and check asks through, whichever engine answers.

Answers are columnar: label sets, times, and a values matrix with a presence mask. Absent is
`present=False`, never NaN, because NaN is a value in PromQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from watchkeeper.model.histograms import Histogram, HistogramSample
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.store.histograms import Cells

Floats = npt.NDArray[np.float64]
Millis = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
AnySample: TypeAlias = Sample | HistogramSample
Raw: TypeAlias = tuple[Labels, Millis, Floats | list[float | Histogram]]


class Kind(StrEnum):
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
class Span:
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

    def raw_rows(self) -> Iterator[Raw]:
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
class Answer:
    """What an engine says. A scalar is a frame of one row without labels; a string has only `text`.

    `warnings` say that the answer may be wrong, `infos` that the question may be.
    """

    kind: Kind
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
class Limits:
    """What this engine refuses, so that a caller can say it before asking; None means no limit."""

    max_samples: int | None = 50_000_000
    # Each sample counts as often as a window of an `..._over_time` holds it.
    max_window_samples: int | None = 1_000_000_000
    # Prometheus' limit, which counts the ways from one step to the next; Grafana asks for exactly so many.
    max_steps: int | None = 11_001
    max_expression_bytes: int | None = 64 * 1024
    max_depth: int | None = 100
    max_series: int | None = 1_000_000
    lookback_ms: int = 300_000
    # What `expr[1h:]` means without a step: Prometheus' default evaluation interval.
    subquery_step_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of the samples of one append: how many were kept, and why others were not."""

    kept: int
    dropped: dict[str, int] = field(default_factory=dict)


class Engine(Protocol):
    """PromQL over stored samples; every method raises QueryError or StoreError, never a library's error."""

    def instant(self, expr: str, at_ms: int) -> Answer: ...

    def range(self, expr: str, span: Span) -> Answer: ...

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

    def append(self, samples: Iterable[AnySample], *, together: str | None = None) -> Appended:
        """Keep samples; `together` names who brings these series again and again, always at one time."""
        ...

    def limits(self) -> Limits: ...
