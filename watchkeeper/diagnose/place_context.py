"""Query the context of an incident's place: rack neighbours, the ranks and GPUs of a job, a pod, recent changes.

`evidence.gather_facts` calls `gather_context` once for each incident. Each kind of place has a few queries, however
large the fleet is; failed queries are recorded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from watchkeeper.errors import WatchkeeperError
from watchkeeper.kit import durations, own_metrics
from watchkeeper.model import fleet
from watchkeeper.model.labels import Labels
from watchkeeper.query import engine as engines
from watchkeeper.query import gpu_errors, node_cpu

Series = tuple[tuple[Labels, float], ...]
# As in packs/rules: the node name in the `instance` label of node_exporter and of the hub's scrapes.
HOST = "([^:]+)(?::[0-9]+)?"
# A harmful change shows its effect soon; six hours fit a shift.
CHANGE_WINDOW = "6h"
VERSION_LABELS = ("DCGM_FI_DRIVER_VERSION", "release")
JOB_FIELDS = (
    "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE",
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT",
)  # fmt: skip
RANK_PLACES, MEMORY_ERRORS, CLOCK_REASONS = "training_rank_info", "memory_errors_grew", "clocks_event_reasons"
# Recorded series of a job: slow ranks, traffic between its GPUs, maximum power, idle time, alerts.
TRAFFIC, USUAL_WATTS, IDLE_SECONDS, FIRING = (
    "watchkeeper:job_traffic:bytes_per_second",
    "watchkeeper:job_power:max1d",
    "watchkeeper:job_idle:seconds",
    "ALERTS",
)
JOB_SERIES = ("training_.+", "watchkeeper:training_rank_slow:ratio", TRAFFIC, USUAL_WATTS, IDLE_SECONDS, FIRING)
CPU_SHARE, GPU_BUSIER, REPORTING_GPUS = "cpu_share", "gpu_busier", "gpus_read_now"
WAIT_SHARE, PORT_ERRORS = "data_wait_share", "ib_errors_per_second"
# A regular expression with this many UUIDs is shorter than the limit of engines (64 KiB).
MAX_UUIDS = 1000
NODE_SERIES = ("watchkeeper_gpu_fault", "watchkeeper_node_info", "node_boot_time_seconds", "node_uname_info", "up")


@dataclass(frozen=True, slots=True)
class PlaceContext:
    """Series about a place, by metric name.

    `peer_temperatures` has the hottest GPU of each node of the rack or leaf, None if unknown; `changes` are sentences
    about changes in the last hours; counters cover `window_minutes`.
    """

    series: Mapping[str, Series] = field(default_factory=dict)
    peer_temperatures: Mapping[str, float] | None = None
    changes: tuple[str, ...] = ()
    window_minutes: int = 0

    @property
    def series_count(self) -> int:
        return sum(len(rows) for rows in self.series.values())

    def rows(self, metric: str, **label_values: str) -> list[tuple[Labels, float]]:
        return [
            (labels, value)
            for labels, value in self.series.get(metric, ())
            if all(labels.get(name) == text for name, text in label_values.items())
        ]

    def max_value(self, metric: str, **label_values: str) -> float | None:
        """The largest value with these labels; None without one."""
        return max((value for _, value in self.rows(metric, **label_values)), default=None)


class PlaceQueries:
    """Queries one engine about one place, counts the queries and records failures."""

    def __init__(self, engine: engines.InstantEngine, place: fleet.Place, at_ms: int, *, window: timedelta) -> None:
        self._engine, self._at_ms = engine, at_ms
        self.window = durations.format_seconds(window.total_seconds())
        # Whole minutes, for texts and counters.
        self.minutes = math.ceil(window.total_seconds() / 60)
        self.place = place
        self.cluster, self.node = own_metrics.escape(place.cluster), own_metrics.escape(place.node or "")
        self.selector = f'cluster="{self.cluster}",Hostname="{self.node}"'
        self.query_count = 0
        self.failures: list[str] = []

    def query(self, expr: str, *, about: str) -> dict[Labels, float]:
        self.query_count += 1
        try:
            return self._engine.instant(expr, self._at_ms).latest()
        except WatchkeeperError as error:
            self.failures.append(f"query for {about} failed: {error}")
            return {}

    def readings_by_gpu(self, metrics: Sequence[str]) -> dict[str, dict[str, float]]:
        """The last values of a node's GPUs, all metrics in one query."""
        readings: dict[str, dict[str, float]] = {metric: {} for metric in metrics}
        names = "|".join(metrics)
        expr = f'last_over_time({{__name__=~"{names}",{self.selector}}}[{self.window}])'
        for labels, value in self.query(expr, about=f"{len(metrics)} series of GPUs").items():
            # MIG instances repeat the series of their GPU: use the largest value.
            values, uuid = readings.setdefault(labels.get("__name__", ""), {}), labels.get("UUID", "")
            values[uuid] = max(value, values.get(uuid, value))
        return readings

    def reporting_gpus(self, metric: str) -> frozenset[str] | None:
        failures_before = len(self.failures)
        rows = self.query(f"{metric}{{{self.selector}}}", about=metric)
        return frozenset(labels.get("UUID", "") for labels in rows) if len(self.failures) == failures_before else None

    def expected_gpus(self, metric: str) -> int | None:
        values = self.query(f"{metric}{{{self.selector}}}", about=metric)
        return round(max(values.values())) if values else None


