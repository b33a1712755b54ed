"""A sample is the value of one series at one time; times are whole milliseconds, as in Prometheus.

A sample with the stale marker, one particular NaN, marks the end of a series. Any other NaN is an ordinary value.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from watchkeeper.model.labels import Labels

# The bit pattern that Prometheus reserves for "this series is no longer reported".
STALE_BITS = 0x7FF0000000000002
STALE: float = struct.unpack("<d", struct.pack("<Q", STALE_BITS))[0]


@dataclass(frozen=True, slots=True)
class Sample:
    labels: Labels
    at_ms: int
    value: float


def is_stale(value: float) -> bool:
    """True for the stale marker only."""
    return bool(struct.unpack("<Q", struct.pack("<d", value))[0] == STALE_BITS)
