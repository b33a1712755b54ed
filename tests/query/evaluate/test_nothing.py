"""Operators and aggregations over nothing, which most alerts are about: no label work, and the answer as ever."""

from __future__ import annotations

import pytest

from tests.query.loading import instant, loaded

SERIES = ('hot{gpu="0"} 90 91', 'hot{gpu="1"} 40 41', 'used{gpu="0"} 1 2', 'used{gpu="1"} 3 4')
HOT = {'hot{gpu="0"}': 91.0, 'hot{gpu="1"}': 41.0}


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ("hot or hot > 99", HOT),
        ("hot > 99 or hot", HOT),
        ("hot unless hot > 99", HOT),
        ("hot and hot > 99", {}),
        ("hot > 99 and hot", {}),
        ("hot > 99 unless hot", {}),
        ("hot > 99 or used > 99", {}),
        ("sum by (gpu) (hot > 99)", {}),
        ("count(hot > 99) or vector(0)", {"{}": 0.0}),
        ("absent(max by (gpu) (hot > 99))", {"{}": 1.0}),
        ("count_over_time((hot > 99 and hot)[2m:1m])", {}),
    ],
)
def test_an_empty_vector_changes_no_result(expr: str, expected: dict[str, float]) -> None:
    assert instant(loaded(*SERIES), expr, "1m") == expected