def gather_context(queries: PlaceQueries) -> PlaceContext:
    """Run the queries for the kind of place; empty for a place without series."""
    place = queries.place
    if place.node is not None:
        return _node_context(queries)
    kind, _, name = (place.domain or "").partition("=")
    if kind == "job":
        return PlaceContext(_job_series(queries, name), window_minutes=queries.minutes)
    if kind == "pod":
        return PlaceContext(_pod_series(queries, name))
    if kind == "namespace":
        return PlaceContext(_quota_series(queries, own_metrics.escape(name)))
    if kind in ("rack", "leaf"):
        return PlaceContext({}, peer_temperatures=_peer_temperatures(queries, kind, name))
    return PlaceContext()


def _node_context(queries: PlaceQueries) -> PlaceContext:
    host_pattern = _escape_regex(queries.place.node or "")
    names = "|".join(NODE_SERIES)
    cluster = f'cluster="{queries.cluster}"'
    # GPU exporters name a node in `Hostname`, node_exporter in `instance`.
    node_rows = queries.query(
        f'{{__name__=~"{names}",{cluster},Hostname="{queries.node}"}} or '
        f'{{__name__=~"{names}",{cluster},instance=~"{host_pattern}(:[0-9]+)?"}}',
        about="series of the node",
    )
    series = _group_by_name(node_rows)
    domain = next((labels for labels, _ in series.get("watchkeeper_node_info", ())), None)
    kinds = (kind for kind in ("rack", "leaf") if domain is not None and domain.get(kind))
    kind = next(kinds, None)
    peers = None if domain is None or kind is None else _peer_temperatures(queries, kind, domain[kind])
    return PlaceContext(series, peer_temperatures=peers, changes=tuple(_recent_changes(queries, host_pattern)))


def _peer_temperatures(queries: PlaceQueries, kind: str, name: str) -> dict[str, float]:
    nodes = f'watchkeeper_node_info{{cluster="{queries.cluster}",{kind}="{own_metrics.escape(name)}"}}'
    expr = f"max by (Hostname) (DCGM_FI_DEV_GPU_TEMP) and on (Hostname) group by (Hostname) ({nodes})"
    rows = queries.query(expr, about=f"temperatures of {kind} {name}")
    return {labels.get("Hostname", ""): value for labels, value in rows.items()}


