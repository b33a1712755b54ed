"""The delay between retries: it doubles after each failure, up to a limit.

Each module that retries has its own `Backoff`, counts its failures in a row and waits on its own clock.
"""

from __future__ import annotations

from dataclasses import dataclass

# 2 ** 30 seconds are 34 years; a larger power might overflow a float.
MAX_DOUBLINGS = 30


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delay after the first failure, and the longest delay."""

    first_seconds: float
    longest_seconds: float

    def delay_seconds(self, failures: int) -> float:
        return min(self.first_seconds * 2.0 ** min(failures - 1, MAX_DOUBLINGS), self.longest_seconds)
