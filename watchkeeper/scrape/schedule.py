"""When each target is due: all at the same interval, each at a stable offset inside it.

The offset is a hash of the target's key, so a fleet spreads evenly and a restart changes nothing. Offsets are multiples
of a slot, so that the hub wakes up once for several targets.
"""

from __future__ import annotations

import zlib

# Several targets share one wake-up, because each wake-up finds cold processor caches.
SLOT_MS = 100
# An interval shorter than this many slots is divided into this many.
MIN_SLOTS = 10


def offset_ms(key: str, interval_ms: int) -> int:
    """The offset of this key in the interval; the same in every process."""
    slots = max(interval_ms // SLOT_MS, MIN_SLOTS)
    return (zlib.crc32(key.encode()) * slots >> 32) * interval_ms // slots


def next_slot(now_ms: int, offset: int, *, interval_ms: int) -> int:
    """The first due time after `now_ms`."""
    return (now_ms - offset) // interval_ms * interval_ms + interval_ms + offset


def following_slot(slot_ms: int, now_ms: int, offset: int, *, interval_ms: int) -> int:
    """The due time after `slot_ms`, the last one; missed slots are skipped."""
    # A sleep may end a moment early: the same slot is not repeated. After the clock was set back, its new time counts;
    # otherwise the target would not be scraped until that time has passed again.
    was_set_back = now_ms < slot_ms - interval_ms
    return next_slot(now_ms if was_set_back else max(now_ms, slot_ms), offset, interval_ms=interval_ms)


def sample_time(slot_ms: int, now_ms: int, *, interval_ms: int) -> int:
    """The timestamp of the samples: the slot itself if the scrape is almost on time, else the actual time."""
    # Evenly spaced samples compress better and let the engine use one time axis for many targets; Prometheus does the
    # same with a tolerance of 2 ms. Here it is 1 % of the interval, because exporters serve readings that are seconds
    # old.
    return slot_ms if abs(now_ms - slot_ms) * 100 <= interval_ms else now_ms
