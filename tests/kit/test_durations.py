"""Prometheus durations: what is printed is read back, and what is wrong is explained."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.kit import durations


@given(st.integers(min_value=0, max_value=durations.MAX_MS))
def test_a_printed_duration_is_read_back_exactly(duration_ms: int) -> None:
    assert durations.parse_ms(durations.format_ms(duration_ms)) == duration_ms


@given(st.integers(min_value=1, max_value=durations.MAX_MS))
def test_a_negative_duration_is_printed_with_a_sign(duration_ms: int) -> None:
    assert durations.format_ms(-duration_ms) == "-" + durations.format_ms(duration_ms)


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [("0", 0), ("90s", 90_000), ("1h30m", 5_400_000), ("500ms", 500), ("1w2d", 777_600_000), ("1y", 31_536_000_000)],
)
def test_durations_mean_what_prometheus_means(text: str, duration_ms: int) -> None:
    assert durations.parse_ms(text) == duration_ms


@pytest.mark.parametrize(
    ("duration_ms", "text"), [(90_000, "1m30s"), (86_400_000, "1d"), (90_000_000, "25h"), (0, "0s")]
)
def test_durations_are_printed_as_prometheus_prints_them(duration_ms: int, text: str) -> None:
    assert durations.format_ms(duration_ms) == text


def test_a_number_without_a_unit_is_answered_with_both_likely_meanings() -> None:
    with pytest.raises(ValueError, match=r"`5` has no unit; write `5s` for seconds or `5m` for minutes"):
        durations.parse_ms("5")


@pytest.mark.parametrize("text", ["", "s", "5 s", "5s ", "-5s", "1.5h", "1m1h", "1s1s", "5S", "٥s", "x" * 10_000])
def test_what_prometheus_refuses_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration such as 30s, 5m or 1h30m"):
        durations.parse_ms(text)


def test_a_duration_that_go_could_not_hold_is_refused() -> None:
    assert durations.parse_ms("292y") > 0
    with pytest.raises(ValueError, match="longer than 292 years"):
        durations.parse_ms("293y")


@given(st.text(max_size=30))
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert durations.parse_ms(text) >= 0


@pytest.mark.parametrize("seconds", [0.0, 0.5, 15.0, 3600.0])
def test_seconds_round_trip_through_text(seconds: float) -> None:
    assert durations.parse_seconds(durations.format_seconds(seconds)) == seconds
