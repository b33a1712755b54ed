"""Which expressions can ever answer, given the series that there are."""

from __future__ import annotations

import pytest

from watchkeeper.doctor.stack import answers
from watchkeeper.query.promql import parser

EXISTING = answers.ExistingSeries(frozenset({"up", "temp"}), {"temp": frozenset({"gpu", "Hostname"})})


@pytest.mark.parametrize(
    ("expr", "lacks"),
    [
        ("temp > 85", []),
        ("gone > 85", ["there is no series gone"]),
        ("temp and on (gpu) gone", ["there is no series gone"]),
        ("temp or gone", []),
        ("gone or lost", ["there is no series gone", "there is no series lost"]),
        ("temp unless gone", []),
        ("gone unless temp", ["there is no series gone"]),
        ("absent(gone)", []),
        ("absent_over_time(gone[5m]) * temp", []),
        ("sum(rate(gone[5m])) or vector(0)", []),
        ("count by (x) (max_over_time(gone[1h:1m])) / 2", ["there is no series gone"]),
        ('temp{node="n1"}', ["no series temp has the label node"]),
        ('temp{node!="n1"}', []),
        ('temp{node=~".*"}', []),
        ('temp{Hostname="nobody"}', []),
        ('up{nowhere="x"}', []),
        ('{__name__=~"gone.*"}', []),
        ("vector(time()) > 5", []),
    ],
)
def test_an_expression_names_the_series_that_it_needs(expr: str, lacks: list[str]) -> None:
    assert answers.missing_reasons(parser.parse(expr), EXISTING) == lacks


def test_label_names_are_asked_for_only_where_a_matcher_needs_one() -> None:
    assert answers.names_with_labels(parser.parse('a{x="1"} + b{x!="1"} + c')) == {"a"}
