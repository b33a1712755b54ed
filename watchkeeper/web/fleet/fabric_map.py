"""Every port of the fabric with its link, its traffic, its errors and the jobs behind it, in an order to draw.

Links come from the newest sweep, else from what hosts say about their own ports; numbers from series that were
asked before. `fabric_api` asks, keeps and answers; nothing here waits or reads a clock. A number that nobody has
counted is None, which is not the same as 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from watchkeeper.clusters.fabric import fabric_changes, fabric_watch
from watchkeeper.model import fabric
from watchkeeper.web.fleet.fleet_layout import natural
from watchkeeper.web.fleet.topology import HealthState, TopologyLink, fabric_links

# packs/ib_counters.csv: a bit error rate of 1e-12 is about this many an hour; below it a link is as good as sold.
ERRORS_PER_HOUR = 120.0
# One of these is too many while a job runs.
ALWAYS_BAD = ("LinkDownedCounter", "LocalLinkIntegrityErrors", "ExcessiveBufferOverrunErrors")
# Not errors of a cable: data waited, or was given up, because what is behind was full.
WAIT, DISCARDS = "PortXmitWait", "PortXmitDiscards"
# What a port waits is told as a multiple of its peers' median; as many times is worth a mark.
WAITS_TOO_LONG = 8.0
# Ticks a second that a port of an idle fabric may wait; below it a multiple says nothing.
LEAST_WAIT = 1000.0
MOST_JOBS = 20

HostKey = tuple[str, str, int]
SwitchKey = tuple[str, int]


@dataclass(slots=True)
class PortReading:
    """What the series say about one end: bytes a second of the busier way, and growth of each counter."""

    bytes_per_second: float | None = None
    grown: dict[str, float] = field(default_factory=dict)
    wait_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class PortView:
    """One link as its switch sees it, or its host where no switch is known; `row` is its leaf or rack."""

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
    errs: bool = False
    wait: float | None = None
    wait_times: float | None = None
    grown: Mapping[str, float] = field(default_factory=dict)
    jobs: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.peer}/{self.device}/{self.port}" if self.kind == "host" else f"{self.switch}/{self.switch_port}"

    @property
    def waits(self) -> bool:
        return self.wait_times is not None and self.wait_times >= WAITS_TOO_LONG

    @property
    def sort_key(self) -> tuple[int, float, float]:
        """Sorts the worst first: state, then errors, then load."""
        rank = max(self.state.rank, HealthState.WARNING.rank if self.errs or self.waits else 0)
        return -rank, -(self.errors or 0.0), -(self.load or 0.0)


@dataclass(frozen=True, slots=True)
class FabricSources:
    """What the map is made of: the sweep, ports as hosts tell, readings of both ends, rows and jobs of nodes."""

    watched: fabric_watch.FabricWatch | None
    told: Mapping[str, Sequence[TopologyLink]]
    by_host: Mapping[HostKey, PortReading]
    by_switch: Mapping[SwitchKey, PortReading]
    rows: Mapping[str, str | None]
    jobs: Mapping[str, Sequence[str]]
    window_hours: float = 1.0


def list_ports(made_of: FabricSources) -> list[PortView]:
    """Each link once: trunks, then the ports of hosts in the order of their names."""
    watched = made_of.watched
    links = fabric_links(watched)
    known = () if watched is None else watched.known_fabric.links
    dark = {(one.peer, one.adapter, one.peer_port): one.down_since_ms for one in known if one.down_since_ms}
    found = [] if watched is None else list(_trunks(watched, made_of))
    for node in sorted(made_of.rows.keys() | links.keys(), key=natural):
        for link in links.get(node) or made_of.told.get(node, ()):
            since = dark.get((node, link.device, link.port))
            found.append(_host_port(node, link, made_of, down_since_ms=since))
    return _with_peers(found)


def _host_port(node: str, link: TopologyLink, made_of: FabricSources, *, down_since_ms: int | None) -> PortView:
    told = made_of.by_host.get((node, link.device, link.port), PortReading())
    seen = PortReading()
    if link.switch is not None and link.switch_port is not None:
        seen = made_of.by_switch.get((link.switch, link.switch_port), seen)
    view = PortView(
        kind="host",
        row=link.switch or made_of.rows.get(node),
        switch=link.switch,
        switch_port=link.switch_port,
        peer=node,
        device=link.device,
        port=link.port,
        state=link.state,
        why=link.why,
        gbps=link.gbps,
        down_since_ms=down_since_ms,
        jobs=tuple(made_of.jobs.get(node, ()))[:MOST_JOBS],
    )
    return _read(view, _both(seen, told), made_of.window_hours)


def _trunks(watched: fabric_watch.FabricWatch, made_of: FabricSources) -> Iterable[PortView]:
    """Links between switches, in the row of their leaf; which jobs cross one is up to routing, so all that may do."""
    leaves = {switch.name for switch in watched.known_fabric.switches if switch.is_leaf}
    leaves_of: dict[str, set[str]] = defaultdict(set)
    for link in watched.known_fabric.links:
        if link.adapter:
            leaves_of[link.peer].add(link.switch)
    crossing = crossing_jobs(leaves_of, made_of.jobs)
    trunks = (link for link in watched.known_fabric.links if not link.adapter)
    for link in sorted(trunks, key=lambda one: (natural(one.switch), one.port)):
        here, there = (link.switch, link.port), (link.peer, link.peer_port)
        if link.switch not in leaves and link.peer in leaves:
            here, there = there, here
        port = None if watched.layout is None else watched.layout.ports.get(link.key)
        state, why = _trunk_state(link, port, watched.layout)
        view = PortView(
            kind="trunk",
            row=here[0],
            switch=here[0],
            switch_port=here[1],
            peer=there[0],
            device="",
            port=there[1],
            state=state,
            why=why,
            gbps=None if port is None else port.gbps,
            down_since_ms=link.down_since_ms,
            jobs=tuple(crossing.get(here[0], ()))[:MOST_JOBS],
        )
        both = _both(made_of.by_switch.get(here, PortReading()), made_of.by_switch.get(there, PortReading()))
        yield _read(view, both, made_of.window_hours)


def _trunk_state(
    link: fabric_changes.KnownLink, port: fabric.FabricPort | None, layout: fabric.FabricTopology | None
) -> tuple[HealthState, str]:
    if link.down_since_ms is not None:
        return HealthState.DOWN, "the cable was there and is dark"
    if port is None or layout is None:
        return HealthState.UNKNOWN, "not in the newest sweep"
    if link.key in layout.slow_ports:
        return HealthState.SLOW, "slower than the other trunks of its switch"
    return HealthState.HEALTHY, ""


def crossing_jobs(leaves_of: Mapping[str, Iterable[str]], jobs: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Leaf → jobs with a node on it and another that has no port there; rails alone keep a job on its leaves."""
    nodes_of: dict[str, set[str]] = defaultdict(set)
    for node, names in jobs.items():
        for name in names:
            nodes_of[name].add(node)
    found: dict[str, list[str]] = defaultdict(list)
    for name, nodes in sorted(nodes_of.items()):
        mapped = [frozenset(leaves_of[node]) for node in nodes if node in leaves_of]
        for leaf in frozenset().union(*mapped) if len(mapped) > 1 else ():
            if not all(leaf in leaves for leaves in mapped):
                found[leaf].append(name)
    return found


