"""Counters and histograms by label set, with a limit on label sets; `inference` updates them, `page` formats them.

A label set beyond the limit is counted under `other`, so that a client that invents model names cannot fill the memory.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Sequence
from typing import Generic, TypeVar

from watchkeeper.instrument.page import Exemplar, MetricsPage, format_labels, format_number

MAX_LABEL_SETS = 200
OTHER = "other"
Value = TypeVar("Value")


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
                counts, exemplars, total = list(histogram.counts), list(histogram.exemplars), histogram.total
            cumulative = 0
            for bound, count, exemplar in zip((*histogram.bounds, math.inf), counts, exemplars, strict=True):
                cumulative += count
                page.add(
                    format_labels({**labels, "le": format_number(bound)}),
                    cumulative,
                    suffix="_bucket",
                    exemplar=exemplar,
                )
            page.add(format_labels(labels), total, suffix="_sum")
            page.add(format_labels(labels), cumulative, suffix="_count")
