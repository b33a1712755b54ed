"""Read the clock offset of this node, from chrony or else from the kernel clock.

Logs of several nodes can only be ordered if their clocks agree; leases and certificates need correct clocks too.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

CHRONY = ("chronyc", "-n", "-c", "tracking")
# linux/timex.h
STA_UNSYNC = 0x0040


@dataclass(frozen=True, slots=True)
class ClockState:
    """The state of the clock; `offset_seconds` is None if only the kernel's bound is known. `source` names the call."""

    is_synchronised: bool
    offset_seconds: float | None
    bound_seconds: float | None
    source: str


def read_chrony(text: str) -> ClockState | None:
    """Read `chronyc -c tracking`: …, system time offset (5th), last, rms, …, root delay, dispersion, …, leap."""
    cells = text.strip().split(",")
    try:
        offset, delay, dispersion = float(cells[4]), float(cells[10]), float(cells[11])
        leap = cells[13]
    except (IndexError, ValueError):
        return None
    return ClockState(leap != "Not synchronised", offset, delay / 2 + dispersion, "chronyc tracking")


class _Timex(ctypes.Structure):
    # The first fields of struct timex in linux/timex.h; `rest` reserves space for the others.
    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("frequency", ctypes.c_long),
        ("max_error_us", ctypes.c_long),
        ("estimated_error_us", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    )


def read_kernel_clock() -> ClockState | None:
    """Read the kernel clock with adjtimex(2), without changes; None if the call is not available."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        timex = _Timex()
        if library.adjtimex(ctypes.byref(timex)) < 0:
            return None
    except (OSError, AttributeError):
        return None
    is_synchronised = not timex.status & STA_UNSYNC
    return ClockState(is_synchronised, None, timex.max_error_us / 1e6 if is_synchronised else None, "adjtimex")
