"""What each workload did with the GPUs that it holds, over the time that it has held them.

A GPU's series goes on when its holder changes: a job that began half an hour ago on a GPU that was idle all day has not
been idle. So each workload is judged by the longest of a few windows in which it held its GPUs nearly all the time.
`capacity_api` asks, `capacity.rightsizing` judges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from watchkeeper.capacity import hub_demand, rightsizing
from watchkeeper.kit import clock, durations
from watchkeeper.web import holders
from watchkeeper.web.view import HubView

# Each window is a quarter of the one before, down to ten minutes: a day, six hours, an hour and a half, 22 minutes.
SHORTER, LEAST_SECONDS = 4, 600.0
# A busy hub misses a minute now and then.
NEARLY_ALL = 0.8

# Cluster and name of a workload; cluster, GPU and name where it is about one of its GPUs.
Workload = tuple[str, str]
OnGpu = tuple[str, str, str]


@dataclass(slots=True)
class _Held:
    gpus: list[str] = field(default_factory=list)
    is_shared: bool = False


@dataclass(slots=True)
class _Facts:
    """What GPUs did in one window, by UUID."""

    by_gpu: dict[str, dict[str, float]] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)

    def of(self, gpus: Sequence[str], name: str) -> list[float]:
        return [self.by_gpu[gpu][name] for gpu in gpus if name in self.by_gpu.get(gpu, {})]


async def ask(
    hub: HubView, held: holders.Holders, window_seconds: float, cluster: str | None
) -> tuple[list[rightsizing.Use], float | None]:
    """Every workload's use, and what all GPUs did in GPUs' worth; None where nothing is measured. QueryError."""
    found = _by_workload(held, cluster)
    lasted = await _lasted(hub, window_seconds, cluster)
    chosen = {workload: _window(lasted, workload, those.gpus, window_seconds) for workload, those in found.items()}
    facts = {span: await _facts(hub, span, cluster) for span in {window_seconds, *chosen.values()} if span is not None}
    uses = [_use(workload, those, facts.get(chosen[workload] or -1.0)) for workload, those in sorted(found.items())]
    means = [one["mean"] for one in facts[window_seconds].by_gpu.values() if "mean" in one]
    return uses, sum(means) if means else None


def _by_workload(held: holders.Holders, cluster: str | None) -> dict[Workload, _Held]:
    """Workloads with the GPUs they hold; a GPU that several hold is shared already and belongs to none alone."""
    found: dict[Workload, _Held] = {}
    for gpu, those in held.by_gpu.items():
        # Two containers of a pod are one workload.
        names = {(holder.cluster, holder.called) for holder in those}
        for name in names:
            if cluster is None or name[0] == cluster:
                one = found.setdefault(name, _Held())
                one.gpus.append(gpu)
                one.is_shared |= len(names) > 1 or any(holder.slice is not None for holder in those)
    return found


async def _lasted(hub: HubView, window_seconds: float, cluster: str | None) -> Mapping[OnGpu, float]:
    """For how long of the window each workload has held each of its GPUs, as the rules of usage write it down."""
    expr = hub_demand.held_minutes_expression(durations.format_seconds(window_seconds), cluster=cluster)
    answer = await hub.ask(expr, clock.to_ms(hub.clock.now()))
    lasted: dict[OnGpu, float] = {}
    for labels, minutes in answer.latest().items():
        space, name = labels.get("namespace", ""), labels.get("workload", "")
        called = f"{space}/{name}" if space else name
        lasted[labels.get("cluster", ""), labels.get("UUID", ""), called] = minutes * 60
    return lasted


def _window(
    lasted: Mapping[OnGpu, float], workload: Workload, gpus: Iterable[str], window_seconds: float
) -> float | None:
    """The longest window in which it held all of its GPUs nearly all the time; None for one that has just begun."""
    cluster, called = workload
    seconds = min(lasted.get((cluster, gpu, called), 0.0) for gpu in gpus)
    span = window_seconds
    while seconds < NEARLY_ALL * span:
        span /= SHORTER
        if span < LEAST_SECONDS:
            return None
    return span


async def _facts(hub: HubView, span: float, cluster: str | None) -> _Facts:
    found = _Facts()
    window = durations.format_seconds(round(span))
    for name, expr in hub_demand.activity_expressions(window, cluster=cluster).items():
        for labels, value in (await hub.ask(expr, clock.to_ms(hub.clock.now()))).latest().items():
            gpu = labels.get("UUID", "")
            known = found.by_gpu.setdefault(gpu, {})
            known[name] = max(value, known.get(name, value))
            found.models[gpu] = labels.get("modelName", found.models.get(gpu, ""))
    return found


def _use(workload: Workload, held: _Held, facts: _Facts | None) -> rightsizing.Use:
    if facts is None:
        return rightsizing.Use(workload[1], len(held.gpus), "", None, None, None, None, held.is_shared, is_new=True)
    means = facts.of(held.gpus, "mean")
    most = {name: max(facts.of(held.gpus, name), default=None) for name in ("p95", "memory", "free_memory")}
    return rightsizing.Use(
        workload[1],
        len(held.gpus),
        facts.models.get(held.gpus[0], ""),
        sum(means) / len(means) if means else None,
        most["p95"],
        most["memory"],
        most["free_memory"],
        held.is_shared,
    )
