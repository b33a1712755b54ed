"""The jobs that a hub has recorded itself: who held how many GPUs from when to when, ready to be replayed.

packs/rules/usage-hours.yaml writes each minute what every workload holds; a stretch of such minutes is one job. When a
job came is known only of those that a scheduler still lists; the others count as submitted when they started, and
their waiting is unknown. `web/whatif_api` asks; `whatif` replays them like those of a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from watchkeeper.capacity.jobs import JobRecords, RecordedJob
from watchkeeper.capacity.simulated_fleet import WHOLE, GpuRequest
from watchkeeper.model import workloads
from watchkeeper.query.engine import Floats, QueryResult
from watchkeeper.readers import table

EXPRESSION = (
    "sum by (cluster, workload_kind, namespace, workload)"
    ' (watchkeeper:workload_gpus:sum{part="allocated",workload!=""})'
)
# There in every minute in which the hub looked, whether or not somebody held a GPU.
LOOKED = "group(watchkeeper:gpus_accounted:sum)"
WHERE = "this hub"
ASSUMPTIONS = (
    "a job is a stretch of time in which one pod, Slurm job or program held GPUs; pods of one job count each",
    "jobs that no scheduler lists any more came when they started: how long they had waited is not known",
)
# Looked at every minute in short windows; every five in long ones, where shorter jobs hardly count.
FINE_WINDOW_SECONDS, FINE_STEP, STEP = 6 * 3600.0, 60, 300
# A hub that was restarted, or a node that fell silent, does not end a job.
LONGEST_GAP_SECONDS = 600.0
# One question is at most this long: a day of 10,000 jobs is 3 million samples.
CHUNK_SECONDS = 86_400.0

# Cluster, kind, namespace and name of a workload.
Identity = tuple[str, str, str, str]


def query_step(window_seconds: float) -> int:
    return FINE_STEP if window_seconds <= FINE_WINDOW_SECONDS else STEP


def query_chunks(since: float, until: float) -> Iterator[tuple[float, float]]:
    while since < until:
        yield since, min(since + CHUNK_SECONDS, until)
        since += CHUNK_SECONDS


def first_sample_time(answer: QueryResult) -> float | None:
    """The first moment of an answer to `LOOKED`; None where the hub did not look."""
    return min((float(times_ms[0]) / 1000 for _, times_ms, _ in answer.frame.rows() if len(times_ms)), default=None)


@dataclass(slots=True)
class _Holding:
    """A time in which a workload held GPUs, `most` of them at once."""

    begun: float
    ended: float
    most: float


@dataclass(slots=True)
class WorkloadHistory:
    """What was seen of each workload, answer by answer, the oldest first."""

    step: float
    stretches: dict[Identity, list[_Holding]] = field(default_factory=dict)

    def take(self, answer: QueryResult) -> None:
        for labels, times_ms, values in answer.frame.rows():
            name = labels.get("workload", "")
            held = values > 0
            if not name or not held.any():
                continue
            key = (labels.get("cluster", ""), labels.get("workload_kind", ""), labels.get("namespace", ""), name)
            self._add(key, times_ms[held] / 1000, values[held])

    def _add(self, key: Identity, at: Floats, gpus: Floats) -> None:
        cuts = np.flatnonzero(np.diff(at) > max(LONGEST_GAP_SECONDS, 2 * self.step)) + 1
        known = self.stretches.setdefault(key, [])
        for times, most in zip(np.split(at, cuts), np.split(gpus, cuts), strict=True):
            begun, ended, peak = float(times[0]), float(times[-1]) + self.step, float(most.max())
            if known and begun - known[-1].ended <= LONGEST_GAP_SECONDS:
                known[-1] = _Holding(known[-1].begun, max(ended, known[-1].ended), max(peak, known[-1].most))
            else:
                known.append(_Holding(begun, ended, peak))

    def recorded(self, since: float, until: float, scheduled: Iterable[workloads.ScheduledWorkload]) -> JobRecords:
        """The jobs of a window; the schedulers' own times where they still list a job."""
        listed = {_identity(one): one for one in scheduled}
        jobs: list[RecordedJob] = []
        for key, stretches in self.stretches.items():
            for number, one in enumerate(stretches, start=1):
                newest = listed.get(key) if number == len(stretches) else None
                jobs.append(_job(key, one, newest, number=number, window=(since, until), step=self.step))
        jobs.sort(key=lambda job: (job.submitted, job.id))
        counts = {
            "jobs": len(jobs),
            "began_before": sum(one.begun - since < self.step for some in self.stretches.values() for one in some),
            "without_end": sum(job.is_cut_off for job in jobs),
            "wait_known": sum(job.started is not None for job in jobs),
        }
        return JobRecords(tuple(jobs), WHERE, counts, table.Problems(WHERE), since, until)


def _identity(one: workloads.ScheduledWorkload) -> Identity:
    return one.cluster, one.workload.kind.value, one.workload.namespace, one.workload.name


def _job(
    key: Identity,
    seen: _Holding,
    listed: workloads.ScheduledWorkload | None,
    *,
    number: int,
    window: tuple[float, float],
    step: float,
) -> RecordedJob:
    _, _, namespace, name = key
    id = "/".join(part for part in (key[0], namespace, name, str(number) if number > 1 else "") if part)
    milli = max(1, round(seen.most * WHOLE)) if seen.most < 1 else round(seen.most) * WHOLE
    shape = GpuRequest(milli, slice_milli=milli if milli < WHOLE else 0)
    ended = min(seen.ended, window[1])
    is_cut_off = window[1] - seen.ended < step
    began = None if listed is None else listed.started_at
    came = None if listed is None else listed.requested_at
    # A scheduler's times are those of this stretch only if they fit what was seen of it.
    if came is not None and began is not None and abs(began - seen.begun) <= LONGEST_GAP_SECONDS and came <= began:
        return RecordedJob(id, came, max(step, ended - began), shape, started=began, is_cut_off=is_cut_off)
    return RecordedJob(id, seen.begun, max(step, ended - seen.begun), shape, is_cut_off=is_cut_off)