def _recent_changes(queries: PlaceQueries, host: str) -> Iterable[str]:
    """Changes of driver or kernel version, and boots, within CHANGE_WINDOW."""
    cluster, versions = f'cluster="{queries.cluster}"', ", ".join(VERSION_LABELS)
    node = queries.place.node
    gpus = f"DCGM_FI_DEV_GPU_TEMP{{{queries.selector}}}"
    kernel = f'node_uname_info{{{cluster},instance=~"{host}(:[0-9]+)?"}}'
    now = queries.query(f"group by ({versions}) ({gpus}) or group by ({versions}) ({kernel})", about="versions")
    before = queries.query(
        f"group by ({versions}) (last_over_time({gpus}[{CHANGE_WINDOW}])) or "
        f"group by ({versions}) (last_over_time({kernel}[{CHANGE_WINDOW}]))",
        about="previous versions",
    )
    for label, component in zip(VERSION_LABELS, ("driver", "kernel"), strict=True):
        new = {labels.get(label) for labels in now} - {None, ""}
        old = {labels.get(label) for labels in before} - {None, ""} - new
        if new and old:
            current, previous = ", ".join(map(str, new)), ", ".join(map(str, old))
            yield f"the {component} of {node} changed from {previous} to {current} within the last 6 hours"
    expr = f'changes(node_boot_time_seconds{{{cluster},instance=~"{host}(:[0-9]+)?"}}[{CHANGE_WINDOW}]) > 0'
    if queries.query(expr, about="boots"):
        yield f"{node} booted within the last 6 hours"


def _job_series(queries: PlaceQueries, name: str) -> dict[str, Series]:
    cluster, job = f'cluster="{queries.cluster}"', own_metrics.escape(name)
    job_rows = queries.query(
        f'{{__name__=~"{"|".join(JOB_SERIES)}",{cluster},job_name="{job}"}} or '
        # The series of a dead rank has ended.
        f'last_over_time({RANK_PLACES}{{{cluster},job_name="{job}"}}[10m])',
        about=f"series of {name}",
    )
    uuids = sorted({row.get("UUID", "") for row in job_rows if row.get("__name__") == RANK_PLACES} - {""})[:MAX_UUIDS]
    pod_pattern = _escape_regex(name)
    fields = "|".join(JOB_FIELDS)
    # A GPU that fell off the bus no longer reports, but the job still holds it.
    held_gpus = (
        f'last_over_time({{__name__=~"{fields}",{cluster},pod=~"{pod_pattern}(-.+)?"}}[5m]) or '
        f'last_over_time({{__name__=~"{fields}",{cluster},hpc_job="{job}"}}[5m])'
    )
    if uuids:
        # Samples from the time when another workload held the same GPU are not about this job.
        rank_gpus = f'last_over_time({{__name__=~"{fields}",{cluster},UUID=~"{"|".join(uuids)}"}}[5m])'
        held_gpus = f"{held_gpus} or ({rank_gpus} unless on (__name__, UUID) ({held_gpus}))"
    gpus = queries.query(held_gpus, about=f"GPUs of {name}")
    busier = f'avg_over_time(watchkeeper:job_gpu_busier:ratio{{{cluster},job_name="{job}"}}[15m]) > 0.05'
    waits = f'rate(training_data_wait_seconds_total{{{cluster},job_name="{job}"}}[5m])'
    series = {
        WAIT_SHARE: queries.query(waits, about="input wait time"),
        GPU_BUSIER: queries.query(busier, about="its slow GPUs"),
        **_job_node_series(queries, gpus),
    }
    return {**_group_by_name({**job_rows, **gpus}), **{name: tuple(rows.items()) for name, rows in series.items()}}


