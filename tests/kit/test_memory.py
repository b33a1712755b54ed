"""Memory that a start has used goes back to the operating system."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

# Blocks too large for Python's own allocator; the last one stays and pins the heap's end.
PROGRAM = """
from watchkeeper.kit import memory
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
blocks = [bytes(2_000) for _ in range(20_000)]
last = blocks[-1]
blocks.clear()
before = resident()
memory.give_back()
print(before - resident())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this C library cannot give memory back")
def test_freed_memory_goes_back() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(ran.stdout) > 20_000_000
