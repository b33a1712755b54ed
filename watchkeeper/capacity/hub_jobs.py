"""Build job records for a replay from the GPU allocations that a hub recorded.

packs/rules/usage-hours.yaml records each minute the GPUs of every workload; consecutive minutes are one job. Jobs that
no scheduler lists any more count as submitted when they started, and their wait is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from watchkeeper.capacity.jobs import JobRecords, RecordedJob
from watchkeeper.capacity.simulated_fleet import GPU_MILLI, GpuRequest
from watchkeeper.model import workloads
from watchkeeper.query.engine import Floats, QueryResult
from watchkeeper.readers import table

EXPRESSION = (
    "sum by (cluster, workload_kind, namespace, workload)"
    ' (watchkeeper:workload_gpus:sum{part="allocated",workload!=""})'
)
# Has a sample for every minute that the hub recorded, even if no GPU was allocated.
RECORDED_EXPRESSION = "group(watchkeeper:gpus_accounted:sum)"
SOURCE = "this hub"
ASSUMPTIONS = (
    "a job is a time range in which GPUs were allocated to one pod, Slurm job or process; each pod of a job counts",
    "jobs that no scheduler lists any more count as submitted when they started; their wait is unknown",
)
# Short windows are read in steps of a minute, long ones in steps of five: there, shorter jobs hardly matter.
FINE_WINDOW_SECONDS, FINE_STEP, STEP = 6 * 3600.0, 60, 300
# A restart of the hub or an unreachable node does not end a job.
LONGEST_GAP_SECONDS = 600.0
# The longest range of one query: a day of 10,000 jobs is 3 million samples.
CHUNK_SECONDS = 86_400.0

# Cluster, kind, namespace and name of a workload.
Identity = tuple[str, ...]


def query_step(window_seconds: float) -> int:
    return FINE_STEP if window_seconds <= FINE_WINDOW_SECONDS else STEP


def query_chunks(since: float, until: float) -> Iterator[tuple[float, float]]:
    while since < until:
        yield since, min(since + CHUNK_SECONDS, until)
        since += CHUNK_SECONDS


def first_sample_time(result: QueryResult) -> float | None:
    """Return the first time in a result of `RECORDED_EXPRESSION`; None if the hub recorded nothing."""
    return min((float(times_ms[0]) / 1000 for _, times_ms, _ in result.frame.rows() if len(times_ms)), default=None)


@dataclass(slots=True)
class _Allocation:
    started_at: float
    ended_at: float
    peak_gpus: float


@dataclass(slots=True)
class WorkloadHistory:
    """The GPU allocations of each workload, built from query results, the oldest first."""

    step: float
    allocations: dict[Identity, list[_Allocation]] = field(default_factory=dict)

    def add_result(self, result: QueryResult) -> None:
        for labels, times_ms, values in result.frame.rows():
            key = tuple(labels.get(name, "") for name in ("cluster", "workload_kind", "namespace", "workload"))
            is_allocated = values > 0
            if key[-1] and is_allocated.any():
                self._add(key, times_ms[is_allocated] / 1000, values[is_allocated])

    def _add(self, key: Identity, at: Floats, gpus: Floats) -> None:
        cuts = np.flatnonzero(np.diff(at) > max(LONGEST_GAP_SECONDS, 2 * self.step)) + 1
        allocations = self.allocations.setdefault(key, [])
        for times, gpu_counts in zip(np.split(at, cuts), np.split(gpus, cuts), strict=True):
            started_at, ended_at, peak = float(times[0]), float(times[-1]) + self.step, float(gpu_counts.max())
            last = allocations[-1] if allocations else None
            if last is not None and started_at - last.ended_at <= LONGEST_GAP_SECONDS:
                last.ended_at, last.peak_gpus = max(ended_at, last.ended_at), max(peak, last.peak_gpus)
            else:
                allocations.append(_Allocation(started_at, ended_at, peak))

    def build_records(
        self, since: float, until: float, scheduled_workloads: Iterable[workloads.ScheduledWorkload]
    ) -> JobRecords:
        workloads_by_key: dict[Identity, workloads.ScheduledWorkload] = {
            (
                scheduled.cluster,
                scheduled.workload.kind.value,
                scheduled.workload.namespace,
                scheduled.workload.name,
            ): scheduled
            for scheduled in scheduled_workloads
        }
        jobs: list[RecordedJob] = []
        for key, allocations in self.allocations.items():
            for number, allocation in enumerate(allocations, start=1):
                scheduled_workload = workloads_by_key.get(key) if number == len(allocations) else None
                jobs.append(_job(key, allocation, scheduled_workload, number=number, until=until, step=self.step))
        jobs.sort(key=lambda job: (job.submitted, job.id))
        counts = {
            "jobs": len(jobs),
            "began_before": sum(
                part.started_at - since < self.step for parts in self.allocations.values() for part in parts
            ),
            "without_end": sum(job.is_cut_off for job in jobs),
            "wait_known": sum(job.started is not None for job in jobs),
        }
        return JobRecords(tuple(jobs), SOURCE, counts, table.Problems(SOURCE), since, until)


def _job(
    key: Identity,
    allocation: _Allocation,
    scheduled_workload: workloads.ScheduledWorkload | None,
    *,
    number: int,
    until: float,
    step: float,
) -> RecordedJob:
    cluster, _, namespace, name = key
    id = "/".join(part for part in (cluster, namespace, name, str(number) if number > 1 else "") if part)
    gpus, begin = allocation.peak_gpus, allocation.started_at
    milli = max(1, round(gpus * GPU_MILLI)) if gpus < 1 else round(gpus) * GPU_MILLI
    shape = GpuRequest(milli, slice_milli=milli if milli < GPU_MILLI else 0)
    ended_at = min(allocation.ended_at, until)
    is_cut_off = until - allocation.ended_at < step
    started = None if scheduled_workload is None else scheduled_workload.started_at
    requested = None if scheduled_workload is None else scheduled_workload.requested_at
    # The times of the scheduler belong to this allocation only if they match its recorded start.
    if requested is None or started is None or abs(started - begin) > LONGEST_GAP_SECONDS or requested > started:
        return RecordedJob(id, begin, max(step, ended_at - begin), shape, is_cut_off=is_cut_off)
    return RecordedJob(id, requested, max(step, ended_at - started), shape, started=started, is_cut_off=is_cut_off)
