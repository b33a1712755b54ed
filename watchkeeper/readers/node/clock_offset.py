"""How far this machine's clock is from the right time: what chrony says, else what the kernel's own clock says.

Logs of several nodes can only be put in order if their clocks agree, and leases and certificates need it too.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

CHRONY = ("chronyc", "-n", "-c", "tracking")
# linux/timex.h
STA_UNSYNC = 0x0040


@dataclass(frozen=True, slots=True)
class ClockState:
    """`offset_seconds` None: only the kernel's bound is known. `source` says who was asked."""

    is_synchronised: bool
    offset_seconds: float | None
    bound_seconds: float | None
    source: str


def read_chrony(text: str) -> ClockState | None:
    """One line of `chronyc -c tracking`: …, system time offset (5th), last, rms, …, root delay, dispersion, …, leap."""
    cells = text.strip().split(",")
    try:
        offset, delay, dispersion = float(cells[4]), float(cells[10]), float(cells[11])
        leap = cells[13]
    except (IndexError, ValueError):
        return None
    return ClockState(leap != "Not synchronised", offset, delay / 2 + dispersion, "chronyc tracking")


class _Timex(ctypes.Structure):
    # struct timex of linux/timex.h up to what is read here; the rest is only room.
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
    """adjtimex(2) without changing anything; None where there is no such call."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        asked = _Timex()
        if library.adjtimex(ctypes.byref(asked)) < 0:
            return None
    except (OSError, AttributeError):
        return None
    is_synchronised = not asked.status & STA_UNSYNC
    return ClockState(is_synchronised, None, asked.max_error_us / 1e6 if is_synchronised else None, "adjtimex")
