"""A remote engine with a local cache of the newest samples, for rule evaluation.

A server needs minutes to evaluate the shipped rules over 100,000 GPUs, because each of a hundred queries reads all
series again. With `[query] near` this hub caches the last `[query] memory` of the samples that it scrapes, and
`for_rules` queries the cache if the expression looks back no further.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np

from watchkeeper.config import settings
from watchkeeper.kit import durations
from watchkeeper.kit.recency_cache import RecencyCache
from watchkeeper.model.labels import Labels
from watchkeeper.query.embedded import MAX_PARSED_EXPRESSIONS, EmbeddedEngine
from watchkeeper.query.engine import InstantEngine, QueryLimits, QueryResult
from watchkeeper.query.prometheus import PrometheusEngine
from watchkeeper.query.promql import ast, parser, walk
from watchkeeper.query.remote.remote_appender import RemoteAppender
from watchkeeper.store.columns import Ints
from watchkeeper.store.groups import grow_column
from watchkeeper.store.head.head import NUMBER_MASK, Head
from watchkeeper.store.interfaces import AnySample, Appended

# The longest usual scrape interval: after that time every target was scraped once.
FIRST_ROUND_MS = 60_000
NO_REMOTE_ID = -1


class LocalCacheEngine(PrometheusEngine):
    def __init__(self, access: settings.QuerySettings) -> None:
        super().__init__(access)
        self.cache_ms = durations.parse_ms(access.memory)
        head = Head(retention_ms=self.cache_ms, max_series=access.max_series)
        self.cache_appender = LocalCacheAppender(head, self.remote)
        limits = QueryLimits(max_series=None, max_samples=None, max_bytes=access.max_query_mebibytes << 20)
        self.cache_engine = EmbeddedEngine(head, limits)

    @property
    def appender(self) -> LocalCacheAppender:
        return self.cache_appender

    def for_rules(self) -> InstantEngine:
        return _RuleEngine(self)


class LocalCacheAppender:
    """Implements `store.interfaces.Appender`: caches samples in memory and sends them to the server."""

    metadata = None
    exemplars = None

    def __init__(self, head: Head, remote: RemoteAppender) -> None:
        self.head, self._remote = head, remote
        # For each series id of the cache, its id in the remote appender.
        self._remote_ids = np.empty(0, dtype=np.int64)
        self._ids_lock = threading.Lock()
        # From this time on, the cache has all scraped samples.
        self.since_ms: int | None = None

    def series_id(self, labels: Labels) -> int:
        number, remote_id = self.head.series_id(labels), self._remote.series_id(labels)
        with self._ids_lock:
            self._remote_ids = grow_column(self._remote_ids, (number & NUMBER_MASK) + 1, fill=NO_REMOTE_ID)
            self._remote_ids[number & NUMBER_MASK] = remote_id
        return number

    def append_scrape(self, key: Hashable, ids: Sequence[int], at_ms: int, values: Sequence[float]) -> Appended:
        numbers: Ints = np.asarray(ids, dtype=np.int64)
        cached = self.head.append_scrape(key, numbers, at_ms, values)
        if self.since_ms is None:
            self.since_ms = at_ms + FIRST_ROUND_MS
        sent = self._remote.append_scrape(key, self._remote_ids[numbers & NUMBER_MASK].tolist(), at_ms, values)
        # The scraper requests a new id for a series that either side has forgotten.
        lost = {"forgotten": cached.dropped["forgotten"]} if "forgotten" in cached.dropped else {}
        return Appended(sent.kept, dict(Counter(sent.dropped) | Counter(lost)))

    def append(self, samples: Iterable[AnySample], *, group_key: str | None = None) -> Appended:
        """Cache samples, and queue them for the server without waiting for it."""
        batch = list(samples)
        cached = self.head.append(batch, group_key=group_key)
        sent = self._remote.require_sender().enqueue(batch) if batch else Appended(0)
        return Appended(min(cached.kept, sent.kept), dict(Counter(cached.dropped) + Counter(sent.dropped)))

    def active_series(self, key: Hashable, since_ms: int) -> Mapping[int, Labels]:
        """The series of the remote appender: after a start the cache is empty."""
        return self._remote.active_series(key, since_ms)

    def sync(self) -> int:
        return self._remote.sync()


class _RuleEngine:
    """Queries the cache if the expression looks back no further than the cache, else the server."""

    def __init__(self, engine: LocalCacheEngine) -> None:
        self._engine, limits = engine, engine.cache_engine.limits()
        self._lookback_ms: RecencyCache[str, int | None] = RecencyCache(
            lambda expr: required_lookback_ms(parser.parse(expr, limits), limits.lookback_ms),
            max_entries=MAX_PARSED_EXPRESSIONS,
        )

    def instant(self, expr: str, at_ms: int) -> QueryResult:
        engine, lookback_ms, since_ms = self._engine, self._lookback_ms(expr), self._engine.cache_appender.since_ms
        if lookback_ms is not None and since_ms is not None and lookback_ms <= min(engine.cache_ms, at_ms - since_ms):
            return engine.cache_engine.instant(expr, at_ms)
        return engine.instant(expr, at_ms)


def required_lookback_ms(expr: ast.Expr, lookback_ms: int) -> int | None:
    """How far an expression looks back from its evaluation time; None if only an evaluation can tell."""
    if isinstance(expr, ast.Selector | ast.RangeSelector | ast.Subquery):
        selector = expr.selector if isinstance(expr, ast.RangeSelector) else expr
        range_expr = None if isinstance(expr, ast.Selector) else expr.range_expr
        if selector.at is not None or selector.offset_expr is not None or range_expr is not None:
            return None
        own_ms = selector.offset_ms + (lookback_ms if isinstance(expr, ast.Selector) else expr.range_ms)
        if not isinstance(expr, ast.Subquery):
            return max(own_ms, 0)
        inner = required_lookback_ms(expr.expr, lookback_ms)
        return None if inner is None else max(own_ms, 0) + inner
    longest_ms = 0
    for child in walk.iterate_children(expr):
        child_ms = required_lookback_ms(child, lookback_ms)
        if child_ms is None:
            return None
        longest_ms = max(longest_ms, child_ms)
    return longest_ms
