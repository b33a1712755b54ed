"""Find the headings of a printout and the lines that belong to each, for the readers of `records`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from watchkeeper.doctor.listing import Listing


def numbered_matches(listing: Listing, pattern: re.Pattern[str]) -> Iterator[tuple[int, re.Match[str]]]:
    """Each match with its line number."""
    line, at = 1, 0
    for match in pattern.finditer(listing.text):
        line += listing.text.count("\n", at, match.start())
        at = match.start()
        yield line, match


def sections(listing: Listing, pattern: re.Pattern[str]) -> Iterator[tuple[int, int, re.Match[str]]]:
    """First and last line of each section, which ends before the next match."""
    starts = list(numbered_matches(listing, pattern))
    ends = [first - 1 for first, _ in starts[1:]] + [len(listing.lines)] * bool(starts)
    return ((first, last, match) for (first, match), last in zip(starts, ends, strict=True))


def indent_of(line: str) -> int:
    return len(line) - len(line.lstrip())
