"""How many GPUs keep the wait short: the smallest addition with which recorded jobs would have waited at most so long.

Each try is a replay, in whole nodes, halving what is left to search. More GPUs can lengthen a single wait (a job that
passed another no longer does), so the search finds an addition that is enough, one node less of which was tried and was
not; the answer says on how many days of the record the target would have been kept. `cli/capacity` asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from watchkeeper.capacity.jobs import RecordedJob
from watchkeeper.capacity.replay import Floats, QueuePolicy, replay
from watchkeeper.capacity.simulated_fleet import FleetNode
from watchkeeper.capacity.whatif import FleetChange, apply_change

DAY_SECONDS = 86_400.0
# Beyond four times the fleet it is the jobs, not the fleet, that should be looked at.
MOST_TIMES = 4


@dataclass(frozen=True, slots=True)
class Addition:
    """`add_gpus` None: even four times the fleet does not keep the target. `days_kept` is a share of all days."""

    target_seconds: float
    add_gpus: int | None
    p95_seconds: float | None
    days_kept: float | None
    replays: int


def smallest_addition(
    jobs: Sequence[RecordedJob],
    nodes: Sequence[FleetNode],
    *,
    target_seconds: float,
    policy: QueuePolicy = QueuePolicy.BACKFILL,
) -> Addition:
    size = max(node.gpus for node in nodes)
    low, high = 0, MOST_TIMES * sum(node.gpus for node in nodes) // size
    tried: dict[int, Floats] = {}

    def waits(count: int) -> Floats:
        if count not in tried:
            outcome = replay(jobs, apply_change(nodes, FleetChange(add_gpus=count * size)), policy=policy)
            tried[count] = outcome.starts - np.array([job.submitted for job in jobs])
        return tried[count]

    def keeps(count: int) -> bool:
        p95 = _p95(waits(count))
        return p95 is None or p95 <= target_seconds

    if not keeps(high):
        return Addition(target_seconds, None, _p95(waits(high)), None, len(tried))
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if keeps(middle) else (middle + 1, high)
    found = waits(high)
    return Addition(target_seconds, high * size, _p95(found), _days_kept(jobs, found, target_seconds), len(tried))


def _p95(waits: Floats) -> float | None:
    known = waits[~np.isnan(waits)]
    return float(np.quantile(known, 0.95)) if len(known) else None


def _days_kept(jobs: Sequence[RecordedJob], waits: Floats, target_seconds: float) -> float | None:
    days = np.array([job.submitted // DAY_SECONDS for job in jobs])
    kept = [p95 <= target_seconds for day in np.unique(days) if (p95 := _p95(waits[days == day])) is not None]
    return sum(kept) / len(kept) if kept else None
