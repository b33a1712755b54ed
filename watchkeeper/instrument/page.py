"""Formats a page of metrics: in Prometheus' text format 0.0.4, or in OpenMetrics 1.0 with exemplars.

A monitor writes its families to a `MetricsPage` for each scrape; `endpoint` and `exports` send the bytes. `Counters`
and `Histograms` have a limit on their label sets.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
# Prometheus' client libraries allow this much for the labels of an exemplar; names are shorter.
MAX_LABEL_CHARACTERS = 120
# A label set beyond this is counted under `other`, so that a client that invents model names cannot fill the memory.
MAX_LABEL_SETS = 200
OTHER = "other"
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One observation of a bucket with its trace id; `at` is Unix time in seconds."""

    trace_id: str
    value: float
    at: float


class MetricsPage:
    """A page of metric families, in the order in which they are added."""

    def __init__(self, *, is_openmetrics: bool = False) -> None:
        self.is_openmetrics = is_openmetrics
        self._lines: list[str] = []
        self._name = ""

    def begin_family(self, name: str, help: str, *, is_histogram: bool = False) -> None:
        """Start a family; names that end in `_total` are counters, other names gauges."""
        self._name = name
        is_counter = name.endswith("_total")
        kind = "histogram" if is_histogram else "counter" if is_counter else "gauge"
        # OpenMetrics names the family of a counter without the suffix `_total`.
        family = name.removesuffix("_total") if self.is_openmetrics and is_counter else name
        self._lines += [f"# HELP {family} {help}", f"# TYPE {family} {kind}"]

    def add(self, labels: str, value: float, *, suffix: str = "", exemplar: Exemplar | None = None) -> None:
        line = f"{self._name}{suffix}{labels} {format_number(value)}"
        if exemplar is not None and self.is_openmetrics:
            line += f' # {{trace_id="{exemplar.trace_id}"}} {format_number(exemplar.value)} {exemplar.at:.3f}'
        self._lines.append(line)

    def add_family(self, name: str, help: str, *, labels: str, value: float | None) -> None:
        """Add a family of one series; None: unknown, so the family is omitted."""
        if value is not None:
            self.begin_family(name, help)
            self.add(labels, value)

    def add_histogram(self, labels: Mapping[str, str], histogram: Histogram) -> None:
        """Add one label set; while its program observes, the sum may be one observation ahead of the counts."""
        cumulative, exemplars, total = 0, list(histogram.exemplars), histogram.total
        counts = list(histogram.counts)
        for bound, count, exemplar in zip((*histogram.bounds, math.inf), counts, exemplars, strict=True):
            cumulative += count
            bucket_labels = format_labels({**labels, "le": format_number(bound)})
            self.add(bucket_labels, cumulative, suffix="_bucket", exemplar=exemplar)
        self.add(format_labels(labels), total, suffix="_sum")
        self.add(format_labels(labels), cumulative, suffix="_count")

    def encode(self) -> bytes:
        end = ["# EOF"] if self.is_openmetrics else []
        return "".join(f"{line}\n" for line in (*self._lines, *end)).encode()

    # The name until release 0.1; kept until release 0.3.
    content = encode

    @property
    def content_type(self) -> str:
        return OPENMETRICS if self.is_openmetrics else PLAIN


def format_number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))


def format_labels(labels: Mapping[str, str]) -> str:
    """`{job_name="a",rank="0"}`; empty labels are omitted, as in Prometheus."""
    pairs = ",".join(f'{name}="{escape(text)}"' for name, text in labels.items() if text)
    return f"{{{pairs}}}" if pairs else ""


def escape(text: str) -> str:
    """Escape a label value, truncated to MAX_LABEL_CHARACTERS."""
    return text[:MAX_LABEL_CHARACTERS].replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Histogram:
    """The observations of one label set, by upper bound; each bucket has its newest exemplar."""

    __slots__ = ("bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.exemplars: list[Exemplar | None] = [None] * len(self.counts)
        self.total = 0.0

    def observe(self, value: float, exemplar: Exemplar | None = None) -> None:
        bucket = bisect_left(self.bounds, value)
        self.counts[bucket] += 1
        self.total += value
        if exemplar is not None:
            self.exemplars[bucket] = exemplar


class Counter:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0


class MetricFamily(Generic[Value]):
    def __init__(self, name: str, help: str, labels: Sequence[str]) -> None:
        self.name, self.help, self.labels = name, help, tuple(labels)
        self.values_by_labels: dict[tuple[str, ...], Value] = {}
        self.lock = threading.Lock()

    def find_value(self, label_values: tuple[str, ...]) -> Value:
        """Find or create the value for these label values; the caller holds the lock."""
        value = self.values_by_labels.get(label_values)
        if value is None:
            if len(self.values_by_labels) >= MAX_LABEL_SETS:
                label_values = (OTHER,) * len(self.labels)
            value = self.values_by_labels.setdefault(label_values, self.create_value())
        return value

    def create_value(self) -> Value:
        raise NotImplementedError

    def list_rows(self) -> list[tuple[dict[str, str], Value]]:
        with self.lock:
            items = list(self.values_by_labels.items())
        return [(dict(zip(self.labels, label_values, strict=True)), value) for label_values, value in items]


class Counters(MetricFamily[Counter]):
    def create_value(self) -> Counter:
        return Counter()

    def add(self, label_values: tuple[str, ...], amount: float = 1.0) -> None:
        with self.lock:
            self.find_value(label_values).value += amount

    def write(self, page: MetricsPage) -> None:
        page.begin_family(self.name, self.help)
        for labels, counter in self.list_rows():
            page.add(format_labels(labels), counter.value)


class Histograms(MetricFamily[Histogram]):
    def __init__(self, name: str, help: str, labels: Sequence[str], *, bounds: Sequence[float]) -> None:
        super().__init__(name, help, labels)
        self.bounds = tuple(sorted(bounds))

    def create_value(self) -> Histogram:
        return Histogram(self.bounds)

    def observe(self, label_values: tuple[str, ...], value: float, exemplar: Exemplar | None = None) -> None:
        with self.lock:
            self.find_value(label_values).observe(value, exemplar)

    def write(self, page: MetricsPage) -> None:
        page.begin_family(self.name, self.help, is_histogram=True)
        for labels, histogram in self.list_rows():
            with self.lock:
                page.add_histogram(labels, histogram)
