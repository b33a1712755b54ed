"""The newest exemplars of all series, in memory: a ring, as in Prometheus.

Scrapes and remote writers note theirs, and `/api/v1/query_exemplars` asks. They lead to traces, which
have their own store; so a restart may forget them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from watchkeeper.model.exemplars import Exemplar
from watchkeeper.model.labels import Labels

# Some 10 MB when full; Prometheus keeps 100,000.
ROOM = 20_000


class Exemplars:
    """Bounded by number: one more lets the oldest go."""

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._lock = threading.Lock()
        # Whose turn it is to go: the series of each exemplar, in the order in which they came.
        self._order: deque[Labels] = deque()
        self._of: dict[Labels, deque[Exemplar]] = {}

    def add(self, series: Labels, exemplar: Exemplar) -> bool:
        """Keep one, unless the series has one as new already: exporters repeat theirs at each scrape."""
        with self._lock:
            kept = self._of.get(series)
            if exemplar.is_too_long or (kept and exemplar.at_ms <= kept[-1].at_ms):
                return False
            if kept and (exemplar.labels, exemplar.value) == (kept[-1].labels, kept[-1].value):
                return False
            self._of.setdefault(series, deque()).append(exemplar)
            self._order.append(series)
            if len(self._order) > self._room:
                self._let_go(self._order.popleft())
            return True

    def select(
        self, is_meant: Callable[[Labels], bool], start_ms: int, end_ms: int
    ) -> list[tuple[Labels, list[Exemplar]]]:
        """The exemplars with start ≤ time ≤ end of the series that are meant, in the order of their labels."""
        with self._lock:
            known = [(series, list(kept)) for series, kept in self._of.items()]
        chosen = (
            (series, [each for each in kept if start_ms <= each.at_ms <= end_ms])
            for series, kept in known
            if is_meant(series)
        )
        return sorted((found for found in chosen if found[1]), key=lambda found: found[0])

    def __len__(self) -> int:
        return len(self._order)

    def _let_go(self, series: Labels) -> None:
        kept = self._of[series]
        kept.popleft()
        if not kept:
            del self._of[series]
