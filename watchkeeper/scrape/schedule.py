"""When each target is due: all at the same interval, each at its own stable place inside it.

The place comes from a hash of the target's key, so a fleet spreads evenly and a restart changes nothing. Places are
some way apart, so that the hub wakes for several targets at once.
"""

from __future__ import annotations

import zlib

# Several targets then share one waking up; other programs have had the processor's caches since the last one.
SLOT_MS = 100
# An interval shorter than so many places is divided into as many.
MIN_SLOTS = 10


def offset_ms(key: str, interval_ms: int) -> int:
    """Where in the interval this key is due; the same in every process."""
    places = max(interval_ms // SLOT_MS, MIN_SLOTS)
    return (zlib.crc32(key.encode()) * places >> 32) * interval_ms // places


def next_slot(now_ms: int, offset: int, *, interval_ms: int) -> int:
    """The first due time after `now_ms`."""
    return (now_ms - offset) // interval_ms * interval_ms + interval_ms + offset


def following_slot(slot_ms: int, now_ms: int, offset: int, *, interval_ms: int) -> int:
    """The due time after `slot_ms`, which was the last one; slots that have passed meanwhile are left out.

    A sleep may end a moment early: the same slot does not come again. A clock that was set back counts as it is, or
    the target would not be read until the time has come round again.
    """
    was_set_back = now_ms < slot_ms - interval_ms
    return next_slot(now_ms if was_set_back else max(now_ms, slot_ms), offset, interval_ms=interval_ms)


def sample_time(slot_ms: int, now_ms: int, *, interval_ms: int) -> int:
    """The time to write on the samples: the slot itself when we are hardly late, else the truth.

    Evenly spaced samples pack better and let the engine use one time axis for many targets; Prometheus
    does the same (its tolerance is 2 ms). Ours is 1 % of the interval, since exporters serve readings
    that are seconds old anyway.
    """
    return slot_ms if abs(now_ms - slot_ms) * 100 <= interval_ms else now_ms
