"""A chart in the terminal: ASCII characters, at most as wide as the terminal."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.cli import terminal

RISING = [(float(60 * minute), float(minute)) for minute in range(31)]


def test_a_rising_line_goes_from_bottom_left_to_top_right() -> None:
    lines = terminal.draw_chart([("up", RISING)], width=80, height=5)
    assert lines[0].rstrip().endswith("*")
    assert lines[0].startswith("         30 |")
    assert lines[4].startswith("          0 |*")
    assert lines[6].split() == ["00:00:00", "1970-01-01", "UTC", "00:30:00"]
    assert lines[7] == "  * up"


def test_each_series_has_a_mark_and_the_ninth_is_counted() -> None:
    lines = terminal.draw_chart([(f"s{number}", [(0.0, float(number))]) for number in range(10)], width=60)
    assert [line.strip() for line in lines[-9:-1]] == [f"{mark} s{at}" for at, mark in enumerate(terminal.MARKS)]
    assert lines[-1] == "  and 2 more series, not drawn"


def test_a_flat_line_is_in_the_middle() -> None:
    lines = terminal.draw_chart([("flat", [(0.0, 5.0), (1.0, 5.0)])], width=60, height=5)
    assert [at for at, line in enumerate(lines[:5]) if "*" in line] == [2]


def test_points_that_are_not_finite_are_omitted() -> None:
    assert terminal.draw_chart([("x", [(0.0, math.nan), (1.0, math.inf)])], width=60) == [
        "Nothing to draw: no point is a finite number."
    ]


points = st.lists(st.tuples(st.floats(0, 4e9), st.floats(-1e300, 1e300)), min_size=1, max_size=20)


@given(points, st.integers(1, 200))
def test_no_line_is_wider_than_the_terminal(values: list[tuple[float, float]], width: int) -> None:
    lines = terminal.draw_chart([("x" * 300, values)], width=width)
    assert max(map(len, lines)) <= max(terminal.MIN_WIDTH, width)
    assert all(line.isascii() for line in lines)
