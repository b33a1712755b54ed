"""How long to wait before something that failed is tried again: twice as long each time, up to a longest pause.

Each module that asks again has a `Backoff` of its own and counts its failures in a row; it waits by its own clock.
"""

from __future__ import annotations

from dataclasses import dataclass

# 2 ** 30 seconds are 34 years, and any more might not fit into a float.
MOST_DOUBLINGS = 30


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pause after a first failure, and the one that none is longer than."""

    first_seconds: float
    longest_seconds: float

    def seconds(self, failures: int) -> float:
        """The pause after so many failures in a row."""
        return min(self.first_seconds * 2.0 ** min(failures - 1, MOST_DOUBLINGS), self.longest_seconds)
