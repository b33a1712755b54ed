"""Advise how many replicas a model needs, and replay that advice over recorded data.

The inputs are those that `render keda` gives to an autoscaler: waiting requests per replica, and the burn rate of the
latency objective. The advice adds a replica as soon as either is over its target, and removes one only after some
minutes, because loading a model takes minutes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from watchkeeper.errors import WatchkeeperError
from watchkeeper.kit import own_metrics
from watchkeeper.query.engine import Engine, QueryRange

# More waiting requests per replica need another replica; below that, waits are short (InferenceQueueDeep).
MAX_WAITING_PER_REPLICA = 10.0
# A burning objective adds at most half of the replicas; render/keda.py has the same limit for KEDA and the HPA.
MAX_GROWTH = 1.5
MIN_REPLICAS, MAX_REPLICAS = 1, 8
# The tolerance of the HPA; and how long fewer replicas must be enough before one is removed.
TOLERANCE = 0.1
CALM_SECONDS = 600.0
SHRINK_EVERY_SECONDS = 300.0
# A longer time between two points, in steps, is a gap that the replay skips.
MAX_GAP_STEPS = 1.5
MAX_MODELS = 1000
# The series of each objective in packs/rules/slo.yaml.
LATE_METRIC = "slo:error_ratio:rate5m"


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """The load of a model at one time; None: no sample.

    A burn of 1 uses up the error budget exactly at the end of its window. `replica_capacity` is the highest rate of
    requests per second of one replica within a day.
    """

    at: float
    replicas: int
    waiting: float | None = None
    requests_per_second: float | None = None
    burn: float | None = None
    replica_capacity: float | None = None


@dataclass(frozen=True, slots=True)
class ReplicasAdvice:
    """The desired number of replicas now; None if too few metrics exist."""

    cluster: str
    model: str
    replicas: int
    desired: int | None = field(metadata={"json_key": "wanted"})
    why: str
    waiting: float | None
    burn: float | None


@dataclass(frozen=True, slots=True)
class ReplicasStep:
    at: float
    replicas: int
    desired: int = field(metadata={"json_key": "wanted"})


@dataclass(frozen=True, slots=True)
class ReplicasReplay:
    """The effect of following the advice, over the observed part of the window.

    `crowded_seconds` is the time with more waiting requests per replica than the target, `late_seconds` the time with
    more late requests than the latency objective allows (None: no objective is measured), each as recorded and as
    advised. The changes are those of the number of replicas.
    """

    cluster: str
    model: str
    since: float
    until: float
    step_seconds: float
    observed_seconds: float = field(metadata={"json_key": "seen_seconds"})
    actual_replica_hours: float = field(metadata={"json_key": "had_replica_hours"})
    advised_replica_hours: float = field(metadata={"json_key": "would_replica_hours"})
    crowded_seconds: float
    advised_crowded_seconds: float = field(metadata={"json_key": "would_crowded_seconds"})
    late_seconds: float | None
    advised_late_seconds: float | None = field(metadata={"json_key": "would_late_seconds"})
    actual_changes: int = field(metadata={"json_key": "had_changes"})
    advised_changes: int = field(metadata={"json_key": "changes"})
    steps: tuple[ReplicasStep, ...]


def advise_replicas(load: ModelLoad, current: int) -> tuple[int | None, str]:
    """Return the desired replicas for a load and the reason: the maximum over all metrics, as the HPA computes it."""
    demands: list[tuple[int, str]] = []
    if load.requests_per_second is not None and load.replica_capacity:
        load_ratio = load.requests_per_second / load.replica_capacity / max(current, 1)
        rate_text = f"{load.requests_per_second:.3g} requests/s, a replica has served up to {load.replica_capacity:.3g}"
        # The rate never adds replicas beyond the current ones: their real capacity may be higher.
        demands.append((min(_scale(current, load_ratio), max(current, load.replicas)), rate_text))
    if load.waiting is not None:
        load_ratio = load.waiting / (MAX_WAITING_PER_REPLICA * max(current, 1))
        waiting_text = f"{load.waiting:g} requests wait, the limit is {MAX_WAITING_PER_REPLICA:g} per replica"
        demands.append((_scale(current, load_ratio), waiting_text))
    if load.burn is not None:
        more = _scale(current, min(load.burn, MAX_GROWTH)) if load.burn > 1 else 0
        demands.append((more, f"the latency error budget burns at rate {load.burn:.2g}"))
    if not demands:
        return None, "no metrics of its queue or of a latency objective"
    desired, why = max(demands, key=lambda demand: demand[0])
    limit = max(MAX_REPLICAS, current, load.replicas)
    why = f"{why}; the advice is limited to {limit}" if desired > limit else why
    return min(max(desired, MIN_REPLICAS), limit), why


def _scale(current: int, load_ratio: float) -> int:
    return current if abs(load_ratio - 1) <= TOLERANCE else math.ceil(current * load_ratio)


def replay_advice(
    loads: Sequence[ModelLoad], *, cluster: str, model: str, step_seconds: float
) -> ReplicasReplay | None:
    """Replay the advice over recorded loads; None without two consecutive points."""
    if not loads:
        return None
    replay = _AdviceReplay(loads[0].replicas, loads[0].at)
    for load, next_load in itertools.pairwise(loads):
        replay.add_step(load, next_load, max_gap_seconds=MAX_GAP_STEPS * step_seconds)
    if not replay.observed_seconds:
        return None
    return ReplicasReplay(
        cluster, model, loads[0].at, loads[-1].at, step_seconds,
        replay.observed_seconds, replay.actual_hours, replay.advised_hours,
        replay.crowded_seconds, replay.advised_crowded_seconds,
        replay.late_seconds if replay.has_objective else None,
        replay.advised_late_seconds if replay.has_objective else None,
        replay.actual_changes, replay.advised_changes, tuple(replay.steps),
    )  # fmt: skip


class _AdviceReplay:
    """Replays recorded loads with the advised number of replicas, which serve from the next step on.

    More replicas than there were: each serves up to `replica_capacity`, and only the rest queues, the best case. Fewer
    replicas share the recorded queue, and each serves at most `replica_capacity`.
    """

    def __init__(self, replicas: int, at: float) -> None:
        self.replicas, self._calm_since, self._shrunk_at = replicas, at, -math.inf
        self.observed_seconds = self.actual_hours = self.advised_hours = 0.0
        self.crowded_seconds = self.advised_crowded_seconds = self.late_seconds = self.advised_late_seconds = 0.0
        self.has_objective = False
        self.actual_changes = self.advised_changes = 0
        self.steps: list[ReplicasStep] = []
        # The queues at the previous step: with the advised replicas, and as recorded.
        self._advised_waiting, self._actual_waiting = 0.0, 0.0

    def add_step(self, load: ModelLoad, next_load: ModelLoad, *, max_gap_seconds: float) -> None:
        seconds = next_load.at - load.at
        if seconds > max_gap_seconds:
            self._calm_since = next_load.at
            return
        actual, advised, burn = load.replicas, self.replicas, load.burn or 0.0
        self._update_queue(load, seconds)
        limit = (1 + TOLERANCE) * advised * (load.replica_capacity or math.inf)
        is_short = advised < actual and (load.requests_per_second or 0.0) > limit
        is_crowded = is_short or self._advised_waiting > MAX_WAITING_PER_REPLICA * advised
        was_crowded = self._actual_waiting > MAX_WAITING_PER_REPLICA * actual
        self.observed_seconds += seconds
        self.actual_hours += actual * seconds / 3600
        self.advised_hours += advised * seconds / 3600
        self.crowded_seconds += seconds if was_crowded else 0.0
        self.advised_crowded_seconds += seconds if is_crowded else 0.0
        self.late_seconds += seconds if burn > 1 else 0.0
        self.advised_late_seconds += seconds if is_short or (burn > 1 and advised <= actual) else 0.0
        self.has_objective |= load.burn is not None
        self.actual_changes += next_load.replicas != actual
        self._decide(load, min_replicas=actual + 1 if was_crowded or burn > 1 else MIN_REPLICAS)
        self.advised_changes += self.replicas != advised
        if not self.steps or (self.steps[-1].desired, self.steps[-1].replicas) != (self.replicas, actual):
            self.steps.append(ReplicasStep(load.at, actual, self.replicas))

    def _update_queue(self, load: ModelLoad, seconds: float) -> None:
        waiting = load.waiting or 0.0
        queue = waiting * load.replicas / max(self.replicas, 1)
        if self.replicas > load.replicas and load.requests_per_second is not None and load.replica_capacity:
            arrivals = load.requests_per_second + max(0.0, waiting - self._actual_waiting) / seconds
            backlog = self._advised_waiting + (arrivals - self.replicas * load.replica_capacity) * seconds
            queue = min(queue, max(0.0, backlog))
        self._advised_waiting, self._actual_waiting = queue, waiting

    def _decide(self, load: ModelLoad, *, min_replicas: int) -> None:
        """Add replicas at once, remove one after a calm period; `min_replicas` are known to be needed."""
        waiting = None if load.waiting is None else self._advised_waiting
        advised_load = replace(load, waiting=waiting, burn=None if self.replicas > load.replicas else load.burn)
        desired = advise_replicas(advised_load, self.replicas)[0] or self.replicas
        desired = max(desired, min(min_replicas, self.replicas))
        if desired >= self.replicas:
            self.replicas, self._calm_since = desired, load.at
        elif load.at - self._calm_since >= CALM_SECONDS and load.at - self._shrunk_at >= SHRINK_EVERY_SECONDS:
            self.replicas, self._shrunk_at = self.replicas - 1, load.at


def build_queries(budgets: Mapping[str, float], matchers: str = "") -> Mapping[str, str]:
    """Return the queries of a load; `budgets` has the share of late requests that each latency objective allows."""
    suffix = f",{matchers}" if matchers else ""
    late_terms = [f'{LATE_METRIC}{{slo="{name}"{suffix}}} / {budget:.6g}' for name, budget in budgets.items()]
    queries = {
        "replicas": f"watchkeeper:inference_replicas:count{{{matchers}}}",
        "waiting": f"sum by (cluster, model_name) (inference_requests_waiting{{{matchers}}})",
        "requests": f"sum by (cluster, model_name) (rate(inference_request_duration_seconds_count{{{matchers}}}[5m]))",
        "shown": f"watchkeeper:inference_replica_requests:max1d{{{matchers}}}",
    }
    return {**queries, "burn": f"max by (cluster, model_name) ({' or '.join(late_terms)})"} if late_terms else queries


def advise_now(engine: Engine, at_ms: int, budgets: Mapping[str, float]) -> tuple[list[ReplicasAdvice], list[str]]:
    """Return the advice for every served model, and the failed queries."""
    rows_by_query: dict[str, dict[tuple[str, str], float]] = {}
    problems: list[str] = []
    for name, expr in build_queries(budgets).items():
        try:
            rows = engine.instant(expr, at_ms).latest()
        except WatchkeeperError as error:
            problems.append(f"the query for {name} of models failed: {error}")
            rows = {}
        rows_by_query[name] = {
            (labels.get("cluster", ""), labels.get("model_name", "")): value for labels, value in rows.items()
        }
    advice = []
    for key, count in sorted(rows_by_query["replicas"].items())[:MAX_MODELS]:
        load = _build_load(at_ms, count, {name: rows.get(key) for name, rows in rows_by_query.items()})
        desired, why = advise_replicas(load, load.replicas)
        advice.append(ReplicasAdvice(*key, load.replicas, desired, why, load.waiting, load.burn))
    return advice, problems


def replay_model(
    engine: Engine, span: QueryRange, budgets: Mapping[str, float], *, cluster: str, model: str
) -> ReplicasReplay | None:
    matchers = f'cluster="{own_metrics.escape(cluster)}",model_name="{own_metrics.escape(model)}"'
    values_by_query: dict[str, dict[int, float]] = {}
    for name, expr in build_queries(budgets, matchers).items():
        values_by_query[name] = {
            at: value
            for _, times, values in engine.range(expr, span).frame.rows()
            for at, value in zip(times.tolist(), values.tolist(), strict=True)
        }
    loads = [
        _build_load(at, count, {name: rows.get(at) for name, rows in values_by_query.items()})
        for at, count in sorted(values_by_query["replicas"].items())
    ]
    return replay_advice(loads, cluster=cluster, model=model, step_seconds=span.step_ms / 1000)


def _build_load(at_ms: int, count: float, values: Mapping[str, float | None]) -> ModelLoad:
    """Build a load from samples; NaN and infinite values count as missing."""
    readings = (values.get(name) for name in ("waiting", "requests", "burn", "shown"))
    return ModelLoad(
        at_ms / 1000,
        round(count),
        *(reading if reading is not None and math.isfinite(reading) else None for reading in readings),
    )
