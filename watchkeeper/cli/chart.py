"""Draw the result of a range query as a chart of ASCII characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

MARKS = "*o+x#@%&"
AXIS_WIDTH = 11
MIN_WIDTH, HEIGHT = 40, 15
# Time in seconds, value.
Points = Sequence[tuple[float, float]]


def draw(series: Sequence[tuple[str, Points]], *, width: int, height: int = HEIGHT) -> list[str]:
    """Draw the first eight series: the chart, the time axis and a legend, as lines of text."""
    shown = [(name, [(at, value) for at, value in points if math.isfinite(value)]) for name, points in series]
    shown = [(name, points) for name, points in shown if points][: len(MARKS)]
    if not shown:
        return ["Nothing to draw: no point is a finite number."]
    columns = max(MIN_WIDTH, width) - AXIS_WIDTH - 2
    times = [at for _, points in shown for at, _ in points]
    values = [value for _, points in shown for _, value in points]
    left, right, low, high = min(times), max(times), min(values), max(values)
    cells = [[" "] * columns for _ in range(height)]
    for mark, (_, points) in zip(MARKS, shown, strict=False):
        for at, value in points:
            column = _scale(at, left, right, steps=columns)
            row = height - 1 - _scale(value, low, high, steps=height)
            cells[row][column] = mark
    lines = [
        f"{_axis_label(row, low, high, height=height):>{AXIS_WIDTH}} |{''.join(cells[row])}".rstrip()
        for row in range(height)
    ]
    lines += [" " * AXIS_WIDTH + " +" + "-" * columns, _time_axis(left, right, columns=columns)]
    lines += [f"  {mark} {name[: max(MIN_WIDTH, width) - 4]}" for mark, (name, _) in zip(MARKS, shown, strict=False)]
    omitted = len(series) - len(shown)
    return [*lines, f"  and {omitted} more series, not drawn"] if omitted else lines


def _scale(value: float, low: float, high: float, *, steps: int) -> int:
    if high <= low:
        return steps // 2
    return min(steps - 1, int((value - low) / (high - low) * steps))


def _axis_label(row: int, low: float, high: float, *, height: int) -> str:
    """The value at the top, middle and bottom row; empty for other rows."""
    if high <= low:
        return f"{low:.4g}" if row == height - 1 - height // 2 else ""
    if row not in (0, height // 2, height - 1):
        return ""
    return f"{high - (high - low) * row / (height - 1):.4g}"


def _time_axis(left: float, right: float, *, columns: int) -> str:
    form = "%H:%M:%S" if right - left < 86_400 else "%m-%d %H:%M"
    first, last = (datetime.fromtimestamp(at, UTC).strftime(form) for at in (left, right))
    day = datetime.fromtimestamp(left, UTC).strftime("%Y-%m-%d UTC")
    width = max(1, columns - len(first) - len(last))
    return " " * (AXIS_WIDTH + 2) + first + (day if len(day) + 2 <= width else "").center(width) + last
