"""Who holds a place, remembered for moments: a storm asks about the same places again and again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hub_stories import Line, gpu, later
from watchkeeper.query import engine as engines


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    line = Line(tmp_path)
    yield line
    line.journal.close()


def count_questions(line: Line, *, failing: int = 0) -> list[str]:
    """From now on every question is noted, and the first ones fail."""
    queries: list[str] = []
    instant = line.engine.instant

    def noting(expr: str, at_ms: int) -> engines.QueryResult:
        queries.append(expr)
        if len(queries) <= failing:
            raise OSError("the server is away")
        return instant(expr, at_ms)

    line.engine.instant = noting  # type: ignore[method-assign]
    return queries


def test_a_place_is_queried_once_in_fifteen_seconds(line: Line) -> None:
    queries = count_questions(line)
    line.pipeline.tick(later(0))
    for index in (0, 0, 0, 1):
        line.pipeline.holders.workloads_at(gpu(index))
    assert len(queries) == 2
    line.pipeline.tick(later(14))
    line.pipeline.holders.workloads_at(gpu(0))
    assert len(queries) == 2
    line.pipeline.tick(later(15))
    line.pipeline.holders.workloads_at(gpu(0))
    assert len(queries) == 3


def test_a_failed_query_is_not_cached(line: Line) -> None:
    queries = count_questions(line, failing=1)
    assert not any(line.pipeline.holders.workloads_at(gpu(0)) for _ in range(3))
    assert len(queries) == 2


def test_the_number_of_cached_places_is_limited(line: Line) -> None:
    line.pipeline.holders._cache._max_places = 3
    queries = count_questions(line)
    for index in (0, 1, 2, 3, 3, 0):
        line.pipeline.holders.workloads_at(gpu(index))
    assert len(queries) == 5
