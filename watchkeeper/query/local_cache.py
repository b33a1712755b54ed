"""A server's engine with the newest samples near at hand: rules are evaluated here, and what they say is written there.

A server evaluates the shipped rules over 100,000 GPUs for minutes, because each of a hundred questions goes through all
its series anew. This hub has read those samples itself: with `[query] near` it keeps `[query] memory` of them beside
sending them on, and `for_rules` answers from there whatever reaches no further back. All other questions go to the
server, which may know more than one hub. Rules go on while the server is away.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np

from watchkeeper.config import settings
from watchkeeper.kit import durations
from watchkeeper.model.labels import Labels
from watchkeeper.query.embedded import MAX_PARSED_EXPRESSIONS, EmbeddedEngine
from watchkeeper.query.engine import InstantEngine, QueryLimits, QueryResult
from watchkeeper.query.prometheus import LIMITS, PrometheusEngine
from watchkeeper.query.promql import ast, parser, walk
from watchkeeper.query.remote.remote_appender import RemoteAppender
from watchkeeper.store.columns import Ints
from watchkeeper.store.groups import grow_column
from watchkeeper.store.head.head import NUMBER_MASK, Head
from watchkeeper.store.interfaces import AnySample, Appended

# The longest usual scrape interval: so long after the first scrape every target has been read.
FIRST_ROUND_MS = 60_000
NOT_SENT = -1


class LocalCacheEngine(PrometheusEngine):
    """Whatever is written goes to the server and stays here for a while."""

    def __init__(self, access: settings.QuerySettings, limits: QueryLimits = LIMITS) -> None:
        super().__init__(access, limits)
        self.cache_ms = durations.parse_ms(access.memory)
        self.cache_appender = LocalCacheAppender(
            Head(retention_ms=self.cache_ms, max_series=access.max_series), self.remote
        )
        self.cache_engine = EmbeddedEngine(self.cache_appender.head, QueryLimits(max_series=None, max_samples=None))

    @property
    def appender(self) -> LocalCacheAppender:
        return self.cache_appender

    def for_rules(self) -> InstantEngine:
        return _RuleEngine(self)


class LocalCacheAppender:
    """Implements `store.interfaces.Appender`: samples stay in memory, and go on to the server."""

    metadata = None
    exemplars = None

    def __init__(self, head: Head, remote: RemoteAppender) -> None:
        self.head, self._remote = head, remote
        # For each series number here its number on the way to the server.
        self._sent_as = np.empty(0, dtype=np.int64)
        self._naming = threading.Lock()
        # From here on memory has all that was scraped.
        self.since_ms: int | None = None

    def series_id(self, labels: Labels) -> int:
        number, sent_as = self.head.series_id(labels), self._remote.series_id(labels)
        with self._naming:
            self._sent_as = grow_column(self._sent_as, (number & NUMBER_MASK) + 1, fill=NOT_SENT)
            self._sent_as[number & NUMBER_MASK] = sent_as
        return number

    def append_scrape(self, key: Hashable, ids: Sequence[int], at_ms: int, values: Sequence[float]) -> Appended:
        numbers: Ints = np.asarray(ids, dtype=np.int64)
        kept = self.head.append_scrape(key, numbers, at_ms, values)
        if self.since_ms is None:
            self.since_ms = at_ms + FIRST_ROUND_MS
        sent = self._remote.append_scrape(key, self._sent_as[numbers & NUMBER_MASK].tolist(), at_ms, values)
        # A series that is forgotten here or there is asked for anew.
        lost = {"forgotten": kept.dropped["forgotten"]} if "forgotten" in kept.dropped else {}
        return Appended(sent.kept, dict(Counter(sent.dropped) | Counter(lost)))

    def append(self, samples: Iterable[AnySample], *, group_key: str | None = None) -> Appended:
        """Keep samples here, and queue them for the server without waiting for it."""
        found = list(samples)
        kept = self.head.append(found, group_key=group_key)
        sent = self._remote.writer().offer(found) if found else Appended(0)
        return Appended(min(kept.kept, sent.kept), dict(Counter(kept.dropped) + Counter(sent.dropped)))

    def active_series(self, key: Hashable, since_ms: int) -> Mapping[int, Labels]:
        """A hub that starts has nothing in memory yet."""
        return self._remote.active_series(key, since_ms)

    def sync(self) -> int:
        return self._remote.sync()


class _RuleEngine:
    """A near engine for rules: what memory reaches is answered from there."""

    def __init__(self, engine: LocalCacheEngine) -> None:
        self._engine = engine
        self._reaches: OrderedDict[str, int | None] = OrderedDict()

    def instant(self, expr: str, at_ms: int) -> QueryResult:
        engine, reach_ms, since_ms = self._engine, self._reach_ms(expr), self._engine.cache_appender.since_ms
        if reach_ms is not None and since_ms is not None and reach_ms <= min(engine.cache_ms, at_ms - since_ms):
            return engine.cache_engine.instant(expr, at_ms)
        return engine.instant(expr, at_ms)

    def _reach_ms(self, expr: str) -> int | None:
        if expr not in self._reaches:
            limits = self._engine.cache_engine.limits()
            self._reaches[expr] = required_lookback_ms(parser.parse(expr, limits), limits.lookback_ms)
            if len(self._reaches) > MAX_PARSED_EXPRESSIONS:
                self._reaches.popitem(last=False)
        return self._reaches[expr]


def required_lookback_ms(expr: ast.Expr, lookback_ms: int) -> int | None:
    """How far back an expression looks from the time it is asked for; None where only its evaluation would tell."""
    if isinstance(expr, ast.Selector | ast.RangeSelector | ast.Subquery):
        place = expr.selector if isinstance(expr, ast.RangeSelector) else expr
        ranged_by = None if isinstance(expr, ast.Selector) else expr.range_by
        if place.at is not None or place.offset_by is not None or ranged_by is not None:
            return None
        own = place.offset_ms + (lookback_ms if isinstance(expr, ast.Selector) else expr.range_ms)
        if not isinstance(expr, ast.Subquery):
            return max(own, 0)
        inner = required_lookback_ms(expr.expr, lookback_ms)
        return None if inner is None else max(own, 0) + inner
    found = [required_lookback_ms(child, lookback_ms) for child in walk.children(expr)]
    return None if any(one is None for one in found) else max((one for one in found if one is not None), default=0)
