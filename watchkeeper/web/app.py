"""The web application: one table of endpoints behind the gate.

`create_app` gives each part of the API the services that it uses, of those that a hub or a recording offers, and puts
all of them behind a `gate.Gate`, which asks `auth` who may come in. `server.serve` runs the result.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from watchkeeper.hub.health import Health
from watchkeeper.hub.runtime import Runtime
from watchkeeper.hub.services import Services
from watchkeeper.web import openapi, pages, sign_in
from watchkeeper.web.accounting import advice_hook, capacity_api, usage_api, whatif_api
from watchkeeper.web.answers import Endpoint
from watchkeeper.web.auth.auth import Auth, Caller, Proof, Role
from watchkeeper.web.auth.doors import Doors
from watchkeeper.web.fleet import (
    cluster_api,
    drills_api,
    explain_api,
    fabric_api,
    fleet_api,
    history_api,
    jobs_api,
    orders_api,
    stock_answer,
    topology_api,
)
from watchkeeper.web.gate import Gate
from watchkeeper.web.incidents import act_api, bundle_api, cards, causes_api, incident_api, journal_api, stories
from watchkeeper.web.live import POLICY_VIOLATION, Live
from watchkeeper.web.prometheus import (
    explore_api,
    prometheus_api,
    prometheus_exchange,
    prometheus_status,
    recording_api,
    rules_api,
    slo_api,
)

LIVE_PATH = "/api/live"
LIVE_WORDS = (
    "A WebSocket: incidents as they change, pictures of the fleet, and for whoever says which `edition` of /api/fleet "
    "it has, what has changed since; 426 without an upgrade"
)


@dataclass(frozen=True, slots=True)
class Whoami:
    name: str
    role: Role
    needs_sign_in: bool


def create_app(offered: Services, auth: Auth | Doors, *, live_interval_seconds: float | None = None) -> Starlette:
    """The whole application; live pictures come every scrape interval unless told otherwise."""
    runtime, queries, journal, fleet = offered.runtime, offered.queries, offered.journal, offered.fleet
    doors = auth if isinstance(auth, Doors) else Doors(auth)
    gate = Gate(runtime, doors, is_evaluating=lambda: offered.rules.is_at_work)
    shown = cards.Cards(journal, offered.silences, fleet=fleet)
    told = stories.Stories(runtime, queries, journal=journal, fleet=fleet, clusters=offered.clusters)
    stock = stock_answer.StockAnswer(runtime, queries, fleet=fleet)
    live = Live(
        runtime,
        queries,
        journal=journal,
        fleet=fleet,
        cards=shown,
        stock=stock,
        interval_seconds=live_interval_seconds or runtime.settings.fleet.scrape_interval_seconds,
    )
    capacity = capacity_api.CapacityApi(runtime, queries, fleet=fleet, clusters=offered.clusters)
    advice = advice_hook.AdviceHook(runtime, offered.health, make=capacity.advise)
    table = [
        *own_endpoints(runtime, offered.health),
        *sign_in.endpoints(runtime, doors),
        *_about_samples(offered),
        *_about_fleet(offered, shown, told=told, stock=stock),
        *_about_incidents(offered, shown, told=told),
        *capacity_api.endpoints(capacity),
        *whatif_api.endpoints(whatif_api.WhatIfApi(runtime, queries, fleet=fleet, clusters=offered.clusters)),
        *usage_api.endpoints(usage_api.UsageApi(runtime, queries)),
        *live.endpoints(),
        *pages.endpoints(),
    ]
    table += openapi.endpoints(lambda: table, version=runtime.version)

    async def serve_live(socket: WebSocket) -> None:
        if gate.lets_in(socket, Role.VIEWER):
            await live.serve(socket, lambda: gate.lets_in(socket, Role.VIEWER))
        else:
            await socket.close(POLICY_VIOLATION)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with live.running(), advice.running():
            yield

    app = gate.application(table, [WebSocketRoute(LIVE_PATH, serve_live)], lifespan=lifespan)
    app.state.endpoints = table
    return app


def _about_samples(offered: Services) -> list[Endpoint]:
    """Questions to the engine, and what rules make of its answers."""
    runtime, queries, journal, rules = offered.runtime, offered.queries, offered.journal, offered.rules
    return [
        *prometheus_api.endpoints(
            prometheus_api.PrometheusApi(runtime, queries),
            prometheus_status.StatusPages(runtime, queries, rules=rules, targets=offered.targets),
            prometheus_exchange.Exchange(runtime, queries),
        ),
        *recording_api.endpoints(recording_api.RecordingApi(runtime, queries, journal=journal, fleet=offered.fleet)),
        *slo_api.endpoints(slo_api.SloApi(runtime, queries, journal=journal, rules=rules)),
        *explore_api.endpoints(explore_api.ExploreApi(runtime, queries)),
        *rules_api.endpoints(rules_api.RulesApi(runtime, queries, rules=rules)),
    ]


def _about_incidents(offered: Services, shown: cards.Cards, *, told: stories.Stories) -> list[Endpoint]:
    runtime, journal, incidents = offered.runtime, offered.journal, offered.incidents
    return [
        *incident_api.endpoints(
            incident_api.IncidentApi(
                runtime, journal, incidents=incidents, silences=offered.silences, rules=offered.rules, stories=told
            )
        ),
        *act_api.endpoints(act_api.ActApi(runtime, journal, repairs=offered.repairs)),
        *bundle_api.endpoints(bundle_api.BundleApi(runtime, offered.evidence)),
        *causes_api.endpoints(
            causes_api.CausesApi(
                runtime, offered.queries, journal=journal, incidents=incidents, fleet=offered.fleet, cards=shown
            )
        ),
        *journal_api.endpoints(journal_api.JournalApi(runtime, journal, repairs=offered.repairs)),
    ]


def _about_fleet(
    offered: Services, shown: cards.Cards, *, told: stories.Stories, stock: stock_answer.StockAnswer
) -> list[Endpoint]:
    """Nodes, GPUs, links, schedulers, jobs and work orders."""
    runtime, queries, journal, fleet = offered.runtime, offered.queries, offered.journal, offered.fleet
    targets, clusters, fabric = offered.targets, offered.clusters, offered.fabric
    jobs = jobs_api.JobsApi(runtime, queries, journal=journal, rules=offered.rules, fleet=fleet, clusters=clusters)
    return [
        *fleet_api.endpoints(
            fleet_api.FleetApi(
                runtime,
                queries,
                journal=journal,
                incidents=offered.incidents,
                rules=offered.rules,
                fleet=fleet,
                targets=targets,
                simulator=offered.simulator,
                health=offered.health,
                cards=shown,
                stories=told,
                stock=stock,
            )
        ),
        *history_api.endpoints(history_api.HistoryApi(runtime, journal, fleet=fleet)),
        *topology_api.endpoints(
            topology_api.TopologyApi(
                runtime,
                queries,
                journal=journal,
                incidents=offered.incidents,
                fleet=fleet,
                targets=targets,
                fabric=fabric,
            )
        ),
        *fabric_api.endpoints(fabric_api.FabricApi(runtime, queries, journal=journal, fleet=fleet, fabric=fabric)),
        *cluster_api.endpoints(
            cluster_api.ClusterApi(runtime, queries, journal=journal, fleet=fleet, targets=targets, clusters=clusters)
        ),
        *explain_api.endpoints(explain_api.ExplainApi(runtime, queries, journal, fleet, clusters, jobs)),
        *orders_api.endpoints(orders_api.OrdersApi(runtime, journal, orders=offered.orders)),
        *drills_api.endpoints(drills_api.DrillsApi(runtime, journal, simulator=offered.simulator)),
        *jobs_api.endpoints(jobs),
    ]


def own_endpoints(runtime: Runtime, health: Health) -> list[Endpoint]:
    """Health, readiness, our own metrics, and who is asking."""

    async def healthy(_: Request) -> Response:
        return PlainTextResponse("Watchkeeper is healthy.\n")

    async def ready(_: Request) -> Response:
        if health.is_ready:
            return PlainTextResponse("Watchkeeper is ready.\n")
        return PlainTextResponse(f"Not ready: {health.not_ready_because or 'still starting'}\n", status_code=503)

    async def metrics(_: Request) -> Response:
        return PlainTextResponse(runtime.metrics.render(), media_type="text/plain; version=0.0.4")

    async def whoami(request: Request) -> Whoami:
        caller: Caller = request.state.caller
        return Whoami(name=caller.name, role=caller.role, needs_sign_in=caller.proof is not Proof.LOOPBACK)

    async def not_a_socket(_: Request) -> Response:
        raise HTTPException(426, "live updates come over a WebSocket", {"Upgrade": "websocket"})

    return [
        Endpoint(("GET",), "/-/healthy", None, healthy, words="Whether the hub lives", media="text/plain"),
        Endpoint(("GET",), "/-/ready", None, ready, words="Whether it has begun; 503 says why not", media="text/plain"),
        Endpoint(("GET",), "/metrics", Role.VIEWER, metrics, words="The hub's own metrics", media="text/plain"),
        Endpoint(
            ("GET",),
            "/api/whoami",
            Role.VIEWER,
            whoami,
            words="Who is asking, and with which role",
        ),
        Endpoint(("GET",), LIVE_PATH, Role.VIEWER, not_a_socket, words=LIVE_WORDS),
    ]
