"""The newest exemplars of all series, in a ring buffer in memory, as in Prometheus.

Scrapes and remote write add them, and `/api/v1/query_exemplars` reads them. They refer to traces, which have their own
storage, so a restart may lose them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from operator import itemgetter

from watchkeeper.model.exemplars import Exemplar
from watchkeeper.model.labels import Labels

# About 10 MB when full; Prometheus keeps 100,000.
MAX_EXEMPLARS = 20_000


class Exemplars:
    """At most `max_exemplars`; adding another drops the oldest."""

    def __init__(self, max_exemplars: int = MAX_EXEMPLARS) -> None:
        self._max_exemplars = max_exemplars
        self._lock = threading.Lock()
        # The series of each exemplar, the oldest first.
        self._series_by_age: deque[Labels] = deque()
        self._exemplars_by_series: dict[Labels, deque[Exemplar]] = {}

    def add(self, series: Labels, exemplar: Exemplar) -> bool:
        """Add an exemplar, unless it is not newer than the last of its series: exporters repeat them at each scrape."""
        with self._lock:
            stored = self._exemplars_by_series.get(series)
            if exemplar.is_too_long or (stored and exemplar.at_ms <= stored[-1].at_ms):
                return False
            if stored and (exemplar.labels, exemplar.value) == (stored[-1].labels, stored[-1].value):
                return False
            self._exemplars_by_series.setdefault(series, deque()).append(exemplar)
            self._series_by_age.append(series)
            if len(self._series_by_age) > self._max_exemplars:
                self._drop_oldest(self._series_by_age.popleft())
            return True

    def select(
        self, matches: Callable[[Labels], bool], start_ms: int, end_ms: int
    ) -> list[tuple[Labels, list[Exemplar]]]:
        """The exemplars with start ≤ time ≤ end of matching series, in the order of their labels."""
        with self._lock:
            stored = [(series, list(exemplars)) for series, exemplars in self._exemplars_by_series.items()]
        selected = (
            (series, [exemplar for exemplar in exemplars if start_ms <= exemplar.at_ms <= end_ms])
            for series, exemplars in stored
            if matches(series)
        )
        return sorted((entry for entry in selected if entry[1]), key=itemgetter(0))

    def __len__(self) -> int:
        return len(self._series_by_age)

    def _drop_oldest(self, series: Labels) -> None:
        series_exemplars = self._exemplars_by_series[series]
        series_exemplars.popleft()
        if not series_exemplars:
            del self._exemplars_by_series[series]
