"""Replay the WAL into a head after a restart, and count samples that are lost.

`durable` calls `replay` once, before anything is appended, and later for a time that memory dropped before its block
was written.
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
    samples: int = 0
    segments: list[Segment] = field(default_factory=list)
    damages: list[Corruption] = field(default_factory=list)
    torn_bytes: int = 0
    # Samples that were lost to damage, or dropped at the limit of series.
    lost: int = 0


def replay(log: Iterable[ReplayBatch | SegmentResult], head: Head) -> ReplayResult:
    result = ReplayResult()
    # The head's id of each label set so far; UNKNOWN if the head is full.
    ids = np.empty(0, dtype=np.int64)
    for item in log:
        if isinstance(item, SegmentResult):
            result.damages += item.damages
            result.torn_bytes += item.torn_bytes
            result.lost += item.lost
            if item.histograms:
                head.load_histograms(item.histograms, item.segment.newest_ms)
            if item.is_ours:
                result.segments.append(item.segment)
            continue
        if item.labels:
            new_ids = head.series_ids([label_sets.Labels.from_sorted_pairs(pairs) for pairs in item.labels])
            ids = np.concatenate([ids, new_ids])
        for part in item.parts:
            part_ids = ids[part.series]
            has_id = part_ids != UNKNOWN
            count = len(part.times) if isinstance(part, ReplayScrapes) else 1
            result.samples += int(np.count_nonzero(has_id)) * count
            result.lost += int(np.count_nonzero(~has_id)) * count
            if not has_id.any():
                continue
            if isinstance(part, ReplayScrapes):
                table = part.table if has_id.all() else part.table.filter(has_id)
                head.load_scrapes(
                    part.key, part_ids[has_id], part.times, rows=table, expected_slots=part.expected_slots
                )
            else:
                head.load_samples(part_ids[has_id], part.times[has_id], part.values[has_id])
    return result
