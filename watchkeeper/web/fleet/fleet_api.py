"""The hub's own API: status, inventory, incidents, events, one GPU, and drills on a simulated fleet.

The console, the command line and agents use it. Every answer is `{"ok": true, …}`; nothing is decided
here, a request is checked, handed to the hub, and its answer written.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.errors import CollectError, WatchkeeperError, WireError
from watchkeeper.hub import services
from watchkeeper.hub.health import HubHealth
from watchkeeper.hub.runtime import Runtime
from watchkeeper.hub.samples import Queries
from watchkeeper.hub.simulator import SimulatorProxy
from watchkeeper.kit import clock, own_metrics, wire
from watchkeeper.model import events as happenings
from watchkeeper.model import fleet
from watchkeeper.model.fleet import Node, Place
from watchkeeper.model.incidents import Incident
from watchkeeper.web import shapes
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import (
    Endpoint,
    QueryParam,
    Unwrapped,
    check_node,
    ok_response,
    parse_whole_number,
    read_body,
    read_json_object,
)
from watchkeeper.web.fleet import fleet_snapshot, frames
from watchkeeper.web.incidents import incident_request
from watchkeeper.web.incidents.cards import IncidentCards
from watchkeeper.web.incidents.incident_reports import IncidentReports
from watchkeeper.web.prometheus import slo_api

EVENT_LIMIT = 1000
EVENT_LIMIT_BYTES = 1024 * 1024
SMALL_BODY_BYTES = 64 * 1024
# The kernel's own records end at 8 KiB; nothing that is one event is longer.
EVENT_TEXT_LIMIT = 16_384
LIST_LIMIT = 1000
# Pushes that wait for their commit at the same time, by number, by size, and by how long the first has waited; agents
# keep the rest in their spool. They give up after 10 s and push again: whoever waited longer would be served in vain.
PUSHES_IN_FLIGHT, PUSHED_BYTES_IN_FLIGHT, PUSH_WAIT_SECONDS = 2000, 64 << 20, 3.0
# Those who are refused together do not come again together.
RETRY_AFTER_SECONDS = range(2, 11)
# The second is of a GPU that is divided, which has no utilisation of its own.
GPU_METRICS = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_TEMP")


@dataclass(frozen=True, slots=True)
class Status:
    version: str
    cluster: str
    mode: str
    now: datetime
    ready: bool
    not_ready_because: str | None
    degraded: list[str]
    simulated: bool
    dollars_per_gpu_hour: float
    docs_url: str | None
    rules: shapes.RuleFileStatus
    colours: dict[str, shapes.ColourScale]


@dataclass(frozen=True, slots=True)
class FleetInventory:
    version: str
    edition: str
    nodes: list[fleet.NodeInFleet]
    workloads: dict[str, str] | None
    teams: dict[str, str]


@dataclass(frozen=True, slots=True)
class GpuDetail:
    gpu: fleet.Gpu
    node: shapes.NodeOrName
    labels: dict[str, str] | None
    events: list[shapes.GpuEvent]
    incidents: list[shapes.IncidentCard]


@dataclass(frozen=True, slots=True)
class IncidentList:
    incidents: list[shapes.IncidentCard]


@dataclass(frozen=True, slots=True)
class EventsAccepted:
    kept: int


class FleetApi:
    def __init__(
        self,
        runtime: Runtime,
        queries: Queries,
        *,
        journal: services.JournalProtocol,
        incidents: services.IncidentsProtocol,
        rules: services.RulesProtocol,
        fleet: services.FleetProtocol,
        targets: services.TargetsProtocol,
        simulator: SimulatorProxy | None,
        health: HubHealth,
        cards: IncidentCards,
        stories: IncidentReports,
        stock: fleet_snapshot.FleetSnapshots,
    ) -> None:
        self._runtime, self._queries, self._journal = runtime, queries, journal
        self._incidents, self._rules, self._fleet = incidents, rules, fleet
        self._targets, self._simulator, self._health = targets, simulator, health
        self._cards, self._stories, self._stock = cards, stories, stock
        # When each push that waits for its commit came, the oldest first, and its size.
        self._pushes: dict[object, tuple[float, int]] = {}
        self._retries = itertools.cycle(RETRY_AFTER_SECONDS)
        self._refused = runtime.metrics.counter(
            "watchkeeper_web_pushes_refused_total", "Event pushes answered with 429"
        )

    async def status(self, _: Request) -> Response:
        return ok_response(
            version=self._runtime.version,
            cluster=self._runtime.settings.fleet.cluster,
            mode=self._runtime.settings.remediate.mode,
            now=self._runtime.clock.now(),
            ready=self._health.is_ready,
            not_ready_because=self._health.not_ready_reason,
            degraded=self._health.problems(),
            simulated=self._simulator is not None,
            dollars_per_gpu_hour=self._runtime.settings.cost.dollars_per_gpu_hour,
            docs_url=self._runtime.settings.render.docs_url,
            rules={"owner": self._runtime.settings.rules.owner, **slo_api.reload_outcome(self._rules.last_reload)},
            colours={
                name: {"title": c.title, "unit": c.unit, "low": c.low, "high": c.high, "metric": c.metric}
                for name, c in frames.COLOURS.items()
            },
        )

    async def fleet(self, request: Request) -> Response:
        """The inventory in heat-map order, and who holds which GPU now."""
        return await self._stock.answer(request)

    async def incidents(self, request: Request) -> Response:
        open_only = request.query_params.get("open", "1") not in ("0", "false")
        text = request.query_params.get("limit", "200")
        limit = parse_whole_number(text)
        if limit is None or not 1 <= limit <= LIST_LIMIT:
            raise HTTPException(400, f"limit `{text[:20]}` is not a number from 1 to {LIST_LIMIT}")

        def listed() -> list[dict[str, Any]]:
            return [self._cards.make_card(one) for one in self._journal.incidents(open_only=open_only, limit=limit)]

        return ok_response(incidents=await self._journal.read(listed))

    async def incident(self, request: Request) -> Response:
        incident = await incident_request.load_incident(self._journal, request)
        return ok_response(
            **await self._cards.load_detail(incident), blast=await self._stories.load_blast_radius(incident)
        )

    async def acknowledge(self, request: Request) -> Response:
        incident = await incident_request.load_incident(self._journal, request)
        await self._incidents.acknowledge(incident.id, request.state.caller.name)
        return ok_response(**await self._cards.load_detail(incident))

    async def resolve(self, request: Request) -> Response:
        incident, why = await incident_request.load_incident(self._journal, request), await self._said(request, "why")
        await self._incidents.resolve(incident.id, request.state.caller.name, why)
        return ok_response(**await self._cards.load_detail(incident))

    async def note(self, request: Request) -> Response:
        incident, text = await incident_request.load_incident(self._journal, request), await self._said(request, "text")
        await self._incidents.note(incident.id, request.state.caller.name, text)
        return ok_response(**await self._cards.load_detail(incident))

    async def _said(self, request: Request, name: str) -> str:
        return incident_request.read_text(await read_json_object(request, incident_request.MAX_BODY_BYTES), name)

    async def events(self, request: Request) -> EventsAccepted:
        """Take a batch of an agent; 200 means it is on disk, so the agent may forget it."""
        # Before anything is read: a thousand agents that are refused must cost next to nothing.
        self._refuse_more(0)
        body = await read_body(request, EVENT_LIMIT_BYTES)
        batch = read_events(body)
        check_node(request.state.caller, *{event.place.node for event in batch})
        self._refuse_more(len(body))
        mine = object()
        self._pushes[mine] = asyncio.get_running_loop().time(), len(body)
        try:
            return EventsAccepted(kept=await self._incidents.ingest_events(batch))
        finally:
            del self._pushes[mine]

    def _refuse_more(self, size: int) -> None:
        """429 when a push of this size would wait for too many, too much, or too long."""
        now = asyncio.get_running_loop().time()
        waits = now - next(iter(self._pushes.values()), (now, 0))[0]
        waiting = sum(held for _, held in self._pushes.values())
        is_full = len(self._pushes) >= PUSHES_IN_FLIGHT or waiting + size > PUSHED_BYTES_IN_FLIGHT
        if is_full or waits > PUSH_WAIT_SECONDS:
            self._refused.add()
            raise HTTPException(
                429,
                f"{len(self._pushes)} pushes of {waiting:,} bytes wait for their commit, the first for {waits:.1f} s;"
                f" the limits are {PUSHES_IN_FLIGHT}, {PUSHED_BYTES_IN_FLIGHT:,} and {PUSH_WAIT_SECONDS:g} s."
                " Try again later",
                headers={"Retry-After": str(next(self._retries))},
            )

    async def nodes(self, request: Request) -> Response:
        """Take an agent's word about its node; where it can be read is the address that this request came from."""
        try:
            told = wire.loads(fleet.NodeRegistration, await read_body(request, SMALL_BODY_BYTES))
            check_node(request.state.caller, told.node)
            self._targets.register_node(told, "" if request.client is None else request.client.host)
        except (WireError, CollectError) as error:
            raise HTTPException(400, str(error)) from error
        return ok_response()

    async def gpu(self, request: Request) -> Response:
        """One GPU: where it is, who holds it, what its exporter says of it, and what happened to it."""
        uuid = request.path_params["uuid"]
        seen = next((one for one in self._fleet.gpus() if one.gpu.uuid == uuid), None)
        node = None if seen is None else self._node(seen.cluster, seen.node)
        around = () if node is None else (node.place, *node.failure_domains())
        about, shown = await self._journal.read(lambda: self._about_gpu(uuid, around))
        happened = [(incident, m) for incident in about for m in incident.members if m.place.gpu == uuid]
        if seen is None and not happened:
            raise HTTPException(404, f"no GPU {uuid[:60]} has reported to this hub")
        # One that broke before its first page is known by what is told of it.
        where = happened[0][1].place if seen is None else fleet.Place(seen.cluster, node=seen.node)
        node = node or self._node(where.cluster, where.node)
        return ok_response(
            gpu=fleet.Gpu(uuid) if seen is None else seen.gpu,
            node=node or {"name": where.node},
            labels=await self._labels(uuid),
            events=[wire.to_plain(member) | {"incident": incident.id} for incident, member in happened],
            incidents=shown,
        )

    async def _labels(self, uuid: str) -> dict[str, str] | None:
        """The labels its newest sample carries, or None when it does not report."""
        try:
            own = f'{{UUID="{own_metrics.escape(uuid)}"}}'
            expr = " or on (UUID) ".join(f"{name}{own}" for name in GPU_METRICS)
            answer = await self._queries.instant(expr, clock.to_ms(self._runtime.clock.now()))
        except WatchkeeperError:
            return None
        return next((dict(labels.without("__name__")) for labels in answer.latest()), None)

    async def simulator(self, request: Request) -> Response:
        """Drills: hand a request to the simulated fleet, where there is one."""
        if self._simulator is None:
            raise HTTPException(404, "this fleet is real: there is no simulator behind this hub")
        body = await read_body(request, SMALL_BODY_BYTES)
        path = quote(request.url.path.removeprefix("/api/sim"))
        status, answer = await self._simulator.request(request.method, path, body or None)
        return Response(answer, status_code=status, media_type="application/json")

    def _node(self, cluster: str, name: str | None) -> Node | None:
        return next((node for node in self._fleet.nodes() if (node.cluster, node.name) == (cluster, name)), None)

    def _about_gpu(self, uuid: str, around: Sequence[Place]) -> tuple[list[Incident], list[dict[str, Any]]]:
        """The newest incidents that a GPU is a part of, or lies within while they are open, and their cards."""
        about = [
            one
            for one in self._journal.incidents(open_only=False, limit=LIST_LIMIT)
            if any(member.place.gpu == uuid for member in one.members) or (one.is_open and one.place in around)
        ]
        return about, [self._cards.make_card(one) for one in about]


