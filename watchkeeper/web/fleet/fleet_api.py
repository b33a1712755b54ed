"""The fleet API: status, inventory, incidents, pushed events, one GPU, and the proxy of the simulator.

The console, the command line and agents call it. It checks each request, passes it to the hub and writes the response;
it makes no decisions.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypedDict
from urllib.parse import quote

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.errors import CollectError, WatchkeeperError, WireError
from watchkeeper.hub import services
from watchkeeper.hub.fleet_gpus import FleetGpus
from watchkeeper.hub.fleet_prices import FleetPrices
from watchkeeper.kit import own_metrics, wire
from watchkeeper.model import events, fleet
from watchkeeper.model.fleet import Node, Place
from watchkeeper.model.gpu_states import GpuCounts
from watchkeeper.model.incidents import Incident
from watchkeeper.web import shapes
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import (
    QueryParam,
    Unwrapped,
    check_node,
    delete,
    get,
    ok_response,
    post,
    read_body,
    read_number,
    read_record,
)
from watchkeeper.web.fleet import fleet_snapshot, frames
from watchkeeper.web.incidents import incident_request
from watchkeeper.web.incidents.incident_reports import IncidentCards, IncidentReports
from watchkeeper.web.prometheus import slo_api

MAX_EVENTS = 1000
MAX_EVENTS_BYTES = 1024 * 1024
MAX_BODY_BYTES = 64 * 1024
# A record of the kernel log has at most 8 KiB; no single event is longer than this.
MAX_TEXT_CHARACTERS = 16_384
MAX_INCIDENTS = 1000
# Limits of pushes that wait for their commit: count, total size, and age of the oldest. Agents keep the rest in their
# spool. An agent's timeout is 10 s, after which it pushes again, so a longer wait would be useless.
MAX_PUSHES, MAX_PUSHED_BYTES, MAX_PUSH_WAIT_SECONDS = 2000, 64 << 20, 3.0
# Different delays, so that agents that are refused together do not retry together.
RETRY_AFTER_SECONDS = range(2, 11)
# The second is for GPUs in MIG mode, which have no utilisation.
GPU_METRICS = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_TEMP")


class Status(TypedDict):
    version: str
    cluster: str
    mode: str
    now: datetime
    ready: bool
    not_ready_because: str | None
    degraded: list[str]
    simulated: bool
    # The mean of the price book over the fleet, in `currency`.
    dollars_per_gpu_hour: float | None
    currency: str
    gpus: GpuCounts
    docs_url: str | None
    rules: shapes.RuleFileStatus
    colours: dict[str, shapes.ColourScale]


class FleetInventory(TypedDict):
    version: str
    edition: str
    nodes: list[fleet.NodeInFleet]
    workloads: dict[str, str] | None
    teams: dict[str, str]


class GpuDetail(TypedDict):
    gpu: fleet.Gpu
    node: shapes.NodeOrName
    labels: dict[str, str] | None
    events: list[shapes.GpuEvent]
    incidents: list[shapes.IncidentCard]


class IncidentList(TypedDict):
    incidents: list[shapes.IncidentCard]
    # Older ones are above the limit.
    has_more: bool


class EventsAccepted(TypedDict):
    kept: int


class FleetApi:
    def __init__(
        self,
        hub: services.Services,
        *,
        cards: IncidentCards,
        reports: IncidentReports,
        snapshots: fleet_snapshot.FleetSnapshots,
        fleet_prices: FleetPrices,
        gpus: FleetGpus,
    ) -> None:
        self._gpus = gpus
        self._runtime, self._queries, self._journal = hub.runtime, hub.queries, hub.journal
        self._incidents, self._rules, self._fleet = hub.incidents, hub.rules, hub.fleet
        self._targets, self._simulator, self._health = hub.targets, hub.simulator, hub.health
        self._cards, self._reports, self._snapshots, self._prices = cards, reports, snapshots, fleet_prices
        # The start time and size of each push that waits for its commit, the oldest first.
        self._pushes: dict[object, tuple[float, int]] = {}
        self._retries = itertools.cycle(RETRY_AFTER_SECONDS)
        self._refused = hub.runtime.metrics.counter(
            "watchkeeper_web_pushes_refused_total", "Event pushes refused with status 429"
        )

    @get("/api/status", response=Status)
    async def get_status(self, _: Request) -> Response:
        """Status of the hub: version, cluster, mode, rules, and the colours of the fleet map."""
        price = await self._prices.mean_price()
        return ok_response(
            version=self._runtime.version,
            cluster=self._runtime.settings.fleet.cluster,
            mode=self._runtime.settings.remediate.mode,
            now=self._runtime.clock.now(),
            ready=self._health.is_ready,
            not_ready_because=self._health.not_ready_reason,
            degraded=self._health.problems(),
            simulated=self._simulator is not None,
            dollars_per_gpu_hour=price.per_gpu_hour,
            currency=price.currency,
            gpus=(await self._gpus.load()).count(),
            docs_url=self._runtime.settings.render.docs_url,
            rules={"owner": self._runtime.settings.rules.owner, **slo_api.reload_outcome(self._rules.last_reload)},
            colours={
                name: {key: getattr(colour, key) for key in ("title", "unit", "low", "high", "metric")}
                for name, colour in frames.COLOURS.items()
            },
        )

    @get(
        "/api/fleet",
        QueryParam(
            "max_age",
            f"Maximum age of the response in seconds, 0 to {fleet_snapshot.MAX_AGE_SECONDS}. Default: 10. "
            "Above 10, it may show an older inventory: that of the newest frame.",
            int,
        ),
        QueryParam("workloads", "0: return empty `workloads`, because each GPU contains its workload.", int),
        response=FleetInventory,
    )
    async def get_fleet(self, request: Request) -> Response:
        """The inventory in the order of the fleet map, with the holder of each GPU."""
        return await self._snapshots.respond(request)

    @get("/api/gpu/{uuid}", response=GpuDetail)
    async def get_gpu(self, request: Request) -> Response:
        """One GPU with its node, holder, labels, events and incidents."""
        uuid = request.path_params["uuid"]
        view = next((view for view in self._fleet.gpus() if view.gpu.uuid == uuid), None)
        node = None if view is None else self._find_node(view.cluster, view.node)
        places = () if node is None else (node.place, *node.failure_domains())
        incidents, cards = await self._journal.read(lambda: self._load_gpu_incidents(uuid, places))
        signals = [(incident, member) for incident in incidents for member in incident.members]
        signals = [(incident, member) for incident, member in signals if member.place.gpu == uuid]
        if view is None and not signals:
            raise HTTPException(404, f"no GPU {uuid[:60]} has reported to this hub")
        # A GPU that failed before its first scrape is only in the signals of incidents.
        place = signals[0][1].place if view is None else fleet.Place(view.cluster, node=view.node)
        return ok_response(
            gpu=fleet.Gpu(uuid) if view is None else view.gpu,
            node=node or self._find_node(place.cluster, place.node) or {"name": place.node},
            labels=await self._load_labels(uuid),
            events=[wire.to_plain(member) | {"incident": incident.id} for incident, member in signals],
            incidents=cards,
        )

    async def _load_labels(self, uuid: str) -> dict[str, str] | None:
        """The labels of the GPU's newest sample, or None if it does not report."""
        try:
            selector = f'{{UUID="{own_metrics.escape(uuid)}"}}'
            expr = " or on (UUID) ".join(f"{name}{selector}" for name in GPU_METRICS)
            answer = await self._queries.instant(expr, self._queries.now_ms)
        except WatchkeeperError:
            return None
        return next((dict(labels.without("__name__")) for labels in answer.latest()), None)

    @get(
        "/api/incidents",
        QueryParam("open", "0: return resolved incidents too. Default: 1."),
        shapes.limit_param(200, MAX_INCIDENTS),
        response=IncidentList,
    )
    async def list_incidents(self, request: Request) -> Response:
        """List incidents, newest first."""
        open_only = request.query_params.get("open", "1") not in ("0", "false")
        limit = read_number(request, "limit", default=200, limit=MAX_INCIDENTS)

        def make_cards() -> list[dict[str, Any]]:
            incidents = self._journal.incidents(open_only=open_only, limit=limit + 1)
            return [self._cards.make_card(incident) for incident in incidents]

        cards = await self._journal.read(make_cards)
        return ok_response(incidents=cards[:limit], has_more=len(cards) > limit)

    @get("/api/incidents/{id}", response=shapes.FullIncidentDetail)
    async def get_incident(self, request: Request) -> Response:
        """One incident with its diagnosis, plan, timeline and blast radius."""
        incident = await incident_request.load_incident(self._journal, request)
        detail = await self._cards.load_detail(incident)
        return ok_response(**detail, blast=await self._reports.load_blast_radius(incident))

    @post("/api/incidents/{id}/acknowledge", response=shapes.IncidentDetail)
    async def acknowledge(self, request: Request) -> Response:
        """Acknowledge an incident."""
        incident = await incident_request.load_incident(self._journal, request)
        await self._incidents.acknowledge(incident.id, request.state.caller.name)
        return ok_response(**await self._cards.load_detail(incident))

    @post("/api/incidents/{id}/resolve", body={"why": str}, response=shapes.IncidentDetail)
    async def resolve(self, request: Request) -> Response:
        """Resolve an incident, with a reason."""
        incident, body = await incident_request.load_with_body(self._journal, request)
        why = incident_request.read_text(body, "why")
        await self._incidents.resolve(incident.id, request.state.caller.name, why)
        return ok_response(**await self._cards.load_detail(incident))

    @post("/api/incidents/{id}/note", body={"text": str}, response=shapes.IncidentDetail)
    async def add_note(self, request: Request) -> Response:
        """Add a note to the timeline of an incident."""
        incident, body = await incident_request.load_with_body(self._journal, request)
        text = incident_request.read_text(body, "text")
        await self._incidents.note(incident.id, request.state.caller.name, text)
        return ok_response(**await self._cards.load_detail(incident))

    @post("/api/events", role=Role.AGENT, body=list[events.Event])
    async def accept_events(self, request: Request) -> EventsAccepted:
        """Store a batch of events of an agent; 200 means that it is on disk."""
        # Before the body is read: refusing a thousand agents must cost almost nothing.
        self._check_push_limits(0)
        body = await read_body(request, MAX_EVENTS_BYTES)
        batch = read_events(body)
        check_node(request.state.caller, *{event.place.node for event in batch})
        self._check_push_limits(len(body))
        push_key = object()
        self._pushes[push_key] = asyncio.get_running_loop().time(), len(body)
        try:
            return EventsAccepted(kept=await self._incidents.ingest_events(batch))
        finally:
            del self._pushes[push_key]

    def _check_push_limits(self, size: int) -> None:
        """Raise 429 if a push of this size would exceed a limit of pushes that wait for their commit."""
        now = asyncio.get_running_loop().time()
        wait_seconds = now - next(iter(self._pushes.values()), (now, 0))[0]
        pending_bytes = sum(push_bytes for _, push_bytes in self._pushes.values())
        is_full = len(self._pushes) >= MAX_PUSHES or pending_bytes + size > MAX_PUSHED_BYTES
        if is_full or wait_seconds > MAX_PUSH_WAIT_SECONDS:
            self._refused.add()
            raise HTTPException(
                429,
                f"{len(self._pushes)} pushes of {pending_bytes:,} bytes wait for their commit, the oldest for"
                f" {wait_seconds:.1f} s; the limits are {MAX_PUSHES} pushes, {MAX_PUSHED_BYTES:,} bytes and"
                f" {MAX_PUSH_WAIT_SECONDS:g} s. Try again later",
                headers={"Retry-After": str(next(self._retries))},
            )

    @post("/api/nodes", role=Role.AGENT, body=fleet.NodeRegistration)
    async def register_node(self, request: Request) -> Response:
        """Register the node of an agent."""
        registration = await read_record(request, fleet.NodeRegistration, MAX_BODY_BYTES)
        check_node(request.state.caller, registration.node)
        try:
            # The client address of the request becomes the address of its target.
            self._targets.register_node(registration, "" if request.client is None else request.client.host)
        except CollectError as error:
            raise HTTPException(400, str(error)) from error
        return ok_response()

    @get(
        "/api/sim/scenarios",
        summary="List the faults that you can inject into the simulated fleet; 404 without a simulated fleet",
        response=Unwrapped(list[dict[str, Any]]),
    )
    @get(
        "/api/sim/faults",
        summary="List the active faults of the simulated fleet",
        response=Unwrapped(list[shapes.SimulatedFault]),
    )
    @post(
        "/api/sim/faults",
        summary="Inject a fault into the simulated fleet",
        body={"scenario": str},
        response=Unwrapped(shapes.SimulatedFault),
    )
    @delete(
        "/api/sim/faults/{id}",
        summary="Remove a fault from the simulated fleet",
        response=Unwrapped(shapes.SimulatedFault),
    )
    async def forward_to_simulator(self, request: Request) -> Response:
        """Forward a request to the simulator of a simulated fleet."""
        if self._simulator is None:
            raise HTTPException(404, "this hub has no simulator: faults can only be injected into a simulated fleet")
        body = await read_body(request, MAX_BODY_BYTES)
        path = quote(request.url.path.removeprefix("/api/sim"))
        status, answer = await self._simulator.request(request.method, path, body or None)
        return Response(answer, status_code=status, media_type="application/json")

    def _find_node(self, cluster: str, name: str | None) -> Node | None:
        return next((node for node in self._fleet.nodes() if (node.cluster, node.name) == (cluster, name)), None)

    def _load_gpu_incidents(self, uuid: str, places: Sequence[Place]) -> tuple[list[Incident], list[dict[str, Any]]]:
        """Incidents with signals of a GPU, and open incidents of these places, with their cards."""
        incidents = [
            incident
            for incident in self._journal.incidents(open_only=False, limit=MAX_INCIDENTS)
            if any(member.place.gpu == uuid for member in incident.members)
            or (incident.is_open and self._is_around(incident, uuid, places))
        ]
        return incidents, [self._cards.make_card(incident) for incident in incidents]

    def _is_around(self, incident: Incident, uuid: str, places: Sequence[Place]) -> bool:
        """Whether an incident is at the node or a domain of a GPU, or its job holds the GPU."""
        node = next((place for place in places if place.node), None)
        is_of_gpu = node is not None and incident.concerns_gpu(node.cluster, node.node or "", uuid)
        return is_of_gpu or incident.place in places


