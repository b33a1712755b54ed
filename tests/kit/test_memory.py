"""Memory that only a start needed is returned to the operating system."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from watchkeeper.kit import memory

# Blocks too large for Python's own allocator; the last one stays and pins the heap's end.
PROGRAM = """
from watchkeeper.kit import memory
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
blocks = [bytes(2_000) for _ in range(20_000)]
last = blocks[-1]
blocks.clear()
before = resident()
memory.release_free_memory()
print(before - resident())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this C library cannot give memory back")
def test_freed_memory_goes_back() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(ran.stdout) > 20_000_000


# What a start has read of libraries goes too, and they still work.
START = (
    PROGRAM.replace("release_free_memory()", "release_startup_memory()")
    + """
import hashlib, ssl
before = resident()
memory.release_startup_memory()
assert hashlib.sha256(b"a").hexdigest().startswith("ca978112") and ssl.create_default_context()
"""
)
SMAPS = """\
7f10-7f20 r-xp 00000000 08:01 11 /usr/lib/clean.so
Rss:                  16 kB
Anonymous:             0 kB
7f20-7f30 r--p 00000000 08:01 11 /usr/lib/relocated.so
Rss:                  16 kB
Anonymous:             4 kB
7f30-7f40 rw-p 00000000 08:01 11 /usr/lib/clean.so
Anonymous:             0 kB
7f40-7f50 r--s 00000000 08:01 11 /memfd:shared (deleted)
Anonymous:             0 kB
7f50-7f60 r--p 00000000 00:06 11 /dev/nvidia0
Anonymous:             0 kB
7f60-7f70 r-xp 00000000 00:00 0 [vdso]
Anonymous:             0 kB
7f70-7f80 r--p 00000000 00:00 0
Anonymous:             0 kB
"""


def run_with_a_cycle(program: str) -> list[str]:
    """Run a program under collect_garbage_rarely with a cycle that prints `gone` when freed; return its words."""
    begun = """
import gc, weakref
from watchkeeper.kit import memory
class Ring:
    pass
memory.collect_garbage_rarely()
ring = Ring()
ring.itself, gone = ring, weakref.ref(ring)
"""
    ran = subprocess.run([sys.executable, "-c", begun + program], capture_output=True, text=True, check=True)
    return ran.stdout.split()


def test_the_collector_runs_less_often_and_still_frees_cycles() -> None:
    program = """
del ring
kept = [[] for _ in range(2 * gc.get_threshold()[0])]
print(gc.get_threshold()[0], gone())
"""
    assert run_with_a_cycle(program) == [str(memory.GC_THRESHOLD_OBJECTS), "None"]


def test_frozen_objects_are_collected_again_after_some_time() -> None:
    program = """
gc.collect()
frozen = gc.get_freeze_count()
del ring
gc.collect()
kept = gone() is not None
memory.FREEZE_SECONDS = 0.0
gc.collect()
print(frozen > 1000, kept, gone(), gc.get_freeze_count() > 1000)
"""
    assert run_with_a_cycle(program) == ["True", "True", "None", "True"]


def test_only_unmodified_files_are_released() -> None:
    assert list(memory.unmodified_mappings(SMAPS)) == [(0x7F10, 0x10)]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this C library cannot give memory back")
def test_a_program_works_after_its_startup_memory_is_released() -> None:
    ran = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=True)
    assert int(ran.stdout.splitlines()[0]) > 20_000_000
