"""`kill -9` at any moment: synced samples are there, nothing is corrupt, and the store continues."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.store.crash_writer import LATENCY, LIMITS, SECOND, SERIES
from tests.store.durables import equals, read
from tests.support.paths import ROOT
from watchkeeper.store import durable

KILLS = 36


def run_and_kill(path: Path, first: int, *, lines: int, seconds: float) -> int:
    """Let a writer say that many numbers and write on for a while, kill it, and return the last one it said."""
    command = [sys.executable, "-m", "tests.store.crash_writer", str(path), str(first)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        synced = [int(writer.stdout.readline()) for _ in range(lines)]
        timer = threading.Timer(seconds, writer.kill)
        timer.start()
        synced += map(int, writer.stdout)
        timer.join()
    return synced[-1]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_dozens_of_kills_lose_no_synced_sample_and_corrupt_nothing(tmp_path: Path) -> None:
    rng, first = random.Random(7), 0
    for _ in range(KILLS):
        synced = run_and_kill(tmp_path, first, lines=rng.randint(1, 12), seconds=rng.uniform(0.0, 0.05))
        store = durable.open_store(tmp_path, LIMITS, clock_ms=lambda: 10**12)
        samples, status = read(store), store.status()
        cells = store.find_histograms(store.select([equals("__name__", LATENCY.name)], -1, 10**15).values)
        store.close()
        assert (status.damages, status.lost_samples) == (0, 0)
        kept = len(next(iter(samples.values()), []))
        assert kept > synced
        for worker, labels in enumerate(SERIES):
            assert samples.get(labels, []) == [(at * SECOND, float(worker + at)) for at in range(kept)]
        observed = [] if cells is None else [cell.count for cell in cells[0] if cell is not None]
        assert observed == [float(at) for at in range(kept)]
        first = kept
    # A few for each life are enough to be cut into blocks.
    assert first > 5 * KILLS
    assert list((tmp_path / "blocks").glob("*.block"))
