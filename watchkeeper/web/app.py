"""Build the web application: one table of endpoints behind the gate.

`create_app` passes the services of a hub or a recording to each part of the API. All endpoints are behind a
`gate.Gate`, which authenticates and authorises each request.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TypedDict

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from watchkeeper.hub.fleet_gpus import FleetGpus
from watchkeeper.hub.fleet_prices import FleetPrices
from watchkeeper.hub.services import Services
from watchkeeper.web import login, openapi, pages
from watchkeeper.web.accounting import advice_hook, capacity_api, usage_api, whatif_api
from watchkeeper.web.auth.auth import Auth, Caller, Proof, Role
from watchkeeper.web.auth.auth_reload import AuthFiles
from watchkeeper.web.endpoint import endpoints_of, get
from watchkeeper.web.fleet import (
    cluster_api,
    drills_api,
    explain_api,
    fabric_api,
    fleet_api,
    fleet_snapshot,
    history_api,
    job_page_api,
    jobs_api,
    learn_api,
    orders_api,
    topology_api,
)
from watchkeeper.web.gate import Gate
from watchkeeper.web.incidents import causes_api, incident_api, incident_reports, journal_api, repairs_api
from watchkeeper.web.live import POLICY_VIOLATION, LiveUpdates
from watchkeeper.web.prometheus import (
    explore_api,
    prometheus_api,
    prometheus_exchange,
    prometheus_status,
    rules_api,
    slo_api,
)

LIVE_PATH = "/api/live"


class Whoami(TypedDict):
    name: str
    role: Role
    needs_sign_in: bool


def create_app(hub: Services, auth: Auth | AuthFiles, *, live_interval_seconds: float | None = None) -> Starlette:
    """Build the application; without `live_interval_seconds`, live frames come every scrape interval."""
    runtime = hub.runtime
    auth_files = auth if isinstance(auth, AuthFiles) else AuthFiles(auth)
    gate = Gate(runtime, auth_files, is_evaluating=lambda: hub.rules.is_evaluating)
    fleet_prices, gpus = FleetPrices(hub), FleetGpus(hub)
    incident_cards, reports = incident_reports.IncidentCards(hub), incident_reports.IncidentReports(hub, fleet_prices)
    snapshots = fleet_snapshot.FleetSnapshots(hub, gpus)
    interval_seconds = live_interval_seconds or runtime.settings.fleet.scrape_interval_seconds
    live = LiveUpdates(hub, cards=incident_cards, snapshots=snapshots, gpus=gpus, interval_seconds=interval_seconds)
    explain = explain_api.ExplainApi(hub)
    capacity, jobs = capacity_api.CapacityApi(hub, gpus), jobs_api.JobsApi(hub, fleet_prices, gpus)
    advice = advice_hook.AdviceWebhook(runtime, hub.health, make=capacity.advise)
    table = endpoints_of(
        HubApi(hub),
        login.LoginApi(runtime, auth_files),
        prometheus_api.PrometheusApi(runtime, hub.queries),
        prometheus_status.StatusPages(hub),
        prometheus_exchange.SampleExchange(runtime, hub.queries),
        prometheus_exchange.RecordingApi(hub),
        slo_api.SloApi(hub),
        explore_api.ExploreApi(runtime, hub.queries),
        rules_api.RulesApi(hub),
        fleet_api.FleetApi(
            hub, cards=incident_cards, reports=reports, snapshots=snapshots, fleet_prices=fleet_prices, gpus=gpus
        ),
        history_api.HistoryApi(hub),
        topology_api.TopologyApi(hub),
        fabric_api.FabricApi(hub),
        cluster_api.ClusterApi(hub, gpus),
        explain,
        job_page_api.JobPageApi(hub, jobs, explain),
        orders_api.OrdersApi(hub),
        drills_api.DrillsApi(hub),
        learn_api.LearnApi(),
        jobs,
        incident_api.IncidentApi(hub, reports),
        repairs_api.RepairsApi(hub),
        incident_api.BundleApi(hub),
        causes_api.CausesApi(hub, incident_cards),
        journal_api.JournalApi(hub),
        capacity,
        whatif_api.WhatIfApi(hub),
        usage_api.UsageApi(runtime, hub.queries),
        live,
    )
    table += pages.endpoints()
    table += openapi.endpoints(lambda: table, version=runtime.version)

    async def serve_live(socket: WebSocket) -> None:
        if gate.may_connect(socket, Role.VIEWER):
            await live.serve(socket, lambda: gate.may_connect(socket, Role.VIEWER))
        else:
            await socket.close(POLICY_VIOLATION)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with live.running(), advice.running():
            yield

    app = gate.build_application(table, [WebSocketRoute(LIVE_PATH, serve_live)], lifespan=lifespan)
    app.state.endpoints = table
    return app


class HubApi:
    """Health, readiness, the hub's own metrics, and the caller's name and role."""

    def __init__(self, hub: Services) -> None:
        self._metrics, self._health = hub.runtime.metrics, hub.health

    @get("/-/healthy", role=None, media_type="text/plain")
    async def healthy(self, _: Request) -> Response:
        """Liveness of the hub."""
        return PlainTextResponse("Watchkeeper is healthy.\n")

    @get("/-/ready", role=None, media_type="text/plain")
    async def ready(self, _: Request) -> Response:
        """Readiness of the hub; 503 with the reason if it is not ready."""
        if self._health.is_ready:
            return PlainTextResponse("Watchkeeper is ready.\n")
        return PlainTextResponse(f"Not ready: {self._health.not_ready_reason or 'still starting'}\n", status_code=503)

    @get("/metrics", media_type="text/plain")
    async def metrics(self, _: Request) -> Response:
        """The hub's own metrics."""
        return PlainTextResponse(self._metrics.render(), media_type="text/plain; version=0.0.4")

    @get("/api/whoami")
    async def whoami(self, request: Request) -> Whoami:
        """Name and role of the caller."""
        caller: Caller = request.state.caller
        return Whoami(name=caller.name, role=caller.role, needs_sign_in=caller.proof is not Proof.LOOPBACK)

    @get(LIVE_PATH)
    async def require_upgrade(self, _: Request) -> Response:
        """WebSocket with incident changes and frames of the fleet map. A client that sends the `edition` of its
        /api/fleet response also receives the changes since then. Returns 426 without an upgrade.
        """
        raise HTTPException(426, "live updates need a WebSocket connection", {"Upgrade": "websocket"})
