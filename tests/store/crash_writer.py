"""A program that appends numbered scrapes until it is killed, and prints which are synced."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np

from tests.store.durables import named
from watchkeeper.model.histograms import Histogram, HistogramSample
from watchkeeper.store import durable

SECOND = 1000
# Blocks of a minute, so that many are cut and merged between two kills.
LIMITS = durable.StoreSettings(block_ms=60 * SECOND, late_ms=10 * SECOND, memory_ms=300 * SECOND)
SERIES = [named("count", worker=str(worker)) for worker in range(5)]
LATENCY = named("latency")


def write_forever(path: Path, first: int) -> None:
    """One scrape each simulated second, a few of them between two syncs, and upkeep now and then."""
    clock = [first * SECOND]
    store = durable.open_store(path, LIMITS, clock_ms=lambda: clock[0])
    ids = np.array([store.series_id(labels) for labels in SERIES], dtype=np.int64)
    rng, number = random.Random(first), first
    say(first - 1)
    while True:
        for _ in range(rng.randint(1, 7)):
            clock[0] = number * SECOND
            store.append_scrape("worker", ids, clock[0], np.arange(5.0) + number)
            store.append([HistogramSample(LATENCY, clock[0], Histogram(count=float(number)))])
            number += 1
        store.sync()
        say(number - 1)
        if rng.random() < 0.3:
            store.maintain(clock[0])


def say(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    write_forever(Path(sys.argv[1]), int(sys.argv[2]))
