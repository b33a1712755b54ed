"""What lies around an incident's place: rack neighbours, a job's ranks and GPUs, a pod and its cluster, recent changes.

`evidence.gather` calls `look` once for each incident and keeps the answer in its Facts. Each kind of place has its
questions; whatever the size of the fleet there are only a few, and what an engine refuses is remembered.
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
from watchkeeper.query import gpu_errors, host_cpu

Series = tuple[tuple[Labels, float], ...]
# As in packs/rules: what names a node in the labels of node_exporter and of the hub's own scrapes.
HOST = "([^:]+)(?::[0-9]+)?"
# A change that broke something broke it soon; a day later people have forgotten it, and six hours fit a shift.
CHANGE_WINDOW = "6h"
VERSION_LABELS = ("DCGM_FI_DRIVER_VERSION", "release")
JOB_FIELDS = (
    "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE",
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT",
)  # fmt: skip
RANK_PLACES, GREW, REASONS = "training_rank_info", "memory_errors_grew", "clocks_event_reasons"
# What rules say about a job: its slow ranks, what moves between its GPUs, the most they drew, since when they are idle.
TRAFFIC, USUAL_WATTS, IDLE_SECONDS, FIRING = (
    "watchkeeper:job_traffic:bytes_per_second",
    "watchkeeper:job_power:max1d",
    "watchkeeper:job_idle:seconds",
    "ALERTS",
)
JOB_SERIES = ("training_.+", "watchkeeper:training_rank_slow:ratio", TRAFFIC, USUAL_WATTS, IDLE_SECONDS, FIRING)
CPU_SHARE, BUSIER, READ_NOW = "cpu_share", "gpu_busier", "gpus_read_now"
# A regular expression of so many UUIDs stays below what engines accept (64 KiB).
MOST_UUIDS = 1000
NODE_SERIES = ("watchkeeper_gpu_fault", "watchkeeper_node_info", "node_boot_time_seconds", "node_uname_info", "up")


@dataclass(frozen=True, slots=True)
class PlaceContext:
    """`series` by metric name; `peers` the hottest GPU of each node of the same rack or leaf, None where none is known.

    `changes` are sentences: what is another than some hours ago; `minutes` is how far back counters were looked at.
    """

    series: Mapping[str, Series] = field(default_factory=dict)
    peer_temperatures: Mapping[str, float] | None = None
    changes: tuple[str, ...] = ()
    window_minutes: int = 0

    @property
    def series_count(self) -> int:
        return sum(len(rows) for rows in self.series.values())

    def rows(self, metric: str, **wanted: str) -> list[tuple[Labels, float]]:
        found = self.series.get(metric, ())
        return [(one, value) for one, value in found if all(one.get(name) == text for name, text in wanted.items())]

    def max_value(self, metric: str, **wanted: str) -> float | None:
        """The largest of the rows that fit; None where there is none."""
        return max((value for _, value in self.rows(metric, **wanted)), default=None)


class PlaceQueries:
    """Asks one engine about one place, counts the questions, and remembers what was refused."""

    def __init__(self, engine: engines.InstantEngine, place: fleet.Place, at_ms: int, *, window: timedelta) -> None:
        self._engine, self._at_ms = engine, at_ms
        self.window = durations.format_seconds(window.total_seconds())
        # For words, and for what is counted: whole minutes, which a person reads.
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
            self.failures.append(f"{about} could not be asked: {error}")
            return {}

    def readings_by_gpu(self, metrics: Sequence[str]) -> dict[str, dict[str, float]]:
        """The last values of a node's GPUs, all metrics in one question."""
        found: dict[str, dict[str, float]] = {metric: {} for metric in metrics}
        names = "|".join(metrics)
        expr = f'last_over_time({{__name__=~"{names}",{self.selector}}}[{self.window}])'
        for labels, value in self.query(expr, about=f"{len(metrics)} series of GPUs").items():
            # MIG slices repeat their GPU's series: the largest value stands for all.
            values, uuid = found.setdefault(labels.get("__name__", ""), {}), labels.get("UUID", "")
            values[uuid] = max(value, values.get(uuid, value))
        return found

    def reporting_gpus(self, metric: str) -> frozenset[str] | None:
        before = len(self.failures)
        found = self.query(f"{metric}{{{self.selector}}}", about=metric)
        return frozenset(labels.get("UUID", "") for labels in found) if len(self.failures) == before else None

    def expected_gpus(self, metric: str) -> int | None:
        values = self.query(f"{metric}{{{self.selector}}}", about=metric)
        return round(max(values.values())) if values else None


