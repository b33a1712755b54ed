"""Laws: a durable store gives the results of an unlimited head, with any blocks, merges and restarts in between."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from tests.store.durables import MINUTE, SETTINGS, Rig, named, read
from watchkeeper.model.samples import STALE, Sample
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.query.engine import QueryLimits, QueryRange
from watchkeeper.store.durable import SampleStore
from watchkeeper.store.head.head import Head

LIMITS = dataclasses.replace(SETTINGS, memory_ms=MINUTE, retention_ms=10**12)
VALUES = st.one_of(
    st.integers(0, 1000).map(lambda number: number / 8), st.sampled_from([STALE, float("nan"), -0.0]), st.floats()
)
STEP = st.one_of(
    st.tuples(st.just("scrape"), st.sampled_from(["a", "b", "ab", "abc"]), st.integers(0, 9), VALUES),
    st.tuples(st.just("sample"), st.sampled_from("abc"), st.integers(0, 9), VALUES),
    st.tuples(st.sampled_from(["wait", "upkeep", "restart"]), st.just(""), st.integers(1, 50), st.just(0.0)),
)
Step = tuple[str, str, int, float]
QUERIES = ("x", "sum(x)", "rate(x[10m])", "count_over_time(x[1h])", "last_over_time(x[3h])", "x offset 2h")


@contextmanager
def lived(steps: list[Step]) -> Iterator[tuple[Rig, Head]]:
    """The same history in a durable store and in a head that forgets nothing."""
    plain = Head(retention_ms=10**12, late_ms=LIMITS.late_ms)
    with tempfile.TemporaryDirectory() as folder:
        rig = Rig(Path(folder), LIMITS)
        for step in steps:
            take(rig, plain, step)
        yield rig, plain
        rig.store.close()


def take(rig: Rig, plain: Head, step: Step) -> None:
    """One step of both; scrapes and samples come up to 9 minutes late, and both must say the same of them."""
    kind, keys, amount, value = step
    if kind == "scrape":
        rig.now_ms += 15_000
        at_ms, values = max(0, rig.now_ms - amount // 6 * MINUTE), np.array([value] * len(keys))
        outcomes = []
        for store in (rig.store, plain):
            ids = [store.series_id(named("x", key=key)) for key in keys]
            outcomes.append(store.append_scrape(keys, ids, at_ms, values, now_ms=rig.now_ms))
        assert outcomes[0] == outcomes[1]
    elif kind == "sample":
        batch = [Sample(named("x", key=keys), max(0, rig.now_ms - amount * MINUTE), value)]
        assert rig.store.append(batch, now_ms=rig.now_ms) == plain.append(batch, now_ms=rig.now_ms)
    elif kind == "wait":
        rig.now_ms += amount * MINUTE
    elif kind == "upkeep":
        rig.store.maintain(rig.now_ms)
    else:
        rig.reopen()
    # Time passes for both, even where nothing comes in.
    for store in (rig.store, plain):
        store.append([Sample(named("tick"), rig.now_ms, 0.0)])


@pytest.mark.slow
@examples(60)
@given(st.lists(STEP, max_size=40), st.integers(0, 300), st.integers(0, 300))
def test_memory_and_blocks_have_the_samples_of_an_unlimited_head(steps: list[Step], start: int, length: int) -> None:
    with lived(steps) as (rig, plain):
        assert read(rig.store) == read(plain)
        since, until = start * MINUTE, (start + length) * MINUTE
        assert read(rig.store, start=since, end=until) == read(plain, start=since, end=until)
        rig.now_ms += 10**9
        rig.store.maintain(rig.now_ms)
        rig.reopen()
        assert read(rig.store) == read(plain)


@pytest.mark.slow
@examples(60)
@given(st.lists(STEP, max_size=40), st.integers(0, 300))
def test_queries_over_blocks_equal_queries_over_memory(steps: list[Step], at: int) -> None:
    with lived(steps) as (rig, plain):
        rig.store.maintain(rig.now_ms)
        for query in QUERIES:
            assert answer(rig.store, query, at * MINUTE) == answer(plain, query, at * MINUTE), query


def answer(store: SampleStore, query: str, at_ms: int) -> list[tuple[str, list[int], str]]:
    engine = EmbeddedEngine(store, QueryLimits(lookback_ms=600_000))
    ranged = engine.range(query, QueryRange(at_ms, at_ms + 60 * MINUTE, 5 * MINUTE))
    rows = [*ranged.frame.rows(), *engine.instant(query, at_ms).frame.rows()]
    return sorted((str(labels), times.tolist(), str(values)) for labels, times, values in rows)
