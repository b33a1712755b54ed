"""Simulate model servers: the requests of each service, on the page of its kind of server.

`workloads` advances the servers and `simulation` lists them as targets. Which metrics a server has, with its own names
and bucket bounds, is in packs/serving_metrics.csv.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache

from watchkeeper.catalogue import pack
from watchkeeper.sim.effects import ServingEffect
from watchkeeper.sim.jobs import SimJob
from watchkeeper.sim.text_page import MetricsPage

# Median latencies without load; SPREAD is the sigma of the log-normal distribution.
MEDIAN_SECONDS, FIRST_TOKEN_SECONDS, TOKEN_SECONDS, SPREAD = 0.06, 0.03, 0.02, 0.45
PROMPT_TOKENS, GENERATED_TOKENS = 400, 50
ERROR_SHARE = 1e-5
# Requests beyond this queue length are rejected.
MAX_WAITING = 400
# With a full queue the cache of keys and values is full, too: requests are preempted, and compute their tokens twice.
PREEMPTION = 2
# Histograms of the time for one token, which only a streamed response has.
TOKEN_TIMES = ("per_token", "between_tokens")


@dataclass(frozen=True, slots=True)
class ServerKind:
    """`parts` are its rows in packs/serving_metrics.csv; `names_model` is false if the target has to name the model."""

    job: str
    port: int
    parts: tuple[str, ...]
    streams: bool = True
    names_model: bool = True


KINDS = {
    "vllm": ServerKind("vllm", 8000, ("vllm",)),
    "sglang": ServerKind("sglang", 30000, ("sglang",)),
    "tgi": ServerKind("tgi", 80, ("tgi",), names_model=False),
    "triton-llm": ServerKind("triton", 8002, ("triton", "triton-llm")),
    "triton": ServerKind("triton", 8002, ("triton", "triton-batch"), streams=False),
    "program": ServerKind("workloads", 9600, ("program",), streams=False),
}


@dataclass(frozen=True, slots=True)
class ServedMetric:
    """One metric of a server: `value` of `ModelServer` times `scale`; `bounds` as the server writes them."""

    part: str = pack.cell(column="server")
    name: str = pack.cell(pack.required)
    type: str = pack.cell(pack.required)
    value: str = pack.cell(pack.required)
    scale: float = pack.cell(float)
    labels: str = pack.cell()
    bounds: tuple[str, ...] = pack.cell(lambda text: tuple(text.split()))
    source: str = pack.cell(pack.required)

    @property
    def upper_seconds(self) -> tuple[float, ...]:
        return (*(float(bound) / self.scale for bound in self.bounds), math.inf)


@cache
def metrics_of(kind: str) -> tuple[ServedMetric, ...]:
    rows = pack.load("serving_metrics.csv", pack.row_reader(ServedMetric))
    return tuple(row for row in rows if row.part in KINDS[kind].parts)


@dataclass(slots=True)
class ModelServer:
    """The server of one service; `values` are counters and gauges, `buckets` cumulative counts by metric name."""

    job: SimJob
    kind: str
    capacity: float
    values: dict[str, float] = field(default_factory=dict)
    buckets: dict[str, list[float]] = field(default_factory=dict)
    # None while its job runs.
    ended_at: int | None = None

    def target_labels(self) -> Mapping[str, str]:
        kind = KINDS[self.kind]
        model = {} if kind.names_model else {"model_name": self.job.name}
        [pod] = self.job.pod_names.values()
        place = {} if self.job.is_slurm else {"namespace": self.job.template.namespace, "pod": pod}
        return {"job": kind.job, "instance": f"{self.job.name}:{kind.port}", **place, **model}

    def step(self, effect: ServingEffect | None, *, wave: float, seconds: int) -> None:
        """Serve the requests of this step: requests beyond the capacity wait, and beyond MAX_WAITING fail."""
        demand = None if effect is None else effect.demand
        requests = self.capacity * (min(0.75, 0.6 * wave) if demand is None else demand) * seconds
        capacity = self.capacity * seconds
        waiting = max(0.0, self.values.get("waiting", 0.0) + requests - capacity)
        rejected = max(0.0, waiting - MAX_WAITING)
        answered, load = min(requests, capacity), min(0.95, requests / capacity)
        self.values["waiting"] = waiting - rejected
        slowdown, delay = 1 / (1 - load / 2), self.values["waiting"] / self.capacity
        response_seconds = FIRST_TOKEN_SECONDS + GENERATED_TOKENS * TOKEN_SECONDS
        median = slowdown * (response_seconds if KINDS[self.kind].streams else MEDIAN_SECONDS)
        self.values["running"] = max(4 * load * len(self.job.rows), answered / seconds * median)
        self._count("answered", answered)
        self._count("rejected", rejected)
        self._count("errors", answered * ERROR_SHARE)
        self._count("failed", rejected + answered * ERROR_SHARE)
        self._count("prompt_tokens", answered * PROMPT_TOKENS)
        self._count("generated_tokens", answered * GENERATED_TOKENS)
        self._observe("duration", answered, median=median, delay=delay)
        self._observe("first_token", answered, median=FIRST_TOKEN_SECONDS * slowdown, delay=delay)
        for name, number in zip(TOKEN_TIMES, (answered, answered * GENERATED_TOKENS), strict=True):
            self._observe(name, number, median=TOKEN_SECONDS * slowdown * (PREEMPTION if rejected else 1), delay=0.0)

    def _count(self, name: str, number: float) -> None:
        self.values[name] = self.values.get(name, 0.0) + number

    def _observe(self, value: str, number: float, *, median: float, delay: float) -> None:
        self._count(f"{value}_seconds", number * (median + delay))
        for metric in metrics_of(self.kind):
            if metric.value == value:
                bounds = metric.upper_seconds
                buckets = self.buckets.setdefault(metric.name, [0.0] * len(bounds))
                observe(buckets, bounds, number, median=median, delay=delay)

    def page(self) -> bytes:
        page = MetricsPage()
        for name, rows in itertools.groupby(metrics_of(self.kind), lambda metric: metric.name):
            family = list(rows)
            page.begin(name, family[0].type, f"As {family[0].source} exports it")
            for metric in family:
                labels = metric.labels.replace("{model}", self.job.name)
                if metric.type == "histogram":
                    self._write_histogram(page, metric, labels)
                else:
                    page.add(f"{{{labels}}}" if labels else "", int(metric.scale * self.values[metric.value]))
        return page.content()

    def _write_histogram(self, page: MetricsPage, metric: ServedMetric, labels: str) -> None:
        counts = self.buckets[metric.name]
        for bound, count in zip((*metric.bounds, "+Inf"), counts, strict=True):
            page.add("{" + ",".join(filter(None, (labels, f'le="{bound}"'))) + "}", int(count), suffix="_bucket")
        total = metric.scale * self.values[f"{metric.value}_seconds"]
        plain_labels = f"{{{labels}}}" if labels else ""
        page.add(plain_labels, round(total, 3), suffix="_sum")
        page.add(plain_labels, int(counts[-1]), suffix="_count")


def observe(buckets: list[float], bounds: tuple[float, ...], number: float, *, median: float, delay: float) -> None:
    """Add `number` observations with a log-normal distribution after a delay to cumulative buckets."""
    for bucket, share in enumerate(_shares_below(bounds, round(median, 4), round(delay, 2))):
        buckets[bucket] += number * share


@lru_cache(maxsize=4096)
def _shares_below(bounds: tuple[float, ...], median: float, delay: float) -> tuple[float, ...]:
    return tuple(_share_below(bound - delay, median) for bound in bounds)


def _share_below(bound: float, median: float) -> float:
    if bound <= 0:
        return 0.0
    if math.isinf(bound):
        return 1.0
    return 0.5 * (1 + math.erf(math.log(bound / median) / (SPREAD * math.sqrt(2))))
