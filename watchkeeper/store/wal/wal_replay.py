"""The log's way back into a head after a restart: what `wal_reader` read of it is placed, and what is not is counted.

`durable` calls `replay` once, before anything is appended, and again for a time that memory had to let go of.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from watchkeeper.model import labels as label_sets
from watchkeeper.store.corruption import Corruption
from watchkeeper.store.head.head import Head
from watchkeeper.store.series import UNKNOWN
from watchkeeper.store.wal.wal import Segment
from watchkeeper.store.wal.wal_reader import ReplayBatch, ReplayScrapes, SegmentResult


@dataclass(slots=True)
class ReplayResult:
    """What came back from the log, and what did not."""

    samples: int = 0
    segments: list[Segment] = field(default_factory=list)
    damages: list[Corruption] = field(default_factory=list)
    torn_bytes: int = 0
    # Samples that damage took, or that found no room.
    lost: int = 0


def replay(log: Iterable[ReplayBatch | SegmentResult], head: Head) -> ReplayResult:
    """Take all that was read of a log into the head."""
    outcome = ReplayResult()
    # The head's ids of all label sets so far; UNKNOWN where the head is full.
    ids = np.empty(0, dtype=np.int64)
    for read in log:
        if isinstance(read, SegmentResult):
            _end(read, head, outcome)
            continue
        if read.labels:
            fresh = head.series_ids([label_sets.Labels.from_sorted_pairs(pairs) for pairs in read.labels])
            ids = np.concatenate([ids, fresh])
        for part in read.parts:
            mine = ids[part.series]
            known = mine != UNKNOWN
            count = len(part.times) if isinstance(part, ReplayScrapes) else 1
            outcome.samples += int(np.count_nonzero(known)) * count
            outcome.lost += int(np.count_nonzero(~known)) * count
            if not known.any():
                continue
            if isinstance(part, ReplayScrapes):
                table = part.table if known.all() else part.table.only(known)
                head.load_scrapes(part.key, mine[known], part.times, table=table, expected=part.expected)
            else:
                head.load_samples(mine[known], part.times[known], part.values[known])
    return outcome


def _end(read: SegmentResult, head: Head, outcome: ReplayResult) -> None:
    outcome.damages += read.damages
    outcome.torn_bytes += read.torn_bytes
    outcome.lost += read.lost
    if read.histograms:
        head.load_histograms(read.histograms, read.segment.newest_ms)
    if read.is_ours:
        outcome.segments.append(read.segment)
