"""GET /api/fabric/map, /links and /port: the fabric port by port, with errors, congestion and the jobs on each link.

The map is made in a thread, one at a time, and kept for some seconds: a fleet of ten thousand ports costs a dozen
questions, and fifty viewers ask the same. The console's page Fabric asks; `fabric_map` decides what is said.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from watchkeeper.catalogue import infiniband, tables
from watchkeeper.clusters.fabric.fabric_watch import FabricWatch
from watchkeeper.errors import WatchkeeperError
from watchkeeper.hub import services
from watchkeeper.hub.runtime import Runtime
from watchkeeper.hub.samples import Queries
from watchkeeper.kit import clock, durations
from watchkeeper.model import workloads
from watchkeeper.model.labels import Labels
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import Endpoint, QueryParam, parse_whole_number
from watchkeeper.web.fleet import fleet_layout, holders, topology
from watchkeeper.web.fleet.fabric_answers import (
    CounterGrowth,
    FabricCell,
    FabricCounts,
    FabricLink,
    FabricLinkList,
    FabricMap,
    FabricRow,
    LinkDetail,
    LinkQueries,
    Spine,
)
from watchkeeper.web.fleet.fabric_map import (
    DISCARDS,
    WAIT,
    FabricSources,
    HostKey,
    PortReading,
    PortView,
    SwitchKey,
    list_ports,
)
from watchkeeper.web.fleet.topology import HealthState
from watchkeeper.web.fleet.topology_api import RATE_EXPR, STATE_EXPR
from watchkeeper.web.fleet.who import IncidentSummary
from watchkeeper.workloads import identity

WINDOWS = ("15m", "1h", "6h")
KEPT_SECONDS = 10.0
MOST_LINKS = 1000
# Counters of hosts that are asked for; the others say nothing about a cable or about congestion.
HOST_COUNTERS = (
    "SymbolErrorCounter",
    "LinkErrorRecoveryCounter",
    "LinkDownedCounter",
    "PortRcvErrors",
    "LocalLinkIntegrityErrors",
    "ExcessiveBufferOverrunErrors",
    DISCARDS,
)
STATES = tuple(HealthState)


@dataclass(frozen=True, slots=True)
class FabricSnapshot:
    """The fabric at one moment."""

    at_ms: int
    window: str
    views: tuple[PortView, ...]
    problem: str
    answer: FabricMap


class FabricApi:
    def __init__(
        self,
        runtime: Runtime,
        queries: Queries,
        *,
        journal: services.JournalProtocol,
        fleet: services.FleetProtocol,
        fabric: FabricWatch | None,
    ) -> None:
        self._runtime, self._queries, self._journal = runtime, queries, journal
        self._fleet, self._fabric = fleet, fabric
        self._busy = asyncio.Lock()
        self._kept: dict[str, FabricSnapshot] = {}

    async def map(self, request: Request) -> FabricMap:
        return (await self._made(request)).answer

    async def links(self, request: Request) -> FabricLinkList:
        """Links with what is known of each, the worst first; `of` keeps those whose text has these words."""
        made, form = await self._made(request), request.query_params
        limit = parse_whole_number(form.get("limit", "200"))
        if limit is None or not 1 <= limit <= MOST_LINKS:
            raise HTTPException(400, f"limit must be a number from 1 to {MOST_LINKS:,}")
        row, job = form.get("row"), form.get("job")
        words, only_trouble = form.get("of", "")[:200].lower().split(), form.get("trouble") == "1"
        found = [
            view
            for view in made.views
            if (row is None or row == (view.row or "") or (view.kind == "trunk" and row == view.peer))
            and (job is None or job in view.jobs)
            and (not only_trouble or view.sort_key[0] < -HealthState.UNKNOWN.rank)
            and all(word in _text(view) for word in words)
        ]
        found.sort(key=lambda view: view.sort_key)
        return FabricLinkList(clock.from_ms(made.at_ms), len(found), [describe_link(view) for view in found[:limit]])

    async def port(self, request: Request) -> LinkDetail:
        """One link with its counters, what each means, and where its lines are."""
        made, id = await self._made(request), request.query_params.get("id", "")
        view = next((one for one in made.views if one.id == id), None)
        if view is None:
            raise HTTPException(404, f"no link is called {id[:80]}")
        counters = [_counter(name, value) for name, value in sorted(view.grown.items())]
        open_now = await self._journal.read(self._journal.incidents)
        related = [one for one in open_now if self._is_about(view, one.place)]
        return LinkDetail(
            now=clock.from_ms(made.at_ms),
            window=made.window,
            link=describe_link(view),
            counters=counters,
            series=LinkQueries(**_series(view)),
            incidents=[IncidentSummary(one.id, one.severity, one.title) for one in related[:20]],
        )

    def _is_about(self, view: PortView, place: Any) -> bool:
        if view.kind == "host" and place.node == view.peer:
            return place.gpu is None and place.port in (None, view.device)
        ends = {f"link={view.switch}/{view.switch_port}", f"link={view.peer}/{view.port}"}
        return place.domain in {*ends, f"leaf={view.switch}", f"switch={view.switch}", f"switch={view.peer}"}

    async def _made(self, request: Request) -> FabricSnapshot:
        window = request.query_params.get("window", "1h")
        if window not in WINDOWS:
            raise HTTPException(400, f"window `{window[:20]}`: there are {', '.join(WINDOWS)}")
        async with self._busy:
            now_ms, kept = clock.to_ms(self._runtime.clock.now()), self._kept.get(window)
            if kept is None or not 0 <= now_ms - kept.at_ms < KEPT_SECONDS * 1000:
                kept = self._kept[window] = await self._make(window, now_ms)
            return kept

    async def _make(self, window: str, now_ms: int) -> FabricSnapshot:
        asked = _Asked(self._queries, now_ms)
        stock = fleet_layout.current_layout(self._fleet)
        watched = self._fabric if self._fabric is not None and self._fabric.is_fresh(now_ms) else None
        held = await holders.load_holders(self._queries)
        names = frozenset(node.name for node in stock.nodes)
        told = topology.links_from_hosts(
            (await asked.all(STATE_EXPR)).items(), (await asked.all(RATE_EXPR)).items(), names
        )
        sources = FabricSources(
            watched,
            told,
            await asked.by_host(window),
            await asked.by_switch(window) if watched is not None else {},
            {node.name: node.domains.get("leaf") or node.domains.get("rack") for node in stock.nodes},
            _jobs(held),
            durations.parse_seconds(window) / 3600,
        )
        problem = asked.problem or held.problem or ""

        def work() -> FabricSnapshot:
            views = tuple(list_ports(sources))
            counts = _counts(views, mute_nodes=len(names - {view.peer for view in views}))
            answer = self._answer(views, counts, window=window, now_ms=now_ms, problem=problem)
            return FabricSnapshot(now_ms, window, views, problem, answer)

        return await asyncio.to_thread(work)

    def _answer(
        self, views: tuple[PortView, ...], counts: FabricCounts, *, window: str, now_ms: int, problem: str
    ) -> FabricMap:
        watched = self._fabric
        is_fresh = watched is not None and watched.is_fresh(now_ms)
        switches = topology.switches(watched, is_fresh=is_fresh)
        swept = None if watched is None or watched.fabric is None else watched.fabric
        return FabricMap(
            now=clock.from_ms(now_ms),
            window=window,
            source="sweep" if is_fresh else "hosts" if views else None,
            swept_at=None if swept is None else clock.from_ms(swept.at_ms),
            problem=problem or ("" if watched is None else watched.problem),
            counts=counts,
            spines=[Spine(one.name, one.state, one.links, one.trouble[:5]) for one in switches if one.role == "spine"],
            states=list(HealthState),
            rows=_rows(views, {one.name: one for one in switches}),
        )


@dataclass(slots=True)
class _Asked:
    """Questions to the engine at one time; what cannot be asked costs its numbers and is said."""

    queries: Queries
    at_ms: int
    problem: str = ""

    async def all(self, expr: str) -> Mapping[Labels, float]:
        try:
            return (await self.queries.instant(expr, self.at_ms)).latest()
        except WatchkeeperError as error:
            self.problem = str(error)
            return {}

    async def by_host(self, window: str) -> dict[HostKey, PortReading]:
        found: dict[HostKey, PortReading] = defaultdict(PortReading)
        for counter in HOST_COUNTERS:
            metric = _metric(counter)
            for labels, value in (await self.all(f"increase({metric}[{window}])")).items():
                _reading(found, labels).grown[counter] = value
        for labels, value in (await self.all(f"rate({_metric(WAIT)}[5m])")).items():
            _reading(found, labels).wait_per_second = value
        for metric in ("node_infiniband_port_data_transmitted_bytes_total", _metric("PortRcvData")):
            for labels, value in (await self.all(f"rate({metric}[5m])")).items():
                reading = _reading(found, labels)
                reading.bytes_per_second = max(value, reading.bytes_per_second or 0.0)
        return found

    async def by_switch(self, window: str) -> dict[SwitchKey, PortReading]:
        found: dict[SwitchKey, PortReading] = defaultdict(PortReading)
        for labels, value in (await self.all(f"increase(watchkeeper_fabric_port_errors_total[{window}])")).items():
            reading, counter = found[_switch_key(labels)], labels.get("counter", "")
            if counter == WAIT:
                reading.wait_per_second = value / durations.parse_seconds(window)
            else:
                reading.grown[counter] = value
        for labels, value in (await self.all("rate(watchkeeper_fabric_port_data_bytes_total[5m])")).items():
            reading = found[_switch_key(labels)]
            reading.bytes_per_second = max(value, reading.bytes_per_second or 0.0)
        return found


def _metric(counter: str) -> str:
    row = tables.find_counter(counter)
    assert row is not None, counter
    return infiniband.counter_families()["counters", row.sysfs_name].name


def _reading(found: dict[HostKey, PortReading], labels: Labels) -> PortReading:
    node = labels.get("Hostname") or labels.get("instance", "").rsplit(":", 1)[0]
    return found[node, labels.get("device", ""), parse_whole_number(labels.get("port", "")) or 0]


def _switch_key(labels: Labels) -> SwitchKey:
    return labels.get("switch", ""), parse_whole_number(labels.get("port", "")) or 0


def _jobs(held: holders.GpuHolders) -> dict[str, list[str]]:
    by_node: dict[str, dict[str, None]] = defaultdict(dict)
    for those in held.by_gpu.values():
        for holder in those:
            by_node[holder.node][_job(holder)] = None
    return {node: sorted(names) for node, names in by_node.items()}


def _job(holder: holders.GpuHolder) -> str:
    """The job as its own page calls it; pods of one job are one job."""
    name = identity.job_name(holder.name) if holder.kind == workloads.WorkloadKind.POD else holder.name
    return workloads.workload_name(holder.namespace, name)


def _counts(views: Iterable[PortView], *, mute_nodes: int) -> FabricCounts:
    states = Counter(view.state for view in views)
    return FabricCounts(
        links=sum(states.values()),
        down=states[HealthState.DOWN] + states[HealthState.GONE],
        slow=states[HealthState.SLOW],
        unknown=states[HealthState.UNKNOWN],
        errs=sum(view.errs for view in views),
        waits=sum(view.waits for view in views),
        uncounted=sum(view.errors is None for view in views),
        jobs=len({job for view in views for job in view.jobs if view.sort_key[0] < -HealthState.UNKNOWN.rank}),
        mute_nodes=mute_nodes,
    )


def _rows(views: Iterable[PortView], switches: Mapping[str, topology.TopologySwitch]) -> list[FabricRow]:
    rows: dict[str | None, list[PortView]] = defaultdict(list)
    for view in views:
        rows[view.row].append(view)
    shown = []
    for name in sorted(rows, key=lambda one: (one is None, fleet_layout.natural(one or ""))):
        switch = switches.get(name or "")
        own = rows[name]
        own.sort(
            key=lambda view: (view.kind != "trunk", fleet_layout.natural(view.peer), fleet_layout.natural(view.device))
        )
        shown.append(
            FabricRow(
                name=name,
                is_switch=switch is not None,
                state=topology.worst_state(view.state for view in own) if switch is None else switch.state,
                why=[] if switch is None else switch.trouble[:5],
                cells=[_cell(view) for view in own],
                trunks=sum(view.kind == "trunk" for view in own),
            )
        )
    return shown


def _cell(view: PortView) -> FabricCell:
    load, errors, wait = (
        None if number is None else float(f"{number:.3g}") for number in (view.load, view.errors, view.wait_times)
    )
    return view.id, STATES.index(view.state), int(view.errs), int(view.waits), load, errors, wait


def describe_link(view: PortView) -> FabricLink:
    return FabricLink(
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
        errs=view.errs,
        waits=view.waits,
        wait_per_second=view.wait,
        wait_times=view.wait_times,
        discards=view.grown.get(DISCARDS),
        jobs=list(view.jobs),
    )


def _counter(name: str, value: float) -> CounterGrowth:
    row = tables.find_counter(name)
    return CounterGrowth(
        name=name,
        grown=value,
        meaning=None if row is None else row.meaning,
        action=None if row is None else row.action,
    )


def _series(view: PortView) -> dict[str, str]:
    """PromQL of the link's lines; where both ends count, the end that counts more."""
    ends: list[dict[str, str]] = []
    if view.switch is not None:
        where = f"switch={_quoted(view.switch)},port={_quoted(str(view.switch_port))}"
        errors = f'watchkeeper_fabric_port_errors_total{{{where},counter!~"{WAIT}|{DISCARDS}"}}'
        wait = f'watchkeeper_fabric_port_errors_total{{{where},counter="{WAIT}"}}'
        traffic = f"watchkeeper_fabric_port_data_bytes_total{{{where}}}"
        ends.append(_lines(traffic, f"sum(increase({errors}[5m]))", wait))
    if view.kind == "host":
        where = f"{{Hostname={_quoted(view.peer)},device={_quoted(view.device)},port={_quoted(str(view.port))}}}"
        counted = (_metric(name) + where for name in ("SymbolErrorCounter", "PortRcvErrors"))
        grown = " + ".join(f"sum(increase({metric}[5m]))" for metric in counted)
        ends.append(_lines(f"node_infiniband_port_data_transmitted_bytes_total{where}", grown, _metric(WAIT) + where))
    if len(ends) == 1:
        return ends[0]
    marked = {
        name: [f'label_replace({end[name]}, "end", "{at}", "", "")' for at, end in enumerate(ends)] for name in ends[0]
    }
    return {name: f"max({' or '.join(exprs)})" for name, exprs in marked.items()}


