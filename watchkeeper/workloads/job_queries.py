"""What is asked about one job: a fixed number of questions, by the labels that its series have.

A refused question is remembered and shown as something that was not seen. `report` makes values of the answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import islice

from watchkeeper.errors import WatchkeeperError
from watchkeeper.kit import own_metrics
from watchkeeper.model.labels import Labels
from watchkeeper.query import gpu_errors, host_cpu
from watchkeeper.query.engine import Engine, QueryRange
from watchkeeper.workloads.identity import JobKey

FIELDS = (
    "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_ENFORCED_POWER_LIMIT",
)  # fmt: skip
# What goes over the links of a GPU in a second; the last is in MB/s (packs/metric_guide.csv).
LINKS = "DCGM_FI_PROF_(NVLINK|PCIE)_(TX|RX)_BYTES"
NVLINK_MEGABYTES = "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"
# A regular expression of so many node names stays well below what engines accept.
MOST_NODES = 1000
# Points of a range: fine enough for pauses of minutes in a day, few enough for any engine.
MOST_POINTS, LEAST_STEP = 1000, 15
Rows = dict[Labels, float]


class JobQueries:
    """Asks one engine about one job at one time."""

    def __init__(self, engine: Engine, now: datetime, key: JobKey, *, training: str) -> None:
        self._engine, self._at_ms, self._key = engine, round(now.timestamp() * 1000), key
        self.training = own_metrics.escape(training)
        self._own = f'cluster="{own_metrics.escape(key.cluster)}"'
        self.refused: list[str] = []

    def held_gpus(self) -> Rows:
        """The job's GPUs, by what holds them."""
        return self._ask(f"watchkeeper:job_gpu:share{{{self._key.selector}}}")

    def series(self, name: str) -> Rows:
        """A series of the job's ranks, or of the job."""
        return self._ask(f'{name}{{{self._own},job_name="{self.training}"}}') if self.training else {}

    def learned_value(self, name: str) -> float | None:
        """What the rules learned of the job; None: nothing yet."""
        return max(self.series(name).values(), default=None)

    def compute(self) -> Rows:
        expr = f'avg_over_time(training_step_compute_seconds{{{self._own},job_name="{self.training}"}}[3m])'
        return self._ask(expr) if self.training else {}

    def gpus(self, nodes: Iterable[str], *, is_stuck: bool) -> Rows:
        """Means of every GPU of some nodes that is still read, of what the label `field` says.

        Five minutes pass over single steps; of a job that is stuck they would show the work before.
        """
        where, minutes = self._where(nodes), 1 if is_stuck else 5
        means = (
            f"((avg_over_time({field}{{{where}}}[{minutes}m]) and {field}{{{where}}}) or {field}{{{where}}})"
            for field in FIELDS
        )
        named = (
            f'label_replace({mean}, "field", "{field}", "", "")' for mean, field in zip(means, FIELDS, strict=True)
        )
        return self._ask(" or ".join(named))

    def read_before(self, nodes: Iterable[str], stood_still: datetime | None) -> Rows:
        """GPUs of some nodes that were read when the job stood still; within half an hour where nobody knows when."""
        known = f"DCGM_FI_DEV_GPU_UTIL{{{self._where(nodes)}}}"
        if stood_still is None:
            return self._ask(f"group by (UUID) (last_over_time({known}[30m]))")
        return self._ask(known, at_ms=round(stood_still.timestamp() * 1000))

    def ranks(self) -> Rows:
        """Where its ranks run; a rank that is gone said it within half an hour."""
        if not self.training:
            return {}
        told = f'training_rank_info{{{self._own},job_name="{self.training}"}}'
        return self._ask(f"{told} or (last_over_time({told}[30m]) unless on (rank) {told} unless on (UUID) {told})")

    def links(self, nodes: Iterable[str]) -> Rows:
        """Bytes a second over the busiest link of every GPU of some nodes; by UUID, for those that measure it."""
        where = self._where(nodes)
        busiest = f'max by (UUID) (avg_over_time({{__name__=~"{LINKS}",{where}}}[2m]))'
        nvlink = f"max by (UUID) (avg_over_time({NVLINK_MEGABYTES}{{{where}}}[2m])) * 1e6"
        return self._ask(f'max by (UUID) (label_replace({busiest}, "of", "all", "", "") or {nvlink})')

    def by_node(self, nodes: Iterable[str]) -> tuple[Rows, Rows]:
        """The share of CPUs at work, and bytes a second out over InfiniBand; by `instance`, where it is exported.

        Nodes without node_exporter have the load that our agent tells of.
        """
        some = "|".join(_literally(node) for node in islice(sorted(nodes), MOST_NODES))
        where = f'{self._own},instance=~"({some})(:[0-9]+)?"'
        sent = f"sum by (instance) (rate(node_infiniband_port_data_transmitted_bytes_total{{{where}}}[2m]))"
        cpus = self._ask(host_cpu.busy_share(where)) or self._ask(host_cpu.load_share(self._where(nodes), minutes=1))
        return cpus, self._ask(sent)

    def usual_watts(self) -> float | None:
        """The most that a GPU of the job drew within a day; None where SM activity is measured, which says more."""
        return max(self._ask(f"watchkeeper:job_power:max1d{{{self._key.selector}}}").values(), default=None)

    def memory(self, nodes: Iterable[str]) -> Rows:
        where = self._where(nodes)
        return self._ask(f"DCGM_FI_DEV_FB_USED{{{where}}} + DCGM_FI_DEV_FB_FREE{{{where}}}")

    def cpus(self, nodes: Iterable[str]) -> tuple[float | None, float | None]:
        """Cores of its nodes, and how many of them are busy; by node_exporter, else by our agent."""
        some = "|".join(_literally(node) for node in islice(sorted(nodes), MOST_NODES))
        where = f'{self._own},instance=~"({some})(:[0-9]+)?",mode="idle"'
        cores = self._ask(f"count(node_cpu_seconds_total{{{where}}})")
        idle = self._ask(f"sum(rate(node_cpu_seconds_total{{{where}}}[5m]))")
        held, spare = next(iter(cores.values()), None), next(iter(idle.values()), None)
        if held is None:
            told = self._where(nodes)
            cpus = host_cpu.cpu_count(told)
            wanted = f"{host_cpu.load_share(told, minutes=5)} * on (Hostname) {cpus}"
            both = self._ask(f"sum({cpus})"), self._ask(f"sum({wanted})")
            return next(iter(both[0].values()), None), next(iter(both[1].values()), None)
        return held, None if held is None or spare is None else max(0.0, held - spare)

    def trouble(self, nodes: Iterable[str], at: datetime) -> Rows:
        """By how much memory errors grew around a time, and the gravest reason of clocks; `field` says which."""
        where = self._where(nodes)
        errors, reasons = (
            gpu_errors.memory_error_growth(where, minutes=15),
            gpu_errors.worst_clock_reasons(where, minutes=12),
        )
        asked = f'{errors} or label_replace({reasons}, "field", "{gpu_errors.CLOCK_REASONS}", "", "")'
        return self._ask(asked, at_ms=min(self._at_ms, round(at.timestamp() * 1000) + 120_000))

    def values_over(self, name: str, since: datetime, *, where: str = "") -> list[tuple[float, float]]:
        """The largest of the ranks' values over time, where there is one; `where` has more matchers."""
        return [(at, value) for at, value in self.timeline(name, since, where=where) if value is not None]

    def timeline(self, name: str, since: datetime, *, where: str = "") -> list[tuple[float, float | None]]:
        """The same for every time: a program that says nothing leaves a hole."""
        if not self.training:
            return []
        start = min(round(since.timestamp() * 1000), self._at_ms)
        step = max(LEAST_STEP * 1000, (self._at_ms - start) // MOST_POINTS)
        expr = f'max by (job_name) ({name}{{{self._own},job_name="{self.training}",{where}}})'
        try:
            frame = self._engine.range(expr, QueryRange(start, self._at_ms, step)).frame
        except WatchkeeperError as error:
            self.refused.append(f"{name} could not be asked: {error}")
            return []
        if not len(frame.labels):
            return []
        rows = zip(frame.times_ms.tolist(), frame.values[0].tolist(), frame.present[0].tolist(), strict=True)
        return [(at / 1000, value if is_there else None) for at, value, is_there in rows]

    def _where(self, nodes: Iterable[str]) -> str:
        some = "|".join(_literally(node) for node in islice(sorted(nodes), MOST_NODES))
        return f'{self._own},Hostname=~"{some}"'

    def _ask(self, expr: str, *, at_ms: int | None = None) -> Rows:
        try:
            return self._engine.instant(expr, self._at_ms if at_ms is None else at_ms).latest()
        except WatchkeeperError as error:
            self.refused.append(f"`{expr[:60]}…` could not be asked: {error}")
            return {}


def _literally(text: str) -> str:
    """A name inside a regular expression inside a PromQL string; names of nodes have nothing else to escape."""
    return own_metrics.escape(text.replace("\\", "\\\\").replace(".", "\\."))
