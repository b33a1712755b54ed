"""Engines with a few series in Prometheus' test notation, and answers as plain dicts."""

from __future__ import annotations

from tests.query import notation
from watchkeeper.kit import durations
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.query.engine import QueryLimits, QueryRange
from watchkeeper.store.head.head import Head

YEAR_MS = 366 * 86_400_000
UNLIMITED = QueryLimits()


def loaded(*lines: str, step: str = "1m", limits: QueryLimits = UNLIMITED) -> EmbeddedEngine:
    """An engine with one series per line, such as `x{gpu="0"} 0+10x5 _ stale`, one point per step from 0 on."""
    engine = EmbeddedEngine(Head(retention_ms=YEAR_MS), limits)
    step_ms = durations.parse_ms(step)
    for line in lines:
        series = notation.read_series(line)
        points = enumerate(series.points)
        engine.appender.append(
            notation.sample(series.labels, at * step_ms, point) for at, point in points if point is not None
        )
    return engine


def instant(engine: EmbeddedEngine, expr: str, at: str = "0") -> dict[str, float]:
    """Series as text to value; the order is that of the answer."""
    answer = engine.instant(expr, durations.parse_ms(at))
    return {str(labels): value for labels, value in answer.latest().items()}


def ranged(engine: EmbeddedEngine, expr: str, end: str, *, step: str = "1m") -> dict[str, dict[int, float]]:
    """Series as text to values by second, from 0 to the end."""
    span = QueryRange(0, durations.parse_ms(end), durations.parse_ms(step))
    rows = engine.range(expr, span).frame.rows()
    return {
        str(labels): {int(at) // 1000: float(value) for at, value in zip(times, values, strict=True)}
        for labels, times, values in rows
    }
