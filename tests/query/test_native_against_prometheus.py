"""Native histograms that a real Prometheus keeps come back from it as they were written, and are computed alike.

Debian's 2.42 interpolates in another way than Prometheus 3, so what is asked lies on the bounds of buckets; counters
start high, because it lets a rate reach below zero; and it has few functions for histograms.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.support import engines
from watchkeeper.model.histograms import Histogram, HistogramSample, sum_histograms
from watchkeeper.model.labels import Labels
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.query.engine import QueryResult
from watchkeeper.query.prometheus import PrometheusEngine
from watchkeeper.store.head.head import Head
from watchkeeper.store.interfaces import AnySample

pytestmark = pytest.mark.servers
START_MS, STEP_MS = 1_700_000_000_000, 15_000
AT_MS = START_MS + 40 * STEP_MS + 1
EXPRESSIONS = (
    "latency",
    "rate(latency[3m])",
    "increase(latency[100s])",
    "sum(latency)",
    "sum by (job) (rate(latency[3m]))",
    "latency + latency",
    "histogram_count(latency)",
    "histogram_sum(latency)",
    "histogram_fraction(0.5, 4, latency)",
    "histogram_fraction(-8, -0.25, latency)",
    "histogram_fraction(-Inf, +Inf, latency)",
    "count_over_time(latency[3m])",
    "count(latency)",
)


def observed(random_numbers: random.Random, schema: int) -> Histogram:
    sides = [
        tuple((at, float(random_numbers.randint(0, 9))) for at in sorted(random_numbers.sample(range(-3, 9), size)))
        for size in (5, 3)
    ]
    count = 2.0 + sum(count for side in sides for _, count in side)
    return Histogram(schema, count, random_numbers.uniform(-9, 9), 0.001, 2.0, positive=sides[0], negative=sides[1])


def samples() -> Iterator[list[AnySample]]:
    """Counters of two schemas, one of which begins anew halfway; one scrape after the other."""
    random_numbers = random.Random(3)
    series = [Labels({"__name__": "latency", "job": str(job), "schema": str(job % 2)}) for job in range(4)]
    start = [observed(random_numbers, job % 2).scaled(1000.0) for job in range(4)]
    reached = list(start)
    for step in range(41):
        for job in range(4):
            anew = job == 3 and step == 20
            more = observed(random_numbers, job % 2)
            reached[job] = start[job] if anew else sum_histograms([reached[job], more]).histogram
        yield [HistogramSample(series[job], START_MS + step * STEP_MS, reached[job]) for job in range(4)]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PrometheusEngine, EmbeddedEngine]]:
    folder, embedded = tmp_path_factory.mktemp("prometheus"), EmbeddedEngine(Head())
    with engines.prometheus(folder, features="native-histograms") as url, engines.engine_of(url) as server:
        for scrape in samples():
            assert (server.appender.append(scrape).kept, embedded.appender.append(scrape).kept) == (4, 4)
        yield server, embedded


def spelled(answer: QueryResult) -> dict[str, list[tuple[float, ...]]]:
    """Each series as numbers: a histogram's count and sum, then the bounds and population of each bucket."""
    found = {str(labels): [(value,)] for labels, value in answer.latest().items()}
    for labels, one in answer.latest_histograms().items():
        filled = [tuple(bucket) for bucket in one.buckets() if abs(bucket.population) > 1e-9]
        found[str(labels)] = [(one.count, one.sum), *filled]
    return found


@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_both_engines_answer_the_same(both: tuple[PrometheusEngine, EmbeddedEngine], expr: str) -> None:
    theirs, ours = (spelled(engine.instant(expr, AT_MS)) for engine in both)
    assert theirs.keys() == ours.keys()
    for series, rows in theirs.items():
        assert len(rows) == len(ours[series])
        for row, other in zip(rows, ours[series], strict=True):
            assert row == pytest.approx(other, rel=1e-9)


def test_a_range_of_histograms_comes_back_whole(both: tuple[PrometheusEngine, EmbeddedEngine]) -> None:
    answers = [engine.instant("latency[2m]", AT_MS) for engine in both]
    cells = [answer.frame.histograms for answer in answers]
    assert cells[0] is not None
    assert cells[1] is not None
    assert cells[0].shape == cells[1].shape
    assert [one.count for one in cells[0].ravel()] == [one.count for one in cells[1].ravel()]