def read_events(body: bytes) -> list[happenings.Event]:
    """A pushed batch, checked completely before anything is kept."""
    try:
        plain: Any = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from error
    if not isinstance(plain, list):
        raise HTTPException(400, "the body must be a JSON array of events")
    if len(plain) > EVENT_LIMIT:
        raise HTTPException(400, f"the batch has {len(plain):,} events, the limit is {EVENT_LIMIT:,}. Send it in parts")
    try:
        batch = wire.from_plain(list[happenings.Event], plain)
    except WireError as error:
        shown = error.problems[:5]
        rest = f" (and {len(error.problems) - 5} more)" if len(error.problems) > 5 else ""
        raise HTTPException(400, "; ".join(shown) + rest) from error
    problems = [f"[{at}]: {problem}" for at, event in enumerate(batch) for problem in event_problems(event)]
    if problems:
        raise HTTPException(400, "; ".join(problems[:5]))
    return batch


def event_problems(event: happenings.Event) -> list[str]:
    """What the types cannot say: names that would break a table, and texts that would break a page."""
    names = {"id": event.id, "node": event.place.node or "", "gpu": event.place.gpu or ""}
    problems = [f"{name} holds a control character" for name, text in names.items() if not text.isprintable()]
    if not event.id:
        problems.append("id is empty")
    if event.place.node == "":
        problems.append("place.node is empty")
    sizes = {"id": len(event.id), "text": len(event.text), "fields": sum(map(len, event.fields.values()))}
    problems += [
        f"{name} has {size:,} characters, the limit is {EVENT_TEXT_LIMIT:,}"
        for name, size in sizes.items()
        if size > EVENT_TEXT_LIMIT
    ]
    return problems


