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
from watchkeeper.query.engine import Engine, QueryRange

# What one replica may have waiting before it counts as too few; below that nobody waits long (InferenceQueueDeep).
WAITING_PER_REPLICA = 10.0
# A burning objective asks for half as many again; render/keda.py has the same for KEDA and the HPA.
MOST_GROWTH = 1.5
SMALLEST, LARGEST = 1, 8
# The HPA's own tolerance; and how long less must be enough before a replica is given up.
TOLERANCE = 0.1
CALM_SECONDS = 600.0
SHRINK_EVERY_SECONDS = 300.0
# Two points farther apart than so many steps have a hole between them, about which nothing is claimed.
HOLE_STEPS = 1.5
MOST_MODELS = 1000
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
class ReplicasAdvice:
    """How many replicas would do now; `wanted` None: too little is known to say."""

    cluster: str
    model: str
    replicas: int
    wanted: int | None
    why: str
    waiting: float | None
    burn: float | None


@dataclass(frozen=True, slots=True)
class ReplicasStep:
    at: float
    replicas: int
    wanted: int


@dataclass(frozen=True, slots=True)
class ReplicasReplay:
    """What following the advice would have done, over the part of the window in which the model was seen.

    `crowded_seconds` is the time with more waiting for each replica than the target, `late_seconds` the time in which
    more requests were late than the latency objective allows (None: no objective of it is measured); both as it was and
    as it would have been. `changes` and `had_changes` count changes of the number of replicas.
    """

    cluster: str
    model: str
    since: float
    until: float
    step_seconds: float
    seen_seconds: float
    had_replica_hours: float
    would_replica_hours: float
    crowded_seconds: float
    would_crowded_seconds: float
    late_seconds: float | None
    would_late_seconds: float | None
    had_changes: int
    changes: int
    steps: tuple[ReplicasStep, ...]


def advise_replicas(load: Load, have: int) -> tuple[int | None, str]:
    """Replicas that would do for this load, as the HPA computes them: the most of what each number asks for."""
    asked: list[tuple[int, str]] = []
    if load.requests_per_second is not None and load.shown:
        share = load.requests_per_second / load.shown / max(have, 1)
        rate = f"{load.requests_per_second:.3g} requests a second, and a replica has shown {load.shown:.3g}"
        # It keeps replicas and adds none to those that have been there: what these can do is not known yet.
        asked.append((min(_scaled(have, share), max(have, load.replicas)), rate))
    if load.waiting is not None:
        share = load.waiting / (WAITING_PER_REPLICA * max(have, 1))
        asked.append(
            (_scaled(have, share), f"{load.waiting:g} requests wait, {WAITING_PER_REPLICA:g} a replica at most")
        )
    if load.burn is not None:
        more = _scaled(have, min(load.burn, MOST_GROWTH)) if load.burn > 1 else 0
        asked.append((more, f"the latency budget burns at {load.burn:.2g}"))
    if not asked:
        return None, "neither a queue nor a latency objective of it is measured"
    most, why = max(asked, key=lambda one: one[0])
    largest = max(LARGEST, have, load.replicas)
    why = f"{why}; {largest} is the most that is advised" if most > largest else why
    return min(max(most, SMALLEST), largest), why


def _scaled(have: int, share: float) -> int:
    return have if abs(share - 1) <= TOLERANCE else math.ceil(have * share)


def replay_advice(loads: Sequence[Load], *, cluster: str, model: str, step_seconds: float) -> ReplicasReplay | None:
    """The advice, step by step over the past, with the slow way down; None without two points side by side."""
    play = _Replay(loads[0].replicas, loads[0].at) if loads else None
    for load, after in itertools.pairwise(loads):
        assert play is not None
        play.turn(load, after, longest=HOLE_STEPS * step_seconds)
    if play is None or not play.seen:
        return None
    late, would_late = (play.late, play.would_late) if play.has_objective else (None, None)
    return ReplicasReplay(
        cluster, model, loads[0].at, loads[-1].at, step_seconds, play.seen, play.had_hours, play.would_hours,
        play.crowded, play.would_crowded, late, would_late, play.had_changes, play.changes, tuple(play.steps),
    )  # fmt: skip


