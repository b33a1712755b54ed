"""Every refusal names the place and the reason in words a Prometheus user can search for."""

from __future__ import annotations

import pytest

from tests.query.promql.refusals import REFUSALS
from watchkeeper import errors
from watchkeeper.query.promql import parser

EXPERIMENTS = ["a anchored", "rate(a[5m] smoothed)"]


@pytest.mark.parametrize(("text", "message"), REFUSALS)
def test_a_wrong_expression_is_refused_with_place_and_reason(text: str, message: str) -> None:
    with pytest.raises(errors.QueryError) as caught:
        parser.parse(text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("text", EXPERIMENTS)
def test_an_experiment_of_prometheus_is_refused_as_one(text: str) -> None:
    with pytest.raises(errors.QueryError, match="experimental"):
        parser.parse(text)


def test_text_that_no_encoding_can_carry_is_refused() -> None:
    with pytest.raises(errors.QueryError, match="1:3: expression is not valid UTF-8"):
        parser.parse('a{\udcff="x"}')
