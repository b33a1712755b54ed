"""Answers that the event loop makes itself: the same as a thread's, and only where they are quick."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from watchkeeper.model.labels import Labels
from watchkeeper.query.embedded import MAX_CHEAP_POINTS, EmbeddedEngine
from watchkeeper.query.engine import QueryRange
from watchkeeper.store import durable
from watchkeeper.store.head.head import Head

MINUTE = 60_000
SPAN = QueryRange(5 * MINUTE, 20 * MINUTE, MINUTE)
PANEL = 'temp{node="a"}'


def filled(engine: EmbeddedEngine, *, minutes: int = 20) -> EmbeddedEngine:
    ids = [
        engine.appender.series_id(Labels({"__name__": "temp", "node": node, "gpu": str(gpu)}))
        for node in "ab"
        for gpu in (0, 1)
    ]
    for minute in range(1, minutes + 1):
        engine.appender.append_scrape("nodes", ids, minute * MINUTE, [float(minute + gpu) for gpu in range(len(ids))])
    return engine


def test_a_repeated_panel_is_cheap_and_has_the_same_result() -> None:
    engine = filled(EmbeddedEngine(Head()))
    assert engine.range_if_cheap(PANEL, SPAN) is None
    slow = engine.range(PANEL, SPAN)
    quick = engine.range_if_cheap(PANEL, SPAN)
    assert quick is not None
    assert quick.frame.labels == slow.frame.labels
    assert np.array_equal(quick.frame.values, slow.frame.values)


def test_a_panel_with_a_new_series_is_not_cheap() -> None:
    engine = filled(EmbeddedEngine(Head()))
    engine.range(PANEL, SPAN)
    engine.appender.series_id(Labels({"__name__": "temp", "node": "a", "gpu": "2"}))
    assert engine.range_if_cheap(PANEL, SPAN) is None


@pytest.mark.parametrize("expr", ["sum(temp)", "rate(temp[5m])", "temp offset 1h", "temp @ 60", "1"])
def test_expensive_expressions_are_not_cheap(expr: str) -> None:
    engine = filled(EmbeddedEngine(Head()))
    engine.range(expr, SPAN)
    assert engine.range_if_cheap(expr, SPAN) is None


def test_too_many_points_are_not_cheap() -> None:
    engine = filled(EmbeddedEngine(Head()))
    engine.range("temp", SPAN)
    long = QueryRange(0, MAX_CHEAP_POINTS * 1000, 1000)
    assert engine.range_if_cheap("temp", long) is None


@pytest.mark.slow
def test_samples_in_blocks_are_not_cheap(tmp_path: Path) -> None:
    now = [MINUTE]
    limits = durable.StoreSettings(memory_ms=10 * MINUTE, block_ms=5 * MINUTE, late_ms=0)
    store = durable.open_store(tmp_path, limits, clock_ms=lambda: now[0])
    engine = EmbeddedEngine(store)
    for minute in range(1, 61):
        now[0] = minute * MINUTE
        engine.appender.append_scrape(
            "node", [engine.appender.series_id(Labels({"__name__": "temp", "node": "a"}))], now[0], [1.0]
        )
        store.maintain(now[0])
    recent, old = QueryRange(59 * MINUTE, 60 * MINUTE, MINUTE), QueryRange(5 * MINUTE, 20 * MINUTE, MINUTE)
    engine.range(PANEL, recent)
    assert engine.range_if_cheap(PANEL, recent) is not None
    assert engine.range_if_cheap(PANEL, old) is None
    engine.close()
