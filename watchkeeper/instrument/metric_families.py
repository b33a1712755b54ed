"""Counters and histograms by label, bounded: what `inference` counts and `page` writes.

A label set beyond the bound is counted under `other`, so that a client who invents model names cannot fill the memory.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Sequence
from typing import Generic, TypeVar

from watchkeeper.instrument.page import Exemplar, MetricsPage, braces, number

MAX_LABEL_SETS = 200
OTHER = "other"
Made = TypeVar("Made")


class Histogram:
    """Observations of one label set by upper bound, each bucket with its newest exemplar."""

    __slots__ = ("bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.exemplars: list[Exemplar | None] = [None] * len(self.counts)
        self.total = 0.0

    def observe(self, value: float, exemplar: Exemplar | None = None) -> None:
        at = bisect_left(self.bounds, value)
        self.counts[at] += 1
        self.total += value
        if exemplar is not None:
            self.exemplars[at] = exemplar


class Counter:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0


class MetricFamily(Generic[Made]):
    """Tallies of one metric name, by the values of its labels."""

    def __init__(self, name: str, help: str, labels: Sequence[str]) -> None:
        self.name, self.help, self.labels = name, help, tuple(labels)
        self.tallies: dict[tuple[str, ...], Made] = {}
        self.lock = threading.Lock()

    def of(self, values: tuple[str, ...]) -> Made:
        """The tally of these values; the lock is the caller's."""
        found = self.tallies.get(values)
        if found is None:
            if len(self.tallies) >= MAX_LABEL_SETS:
                values = (OTHER,) * len(self.labels)
            found = self.tallies.setdefault(values, self.make())
        return found

    def make(self) -> Made:
        raise NotImplementedError

    def rows(self) -> list[tuple[dict[str, str], Made]]:
        with self.lock:
            return [(dict(zip(self.labels, values, strict=True)), tally) for values, tally in self.tallies.items()]


class Counters(MetricFamily[Counter]):
    def make(self) -> Counter:
        return Counter()

    def add(self, values: tuple[str, ...], amount: float = 1.0) -> None:
        with self.lock:
            self.of(values).value += amount

    def write(self, page: MetricsPage, kind: str = "counter") -> None:
        page.begin(self.name, kind, self.help)
        for labels, tally in self.rows():
            page.add(braces(labels), tally.value)


class Histograms(MetricFamily[Histogram]):
    def __init__(self, name: str, help: str, labels: Sequence[str], *, bounds: Sequence[float]) -> None:
        super().__init__(name, help, labels)
        self.bounds = tuple(sorted(bounds))

    def make(self) -> Histogram:
        return Histogram(self.bounds)

    def observe(self, values: tuple[str, ...], value: float, exemplar: Exemplar | None = None) -> None:
        with self.lock:
            self.of(values).observe(value, exemplar)

    def write(self, page: MetricsPage) -> None:
        page.begin(self.name, "histogram", self.help)
        for labels, tally in self.rows():
            with self.lock:
                counts, exemplars, total = list(tally.counts), list(tally.exemplars), tally.total
            below = 0
            for bound, count, exemplar in zip((*tally.bounds, math.inf), counts, exemplars, strict=True):
                below += count
                page.add(braces({**labels, "le": number(bound)}), below, suffix="_bucket", exemplar=exemplar)
            page.add(braces(labels), total, suffix="_sum")
            page.add(braces(labels), below, suffix="_count")