def _lines(traffic: str, grown: str, wait: str) -> dict[str, str]:
    return {"traffic": f"max(rate({traffic}[5m]))", "errors": grown, "wait": f"sum(rate({wait}[5m]))"}


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _text(view: PortView) -> str:
    parts = (view.id, view.row or "", view.switch or "", view.peer, view.device, view.state, view.why, *view.jobs)
    return " ".join(parts).lower()


WINDOW_ASK = QueryParam("window", f"over which errors are counted: {', '.join(WINDOWS)}; 1h unless given")


def endpoints(api: FabricApi) -> list[Endpoint]:
    return [
        Endpoint(
            ("GET",),
            "/api/fabric/map",
            Role.VIEWER,
            api.map,
            summary="The fabric row by row: every port with its link, load, errors and waiting",
            params=(WINDOW_ASK,),
        ),
        Endpoint(
            ("GET",),
            "/api/fabric/links",
            Role.VIEWER,
            api.links,
            summary="Links with their errors, congestion and jobs, the worst first",
            params=(
                WINDOW_ASK,
                QueryParam("row", "only of this leaf or rack"),
                QueryParam("job", "only links of nodes on which this job runs"),
                QueryParam("of", "only links whose text has these words"),
                QueryParam("trouble", "1: only what is down, slow, has errors or waits"),
                QueryParam("limit", f"how many at most; 200 unless given, at most {MOST_LINKS}", int),
            ),
        ),
        Endpoint(
            ("GET",),
            "/api/fabric/port",
            Role.VIEWER,
            api.port,
            summary="One link: its counters with their meaning, its incidents, and PromQL of its lines",
            params=(WINDOW_ASK, QueryParam("id", "as the map or the list call it", is_required=True)),
        ),
    ]
