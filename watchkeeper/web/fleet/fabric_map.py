"""List every port of the fabric with its link, traffic, errors and jobs, in the order of the map.

Links come from the newest sweep, else from the metrics of hosts; values come from the results of queries, which
`fabric_api` runs. A value without a counter is None, never 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from watchkeeper.clusters.fabric import fabric_changes, fabric_watch
from watchkeeper.hub.fleet_layout import natural_sort_key
from watchkeeper.model import fabric
from watchkeeper.web.fleet.topology import HealthState, TopologyLink, list_fabric_links

# packs/ib_counters.csv: a bit error rate of 1e-12, which vendors accept, is about this many errors per hour.
MAX_ERRORS_PER_HOUR = 120.0
# One of these errors is already too many while a job runs.
SEVERE_COUNTERS = ("LinkDownedCounter", "LocalLinkIntegrityErrors", "ExcessiveBufferOverrunErrors")
# Not errors of a cable: data waited or was dropped because the receiver's buffer was full.
WAIT_COUNTER, DISCARD_COUNTER = CONGESTION_COUNTERS = "PortXmitWait", "PortXmitDiscards"
# A port is congested if it waits this many times longer than the median of its kind.
CONGESTION_RATIO = 8.0
# Ticks per second that ports of an idle fabric wait; with a smaller median the ratio would mean nothing.
MIN_WAIT_PER_SECOND = 1000.0
MAX_JOBS = 20

HostKey = tuple[str, str, int]
SwitchKey = tuple[str, int]


@dataclass(slots=True)
class PortReading:
    """The counters of one end: bytes per second in the busier direction, and the growth of each counter."""

    bytes_per_second: float | None = None
    growth: dict[str, float] = field(default_factory=dict)
    wait_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class PortView:
    """One link, seen from its switch, or from its host if no switch is known; `row` is its leaf or rack."""

    kind: str
    row: str | None
    switch: str | None
    switch_port: int | None
    peer: str
    device: str
    port: int
    state: HealthState
    why: str = ""
    gbps: float | None = None
    down_since_ms: int | None = None
    load: float | None = None
    errors: float | None = None
    has_errors: bool = False
    wait_per_second: float | None = None
    wait_ratio: float | None = None
    growth: Mapping[str, float] = field(default_factory=dict)
    jobs: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.peer}/{self.device}/{self.port}" if self.kind == "host" else f"{self.switch}/{self.switch_port}"

    @property
    def search_text(self) -> str:
        parts = (self.id, self.row or "", self.switch or "", self.peer, self.device, self.state, self.why, *self.jobs)
        return " ".join(parts).lower()

    @property
    def is_congested(self) -> bool:
        return self.wait_ratio is not None and self.wait_ratio >= CONGESTION_RATIO

    @property
    def sort_key(self) -> tuple[int, float, float]:
        """Sorts the worst first: by state, then errors, then utilisation."""
        rank = max(self.state.rank, HealthState.WARNING.rank if self.has_errors or self.is_congested else 0)
        return -rank, -(self.errors or 0.0), -(self.load or 0.0)


@dataclass(frozen=True, slots=True)
class FabricSources:
    """The input of the map: the sweep, the links that hosts report, counters of both ends, rows and jobs of nodes."""

    watch: fabric_watch.FabricWatch | None
    host_links: Mapping[str, Sequence[TopologyLink]]
    host_readings: Mapping[HostKey, PortReading]
    switch_readings: Mapping[SwitchKey, PortReading]
    rows: Mapping[str, str | None]
    jobs: Mapping[str, Sequence[str]]
    window_hours: float = 1.0


def list_ports(sources: FabricSources) -> list[PortView]:
    """List each link once: trunks first, then the ports of hosts, sorted by node name."""
    watch = sources.watch
    links = list_fabric_links(watch)
    known_links = () if watch is None else watch.known_fabric.links
    down_since = {(link.peer, link.adapter, link.peer_port): link.down_since_ms or None for link in known_links}
    views = [] if watch is None else list(_list_trunks(watch, sources))
    for node in sorted(sources.rows.keys() | links.keys(), key=natural_sort_key):
        for link in links.get(node) or sources.host_links.get(node, ()):
            since = down_since.get((node, link.device, link.port))
            views.append(_view_host_port(node, link, sources, down_since_ms=since))
    return _with_wait_ratios(views)


def _view_host_port(node: str, link: TopologyLink, sources: FabricSources, *, down_since_ms: int | None) -> PortView:
    host_reading = sources.host_readings.get((node, link.device, link.port), PortReading())
    switch_reading = PortReading()
    if link.switch is not None and link.switch_port is not None:
        switch_reading = sources.switch_readings.get((link.switch, link.switch_port), switch_reading)
    view = PortView(
        kind="host",
        row=link.switch or sources.rows.get(node),
        switch=link.switch,
        switch_port=link.switch_port,
        peer=node,
        device=link.device,
        port=link.port,
        state=link.state,
        why=link.why,
        gbps=link.gbps,
        down_since_ms=down_since_ms,
        jobs=tuple(sources.jobs.get(node, ()))[:MAX_JOBS],
    )
    return _with_reading(view, _merge_ends(switch_reading, host_reading), sources.window_hours)


def _list_trunks(watch: fabric_watch.FabricWatch, sources: FabricSources) -> Iterable[PortView]:
    """Links between switches, in the row of their leaf, with all jobs whose traffic may cross them."""
    leaves = {switch.name for switch in watch.known_fabric.switches if switch.is_leaf}
    leaves_of: dict[str, set[str]] = defaultdict(set)
    for link in watch.known_fabric.links:
        if link.adapter:
            leaves_of[link.peer].add(link.switch)
    jobs_by_leaf = group_jobs_by_leaf(leaves_of, sources.jobs)
    trunks = (link for link in watch.known_fabric.links if not link.adapter)
    for link in sorted(trunks, key=lambda link: (natural_sort_key(link.switch), link.port)):
        leaf_end, other_end = (link.switch, link.port), (link.peer, link.peer_port)
        if link.switch not in leaves and link.peer in leaves:
            leaf_end, other_end = other_end, leaf_end
        port = None if watch.topology is None else watch.topology.ports.get(link.key)
        state, why = _judge_trunk(link, port, watch.topology)
        view = PortView(
            kind="trunk",
            row=leaf_end[0],
            switch=leaf_end[0],
            switch_port=leaf_end[1],
            peer=other_end[0],
            device="",
            port=other_end[1],
            state=state,
            why=why,
            gbps=None if port is None else port.gbps,
            down_since_ms=link.down_since_ms,
            jobs=tuple(jobs_by_leaf.get(leaf_end[0], ()))[:MAX_JOBS],
        )
        leaf_reading, other_reading = (sources.switch_readings.get(end, PortReading()) for end in (leaf_end, other_end))
        yield _with_reading(view, _merge_ends(leaf_reading, other_reading), sources.window_hours)


def _judge_trunk(
    link: fabric_changes.KnownLink, port: fabric.FabricPort | None, layout: fabric.FabricTopology | None
) -> tuple[HealthState, str]:
    if link.down_since_ms is not None:
        return HealthState.DOWN, "the link was up before and is down"
    if port is None or layout is None:
        return HealthState.UNKNOWN, "not in the newest sweep"
    if link.key in layout.slow_ports:
        return HealthState.SLOW, "slower than the other trunks of its switch"
    return HealthState.HEALTHY, ""


def group_jobs_by_leaf(
    leaves_of: Mapping[str, Iterable[str]], jobs: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """Leaf → jobs that also have a node without a port on this leaf, so their traffic crosses its trunks."""
    nodes_of: dict[str, set[str]] = defaultdict(set)
    for node, names in jobs.items():
        for name in names:
            nodes_of[name].add(node)
    crossed: dict[str, list[str]] = defaultdict(list)
    for name, nodes in sorted(nodes_of.items()):
        leaf_sets = [frozenset(leaves_of[node]) for node in nodes if node in leaves_of]
        for leaf in frozenset().union(*leaf_sets) if len(leaf_sets) > 1 else ():
            if not all(leaf in leaves for leaves in leaf_sets):
                crossed[leaf].append(name)
    return crossed


def _merge_ends(first: PortReading, second: PortReading) -> PortReading:
    """The counters of a cable: for each counter, the larger value of its two ends."""
    growth = {
        name: max(first.growth.get(name, 0.0), second.growth.get(name, 0.0))
        for name in first.growth.keys() | second.growth.keys()
    }
    traffic = _larger(first.bytes_per_second, second.bytes_per_second)
    return PortReading(traffic, growth, _larger(first.wait_per_second, second.wait_per_second))


def _larger(first: float | None, second: float | None) -> float | None:
    return max((value for value in (first, second) if value is not None), default=None)


def _with_reading(view: PortView, reading: PortReading, hours: float) -> PortView:
    error_counts = {name: value for name, value in reading.growth.items() if name not in CONGESTION_COUNTERS}
    errors = sum(error_counts.values()) if error_counts else None
    has_severe_errors = any(error_counts.get(name, 0.0) >= 1 for name in SEVERE_COUNTERS)
    load = None
    if view.gbps and reading.bytes_per_second is not None:
        load = min(1.0, reading.bytes_per_second * 8e-9 / view.gbps)
    has_errors = has_severe_errors or (errors or 0.0) / hours > MAX_ERRORS_PER_HOUR
    wait = reading.wait_per_second
    return replace(
        view, load=load, errors=errors, has_errors=has_errors, wait_per_second=wait, growth=dict(reading.growth)
    )


def _with_wait_ratios(views: Sequence[PortView]) -> list[PortView]:
    """Set how long each port waits, as a multiple of the median of its kind: the length of a tick varies by vendor."""
    median_waits: dict[str, float] = {}
    for kind in ("host", "trunk"):
        waits = [view.wait_per_second for view in views if view.kind == kind and view.wait_per_second is not None]
        median_waits[kind] = median(waits) if waits else 0.0
    return [
        replace(view, wait_ratio=view.wait_per_second / max(median_waits[view.kind], MIN_WAIT_PER_SECOND))
        if view.wait_per_second is not None
        else view
        for view in views
    ]