def gather_context(questions: PlaceQueries) -> PlaceContext:
    """The questions of the place's kind; nothing for a place that nobody tells about."""
    place = questions.place
    if place.node is not None:
        return _node(questions)
    kind, _, name = (place.domain or "").partition("=")
    if kind == "job":
        return PlaceContext(_job(questions, name), window_minutes=questions.minutes)
    if kind == "pod":
        return PlaceContext(_pod(questions, name))
    if kind == "namespace":
        return PlaceContext(_quota(questions, own_metrics.escape(name)))
    if kind in ("rack", "leaf"):
        return PlaceContext({}, peer_temperatures=_peers(questions, kind, name))
    return PlaceContext()


def _node(questions: PlaceQueries) -> PlaceContext:
    host = _literally(questions.place.node or "")
    names = "|".join(NODE_SERIES)
    own = f'cluster="{questions.cluster}"'
    # Exporters name a node by Hostname, node_exporter by its address, kube-state-metrics by node.
    told = questions.query(
        f'{{__name__=~"{names}",{own},Hostname="{questions.node}"}} or '
        f'{{__name__=~"{names}",{own},instance=~"{host}(:[0-9]+)?"}}',
        about="the node's own series",
    )
    series = _by_name(told)
    domain = next((labels for labels, _ in series.get("watchkeeper_node_info", ())), None)
    peers = None
    for kind in ("rack", "leaf"):
        if domain is not None and domain.get(kind):
            peers = _peers(questions, kind, domain.get(kind, ""))
            break
    return PlaceContext(series, peer_temperatures=peers, changes=tuple(_changes(questions, host)))


def _peers(questions: PlaceQueries, kind: str, name: str) -> dict[str, float]:
    nodes = f'watchkeeper_node_info{{cluster="{questions.cluster}",{kind}="{own_metrics.escape(name)}"}}'
    expr = f"max by (Hostname) (DCGM_FI_DEV_GPU_TEMP) and on (Hostname) group by (Hostname) ({nodes})"
    found = questions.query(expr, about=f"temperatures of {kind} {name}")
    return {labels.get("Hostname", ""): value for labels, value in found.items()}


def _changes(questions: PlaceQueries, host: str) -> Iterable[str]:
    """Another driver or kernel than hours ago, and a boot in between."""
    own, versions = f'cluster="{questions.cluster}"', ", ".join(VERSION_LABELS)
    node = questions.place.node
    gpus, kernel = (
        f"DCGM_FI_DEV_GPU_TEMP{{{questions.selector}}}",
        f'node_uname_info{{{own},instance=~"{host}(:[0-9]+)?"}}',
    )
    now = questions.query(f"group by ({versions}) ({gpus}) or group by ({versions}) ({kernel})", about="versions")
    before = questions.query(
        f"group by ({versions}) (last_over_time({gpus}[{CHANGE_WINDOW}])) or "
        f"group by ({versions}) (last_over_time({kernel}[{CHANGE_WINDOW}]))",
        about="earlier versions",
    )
    for label, what in zip(VERSION_LABELS, ("driver", "kernel"), strict=True):
        new = {labels.get(label) for labels in now} - {None, ""}
        old = {labels.get(label) for labels in before} - {None, ""} - new
        if new and old:
            is_now, was = ", ".join(map(str, new)), ", ".join(map(str, old))
            yield f"the {what} of {node} is {is_now} and was {was} within the last 6 hours"
    expr = f'changes(node_boot_time_seconds{{{own},instance=~"{host}(:[0-9]+)?"}}[{CHANGE_WINDOW}]) > 0'
    if questions.query(expr, about="boots"):
        yield f"{node} was booted within the last 6 hours"


