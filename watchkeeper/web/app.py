"""The web application: one table of endpoints behind the gate.

`hub` gives answers, `auth` says who may ask; `create_app` joins them behind a `gate.Gate`. `server.serve` runs the
result.
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
from watchkeeper.web.incidents import act_api, bundle_api, causes_api, incident_api, journal_api
from watchkeeper.web.live import POLICY_VIOLATION, Live
from watchkeeper.web.prometheus import explore_api, prometheus_api, recording_api, rules_api, slo_api
from watchkeeper.web.view import HubView

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


def create_app(hub: HubView, auth: Auth | Doors, *, live_interval_seconds: float | None = None) -> Starlette:
    """The whole application; live pictures come every scrape interval unless told otherwise."""
    doors = auth if isinstance(auth, Doors) else Doors(auth)
    gate = Gate(hub, doors)
    stock = stock_answer.StockAnswer(hub)
    live = Live(hub, stock, interval_seconds=live_interval_seconds or hub.settings.fleet.scrape_interval_seconds)
    advice = advice_hook.AdviceHook(hub, capacity_api.CapacityApi(hub).advise)
    table = [
        *own_endpoints(hub),
        *sign_in.endpoints(hub, doors),
        *prometheus_api.endpoints(hub),
        *recording_api.endpoints(hub),
        *fleet_api.endpoints(hub, stock),
        *history_api.endpoints(hub),
        *incident_api.endpoints(hub),
        *act_api.endpoints(hub),
        *bundle_api.endpoints(hub),
        *slo_api.endpoints(hub),
        *topology_api.endpoints(hub),
        *fabric_api.endpoints(hub),
        *explore_api.endpoints(hub),
        *cluster_api.endpoints(hub),
        *explain_api.endpoints(hub),
        *causes_api.endpoints(hub),
        *orders_api.endpoints(hub),
        *capacity_api.endpoints(hub),
        *whatif_api.endpoints(hub),
        *journal_api.endpoints(hub),
        *rules_api.endpoints(hub),
        *drills_api.endpoints(hub),
        *usage_api.endpoints(hub),
        *jobs_api.endpoints(hub),
        *live.endpoints(),
        *pages.endpoints(),
    ]
    table += openapi.endpoints(lambda: table, version=hub.version)

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


def own_endpoints(hub: HubView) -> list[Endpoint]:
    """Health, readiness, our own metrics, and who is asking."""

    async def healthy(_: Request) -> Response:
        return PlainTextResponse("Watchkeeper is healthy.\n")

    async def ready(_: Request) -> Response:
        if hub.is_ready:
            return PlainTextResponse("Watchkeeper is ready.\n")
        return PlainTextResponse(f"Not ready: {hub.not_ready_because or 'still starting'}\n", status_code=503)

    async def metrics(_: Request) -> Response:
        return PlainTextResponse(hub.metrics.render(), media_type="text/plain; version=0.0.4")

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