# Deliberately one table: a row for each endpoint, with what the API's document says about it.
def endpoints(api: FleetApi) -> list[Endpoint]:
    get, post = ("GET",), ("POST",)
    return [
        Endpoint(
            get,
            "/api/status",
            Role.VIEWER,
            api.status,
            summary="The hub itself: version, cluster, mode, rules, and the colours of the map",
            response=Status,
        ),
        Endpoint(
            get,
            "/api/fleet",
            Role.VIEWER,
            api.fleet,
            summary="The inventory in the order of the map, and who holds which GPU now",
            params=(
                QueryParam(
                    "max_age",
                    f"how many seconds old it may be, at most {fleet_snapshot.OLDEST_SECONDS}; 10 unless given. "
                    "Above 10 the inventory may have changed since: it is the one of the newest picture",
                    int,
                ),
                QueryParam("workloads", "0: leave `workloads` empty, since each GPU names its own", int),
            ),
            response=FleetInventory,
        ),
        Endpoint(
            get,
            "/api/gpu/{uuid}",
            Role.VIEWER,
            api.gpu,
            summary="One GPU: where it is, who holds it, what its exporter says of it, and what happened to it",
            response=GpuDetail,
        ),
        Endpoint(
            get,
            "/api/incidents",
            Role.VIEWER,
            api.incidents,
            summary="Incidents, newest first",
            params=(
                QueryParam("open", "0: resolved ones too; 1 unless given"),
                QueryParam("limit", f"at most {LIST_LIMIT}; 200 unless given", int),
            ),
            response=IncidentList,
        ),
        Endpoint(
            get,
            "/api/incidents/{id}",
            Role.VIEWER,
            api.incident,
            summary="One incident with its diagnosis, plan, timeline and whom it hits",
            response=shapes.FullIncidentDetail,
        ),
        Endpoint(
            post,
            "/api/incidents/{id}/acknowledge",
            Role.OPERATOR,
            api.acknowledge,
            changes=True,
            summary="Say that somebody works on it",
            response=shapes.IncidentDetail,
        ),
        Endpoint(
            post,
            "/api/incidents/{id}/resolve",
            Role.OPERATOR,
            api.resolve,
            changes=True,
            summary="Close an incident, with the reason",
            body={"why": str},
            response=shapes.IncidentDetail,
        ),
        Endpoint(
            post,
            "/api/incidents/{id}/note",
            Role.OPERATOR,
            api.note,
            changes=True,
            summary="Write a note into the timeline",
            body={"text": str},
            response=shapes.IncidentDetail,
        ),
        Endpoint(
            post,
            "/api/events",
            Role.AGENT,
            api.events,
            changes=True,
            summary="Take a batch of events of an agent; 200 means that it is on disk",
            body=list[happenings.Event],
        ),
        Endpoint(
            post,
            "/api/nodes",
            Role.AGENT,
            api.nodes,
            changes=True,
            summary="Take an agent's word about its node",
            body=fleet.NodeRegistration,
            response={},
        ),
        Endpoint(
            get,
            "/api/sim/scenarios",
            Role.VIEWER,
            api.simulator,
            summary="Faults that the simulated fleet can have; 404 where the fleet is real",
            response=Unwrapped(list[dict[str, Any]]),
        ),
        Endpoint(
            get,
            "/api/sim/faults",
            Role.VIEWER,
            api.simulator,
            summary="Faults that the simulated fleet has now",
            response=Unwrapped(list[shapes.SimulatedFault]),
        ),
        Endpoint(
            post,
            "/api/sim/faults",
            Role.OPERATOR,
            api.simulator,
            changes=True,
            summary="Inject a fault into the simulated fleet",
            body={"scenario": str},
            response=Unwrapped(shapes.SimulatedFault),
        ),
        Endpoint(
            ("DELETE",),
            "/api/sim/faults/{id}",
            Role.OPERATOR,
            api.simulator,
            changes=True,
            summary="End a fault of the simulated fleet",
            response=Unwrapped(shapes.SimulatedFault),
        ),
    ]