def _job(questions: PlaceQueries, name: str) -> dict[str, Series]:
    own, job = f'cluster="{questions.cluster}"', own_metrics.escape(name)
    told = questions.query(
        f'{{__name__=~"{"|".join(JOB_SERIES)}",{own},job_name="{job}"}} or '
        # A rank that died no longer says where it ran.
        f'last_over_time({RANK_PLACES}{{{own},job_name="{job}"}}[10m])',
        about=f"series of {name}",
    )
    uuids = sorted({row.get("UUID", "") for row in told if row.get("__name__") == RANK_PLACES} - {""})[:MOST_UUIDS]
    waits = questions.query(
        f'rate(training_data_wait_seconds_total{{{own},job_name="{job}"}}[5m])', about="input waits"
    )
    pods = _literally(name)
    fields = "|".join(JOB_FIELDS)
    # A GPU that fell off the bus no longer reports; it is the job's for all that.
    held = (
        f'last_over_time({{__name__=~"{fields}",{own},pod=~"{pods}(-.+)?"}}[5m]) or '
        f'last_over_time({{__name__=~"{fields}",{own},hpc_job="{job}"}}[5m])'
    )
    if uuids:
        # What the exporter said while somebody else held the same GPU is not about this job.
        theirs = f'last_over_time({{__name__=~"{fields}",{own},UUID=~"{"|".join(uuids)}"}}[5m])'
        held = f"{held} or ({theirs} unless on (__name__, UUID) ({held}))"
    gpus = questions.query(held, about=f"GPUs of {name}")
    nodes = sorted({labels.get("Hostname", "") for labels in gpus} - {""})
    ports = questions.query(_ports(own, nodes), about="InfiniBand ports") if nodes else {}
    hosts, minutes = _hosts(own, nodes), questions.minutes
    grew = (
        questions.query(gpu_errors.memory_error_growth(hosts, minutes=minutes), about="memory errors") if nodes else {}
    )
    reasons = (
        questions.query(gpu_errors.worst_clock_reasons(hosts, minutes=minutes), about="clock reasons") if nodes else {}
    )
    cpus = questions.query(host_cpu.busy_share(_instances(own, nodes)), about="CPUs of its nodes") if nodes else {}
    if nodes and not cpus:
        load = host_cpu.load_share(hosts, minutes=1)
        cpus = questions.query(load, about="load of its nodes")
    busier = questions.query(
        f'avg_over_time(watchkeeper:job_gpu_busier:ratio{{{own},job_name="{job}"}}[15m]) > 0.05', about="its late GPUs"
    )
    read = questions.query(f"DCGM_FI_DEV_GPU_UTIL{{{hosts}}}", about="which of its GPUs are read") if nodes else {}
    own_uuids = {labels.get("UUID", "") for labels in gpus}
    read = {labels: value for labels, value in read.items() if labels.get("UUID", "") in own_uuids}
    named = [(labels.with_labels(__name__="data_wait_share"), value) for labels, value in waits.items()]
    found = [*told.items(), *gpus.items(), *named]
    others = {
        "ib_errors_per_second": ports,
        GREW: grew,
        REASONS: reasons,
        CPU_SHARE: cpus,
        BUSIER: busier,
        READ_NOW: read,
    }
    return {**_by_name(dict(found)), **{name: tuple(rows.items()) for name, rows in others.items()}}


def _hosts(own: str, nodes: Sequence[str]) -> str:
    """Matchers for series that name a node as GPUs' do."""
    return f'{own},Hostname=~"{"|".join(_literally(node) for node in nodes[:64])}"'


def _instances(own: str, nodes: Sequence[str]) -> str:
    """Matchers for series that name a node as node_exporter's do."""
    return f'{own},instance=~"({"|".join(_literally(node) for node in nodes[:64])})(:[0-9]+)?"'


def _ports(own: str, nodes: Sequence[str]) -> str:
    where = _instances(own, nodes)
    return (
        f"rate(node_infiniband_symbol_error_total{{{where}}}[5m]) > 10 or "
        f"node_infiniband_state_id{{{where}}} != 4 or increase(node_infiniband_link_downed_total{{{where}}}[10m]) > 0"
    )


def _pod(questions: PlaceQueries, name: str) -> dict[str, Series]:
    namespace, _, pod = (own_metrics.escape(part) for part in name.partition("/"))
    own = f'cluster="{questions.cluster}"'
    told = questions.query(
        f'{{__name__=~"kube_pod_.+",{own},namespace="{namespace}",pod="{pod}"}}',
        about=f"what Kubernetes says of {name}",
    )
    nodes = questions.query(
        f'{{__name__=~"watchkeeper:kube_node_free_gpus:count|kube_node_spec_taint|kube_node_labels",{own}}}',
        about="free GPUs and taints of nodes",
    )
    resources = questions.query(
        f'sum by (__name__, resource, node) ({{__name__=~"kube_node_status_(allocatable|capacity)",{own},'
        'resource=~"nvidia_com_.+"})',
        about="GPUs that nodes offer",
    )
    memory = questions.query(
        f'max by (__name__) ({{__name__=~"DCGM_FI_DEV_FB_(USED|FREE)",{own},namespace="{namespace}",pod="{pod}"}})',
        about="memory of its GPUs",
    )
    return {**_by_name({**told, **nodes, **resources, **memory}), **_quota(questions, namespace)}


def _quota(questions: PlaceQueries, namespace: str) -> dict[str, Series]:
    expr = f'kube_resourcequota{{cluster="{questions.cluster}",namespace="{namespace}",resource=~".*nvidia.com/.+"}}'
    return _by_name(questions.query(expr, about="quotas"))


def _literally(text: str) -> str:
    """For a regular expression inside a PromQL string."""
    return own_metrics.escape(re.escape(text))


def _by_name(found: Mapping[Labels, float]) -> dict[str, Series]:
    rows: dict[str, list[tuple[Labels, float]]] = {}
    for labels, value in found.items():
        rows.setdefault(labels.get("__name__", ""), []).append((labels, value))
    return {name: tuple(some) for name, some in rows.items()}