class _Replay:
    """The past with as many replicas as the advice would have had: `have` of them, which serve from the next step on.

    More than there were are taken to be quick enough, and their queue is what came in beyond what one has shown within
    a day: the best case. Fewer share the queue that was there and keep up with what one has shown, and nothing more.
    """

    def __init__(self, have: int, at: float) -> None:
        self.have, self._calm_since, self._shrunk_at = have, at, -math.inf
        self.seen = self.had_hours = self.would_hours = 0.0
        self.crowded = self.would_crowded = self.late = self.would_late = 0.0
        self.has_objective = False
        self.had_changes = self.changes = 0
        self.steps: list[ReplicasStep] = []
        # The queue that would have been, and the one that was, at the step before.
        self._waiting, self._waited = 0.0, 0.0

    def turn(self, load: Load, after: Load, *, longest: float) -> None:
        seconds = after.at - load.at
        if seconds > longest:
            self._calm_since = after.at
            return
        had, have, burn = load.replicas, self.have, load.burn or 0.0
        self._queue(load, seconds)
        is_short = have < had and (load.requests_per_second or 0.0) > (1 + TOLERANCE) * have * (load.shown or math.inf)
        was_crowded = self._waited > WAITING_PER_REPLICA * had
        self.seen += seconds
        self.had_hours += had * seconds / 3600
        self.would_hours += have * seconds / 3600
        self.crowded += seconds if was_crowded else 0.0
        self.would_crowded += seconds if is_short or self._waiting > WAITING_PER_REPLICA * have else 0.0
        self.late += seconds if burn > 1 else 0.0
        self.would_late += seconds if is_short or (burn > 1 and have <= had) else 0.0
        self.has_objective |= load.burn is not None
        self.had_changes += after.replicas != had
        self._decide(load, least=had + 1 if was_crowded or burn > 1 else SMALLEST)
        self.changes += self.have != have
        if not self.steps or (self.steps[-1].wanted, self.steps[-1].replicas) != (self.have, had):
            self.steps.append(ReplicasStep(load.at, had, self.have))

    def _queue(self, load: Load, seconds: float) -> None:
        waited = load.waiting or 0.0
        shared = waited * load.replicas / max(self.have, 1)
        if self.have > load.replicas and load.requests_per_second is not None and load.shown:
            came_in = load.requests_per_second + max(0.0, waited - self._waited) / seconds
            left = self._waiting + (came_in - self.have * load.shown) * seconds
            shared = min(shared, max(0.0, left))
        self._waiting, self._waited = shared, waited

    def _decide(self, load: Load, *, least: int) -> None:
        """More at once, one less after a long calm; `least`: so many are known to be needed."""
        is_more = self.have > load.replicas
        would = replace(
            load,
            waiting=None if load.waiting is None else self._waiting,
            burn=None if is_more else load.burn,
        )
        want = advise_replicas(would, self.have)[0] or self.have
        want = max(want, min(least, self.have))
        if want >= self.have:
            self.have, self._calm_since = want, load.at
        elif load.at - self._calm_since >= CALM_SECONDS and load.at - self._shrunk_at >= SHRINK_EVERY_SECONDS:
            self.have, self._shrunk_at = self.have - 1, load.at


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


def advise_now(engine: Engine, at_ms: int, budgets: Mapping[str, float]) -> tuple[list[ReplicasAdvice], list[str]]:
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
        want, why = advise_replicas(load, load.replicas)
        found.append(ReplicasAdvice(*key, load.replicas, want, why, load.waiting, load.burn))
    return found, problems


def replay_model(
    engine: Engine, span: QueryRange, budgets: Mapping[str, float], *, cluster: str, model: str
) -> ReplicasReplay | None:
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
    return replay_advice(loads, cluster=cluster, model=model, step_seconds=span.step_ms / 1000)


def _load(at_ms: int, count: float, told: Mapping[str, float | None]) -> Load:
    """What a program gives as NaN or as infinite is not known."""
    asked = (told.get(name) for name in ("waiting", "requests", "burn", "shown"))
    return Load(at_ms / 1000, round(count), *(one if one is not None and math.isfinite(one) else None for one in asked))
