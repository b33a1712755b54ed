"""The check of a week: the example passes on the simulated fleet, and queries that would page wrongly do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from watchkeeper.catalogue import quiz
from watchkeeper.drill import week_check
from watchkeeper.errors import QueryError

MISSING = quiz.find_week(1)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("week", quiz.all_weeks(), ids=lambda week: week.topic)
def test_the_example_of_each_week_passes(week: quiz.Week) -> None:
    result = week_check.check_query(week, week.example)
    assert result.passed, result.why
    assert result.healthy == ()
    assert result.faulty == result.expected != ("",)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("up == 0", "after the fault it returns nothing; expected Hostname gpu-r"),
        ("sum by (Hostname) (DCGM_FI_DEV_GPU_TEMP) > 0", "on the healthy fleet it already returns gpu-r"),
    ],
)
def test_a_query_that_misses_the_fault_or_fires_without_it_fails(query: str, why: str) -> None:
    result = week_check.check_query(replace(MISSING, after_seconds=60), query)
    assert not result.passed
    assert why in result.why


def test_a_result_without_the_label_or_with_other_places_does_not_pass() -> None:
    def judge(*faulty: str) -> str:
        return week_check.judge((), faulty, expected=("n1",), label="Hostname")

    assert judge("n1") == ""
    assert "keep the label, for example with `by (Hostname)`" in judge("")
    assert judge("n1", "n2") == "after the fault it returns n1, n2; expected only Hostname n1"


def test_a_query_that_cannot_be_parsed_is_refused_before_the_simulation() -> None:
    with pytest.raises(QueryError):
        week_check.check_query(MISSING, "sum by (")
