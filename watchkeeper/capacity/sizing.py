"""Find the smallest number of nodes to add so that the p95 wait of recorded jobs stays within a target.

The search halves the range and replays the jobs at each step. More GPUs can lengthen a single wait, because the order
of jobs changes. So the result meets the target, and one node less was replayed and did not. The result also has the
share of days that met the target. `cli/accounting/capacity` calls it.
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
# If adding four times the fleet is not enough, the jobs are the problem and not the fleet.
MAX_FLEET_MULTIPLE = 4


@dataclass(frozen=True, slots=True)
class Addition:
    """The GPUs to add for a target wait; `add_gpus` is None if adding four times the fleet is not enough.

    `days_kept` is the share of days that meet the target.
    """

    target_seconds: float
    add_gpus: int | None
    p95_seconds: float | None
    days_kept: float | None
    replays: int


def find_smallest_addition(
    jobs: Sequence[RecordedJob],
    nodes: Sequence[FleetNode],
    *,
    target_seconds: float,
    policy: QueuePolicy = QueuePolicy.BACKFILL,
) -> Addition:
    size = max(node.gpus for node in nodes)
    low, high = 0, MAX_FLEET_MULTIPLE * sum(node.gpus for node in nodes) // size
    waits_by_count: dict[int, Floats] = {}

    def replay_waits(count: int) -> Floats:
        if count not in waits_by_count:
            outcome = replay(jobs, apply_change(nodes, FleetChange(add_gpus=count * size)), policy=policy)
            waits_by_count[count] = outcome.starts - np.array([job.submitted for job in jobs])
        return waits_by_count[count]

    def meets_target(count: int) -> bool:
        p95 = _p95(replay_waits(count))
        return p95 is None or p95 <= target_seconds

    if not meets_target(high):
        return Addition(target_seconds, None, _p95(replay_waits(high)), None, len(waits_by_count))
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if meets_target(middle) else (middle + 1, high)
    waits = replay_waits(high)
    return Addition(
        target_seconds, high * size, _p95(waits), _days_kept(jobs, waits, target_seconds), len(waits_by_count)
    )


def _p95(waits: Floats) -> float | None:
    started = waits[~np.isnan(waits)]
    return float(np.quantile(started, 0.95)) if len(started) else None


def _days_kept(jobs: Sequence[RecordedJob], waits: Floats, target_seconds: float) -> float | None:
    days = np.array([job.submitted // DAY_SECONDS for job in jobs])
    kept = [p95 <= target_seconds for day in np.unique(days) if (p95 := _p95(waits[days == day])) is not None]
    return sum(kept) / len(kept) if kept else None
