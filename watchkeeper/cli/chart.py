"""A chart of a range query in the terminal, in plain characters that every terminal and log has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

MARKS = "*o+x#@%&"
AXIS_WIDTH = 11
NARROWEST, HEIGHT = 40, 15
# One point: when in seconds, and how much.
Points = Sequence[tuple[float, float]]


def draw(series: Sequence[tuple[str, Points]], *, width: int, height: int = HEIGHT) -> list[str]:
    """Lines of text: the picture, the time axis, and which mark is which series; the first eight are drawn."""
    shown = [(name, [(at, value) for at, value in points if math.isfinite(value)]) for name, points in series]
    shown = [(name, points) for name, points in shown if points][: len(MARKS)]
    if not shown:
        return ["Nothing to draw: no point is a finite number."]
    columns = max(NARROWEST, width) - AXIS_WIDTH - 2
    times = [at for _, points in shown for at, _ in points]
    values = [value for _, points in shown for _, value in points]
    left, right, low, high = min(times), max(times), min(values), max(values)
    cells = [[" "] * columns for _ in range(height)]
    for mark, (_, points) in zip(MARKS, shown, strict=False):
        for at, value in points:
            column = _place(at, left, right, steps=columns)
            row = height - 1 - _place(value, low, high, steps=height)
            cells[row][column] = mark
    lines = [
        f"{_label(row, low, high, height=height):>{AXIS_WIDTH}} |{''.join(cells[row])}".rstrip()
        for row in range(height)
    ]
    lines += [" " * AXIS_WIDTH + " +" + "-" * columns, _time_axis(left, right, columns=columns)]
    lines += [f"  {mark} {name[: max(NARROWEST, width) - 4]}" for mark, (name, _) in zip(MARKS, shown, strict=False)]
    left_out = len(series) - len(shown)
    return [*lines, f"  and {left_out} more series, not drawn"] if left_out else lines


def _place(value: float, low: float, high: float, *, steps: int) -> int:
    if high <= low:
        return steps // 2
    return min(steps - 1, int((value - low) / (high - low) * steps))


def _label(row: int, low: float, high: float, *, height: int) -> str:
    """A number beside the top, middle and bottom row."""
    if high <= low:
        return f"{low:.4g}" if row == height - 1 - height // 2 else ""
    if row not in (0, height // 2, height - 1):
        return ""
    return f"{high - (high - low) * row / (height - 1):.4g}"


def _time_axis(left: float, right: float, *, columns: int) -> str:
    form = "%H:%M:%S" if right - left < 86_400 else "%m-%d %H:%M"
    first, last = (datetime.fromtimestamp(at, UTC).strftime(form) for at in (left, right))
    day = datetime.fromtimestamp(left, UTC).strftime("%Y-%m-%d UTC")
    room = max(1, columns - len(first) - len(last))
    return " " * (AXIS_WIDTH + 2) + first + (day if len(day) + 2 <= room else "").center(room) + last
