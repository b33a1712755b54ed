"""Headings of a printout: where each stands, and how far what it heads goes on. The readings of `records` ask."""

from __future__ import annotations

import re
from collections.abc import Iterator

from watchkeeper.doctor.listing import Listing


def numbered(listing: Listing, pattern: re.Pattern[str]) -> Iterator[tuple[int, re.Match[str]]]:
    """Each match with the number of its line."""
    line, at = 1, 0
    for match in pattern.finditer(listing.text):
        line += listing.text.count("\n", at, match.start())
        at = match.start()
        yield line, match


def until_next(listing: Listing, pattern: re.Pattern[str]) -> Iterator[tuple[int, int, re.Match[str]]]:
    """First and last line of each record that goes on until the next one of its kind begins."""
    starts = list(numbered(listing, pattern))
    ends = [first - 1 for first, _ in starts[1:]] + [len(listing.lines)] * bool(starts)
    return ((first, last, match) for (first, match), last in zip(starts, ends, strict=True))


def depth_of(line: str) -> int:
    return len(line) - len(line.lstrip())