def read_events(body: bytes) -> list[events.Event]:
    """Parse a pushed batch and check all its events, or raise 400."""
    try:
        plain: Any = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from error
    if not isinstance(plain, list):
        raise HTTPException(400, "the body must be a JSON array of events")
    if len(plain) > MAX_EVENTS:
        raise HTTPException(400, f"the batch has {len(plain):,} events, the limit is {MAX_EVENTS:,}. Send it in parts")
    try:
        batch = wire.from_plain(list[events.Event], plain)
    except WireError as error:
        more = f" (and {len(error.problems) - 5} more)" if len(error.problems) > 5 else ""
        raise HTTPException(400, "; ".join(error.problems[:5]) + more) from error
    problems = [f"[{index}]: {problem}" for index, event in enumerate(batch) for problem in check_event(event)]
    if problems:
        raise HTTPException(400, "; ".join(problems[:5]))
    return batch


def check_event(event: events.Event) -> list[str]:
    """The problems of an event that its types cannot exclude: control characters, empty names and long texts."""
    names = {"id": event.id, "node": event.place.node or "", "gpu": event.place.gpu or ""}
    problems = [f"{name} contains a control character" for name, text in names.items() if not text.isprintable()]
    if not event.id:
        problems.append("id is empty")
    if event.place.node == "":
        problems.append("place.node is empty")
    sizes = {"id": len(event.id), "text": len(event.text), "fields": sum(map(len, event.fields.values()))}
    problems += [
        f"{name} has {size:,} characters, the limit is {MAX_TEXT_CHARACTERS:,}"
        for name, size in sizes.items()
        if size > MAX_TEXT_CHARACTERS
    ]
    return problems
