"""Prometheus durations: `90s`, `1h30m`, `5m`; used by rule files, settings, queries and the CLI."""

from __future__ import annotations

import re

# Largest first, each at most once, as Prometheus writes and accepts them: 1w2d, 1h30m, 500ms.
UNITS_MS = {
    "y": 365 * 86_400_000,
    "w": 7 * 86_400_000,
    "d": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1000,
    "ms": 1,
}
PATTERN = re.compile("".join(rf"(?:([0-9]+){unit})?" for unit in UNITS_MS) + r"\Z")
# A duration in Go has 64 bits of nanoseconds: about 292 years.
MAX_MS = (2**63 - 1) // 1_000_000


def parse_ms(text: str) -> int:
    """Milliseconds of a Prometheus duration; ValueError says what is wrong with the text."""
    if text == "0":
        return 0
    match = PATTERN.match(text)
    if not text or match is None:
        if text.isascii() and text.isdecimal():
            raise ValueError(f"`{text}` has no unit; write `{text}s` for seconds or `{text}m` for minutes")
        raise ValueError(f"`{text[:40]}` is not a duration such as 30s, 5m or 1h30m")
    total = sum(int(number) * unit for number, unit in zip(match.groups(), UNITS_MS.values(), strict=True) if number)
    if total > MAX_MS:
        raise ValueError(f"`{text[:40]}` is longer than 292 years")
    return total


def format_ms(duration_ms: int) -> str:
    """The shortest exact spelling, as Prometheus prints it: 90000 → `1m30s`."""
    if duration_ms == 0:
        return "0s"
    parts, remaining_ms = [], abs(duration_ms)
    for unit, unit_ms in UNITS_MS.items():
        # As in Prometheus, years, weeks and days are used only without a remainder.
        if unit in ("y", "w", "d") and remaining_ms % unit_ms:
            continue
        count, remaining_ms = divmod(remaining_ms, unit_ms)
        if count:
            parts.append(f"{count}{unit}")
    return ("-" if duration_ms < 0 else "") + "".join(parts)


def parse_seconds(text: str) -> float:
    return parse_ms(text) / 1000


def format_seconds(seconds: float) -> str:
    return format_ms(round(seconds * 1000))
