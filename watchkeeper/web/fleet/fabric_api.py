"""GET /api/fabric/map, /links and /port: the ports of the fabric with errors, congestion and the jobs on each link.

A map is built in a thread, one at a time, and cached for `CACHE_SECONDS`: it takes a dozen queries, and all viewers
request the same one. `fabric_map` decides the state of each port.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from watchkeeper.catalogue import tables
from watchkeeper.errors import WatchkeeperError
from watchkeeper.hub import fleet_layout, holders, services
from watchkeeper.hub.fleet_layout import natural_sort_key
from watchkeeper.hub.samples import Queries
from watchkeeper.kit import clock, durations
from watchkeeper.model import workloads
from watchkeeper.model.labels import Labels
from watchkeeper.web import shapes
from watchkeeper.web.endpoint import QueryParam, get, parse_whole_number, read_number
from watchkeeper.web.fleet import fabric_answers as answers
from watchkeeper.web.fleet import fabric_map, topology
from watchkeeper.web.fleet.fabric_map import DISCARD_COUNTER, WAIT_COUNTER, PortReading, PortView
from watchkeeper.web.fleet.topology import HealthState
from watchkeeper.web.fleet.topology_api import RATE_EXPR, STATE_EXPR
from watchkeeper.web.fleet.who import IncidentSummary
from watchkeeper.workloads import identity

WINDOWS = ("15m", "1h", "6h")
WINDOW_PARAM = QueryParam("window", f"Count errors over this window: {', '.join(WINDOWS)}. Default: 1h.")
CACHE_SECONDS = 10.0
MAX_LINKS = 1000
# The counters of hosts that indicate a bad cable or congestion.
HOST_COUNTERS = (
    "SymbolErrorCounter",
    "LinkErrorRecoveryCounter",
    "LinkDownedCounter",
    "PortRcvErrors",
    "LocalLinkIntegrityErrors",
    "ExcessiveBufferOverrunErrors",
    DISCARD_COUNTER,
)
STATES = tuple(HealthState)


@dataclass(frozen=True, slots=True)
class FabricSnapshot:
    """The ports of the fabric at one time, and the map built from them."""

    at_ms: int
    views: tuple[PortView, ...]
    answer: answers.FabricMap


class FabricApi:
    def __init__(self, hub: services.Services) -> None:
        self._runtime, self._queries, self._journal = hub.runtime, hub.queries, hub.journal
        self._fleet, self._fabric = hub.fleet, hub.fabric
        self._lock = asyncio.Lock()
        self._snapshots: dict[str, FabricSnapshot] = {}

    @get("/api/fabric/map", WINDOW_PARAM)
    async def get_map(self, request: Request) -> answers.FabricMap:
        """Map of the fabric by leaf or rack: the link, utilisation, errors and congestion of each port."""
        return (await self._load_snapshot(request)).answer

    @get(
        "/api/fabric/links",
        WINDOW_PARAM,
        QueryParam("row", "Return only links of this leaf or rack."),
        QueryParam("job", "Return only links of nodes on which this job runs."),
        QueryParam("of", "Return only links whose text contains all these words."),
        QueryParam("trouble", "1: return only links that are down, slow, congested or have errors."),
        shapes.limit_param(200, MAX_LINKS),
    )
    async def list_links(self, request: Request) -> answers.FabricLinkList:
        """List links with their errors, congestion and jobs, the worst first."""
        snapshot, params = await self._load_snapshot(request), request.query_params
        limit = read_number(request, "limit", default=200, limit=MAX_LINKS)
        row, job = params.get("row"), params.get("job")
        terms, problems_only = params.get("of", "")[:200].lower().split(), params.get("trouble") == "1"
        matches = [
            view
            for view in snapshot.views
            if (row is None or row == (view.row or "") or (view.kind == "trunk" and row == view.peer))
            and (job is None or job in view.jobs)
            and (not problems_only or view.sort_key[0] < -HealthState.UNKNOWN.rank)
            and all(term in view.search_text for term in terms)
        ]
        matches.sort(key=lambda view: view.sort_key)
        links = [describe_link(view) for view in matches[:limit]]
        return answers.FabricLinkList(now=clock.from_ms(snapshot.at_ms), total=len(matches), links=links)

    @get(
        "/api/fabric/port",
        WINDOW_PARAM,
        QueryParam("id", "Id of the link, as in the map or the list.", is_required=True),
    )
    async def get_link(self, request: Request) -> answers.LinkDetail:
        """One link: its counters with their meaning, its incidents, and the PromQL of its charts."""
        snapshot, id = await self._load_snapshot(request), request.query_params.get("id", "")
        view = next((link for link in snapshot.views if link.id == id), None)
        if view is None:
            raise HTTPException(404, f"no link has the id {id[:80]}")
        counters = []
        for name, value in sorted(view.growth.items()):
            row = tables.find_counter(name)
            meaning, action = (None, None) if row is None else (row.meaning, row.action)
            counters.append(answers.CounterGrowth(name=name, grown=value, meaning=meaning, action=action))
        open_incidents = await self._journal.read(self._journal.incidents)
        related = [incident for incident in open_incidents if self._affects_link(view, incident.place)]
        return answers.LinkDetail(
            now=clock.from_ms(snapshot.at_ms),
            window=snapshot.answer.window,
            link=describe_link(view),
            counters=counters,
            series=answers.LinkQueries(**_link_queries(view)),
            incidents=[IncidentSummary(incident.id, incident.severity, incident.title) for incident in related[:20]],
        )

    def _affects_link(self, view: PortView, place: Any) -> bool:
        if view.kind == "host" and place.node == view.peer:
            return place.gpu is None and place.port in (None, view.device)
        ends = {f"link={view.switch}/{view.switch_port}", f"link={view.peer}/{view.port}"}
        return place.domain in {*ends, f"leaf={view.switch}", f"switch={view.switch}", f"switch={view.peer}"}

    async def _load_snapshot(self, request: Request) -> FabricSnapshot:
        window = request.query_params.get("window", "1h")
        if window not in WINDOWS:
            raise HTTPException(400, f"unknown window `{window[:20]}`; the windows are {', '.join(WINDOWS)}")
        async with self._lock:
            now_ms, snapshot = self._queries.now_ms, self._snapshots.get(window)
            if snapshot is None or not 0 <= now_ms - snapshot.at_ms < CACHE_SECONDS * 1000:
                snapshot = self._snapshots[window] = await self._build_snapshot(window, now_ms)
            return snapshot

    async def _build_snapshot(self, window: str, now_ms: int) -> FabricSnapshot:
        fabric_queries = _FabricQueries(self._queries, now_ms)
        layout = fleet_layout.current_layout(self._fleet)
        fresh_watch = self._fabric if self._fabric is not None and self._fabric.is_fresh(now_ms) else None
        gpu_holders = await holders.load_holders(self._queries)
        names = frozenset(node.name for node in layout.nodes)
        links_by_node = topology.list_host_links(
            (await fabric_queries.latest(STATE_EXPR)).items(), (await fabric_queries.latest(RATE_EXPR)).items(), names
        )
        sources = fabric_map.FabricSources(
            fresh_watch,
            links_by_node,
            await fabric_queries.read_hosts(window),
            await fabric_queries.read_switches(window) if fresh_watch is not None else {},
            {node.name: node.domains.get("leaf") or node.domains.get("rack") for node in layout.nodes},
            _jobs_by_node(gpu_holders),
            durations.parse_seconds(window) / 3600,
        )
        problem = fabric_queries.problem or gpu_holders.problem or ""

        def build() -> FabricSnapshot:
            views = tuple(fabric_map.list_ports(sources))
            counts = _count_links(views, nodes_without_links=len(names - {view.peer for view in views}))
            answer = self._build_map(views, counts, window=window, now_ms=now_ms, problem=problem)
            return FabricSnapshot(now_ms, views, answer)

        return await asyncio.to_thread(build)

    def _build_map(
        self, views: tuple[PortView, ...], counts: answers.FabricCounts, *, window: str, now_ms: int, problem: str
    ) -> answers.FabricMap:
        watch = self._fabric
        is_fresh = watch is not None and watch.is_fresh(now_ms)
        switches = topology.list_switches(watch, is_fresh=is_fresh)
        sweep = None if watch is None or watch.fabric is None else watch.fabric
        return answers.FabricMap(
            now=clock.from_ms(now_ms),
            window=window,
            source="sweep" if is_fresh else "hosts" if views else None,
            swept_at=None if sweep is None else clock.from_ms(sweep.at_ms),
            problem=problem or ("" if watch is None else watch.problem),
            counts=counts,
            spines=[
                answers.Spine(name=switch.name, state=switch.state, links=switch.links, trouble=switch.problems[:5])
                for switch in switches
                if switch.role == "spine"
            ],
            states=list(HealthState),
            rows=_group_rows(views, {switch.name: switch for switch in switches}),
        )


@dataclass(slots=True)
class _FabricQueries:
    """Queries at one time; if one fails, its values are missing and `problem` says why."""

    queries: Queries
    at_ms: int
    problem: str = ""

    async def latest(self, expr: str) -> Mapping[Labels, float]:
        try:
            return (await self.queries.instant(expr, self.at_ms)).latest()
        except WatchkeeperError as error:
            self.problem = str(error)
            return {}

    async def read_hosts(self, window: str) -> dict[fabric_map.HostKey, PortReading]:
        readings: dict[fabric_map.HostKey, PortReading] = defaultdict(PortReading)
        for counter in HOST_COUNTERS:
            metric = _metric_name(counter)
            for labels, value in (await self.latest(f"increase({metric}[{window}])")).items():
                _host_reading(readings, labels).growth[counter] = value
        for labels, value in (await self.latest(f"rate({_metric_name(WAIT_COUNTER)}[5m])")).items():
            _host_reading(readings, labels).wait_per_second = value
        for metric in ("node_infiniband_port_data_transmitted_bytes_total", _metric_name("PortRcvData")):
            for labels, value in (await self.latest(f"rate({metric}[5m])")).items():
                reading = _host_reading(readings, labels)
                reading.bytes_per_second = max(value, reading.bytes_per_second or 0.0)
        return readings

    async def read_switches(self, window: str) -> dict[fabric_map.SwitchKey, PortReading]:
        readings: dict[fabric_map.SwitchKey, PortReading] = defaultdict(PortReading)
        for labels, value in (await self.latest(f"increase(watchkeeper_fabric_port_errors_total[{window}])")).items():
            reading, counter = readings[_switch_key(labels)], labels.get("counter", "")
            if counter == WAIT_COUNTER:
                reading.wait_per_second = value / durations.parse_seconds(window)
            else:
                reading.growth[counter] = value
        for labels, value in (await self.latest("rate(watchkeeper_fabric_port_data_bytes_total[5m])")).items():
            reading = readings[_switch_key(labels)]
            reading.bytes_per_second = max(value, reading.bytes_per_second or 0.0)
        return readings


def _metric_name(counter: str) -> str:
    row = tables.find_counter(counter)
    assert row is not None, counter
    return tables.counter_families()["counters", row.sysfs_name].name


def _host_reading(readings: dict[fabric_map.HostKey, PortReading], labels: Labels) -> PortReading:
    node, device, port = topology.port_key(labels)
    return readings[node, device, parse_whole_number(port) or 0]


def _switch_key(labels: Labels) -> fabric_map.SwitchKey:
    return labels.get("switch", ""), parse_whole_number(labels.get("port", "")) or 0


def _jobs_by_node(gpu_holders: holders.GpuHolders) -> dict[str, list[str]]:
    by_node: dict[str, dict[str, None]] = defaultdict(dict)
    for node_holders in gpu_holders.by_gpu.values():
        for holder in node_holders:
            is_pod = holder.kind == workloads.WorkloadKind.POD
            # All pods of a job have the same job name.
            name = identity.job_name(holder.name) if is_pod else holder.name
            by_node[holder.node][workloads.workload_name(holder.namespace, name)] = None
    return {node: sorted(names) for node, names in by_node.items()}


def _count_links(views: Iterable[PortView], *, nodes_without_links: int) -> answers.FabricCounts:
    states = Counter(view.state for view in views)
    return answers.FabricCounts(
        links=sum(states.values()),
        down=states[HealthState.DOWN] + states[HealthState.GONE],
        slow=states[HealthState.SLOW],
        unknown=states[HealthState.UNKNOWN],
        errs=sum(view.has_errors for view in views),
        waits=sum(view.is_congested for view in views),
        uncounted=sum(view.errors is None for view in views),
        jobs=len({job for view in views for job in view.jobs if view.sort_key[0] < -HealthState.UNKNOWN.rank}),
        mute_nodes=nodes_without_links,
    )


def _group_rows(views: Iterable[PortView], switches: Mapping[str, topology.TopologySwitch]) -> list[answers.FabricRow]:
    rows: dict[str | None, list[PortView]] = defaultdict(list)
    for view in views:
        rows[view.row].append(view)
    fabric_rows = []
    for name in sorted(rows, key=lambda name: (name is None, natural_sort_key(name or ""))):
        switch = switches.get(name or "")
        ports = rows[name]
        ports.sort(key=lambda port: (port.kind != "trunk", natural_sort_key(port.peer), natural_sort_key(port.device)))
        fabric_rows.append(
            answers.FabricRow(
                name=name,
                is_switch=switch is not None,
                state=topology.worst_state(view.state for view in ports) if switch is None else switch.state,
                why=[] if switch is None else switch.problems[:5],
                cells=[_to_cell(view) for view in ports],
                trunks=sum(view.kind == "trunk" for view in ports),
            )
        )
    return fabric_rows


def _to_cell(view: PortView) -> answers.FabricCell:
    load, errors, wait = (
        None if number is None else float(f"{number:.3g}") for number in (view.load, view.errors, view.wait_ratio)
    )
    return view.id, STATES.index(view.state), int(view.has_errors), int(view.is_congested), load, errors, wait


def describe_link(view: PortView) -> answers.FabricLink:
    return answers.FabricLink(
        id=view.id,
        kind=view.kind,
        row=view.row,
        switch=view.switch,
        switch_port=view.switch_port,
        peer=view.peer,
        device=view.device or None,
        port=view.port,
        state=view.state,
        why=view.why,
        gbps=view.gbps,
        down_since=None if view.down_since_ms is None else clock.from_ms(view.down_since_ms),
        load=view.load,
        errors=view.errors,
        errs=view.has_errors,
        waits=view.is_congested,
        wait_per_second=view.wait_per_second,
        wait_times=view.wait_ratio,
        discards=view.growth.get(DISCARD_COUNTER),
        jobs=list(view.jobs),
    )


def _link_queries(view: PortView) -> dict[str, str]:
    """The PromQL of a link's charts; if both ends have counters, the end with the larger value."""
    ends: list[dict[str, str]] = []
    if view.switch is not None:
        where = f"switch={_quote(view.switch)},port={_quote(str(view.switch_port))}"
        errors = f'watchkeeper_fabric_port_errors_total{{{where},counter!~"{WAIT_COUNTER}|{DISCARD_COUNTER}"}}'
        wait = f'watchkeeper_fabric_port_errors_total{{{where},counter="{WAIT_COUNTER}"}}'
        traffic = f"watchkeeper_fabric_port_data_bytes_total{{{where}}}"
        ends.append(_end_queries(traffic, f"sum(increase({errors}[5m]))", wait))
    if view.kind == "host":
        where = f"{{Hostname={_quote(view.peer)},device={_quote(view.device)},port={_quote(str(view.port))}}}"
        error_metrics = (_metric_name(name) + where for name in ("SymbolErrorCounter", "PortRcvErrors"))
        grown = " + ".join(f"sum(increase({metric}[5m]))" for metric in error_metrics)
        traffic = f"node_infiniband_port_data_transmitted_bytes_total{where}"
        ends.append(_end_queries(traffic, grown, _metric_name(WAIT_COUNTER) + where))
    if len(ends) == 1:
        return ends[0]
    marked = {
        name: [f'label_replace({end[name]}, "end", "{number}", "", "")' for number, end in enumerate(ends)]
        for name in ends[0]
    }
    return {name: f"max({' or '.join(exprs)})" for name, exprs in marked.items()}


def _end_queries(traffic: str, grown: str, wait: str) -> dict[str, str]:
    return {"traffic": f"max(rate({traffic}[5m]))", "errors": grown, "wait": f"sum(rate({wait}[5m]))"}


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
