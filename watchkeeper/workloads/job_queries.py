"""Query the series of one job.

A failed query is recorded in `problems` and shown as missing data. `job_inspection` and `report` interpret the results.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import islice

from watchkeeper.errors import WatchkeeperError
from watchkeeper.kit import own_metrics
from watchkeeper.model.labels import Labels
from watchkeeper.query import gpu_errors, node_cpu
from watchkeeper.query.engine import Engine, QueryRange
from watchkeeper.workloads.identity import JobKey

FIELDS = (
    "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_ENFORCED_POWER_LIMIT",
)  # fmt: skip
# Traffic of a GPU's links in bytes per second; the last metric is in MB/s (packs/metric_guide.csv).
LINK_METRICS = "DCGM_FI_PROF_(NVLINK|PCIE)_(TX|RX)_BYTES"
NVLINK_MEGABYTES_METRIC = "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"
# A regular expression of so many node names is well below the limits of engines.
MAX_NODES = 1000
# Points of a range query: enough for pauses of minutes in a day, and within the limits of every engine.
MAX_POINTS, MIN_STEP_SECONDS = 1000, 15
Rows = dict[Labels, float]


class JobQueries:
    def __init__(self, engine: Engine, now: datetime, key: JobKey, *, training: str) -> None:
        self._engine, self._at_ms, self._key = engine, round(now.timestamp() * 1000), key
        self.training = own_metrics.escape(training)
        self._cluster_matcher = f'cluster="{own_metrics.escape(key.cluster)}"'
        self.problems: list[str] = []

    def allocated_gpus(self) -> Rows:
        return self._query(f"watchkeeper:job_gpu:share{{{self._key.selector}}}")

    def series(self, name: str) -> Rows:
        """Return a training series of the job; empty if the job exports none."""
        return self._query(f'{name}{{{self._cluster_matcher},job_name="{self.training}"}}') if self.training else {}

    def learned_value(self, name: str) -> float | None:
        """Return a value that the rules learned of the job; None if there is none yet."""
        return max(self.series(name).values(), default=None)

    def ended_steps(self) -> Rows:
        """Return the last steps of ranks that have stopped exporting within half an hour."""
        expr = f'training_last_step_timestamp_seconds{{{self._cluster_matcher},job_name="{self.training}"}}[30m]'
        return self._query(f"last_over_time({expr})") if self.training else {}

    def step_compute_seconds(self) -> Rows:
        expr = f'avg_over_time(training_step_compute_seconds{{{self._cluster_matcher},job_name="{self.training}"}}[3m])'
        return self._query(expr) if self.training else {}

    def gpu_means(self, nodes: Iterable[str], *, is_stuck: bool) -> Rows:
        """Return means of all GPUs of the nodes that still report; the label `field` has the metric.

        Five minutes average over single steps; for a stuck job they would include the work before it.
        """
        matchers, minutes = self._node_matchers(nodes), 1 if is_stuck else 5
        labelled = []
        for field in FIELDS:
            now = f"{field}{{{matchers}}}"
            mean = f"((avg_over_time({now}[{minutes}m]) and {now}) or {now})"
            labelled.append(f'label_replace({mean}, "field", "{field}", "", "")')
        return self._query(" or ".join(labelled))

    def gpus_before_stall(self, nodes: Iterable[str], stalled_since: datetime | None) -> Rows:
        """Return the GPUs of the nodes that reported when the job stalled; if that is unknown, within half an hour."""
        utilisation = f"DCGM_FI_DEV_GPU_UTIL{{{self._node_matchers(nodes)}}}"
        if stalled_since is None:
            return self._query(f"group by (UUID) (last_over_time({utilisation}[30m]))")
        return self._query(utilisation, at_ms=round(stalled_since.timestamp() * 1000))

    def rank_series(self) -> Rows:
        """Return node and GPU of each rank; of missing ranks, those of the last half hour."""
        if not self.training:
            return {}
        selector = f'training_rank_info{{{self._cluster_matcher},job_name="{self.training}"}}'
        return self._query(
            f"{selector} or (last_over_time({selector}[30m]) unless on (rank) {selector} unless on (UUID) {selector})"
        )

    def link_bytes(self, nodes: Iterable[str]) -> dict[str, float]:
        """Return bytes per second over the busiest link of each GPU of the nodes, by UUID."""
        matchers = self._node_matchers(nodes)
        busiest = f'max by (UUID) (avg_over_time({{__name__=~"{LINK_METRICS}",{matchers}}}[2m]))'
        nvlink = f"max by (UUID) (avg_over_time({NVLINK_MEGABYTES_METRIC}{{{matchers}}}[2m])) * 1e6"
        rows = self._query(f'max by (UUID) (label_replace({busiest}, "of", "all", "", "") or {nvlink})')
        return {labels.get("UUID", ""): value for labels, value in rows.items()}

    def node_activity(self, nodes: Iterable[str]) -> tuple[dict[str, float], dict[str, float]]:
        """Return the share of busy CPUs, and bytes per second sent over InfiniBand, by node.

        For nodes without node_exporter, the CPU share is the load that the agent reports.
        """
        matchers = self._instance_matchers(nodes)
        sent = f"sum by (instance) (rate(node_infiniband_port_data_transmitted_bytes_total{{{matchers}}}[2m]))"
        agent_load = node_cpu.cpu_load_query(self._node_matchers(nodes), minutes=1)
        cpus = self._query(node_cpu.cpu_busy_query(matchers)) or self._query(agent_load)
        return _map_by_node(cpus), _map_by_node(self._query(sent))

    def usual_watts(self) -> float | None:
        """Return the highest power of a GPU of the job within a day; None if SM activity, the better metric, exists."""
        return max(self._query(f"watchkeeper:job_power:max1d{{{self._key.selector}}}").values(), default=None)

    def gpu_memory(self, nodes: Iterable[str]) -> Rows:
        matchers = self._node_matchers(nodes)
        return self._query(f"DCGM_FI_DEV_FB_USED{{{matchers}}} + DCGM_FI_DEV_FB_FREE{{{matchers}}}")

    def cpu_cores(self, nodes: Iterable[str]) -> tuple[float | None, float | None]:
        """Return the number of cores of the nodes, and of busy cores, from node_exporter or the agent."""
        series = f'node_cpu_seconds_total{{{self._instance_matchers(nodes)},mode="idle"}}'
        cores, idle_cores = self._query_value(f"count({series})"), self._query_value(f"sum(rate({series}[5m]))")
        if cores is not None:
            return cores, None if idle_cores is None else max(0.0, cores - idle_cores)
        matchers = self._node_matchers(nodes)
        core_count = node_cpu.cpu_count_query(matchers)
        busy_cores = f"{node_cpu.cpu_load_query(matchers, minutes=5)} * on (Hostname) {core_count}"
        return self._query_value(f"sum({core_count})"), self._query_value(f"sum({busy_cores})")

    def gpu_faults(self, nodes: Iterable[str], at: datetime) -> Rows:
        """Return the growth of memory errors and the worst throttle reason around a time; `field` has the metric."""
        matchers = self._node_matchers(nodes)
        errors = gpu_errors.memory_errors_query(matchers, minutes=15)
        reasons = gpu_errors.clock_reasons_query(matchers, minutes=12)
        expr = f'{errors} or label_replace({reasons}, "field", "{gpu_errors.CLOCK_REASONS}", "", "")'
        return self._query(expr, at_ms=min(self._at_ms, round(at.timestamp() * 1000) + 120_000))

    def values_over(self, name: str, since: datetime, *, matchers: str = "") -> list[tuple[float, float]]:
        """Return the maximum of the ranks' values over time, without gaps; `matchers` are added to the selector."""
        return [(at, value) for at, value in self.timeline(name, since, matchers=matchers) if value is not None]

    def timeline(self, name: str, since: datetime, *, matchers: str = "") -> list[tuple[float, float | None]]:
        """Return the maximum of the ranks' values over time; None where no rank exports the series."""
        if not self.training:
            return []
        start = min(round(since.timestamp() * 1000), self._at_ms)
        step = max(MIN_STEP_SECONDS * 1000, (self._at_ms - start) // MAX_POINTS)
        expr = f'max by (job_name) ({name}{{{self._cluster_matcher},job_name="{self.training}",{matchers}}})'
        try:
            frame = self._engine.range(expr, QueryRange(start, self._at_ms, step)).frame
        except WatchkeeperError as error:
            self.problems.append(f"the query for {name} failed: {error}")
            return []
        if not len(frame.labels):
            return []
        rows = zip(frame.times_ms.tolist(), frame.values[0].tolist(), frame.present[0].tolist(), strict=True)
        return [(at / 1000, value if is_present else None) for at, value, is_present in rows]

    def _node_matchers(self, nodes: Iterable[str]) -> str:
        return f'{self._cluster_matcher},Hostname=~"{_node_pattern(nodes)}"'

    def _instance_matchers(self, nodes: Iterable[str]) -> str:
        return f'{self._cluster_matcher},instance=~"({_node_pattern(nodes)})(:[0-9]+)?"'

    def _query_value(self, expr: str) -> float | None:
        return next(iter(self._query(expr).values()), None)

    def _query(self, expr: str, *, at_ms: int | None = None) -> Rows:
        try:
            return self._engine.instant(expr, self._at_ms if at_ms is None else at_ms).latest()
        except WatchkeeperError as error:
            self.problems.append(f"the query `{expr[:60]}…` failed: {error}")
            return {}


def _map_by_node(rows: Rows) -> dict[str, float]:
    return {labels.get("instance", "").partition(":")[0]: value for labels, value in rows.items()}


def _node_pattern(nodes: Iterable[str]) -> str:
    """Return a regular expression for node names, escaped for a PromQL string."""
    names = islice(sorted(nodes), MAX_NODES)
    return "|".join(own_metrics.escape(name.replace("\\", "\\\\").replace(".", "\\.")) for name in names)
