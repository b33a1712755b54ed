"""Delays double from the first to the longest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from watchkeeper.kit import backoff


def test_delays_double_up_to_the_longest() -> None:
    pauses = backoff.Backoff(first_seconds=5.0, longest_seconds=30.0)
    assert [pauses.delay_seconds(failures) for failures in range(1, 6)] == [5.0, 10.0, 20.0, 30.0, 30.0]


@given(some.integers(min_value=31, max_value=10**9))
def test_the_delay_never_exceeds_the_longest(failures: int) -> None:
    assert backoff.Backoff(0.2, 10.0).delay_seconds(failures) == 10.0
