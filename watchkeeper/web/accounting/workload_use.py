"""Measure how each workload uses the GPUs or MIG instances that it holds, while it holds them.

The series of a GPU continues when its holder changes: a job that started half an hour ago on a GPU that was idle all
day has not been idle. So each workload is measured over the longest of a few windows in which it held its GPUs almost
all the time; series whose labels name other holders do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from watchkeeper.capacity import demand_queries, rightsizing
from watchkeeper.catalogue import mig
from watchkeeper.hub import holders
from watchkeeper.hub.samples import Queries
from watchkeeper.kit import durations
from watchkeeper.model import fleet
from watchkeeper.model.labels import Labels

# Each window is a quarter of the previous one, at least ten minutes: 1 d, 6 h, 90 min, 22 min.
WINDOW_DIVISOR, MIN_WINDOW_SECONDS = 4, 600.0
# A busy hub can miss single minutes.
MIN_HELD_SHARE = 0.8

# Cluster and name of a workload; UUID of a GPU and id of its MIG instance, empty for the whole GPU; and all four.
Workload = tuple[str, str]
GpuPart = tuple[str, str]
WorkloadPart = tuple[str, str, str, str]


@dataclass(slots=True)
class _HeldGpus:
    parts: list[GpuPart] = field(default_factory=list)
    is_shared: bool = False


@dataclass(slots=True)
class _Activity:
    """The activity of GPUs and MIG instances in one window: each value with the holder that its series names."""

    values: dict[tuple[GpuPart, str], list[tuple[str | None, float]]] = field(default_factory=dict)
    labels: dict[GpuPart, Labels] = field(default_factory=dict)

    def values_of(self, parts: Sequence[GpuPart], measure: str, workload: str) -> list[float]:
        """The value of each part that belongs to this workload; of all holders if no series names this one."""
        part_values = []
        for part in parts:
            series_values = self.values.get((part, measure), [])
            own_values = [value for holder, value in series_values if holder in (None, workload)]
            if series_values:
                part_values.append(max(own_values or (value for _, value in series_values)))
        return part_values


async def load_workload_use(
    queries: Queries, gpu_holders: holders.GpuHolders, window_seconds: float, cluster: str | None
) -> tuple[list[rightsizing.WorkloadUse], float | None]:
    """The use of every workload, and the GPUs that all of them use, None if not measured, or raise QueryError."""
    held_by_workload = _group_by_workload(gpu_holders, cluster)
    held_seconds = await _load_held_seconds(queries, window_seconds, cluster)
    window_by_workload = {
        workload: _choose_window(held_seconds, workload, held.parts, window_seconds)
        for workload, held in held_by_workload.items()
    }
    activity_by_window = {
        window: await _load_activity(queries, window, cluster)
        for window in {window_seconds, *window_by_workload.values()}
        if window is not None
    }
    uses = [
        _workload_use(workload, held, activity_by_window.get(window_by_workload[workload] or -1.0))
        for workload, held in sorted(held_by_workload.items())
    ]
    return uses, _used_gpus(held_by_workload, activity_by_window[window_seconds])


def _used_gpus(held_by_workload: Mapping[Workload, _HeldGpus], activity: _Activity) -> float | None:
    """The GPUs used by current holders, a MIG instance as its share of a GPU; use by earlier holders does not count."""
    used_by_part: dict[GpuPart, float] = {}
    for (_, name), held in held_by_workload.items():
        for part in held.parts:
            for mean in activity.values_of([part], "mean", name):
                used_by_part[part] = max(used_by_part.get(part, 0.0), mean * _gpu_share(activity.labels[part]))
    return sum(used_by_part.values()) if used_by_part else None


def _gpu_share(labels: Labels) -> float:
    profile = labels.get("GPU_I_PROFILE", "")
    # 1g.10gb; an exporter can write anything else.
    return mig.minimum_gpu_share(profile, labels.get("modelName", "")) if profile[:1].isdecimal() else 1.0


def _group_by_workload(gpu_holders: holders.GpuHolders, cluster: str | None) -> dict[Workload, _HeldGpus]:
    """The GPUs and MIG instances of each workload; one with several holders is marked as shared."""
    held_by_workload: dict[Workload, _HeldGpus] = {}
    for gpu, current_holders in gpu_holders.by_gpu.items():
        workloads_by_part: dict[GpuPart, set[Workload]] = {}
        for holder in current_holders:
            # Two containers of a pod are one workload.
            workloads_by_part.setdefault((gpu, holder.mig_instance or ""), set()).add(
                (holder.cluster, holder.workload_name)
            )
        for part, workloads in workloads_by_part.items():
            for workload in workloads:
                if cluster is None or workload[0] == cluster:
                    held = held_by_workload.setdefault(workload, _HeldGpus())
                    held.parts.append(part)
                    held.is_shared |= len(workloads) > 1
    return held_by_workload


async def _load_held_seconds(
    queries: Queries, window_seconds: float, cluster: str | None
) -> Mapping[WorkloadPart, float]:
    """For how long of the window each workload held each of its GPUs, from the recording rules of usage."""
    expr = demand_queries.held_minutes_expression(durations.format_seconds(window_seconds), cluster=cluster)
    answer = await queries.instant(expr)
    return {
        (labels.get("cluster", ""), fleet.holder_from_labels(labels) or "", *_read_part(labels)): minutes * 60
        for labels, minutes in answer.latest().items()
    }


def _read_part(labels: Labels) -> GpuPart:
    return labels.get("UUID", ""), labels.get("GPU_I_ID", "")


def _choose_window(
    held_seconds: Mapping[WorkloadPart, float], workload: Workload, parts: Iterable[GpuPart], window_seconds: float
) -> float | None:
    """The longest window in which the workload held all its GPUs almost all the time; None if it just started."""
    seconds = min(held_seconds.get((*workload, *part), 0.0) for part in parts)
    window = window_seconds
    while seconds < MIN_HELD_SHARE * window:
        window /= WINDOW_DIVISOR
        if window < MIN_WINDOW_SECONDS:
            return None
    return window


async def _load_activity(queries: Queries, window_seconds: float, cluster: str | None) -> _Activity:
    activity = _Activity()
    window = durations.format_seconds(round(window_seconds))
    for measure, expr in demand_queries.activity_expressions(window, cluster=cluster).items():
        for labels, value in (await queries.instant(expr)).latest().items():
            part = _read_part(labels)
            activity.values.setdefault((part, measure), []).append((fleet.holder_from_labels(labels), value))
            activity.labels[part] = labels
    return activity


def _workload_use(workload: Workload, held: _HeldGpus, activity: _Activity | None) -> rightsizing.WorkloadUse:
    name, count = workload[1], len(held.parts)
    if activity is None:
        return rightsizing.WorkloadUse(name, count, "", None, None, None, None, is_shared=held.is_shared, is_new=True)
    means = activity.values_of(held.parts, "mean", name)
    highest = {
        measure: max(activity.values_of(held.parts, measure, name), default=None)
        for measure in ("p95", "memory", "free_memory")
    }
    labels = activity.labels.get(held.parts[0], Labels())
    return rightsizing.WorkloadUse(
        name,
        count,
        labels.get("modelName", ""),
        sum(means) / len(means) if means else None,
        highest["p95"],
        highest["memory"],
        highest["free_memory"],
        slice=labels.get("GPU_I_PROFILE", ""),
        is_shared=held.is_shared,
    )