def _job_node_series(queries: PlaceQueries, gpus: Iterable[Labels]) -> dict[str, dict[Labels, float]]:
    nodes = sorted({labels.get("Hostname", "") for labels in gpus} - {""})
    if not nodes:
        return {}
    cluster, minutes = f'cluster="{queries.cluster}"', queries.minutes
    pattern = "|".join(_escape_regex(node) for node in nodes[:64])
    # In series of GPU exporters, and in those of node_exporter.
    gpu_matchers, instance_matchers = f'{cluster},Hostname=~"{pattern}"', f'{cluster},instance=~"({pattern})(:[0-9]+)?"'
    port_errors = (
        f"rate(node_infiniband_symbol_error_total{{{instance_matchers}}}[5m]) > 10"
        f" or node_infiniband_state_id{{{instance_matchers}}} != 4"
        f" or increase(node_infiniband_link_downed_total{{{instance_matchers}}}[10m]) > 0"
    )
    memory_errors = gpu_errors.memory_errors_query(gpu_matchers, minutes=minutes)
    clock_reasons = gpu_errors.clock_reasons_query(gpu_matchers, minutes=minutes)
    cpus = queries.query(node_cpu.cpu_busy_query(instance_matchers), about="CPU use of its nodes")
    if not cpus:
        cpus = queries.query(node_cpu.cpu_load_query(gpu_matchers, minutes=1), about="load of its nodes")
    uuids = {labels.get("UUID", "") for labels in gpus}
    reporting = queries.query(f"DCGM_FI_DEV_GPU_UTIL{{{gpu_matchers}}}", about="its reporting GPUs")
    return {
        PORT_ERRORS: queries.query(port_errors, about="InfiniBand ports"),
        MEMORY_ERRORS: queries.query(memory_errors, about="memory errors"),
        CLOCK_REASONS: queries.query(clock_reasons, about="clock reasons"),
        CPU_SHARE: cpus,
        REPORTING_GPUS: {labels: value for labels, value in reporting.items() if labels.get("UUID", "") in uuids},
    }


def _pod_series(queries: PlaceQueries, name: str) -> dict[str, Series]:
    namespace, _, pod = (own_metrics.escape(part) for part in name.partition("/"))
    cluster = f'cluster="{queries.cluster}"'
    pod_rows = queries.query(
        f'{{__name__=~"kube_pod_.+",{cluster},namespace="{namespace}",pod="{pod}"}}',
        about=f"kube-state-metrics of {name}",
    )
    nodes = queries.query(
        f'{{__name__=~"watchkeeper:kube_node_free_gpus:count|kube_node_spec_taint|kube_node_labels",{cluster}}}',
        about="free GPUs and taints of nodes",
    )
    resources = queries.query(
        f'sum by (__name__, resource, node) ({{__name__=~"kube_node_status_(allocatable|capacity)",{cluster},'
        'resource=~"nvidia_com_.+"})',
        about="GPUs of nodes",
    )
    memory = queries.query(
        f'max by (__name__) ({{__name__=~"DCGM_FI_DEV_FB_(USED|FREE)",{cluster},namespace="{namespace}",pod="{pod}"}})',
        about="memory of its GPUs",
    )
    return {**_group_by_name({**pod_rows, **nodes, **resources, **memory}), **_quota_series(queries, namespace)}


def _quota_series(queries: PlaceQueries, namespace: str) -> dict[str, Series]:
    expr = f'kube_resourcequota{{cluster="{queries.cluster}",namespace="{namespace}",resource=~".*nvidia.com/.+"}}'
    return _group_by_name(queries.query(expr, about="quotas"))


def _escape_regex(text: str) -> str:
    """Escape text for a regular expression in a PromQL string."""
    return own_metrics.escape(re.escape(text))


def _group_by_name(rows: Mapping[Labels, float]) -> dict[str, Series]:
    groups: dict[str, list[tuple[Labels, float]]] = {}
    for labels, value in rows.items():
        groups.setdefault(labels.get("__name__", ""), []).append((labels, value))
    return {name: tuple(group) for name, group in groups.items()}
