"""A query can exhaust neither the memory nor the time of the hub: each way ends as an error of the query, soon."""

from __future__ import annotations

import threading
import time
import tracemalloc

import numpy as np
import pytest

from tests.query.loading import instant, loaded
from watchkeeper import errors
from watchkeeper.kit import allowance
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.query.engine import QueryLimits, QueryRange
from watchkeeper.store.cache_memory import CACHE_MEMORY

LIMITS = QueryLimits(max_bytes=16 << 20)
# What an evaluation needs for a moment, beside the results that it holds.
PEAK_BYTES = 5 * (16 << 20)
STEPS = QueryRange(0, 11_000_000, 1000)
EXAMPLE_SERIES = 200


def nested(form: str, times: int, expr: str = "temp") -> str:
    for number in range(times):
        expr = form.format(expr, number)
    return expr


@pytest.fixture(scope="module")
def engine() -> EmbeddedEngine:
    lines = (f'{name}{{gpu="{gpu}",node="n{gpu % 9}"}} {gpu}+0.7x60' for gpu in range(EXAMPLE_SERIES) for name in NAMES)
    return loaded(*lines, limits=LIMITS)


NAMES = ("temp", "watts")
LONG, A_9000_TIMES = "x" * 8000, ",".join(['"a"'] * 9000)
TOO_LARGE = {
    "a label that triples": nested('label_join({0},"a","","a","a","a")', 15, 'label_join(temp,"a","","node","gpu")'),
    "a label of many labels": f'label_join(label_replace(temp,"a","{LONG}","",""),"b","",{A_9000_TIMES})',
    "a label repeated": f'label_replace(label_replace(temp,"a","{LONG}","",""),"b","{"$1" * 9000}","a","(.*)")',
    "many long labels": nested('label_replace({0},"a{1}","' + LONG[:600] + '","","")', 95),
    "long parts of sort keys": f'sort_by_label(label_replace(temp,"a","{"1a" * 8000}","",""),"a","a","a","a")',
    "a window of 43 million samples": "deriv(vector(time())[500d:1s])",
    "a range of series with times of their own": "temp[50m:1ms]",
    "subqueries in subqueries": nested("sum_over_time(({0})[1d:1s])", 5),
    "scalars held by their siblings": f"sum_over_time(vector({'(time()+' * 40}time(){')' * 40})[40d:1s])",
}
TOO_LARGE_RANGES = {
    "a value for each cell": 'count_values("value", temp * time())',
    "many series at many steps": "temp + on(gpu) watts",
    "samples for missing series": "temp + on(gpu) fill(0) (watts < 0)",
    "copies of a constant series": "(temp @ 60) + (temp @ 60) + (temp @ 60)",
    "the union of two selections": 'temp or label_replace(temp,"a","b","","")',
    "a pair for each two series": 'temp * on() group_left(gpu) (watts == scalar(watts{gpu="1"}))',
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("expr", TOO_LARGE.values(), ids=TOO_LARGE)
def test_an_instant_query_that_needs_too_much_memory_is_refused(engine: EmbeddedEngine, expr: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(errors.QueryLimit, match="the limit is"):
            engine.instant(expr, 3_000_000)
        assert tracemalloc.get_traced_memory()[1] < PEAK_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("expr", TOO_LARGE_RANGES.values(), ids=TOO_LARGE_RANGES)
def test_a_range_query_that_needs_too_much_memory_is_refused(engine: EmbeddedEngine, expr: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(errors.QueryLimit, match="the limit is 16 MiB"):
            engine.range(expr, STEPS)
        assert tracemalloc.get_traced_memory()[1] < PEAK_BYTES
    finally:
        tracemalloc.stop()


def test_a_limit_is_told_with_both_numbers_and_the_setting(engine: EmbeddedEngine) -> None:
    with pytest.raises(errors.QueryLimit, match=r"needs \d+ MiB of memory or more, the limit is 16 MiB.*max_query_meb"):
        engine.range("temp + on(gpu) watts", STEPS)


def test_what_fits_is_still_answered(engine: EmbeddedEngine) -> None:
    assert len(engine.range("temp + on(gpu) watts", QueryRange(0, 3_000_000, 60_000)).frame.labels) == EXAMPLE_SERIES
    joined = instant(engine, 'label_join(temp{gpu="7"},"a","-","node","gpu","node")', "10m")
    assert list(joined) == ['temp{a="n7-7-n7", gpu="7", node="n7"}']


def test_memory_that_the_machine_does_not_have_is_an_error_of_the_query() -> None:
    with pytest.raises(errors.QueryLimit, match="more memory than this machine has"), allowance.Memory(None):
        np.empty(1 << 50)


def test_cached_labels_of_many_queries_are_dropped_at_a_limit_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CACHE_MEMORY, "fixed_bytes", 4 << 20)
    engine = loaded(*(f'temp{{gpu="{gpu}"}} {gpu}' for gpu in range(EXAMPLE_SERIES)), limits=LIMITS)
    forms = (
        'label_replace(temp,"a{0}","' + "y" * 1000 + '","","")',
        "sum by (a{0}, gpu) (temp)",
        "temp * on (gpu, a{0}) group_left () temp",
        'temp{{gpu!="a{0}"}}',
    )
    before, generation = {form: instant(engine, form.format(0)) for form in forms}, CACHE_MEMORY.generation
    tracemalloc.start()
    try:
        for number in range(150):
            for form in forms:
                instant(engine, form.format(number))
        assert tracemalloc.get_traced_memory()[0] < 16 << 20
    finally:
        tracemalloc.stop()
    assert CACHE_MEMORY.generation > generation
    assert {form: instant(engine, form.format(0)) for form in forms} == before


SLOW = {
    "one window, sample by sample": "double_exponential_smoothing(vector(time())[2d:1s], 0.5, 0.5)",
    "every window again": "max_over_time(quantile_over_time(0.9, temp[10m])[10m:100ms])",
    "labels of labels": " or ".join(f'label_replace(temp,"z{number}","1","","")' for number in range(99)),
    "one step after the other": "count_over_time(topk(5, temp)[50m:100ms])",
    "patterns": "temp{" + ",".join(f'gpu=~".*({number}|x).*"' for number in range(2500)) + "}",
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("expr", SLOW.values(), ids=SLOW)
def test_a_deadline_ends_an_evaluation_inside_its_loops(engine: EmbeddedEngine, expr: str) -> None:
    unlimited, began = EmbeddedEngine(engine.head, QueryLimits(max_bytes=None)), time.process_time()
    with pytest.raises(errors.QueryTimeout, match="timed out in"), allowance.Deadline(0.05).applied():
        unlimited.instant(expr, 3_000_000)
    assert time.process_time() - began < 5.0


def test_another_thread_ends_an_evaluation(engine: EmbeddedEngine) -> None:
    deadline, problems = allowance.Deadline(600.0), list[str]()
    has_begun = threading.Event()

    def evaluate() -> None:
        with deadline.applied():
            has_begun.set()
            try:
                EmbeddedEngine(engine.head).instant(SLOW["one window, sample by sample"], 3_000_000)
            except errors.QueryTimeout as error:
                problems.append(str(error))

    thread = threading.Thread(target=evaluate)
    thread.start()
    assert has_begun.wait(60)
    deadline.cancel()
    thread.join(60)
    assert problems == ["the query was cancelled: its client disconnected"]


def test_a_search_for_series_has_a_deadline_of_its_own_while_appends_wait(engine: EmbeddedEngine) -> None:
    with (
        pytest.raises(errors.QueryTimeout, match=r"in the search for the series of a selector after 0\.001 s"),
        allowance.Deadline(600.0).applied(),
        allowance.tighter_deadline(0.001, "the search for the series of a selector"),
    ):
        instant(engine, SLOW["patterns"])
    with allowance.tighter_deadline(0.0, "a search"):
        assert len(instant(engine, "temp")) == EXAMPLE_SERIES, "rules have no deadline"
