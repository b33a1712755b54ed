"""Giving memory back to the system: a process that runs for months must not keep what a busy moment needed.

Reading and compiling modules leaves holes in the C library's heap: 11 MiB of 30 in a process that compiled pynvml.
And glibc makes an arena for each thread that allocates while another does, so that NumPy's passing arrays stay
resident several times over; `python -m bench idle` shows the difference. A start also touches pages of libraries that
are never looked at again: OpenSSL for a page without TLS, all of libcuda for nvmlInit. Where the C library is another
one, nothing of that does anything. Python's own collector is told here how often to look for garbage, and where.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

# madvise(2).
DONT_NEED = 4
# Numbers of mallopt(3).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
ARENAS = 1
# Blocks above this are mapped by themselves, and are gone when they are freed. Four minutes of a metric of 512 GPUs are
# 192 KiB: merging such columns left 20 MiB of holes while they came from the heap.
MAPPED_BYTES = 128 * 1024
KEPT_FREE_BYTES = 1024 * 1024
# Objects that are made, and not freed, before the collector looks for cycles among them. With Python's own 700 it looks
# five times a second through what 1,250 targets have in hand, a tenth of the CPU of reading them; 10,000 are 2 MB.
YOUNG_OBJECTS = 10_000
OLDEST_GENERATION = 2
# How long what has survived a whole look for garbage is left out of the next ones. Nothing else of the process runs
# during a look: two million label sets, a fleet of 10,000 GPUs, took 0.8 s of it, every few seconds while they came.
SET_ASIDE_SECONDS = 3600.0
# For a store of a large fleet, whose queries pass arrays of megabytes: mapping each anew takes as long as the query.
SCRATCH_MAPPED_BYTES, SCRATCH_FREE_BYTES = 32 << 20, 64 << 20


def release_startup_memory() -> None:
    """All that only the start needed; the agent and its reader child call it once they are up."""
    release_free_memory()
    advise = getattr(ctypes.CDLL(None), "madvise", None)
    if advise is None:
        return
    with suppress(OSError):
        for start, length in unmodified_mappings(Path("/proc/self/smaps").read_text()):
            # What is needed after all comes back from the page cache at the first touch.
            advise(ctypes.c_void_p(start), ctypes.c_size_t(length), DONT_NEED)


def unmodified_mappings(maps: str) -> Iterator[tuple[int, int]]:
    """Start and length of mapped files, in the text of smaps, that nobody can write and nobody has written to.

    A page that a relocation changed is the only copy of it, and would be lost.
    """
    found: tuple[int, int] | None = None
    for line in maps.splitlines():
        words = line.split(maxsplit=5)
        if "-" in words[0]:
            low, _, high = words[0].partition("-")
            is_file = len(words) > 5 and words[5].startswith("/") and not words[5].startswith("/dev/")
            is_fixed = words[1][1] != "w" and words[1][3] == "p"
            found = (int(low, 16), int(high, 16) - int(low, 16)) if is_file and is_fixed else None
        elif words[0] == "Anonymous:" and words[1] == "0" and found is not None:
            yield found


def release_free_memory() -> None:
    """Return free pages now."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def release_eagerly() -> None:
    """Return freed memory as soon as it is free, from now on; the hub and the simulator call it before they start."""
    _set({M_ARENA_MAX: ARENAS, M_TRIM_THRESHOLD: KEPT_FREE_BYTES, M_MMAP_THRESHOLD: MAPPED_BYTES})


def collect_garbage_rarely() -> None:
    """Look for cycles of garbage less often and in less, from now on; the hub calls it before it starts."""
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
    gc.callbacks.append(_SetAside())


class _SetAside:
    """Told by the collector of each of its looks: what stays after one of everything is set aside for some time.

    Most of it is freed by its count of references all the same; only a ring that falls apart later waits.
    """

    def __init__(self) -> None:
        self._whole_at = time.monotonic()

    def __call__(self, phase: str, about: Mapping[str, int]) -> None:
        if about["generation"] < OLDEST_GENERATION:
            return
        if phase == "stop":
            gc.freeze()
        elif time.monotonic() - self._whole_at >= SET_ASIDE_SECONDS:
            self._whole_at = time.monotonic()
            gc.unfreeze()


def keep_query_buffers() -> None:
    """Keep some freed memory for the next query, from now on; a store calls it when it has grown large."""
    _set({M_TRIM_THRESHOLD: SCRATCH_FREE_BYTES, M_MMAP_THRESHOLD: SCRATCH_MAPPED_BYTES})


def _set(options: Mapping[int, int]) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in options.items():
            mallopt(option, value)
