"""Headings of a printout: where each stands, and how far what it heads goes on. The readings of `records` ask."""

from __future__ import annotations

import re
from collections.abc import Iterator

from watchkeeper.doctor.listing import Listing


def numbered(listing: Listing, pattern: re.Pattern[str]) -> Iterator[tuple[int, re.Match[str]]]:
    """Each match with the number of its line."""
    line, at = 1, 0
    for found in pattern.finditer(listing.text):
        line += listing.text.count("\n", at, found.start())
        at = found.start()
        yield line, found


def until_next(listing: Listing, pattern: re.Pattern[str]) -> Iterator[tuple[int, int, re.Match[str]]]:
    """First and last line of each record that goes on until the next one of its kind begins."""
    found = list(numbered(listing, pattern))
    ends = [first - 1 for first, _ in found[1:]] + [len(listing.lines)] * bool(found)
    return ((first, last, match) for (first, match), last in zip(found, ends, strict=True))


def depth_of(line: str) -> int:
    return len(line) - len(line.lstrip())
