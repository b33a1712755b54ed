"""How many replicas a model needs, and what following that advice would have done over the recorded past.

The numbers are those that `render keda` gives an autoscaler: requests that wait for each replica, and how fast the
latency objective burns. A replica more is wanted as soon as either is over its target; one less only after both have
been below it for long, because loading a model takes minutes. `web/jobs_api` asks; nothing of ours changes replicas.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from watchkeeper.errors import WatchkeeperError
from watchkeeper.kit import own_metrics
from watchkeeper.query.engine import Engine, Span

# What one replica may have waiting before it counts as too few; below that nobody waits long (InferenceQueueDeep).
WAITING_PER_REPLICA = 10.0
# Half as many again is the most at once, and one less at a time (render/keda.py has the same for KEDA and the HPA).
MOST_GROWTH = 1.5
SMALLEST, LARGEST = 1, 8
# The HPA's own tolerance; and how long less must be enough before a replica is given up.
TOLERANCE = 0.1
CALM_SECONDS = 600.0
SHRINK_EVERY_SECONDS = 300.0
MOST_MODELS, MOST_STEPS = 1000, 2000
# What packs/rules/slo.yaml records of each objective.
LATE_EXPR = "slo:error_ratio:rate5m"


@dataclass(frozen=True, slots=True)
class Load:
    """One model at one time. None: not told.

    A burn of 1 uses the budget up exactly by the end of its window; `shown` is the most requests a second that one
    replica has had within a day.
    """

    at: float
    replicas: int
    waiting: float | None = None
    requests_per_second: float | None = None
    burn: float | None = None
    shown: float | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """How many replicas would do now; `wanted` None: too little is known to say."""

    cluster: str
    model: str
    replicas: int
    wanted: int | None
    why: str
    waiting: float | None
    burn: float | None


@dataclass(frozen=True, slots=True)
class Step:
    at: float
    replicas: int
    wanted: int


@dataclass(frozen=True, slots=True)
class Past:
    """What following the advice would have done: replica-hours, changes, and how long too many requests waited.

    `crowded_seconds` is the time with more waiting for each replica than the target, as it was and as it would have
    been; a queue that more replicas share is taken to be shorter in proportion, which is the best case.
    """

    cluster: str
    model: str
    since: float
    until: float
    had_replica_hours: float
    would_replica_hours: float
    crowded_seconds: float
    would_crowded_seconds: float
    changes: int
    steps: tuple[Step, ...]


def wanted(load: Load, have: int) -> tuple[int | None, str]:
    """Replicas that would do for this load, as the HPA computes them: the most of what each number asks for."""
    asked: list[tuple[int, str]] = []
    if load.waiting is not None:
        share = load.waiting / (WAITING_PER_REPLICA * max(have, 1))
        asked.append(
            (_scaled(have, share), f"{load.waiting:g} requests wait, {WAITING_PER_REPLICA:g} a replica at most")
        )
    if load.burn is not None:
        share = min(load.burn, MOST_GROWTH)
        asked.append(
            (_scaled(have, share) if share > 1 else min(have, 1), f"the latency budget burns at {load.burn:.2g}")
        )
    if load.requests_per_second is not None and load.shown:
        needed = math.ceil(load.requests_per_second / load.shown - TOLERANCE)
        rate = f"{load.requests_per_second:.3g} requests a second, and a replica has shown {load.shown:.3g}"
        asked.append((min(needed, have), rate))
    if not asked:
        return None, "neither a queue nor a latency objective of it is measured"
    most, why = max(asked, key=lambda one: one[0])
    return min(max(most, SMALLEST), LARGEST), why


def _scaled(have: int, share: float) -> int:
    return have if abs(share - 1) <= TOLERANCE else math.ceil(have * share)


def follow(loads: Sequence[Load], *, cluster: str, model: str) -> Past | None:
    """The advice, step by step over the past, with the slow way down; None without two points."""
    if len(loads) < 2:
        return None
    have, calm_since, shrunk_at = loads[0].replicas, loads[0].at, -math.inf
    had_hours = would_hours = crowded = would_crowded = 0.0
    steps: list[Step] = []
    for load, after in itertools.pairwise(loads):
        seconds = after.at - load.at
        # The queue that was there, shared by the replicas that would have been.
        shared = None if load.waiting is None else load.waiting * load.replicas / max(have, 1)
        burn = load.burn if have <= load.replicas else None
        would = replace(load, replicas=have, waiting=shared, burn=burn)
        want = wanted(would, have)[0] or have
        if want > have:
            have, calm_since = want, load.at
        elif want == have:
            calm_since = load.at
        elif load.at - calm_since >= CALM_SECONDS and load.at - shrunk_at >= SHRINK_EVERY_SECONDS:
            have, shrunk_at = have - 1, load.at
        if not steps or steps[-1].wanted != have or steps[-1].replicas != load.replicas:
            steps.append(Step(load.at, load.replicas, have))
        had_hours += load.replicas * seconds / 3600
        would_hours += have * seconds / 3600
        crowded += seconds if (load.waiting or 0.0) > WAITING_PER_REPLICA * load.replicas else 0.0
        would_crowded += seconds if (shared or 0.0) > WAITING_PER_REPLICA * have else 0.0
    changes = sum(one.wanted != other.wanted for one, other in itertools.pairwise(steps))
    return Past(
        cluster, model, loads[0].at, loads[-1].at, had_hours, would_hours, crowded, would_crowded, changes, tuple(steps)
    )


def expressions(budgets: Mapping[str, float], only: str = "") -> Mapping[str, str]:
    """The PromQL behind a load, by model; `budgets`: the share of late requests that each latency objective allows."""
    late = [
        f"{LATE_EXPR}{{{_both(f'slo={chr(34)}{name}{chr(34)}', only)}}} / {budget:.6g}"
        for name, budget in budgets.items()
    ]
    found = {
        "replicas": f"watchkeeper:inference_replicas:count{{{only}}}",
        "waiting": f"sum by (cluster, model_name) (inference_requests_waiting{{{only}}})",
        "requests": f"sum by (cluster, model_name) (rate(inference_request_duration_seconds_count{{{only}}}[5m]))",
        "shown": f"watchkeeper:inference_replica_requests:max1d{{{only}}}",
    }
    return {**found, "burn": f"max by (cluster, model_name) ({' or '.join(late)})"} if late else found


def _both(one: str, other: str) -> str:
    return f"{one},{other}" if other else one


def now(engine: Engine, at_ms: int, budgets: Mapping[str, float]) -> tuple[list[Advice], list[str]]:
    """Advice for every model that is served, and what could not be asked."""
    told: dict[str, dict[tuple[str, str], float]] = {}
    problems: list[str] = []
    for name, expr in expressions(budgets).items():
        try:
            rows = engine.instant(expr, at_ms).latest()
        except WatchkeeperError as error:
            problems.append(f"{name} of models could not be asked: {error}")
            rows = {}
        told[name] = {(one.get("cluster", ""), one.get("model_name", "")): value for one, value in rows.items()}
    found = []
    for key, count in sorted(told["replicas"].items())[:MOST_MODELS]:
        load = _load(at_ms, count, {name: rows.get(key) for name, rows in told.items()})
        want, why = wanted(load, load.replicas)
        found.append(Advice(*key, load.replicas, want, why, load.waiting, load.burn))
    return found, problems


def past(engine: Engine, span: Span, budgets: Mapping[str, float], *, cluster: str, model: str) -> Past | None:
    """What following the advice would have done for one model over a span."""
    only = f'cluster="{own_metrics.escape(cluster)}",model_name="{own_metrics.escape(model)}"'
    told: dict[str, dict[int, float]] = {}
    for name, expr in expressions(budgets, only).items():
        frame = engine.range(expr, span).frame
        told[name] = {
            at: value
            for _, times, values in frame.rows()
            for at, value in zip(times.tolist(), values.tolist(), strict=True)
        }
    loads = [
        _load(at, count, {name: rows.get(at) for name, rows in told.items()})
        for at, count in sorted(told["replicas"].items())
    ]
    return follow(loads, cluster=cluster, model=model)


def _load(at_ms: int, count: float, told: Mapping[str, float | None]) -> Load:
    names = ("waiting", "requests", "burn", "shown")
    return Load(at_ms / 1000, round(count), *(told.get(name) for name in names))
