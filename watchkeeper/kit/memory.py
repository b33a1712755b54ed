"""Return freed memory to the system, so that a process that runs for months does not keep its peak.

Compiling modules leaves holes in the C library's heap (11 MiB of 30 in a process that compiled pynvml), glibc creates
an arena for each thread, and a start loads pages of libraries that are not used again. With a C library other than
glibc, these functions do nothing. This module also sets how often Python's garbage collector runs, and on which
objects.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

# madvise(2).
MADV_DONTNEED = 4
# Parameters of mallopt(3).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
MAX_ARENAS = 1
# Larger allocations get their own mapping, which is released when they are freed. Four minutes of a metric of 512 GPUs
# are 192 KiB: on the heap, merging such columns left 20 MiB of holes.
MMAP_BYTES = 128 * 1024
TRIM_BYTES = 1024 * 1024
# How many new objects start a collection of the youngest generation. With Python's default of 700 it ran five times a
# second while 1,250 targets were scraped and took a tenth of the CPU of scraping; 10,000 objects are 2 MB.
GC_THRESHOLD_OBJECTS = 10_000
OLDEST_GENERATION = 2
# How long objects that survive a full collection are excluded from the next ones. A collection stops all threads: with
# two million label sets, a fleet of 10,000 GPUs, it took 0.8 s, every few seconds while they were added.
FREEZE_SECONDS = 3600.0
# For the store of a large fleet, whose queries use arrays of megabytes: mapping each again costs as much as the query.
QUERY_MMAP_BYTES, QUERY_TRIM_BYTES = 32 << 20, 64 << 20


def release_startup_memory() -> None:
    """Release memory that only the start needed; the agent and its reader child call it when they are up."""
    release_free_memory()
    advise = getattr(ctypes.CDLL(None), "madvise", None)
    if advise is None:
        return
    with suppress(OSError):
        for start, length in unmodified_mappings(Path("/proc/self/smaps").read_text()):
            # A page that is used again is read from the page cache.
            advise(ctypes.c_void_p(start), ctypes.c_size_t(length), MADV_DONTNEED)


def unmodified_mappings(smaps: str) -> Iterator[tuple[int, int]]:
    """Start and length of each read-only file mapping; a page that a relocation modified would be lost."""
    mapping: tuple[int, int] | None = None
    for line in smaps.splitlines():
        columns = line.split(maxsplit=5)
        if "-" in columns[0]:
            low, _, high = columns[0].partition("-")
            is_file = len(columns) > 5 and columns[5].startswith("/") and not columns[5].startswith("/dev/")
            is_private_read_only = columns[1][1] != "w" and columns[1][3] == "p"
            mapping = (int(low, 16), int(high, 16) - int(low, 16)) if is_file and is_private_read_only else None
        elif columns[0] == "Anonymous:" and columns[1] == "0" and mapping is not None:
            yield mapping


def release_free_memory() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def release_eagerly() -> None:
    """Return memory when it is freed, from now on; the hub and the simulator call it before they start."""
    _set_malloc_options({M_ARENA_MAX: MAX_ARENAS, M_TRIM_THRESHOLD: TRIM_BYTES, M_MMAP_THRESHOLD: MMAP_BYTES})


def collect_garbage_rarely() -> None:
    """Run the garbage collector less often and on fewer objects from now on; the hub calls it before it starts."""
    gc.set_threshold(GC_THRESHOLD_OBJECTS, *gc.get_threshold()[1:])
    gc.callbacks.append(_GcFreezer())


class _GcFreezer:
    """Callback of the garbage collector: freezes the objects that survive a full collection, for `FREEZE_SECONDS`.

    Reference counts still free most of them; only a reference cycle that becomes garbage later has to wait.
    """

    def __init__(self) -> None:
        self._last_full_at = time.monotonic()

    def __call__(self, phase: str, details: Mapping[str, int]) -> None:
        if details["generation"] < OLDEST_GENERATION:
            return
        if phase == "stop":
            gc.freeze()
        elif time.monotonic() - self._last_full_at >= FREEZE_SECONDS:
            self._last_full_at = time.monotonic()
            gc.unfreeze()


def keep_query_buffers() -> None:
    """Keep some freed memory for the next query, from now on; a store calls it when it is large."""
    _set_malloc_options({M_TRIM_THRESHOLD: QUERY_TRIM_BYTES, M_MMAP_THRESHOLD: QUERY_MMAP_BYTES})


def _set_malloc_options(options: Mapping[int, int]) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in options.items():
            mallopt(option, value)
