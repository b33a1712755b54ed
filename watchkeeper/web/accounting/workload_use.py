"""What each workload did with the GPUs or MIG slices that it holds, over the time that it has held them.

A GPU's series goes on when its holder changes: a job that began half an hour ago on a GPU that was idle all day has not
been idle. So each workload is judged by the longest of a few windows in which it held its GPUs nearly all the time. An
exporter that writes the holder on its series begins others with each holder, and those of others do not count.
`capacity_api` asks, `capacity.rightsizing` judges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from watchkeeper.capacity import demand_queries, rightsizing
from watchkeeper.catalogue import mig
from watchkeeper.hub.samples import Queries
from watchkeeper.kit import durations
from watchkeeper.model import fleet
from watchkeeper.model.labels import Labels
from watchkeeper.web.fleet import holders

# Each window is a quarter of the one before, down to ten minutes: a day, six hours, an hour and a half, 22 minutes.
SHORTER, LEAST_SECONDS = 4, 600.0
# A busy hub misses a minute now and then.
NEARLY_ALL = 0.8

# Cluster and name of a workload; a GPU's UUID and the id of its slice, empty for the whole GPU; and all four.
Workload = tuple[str, str]
GpuPart = tuple[str, str]
WorkloadPart = tuple[str, str, str, str]


@dataclass(slots=True)
class _Held:
    parts: list[GpuPart] = field(default_factory=list)
    is_shared: bool = False


@dataclass(slots=True)
class _Facts:
    """What GPUs and slices did in one window: each number with the holder that its series names."""

    numbers: dict[tuple[GpuPart, str], list[tuple[str | None, float]]] = field(default_factory=dict)
    labels: dict[GpuPart, Labels] = field(default_factory=dict)

    def of(self, parts: Sequence[GpuPart], name: str, workload: str) -> list[float]:
        """The number of each part while this workload held it, as far as the series say whose they are."""
        found = []
        for part in parts:
            known = self.numbers.get((part, name), [])
            own = [value for holder, value in known if holder in (None, workload)] or [value for _, value in known]
            found += [max(own)] if own else []
        return found


async def load_workload_use(
    queries: Queries, held: holders.GpuHolders, window_seconds: float, cluster: str | None
) -> tuple[list[rightsizing.WorkloadUse], float | None]:
    """Every workload's use, and their work on all that is held now in GPUs' worth; None where nothing is measured.

    QueryError where a question cannot be asked.
    """
    found = _by_workload(held, cluster)
    lasted = await _lasted(queries, window_seconds, cluster)
    chosen = {workload: _window(lasted, workload, those.parts, window_seconds) for workload, those in found.items()}
    facts = {
        span: await _facts(queries, span, cluster) for span in {window_seconds, *chosen.values()} if span is not None
    }
    uses = [_use(workload, those, facts.get(chosen[workload] or -1.0)) for workload, those in sorted(found.items())]
    return uses, _worth(found, facts[window_seconds])


def _worth(found: Mapping[Workload, _Held], facts: _Facts) -> float | None:
    """Work on what is held now, a slice as the part of its GPU that it is; what others did before is no work on it."""
    worth: dict[GpuPart, float] = {}
    for (_, called), those in found.items():
        for part in those.parts:
            for mean in facts.of([part], "mean", called):
                worth[part] = max(worth.get(part, 0.0), mean * _share(facts.labels[part]))
    return sum(worth.values()) if worth else None


def _share(labels: Labels) -> float:
    profile = labels.get("GPU_I_PROFILE", "")
    # 1g.10gb; an exporter may write anything.
    return mig.minimum_gpu_share(profile, labels.get("modelName", "")) if profile[:1].isdecimal() else 1.0


def _by_workload(held: holders.GpuHolders, cluster: str | None) -> dict[Workload, _Held]:
    """Workloads with what they hold; a GPU or slice that several hold is shared already and belongs to none alone."""
    found: dict[Workload, _Held] = {}
    for gpu, those in held.by_gpu.items():
        by_part: dict[GpuPart, set[Workload]] = {}
        for holder in those:
            # Two containers of a pod are one workload.
            by_part.setdefault((gpu, holder.mig_instance or ""), set()).add((holder.cluster, holder.workload_name))
        for part, names in by_part.items():
            for name in names:
                if cluster is None or name[0] == cluster:
                    one = found.setdefault(name, _Held())
                    one.parts.append(part)
                    one.is_shared |= len(names) > 1
    return found


async def _lasted(queries: Queries, window_seconds: float, cluster: str | None) -> Mapping[WorkloadPart, float]:
    """For how long of the window each workload has held each of its GPUs, as the rules of usage write it down."""
    expr = demand_queries.held_minutes_expression(durations.format_seconds(window_seconds), cluster=cluster)
    answer = await queries.instant(expr)
    return {
        (labels.get("cluster", ""), fleet.holder_from_labels(labels) or "", *_part(labels)): minutes * 60
        for labels, minutes in answer.latest().items()
    }


def _part(labels: Labels) -> GpuPart:
    return labels.get("UUID", ""), labels.get("GPU_I_ID", "")


def _window(
    lasted: Mapping[WorkloadPart, float], workload: Workload, parts: Iterable[GpuPart], window_seconds: float
) -> float | None:
    """The longest window in which it held all of its GPUs nearly all the time; None for one that has just begun."""
    seconds = min(lasted.get((*workload, *part), 0.0) for part in parts)
    span = window_seconds
    while seconds < NEARLY_ALL * span:
        span /= SHORTER
        if span < LEAST_SECONDS:
            return None
    return span


async def _facts(queries: Queries, span: float, cluster: str | None) -> _Facts:
    found = _Facts()
    window = durations.format_seconds(round(span))
    for name, expr in demand_queries.activity_expressions(window, cluster=cluster).items():
        for labels, value in (await queries.instant(expr)).latest().items():
            part = _part(labels)
            found.numbers.setdefault((part, name), []).append((fleet.holder_from_labels(labels), value))
            found.labels[part] = labels
    return found


def _use(workload: Workload, held: _Held, facts: _Facts | None) -> rightsizing.WorkloadUse:
    called, count = workload[1], len(held.parts)
    if facts is None:
        return rightsizing.WorkloadUse(called, count, "", None, None, None, None, is_shared=held.is_shared, is_new=True)
    means = facts.of(held.parts, "mean", called)
    most = {name: max(facts.of(held.parts, name, called), default=None) for name in ("p95", "memory", "free_memory")}
    labels = facts.labels.get(held.parts[0], Labels())
    return rightsizing.WorkloadUse(
        called,
        count,
        labels.get("modelName", ""),
        sum(means) / len(means) if means else None,
        most["p95"],
        most["memory"],
        most["free_memory"],
        slice=labels.get("GPU_I_PROFILE", ""),
        is_shared=held.is_shared,
    )
