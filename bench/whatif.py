"""What-if replays: seconds for a public trace of 23,871 instances, if it exists, and for a synthetic month of jobs.

`reference` is the time of plain Python for as many heap pushes and pops as a replay has events, in the same run.
"""

from __future__ import annotations

import argparse
import heapq
import time
from pathlib import Path

import numpy as np

from watchkeeper.capacity import jobs, replay, simulated_fleet, whatif

TRACE = Path(__file__).parents[2] / "shared" / "corpus" / "traces" / "alibaba2025_dlrm_instances.csv"
MONTH_SECONDS = 30 * 86_400


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, default=100_000, help="jobs of the synthetic month")
    parser.add_argument("--gpus", type=int, default=4096, help="GPUs of the synthetic fleet, eight to a node")
    parser.add_argument("--trace", type=Path, default=TRACE)


def measure(options: argparse.Namespace) -> dict[str, float]:
    numbers: dict[str, float] = {}
    if options.trace.exists():
        started_at = time.perf_counter()
        recorded = jobs.read_jobs(options.trace.read_text(encoding="utf-8"), where=options.trace.name)
        fleet = jobs.uniform_nodes(3300, gpus_per_node=8)
        comparison = whatif.compare(recorded, fleet, whatif.FleetChange(add_gpus=64))
        numbers["trace_rows"] = recorded.counts["rows"]
        numbers["trace_seconds"] = time.perf_counter() - started_at
        numbers["trace_p95_wait_before"] = comparison["before"]["wait"]["p95"]
        numbers["trace_p95_wait_after"] = comparison["after"]["wait"]["p95"]
    month_jobs = create_month(options.jobs, options.gpus)
    fleet = jobs.uniform_nodes(options.gpus, gpus_per_node=8)
    for policy in replay.QueuePolicy:
        started_at = time.perf_counter()
        outcome = replay.replay(month_jobs, fleet, policy=policy)
        numbers[f"month_{policy}_seconds"] = time.perf_counter() - started_at
        numbers[f"month_{policy}_utilisation"] = outcome.gpu_seconds(0, MONTH_SECONDS) / (options.gpus * MONTH_SECONDS)
    numbers["reference_seconds"] = _reference(options.jobs)
    numbers["month_ratio"] = numbers["month_backfill_seconds"] / numbers["reference_seconds"]
    return numbers


def create_month(count: int, gpus: int) -> list[jobs.RecordedJob]:
    """A month of jobs that use about 90 % of the GPUs: many small and short jobs, few large and long ones."""
    random = np.random.default_rng(3)
    sizes = random.choice([1, 1, 1, 2, 4, 8, 8, 16, 32], count)
    lengths = np.exp(random.normal(0, 1.5, count))
    lengths *= 0.9 * gpus * MONTH_SECONDS / float(sizes @ lengths)
    times = np.sort(random.uniform(0, MONTH_SECONDS, count))
    return [
        jobs.RecordedJob(
            str(at),
            float(times[at]),
            float(lengths[at]),
            simulated_fleet.GpuRequest(int(sizes[at]) * simulated_fleet.GPU_MILLI),
        )
        for at in range(count)
    ]


def _reference(count: int) -> float:
    started_at = time.perf_counter()
    heap: list[tuple[float, int]] = []
    for at in range(count):
        heapq.heappush(heap, ((at * 7919) % 104_729 / 7, at))
    while heap:
        heapq.heappop(heap)
    return time.perf_counter() - started_at