def _both(first: PortReading, second: PortReading) -> PortReading:
    """The ends of one cable: what either has counted, the larger where both have."""
    grown = {
        name: max(first.grown.get(name, 0.0), second.grown.get(name, 0.0))
        for name in first.grown.keys() | second.grown.keys()
    }
    traffic = _larger(first.bytes_per_second, second.bytes_per_second)
    return PortReading(traffic, grown, _larger(first.wait_per_second, second.wait_per_second))


def _larger(first: float | None, second: float | None) -> float | None:
    return max((value for value in (first, second) if value is not None), default=None)


def _read(view: PortView, reading: PortReading, hours: float) -> PortView:
    counted = {name: value for name, value in reading.grown.items() if name not in (WAIT, DISCARDS)}
    errors = sum(counted.values()) if counted else None
    is_bad = any(counted.get(name, 0.0) >= 1 for name in ALWAYS_BAD)
    load = None
    if view.gbps and reading.bytes_per_second is not None:
        load = min(1.0, reading.bytes_per_second * 8e-9 / view.gbps)
    errs = is_bad or (errors or 0.0) / hours > ERRORS_PER_HOUR
    return replace(view, load=load, errors=errors, errs=errs, wait=reading.wait_per_second, grown=dict(reading.grown))


def _with_peers(found: Sequence[PortView]) -> list[PortView]:
    """How long each port waits beside the median of its kind: a tick is as long as its vendor likes."""
    usual: dict[str, float] = {}
    for kind in ("host", "trunk"):
        waits = [view.wait for view in found if view.kind == kind and view.wait is not None]
        usual[kind] = median(waits) if waits else 0.0
    return [
        view if view.wait is None else replace(view, wait_times=view.wait / max(usual[view.kind], LEAST_WAIT))
        for view in found
    ]
