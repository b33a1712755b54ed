"""The web application: one table of endpoints, one gate in front of it, one way to say no.

`hub` gives answers, `auth` says who may ask; `create_app` joins them. A request passes the outer
gate (host name, security headers), is routed, passes its endpoint's role check, and any error leaves
as JSON in the shape that belongs to its path. `server.serve` runs the result.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Mapping

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from watchkeeper.errors import HubError, IllegalMove, JournalConflict, WatchkeeperError
from watchkeeper.kit import api_version
from watchkeeper.kit.logs import fields
from watchkeeper.web import (
    act_api,
    advice_hook,
    bundle_api,
    capacity_api,
    causes_api,
    cluster_api,
    drills_api,
    explain_api,
    explore_api,
    fabric_api,
    fleet_api,
    history_api,
    incident_api,
    jobs_api,
    journal_api,
    openapi,
    orders_api,
    pages,
    prometheus_api,
    recording_api,
    rules_api,
    sign_in,
    slo_api,
    stock_answer,
    topology_api,
    usage_api,
    whatif_api,
)
from watchkeeper.web.answers import Answer, Endpoint, ok, refusal
from watchkeeper.web.auth import COOKIE, Auth, Caller, Proof, Role, is_own_page, names_loopback
from watchkeeper.web.doors import Doors
from watchkeeper.web.live import POLICY_VIOLATION, Live
from watchkeeper.web.proxy import VOUCHED, Proxy
from watchkeeper.web.shedding import Shedding
from watchkeeper.web.view import HubView

log = logging.getLogger(__name__)

LIVE_PATH = "/api/live"
LIVE_WORDS = "A WebSocket: incidents as they change, and pictures of the fleet; 426 without an upgrade"
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
OWN_HEADERS = [
    (name.lower().encode(), text.encode())
    for name, text in {**SECURITY_HEADERS, api_version.HEADER: str(api_version.API_VERSION)}.items()
]


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

    routes: list[BaseRoute] = [Route(row.path, gate.guard(row), methods=list(row.methods)) for row in table]
    routes.append(WebSocketRoute(LIVE_PATH, serve_live))
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={HTTPException: say_no, WatchkeeperError: say_trouble, Exception: say_broken},
    )
    app.state.endpoints = table
    app.add_middleware(OuterGate, needs_loopback_name=doors.access.is_open, proxy=doors.proxy)
    return app


class Gate:
    """Checks each request against the role its endpoint declares."""

    def __init__(self, hub: HubView, doors: Doors) -> None:
        self._hub = hub
        self._doors = doors
        self._shedding = Shedding(hub.metrics, lambda: hub.is_evaluating)

    def caller(self, connection: HTTPConnection) -> Caller | None:
        now, vouched = self._hub.clock.now(), connection.scope.get(VOUCHED)
        found = self._doors.current(now).caller(connection.headers, connection.cookies, now=now, vouched=vouched)
        if found is not None and found.proof is Proof.COOKIE and self._doors.has_ended(connection.cookies[COOKIE]):
            return None
        return found

    def lets_in(self, socket: WebSocket, role: Role) -> bool:
        """A WebSocket is not bound to its origin by browsers, so it needs the same-origin check although it reads."""
        caller = self.caller(socket)
        is_browser = "origin" in socket.headers or "sec-fetch-site" in socket.headers
        return caller is not None and caller.may(role) and (not is_browser or is_own_page("GET", socket.headers))

    def guard(self, endpoint: Endpoint) -> Answer:
        async def answer(request: Request) -> Response:
            if endpoint.role is not None:
                request.state.caller = self._admit(request, endpoint)
            if not self._shedding.begin(endpoint):
                return await endpoint.answer(request)
            try:
                async with self._shedding.turn(endpoint):
                    return await endpoint.answer(request)
            finally:
                self._shedding.end()

        return answer

    def _admit(self, request: Request, endpoint: Endpoint) -> Caller:
        assert endpoint.role is not None
        caller = self.caller(request)
        if caller is None:
            raise HTTPException(401, "who are you? Send a bearer token, or sign in", {"WWW-Authenticate": "Bearer"})
        if not caller.may(endpoint.role):
            raise HTTPException(403, f"{caller.name} is {caller.role}; this needs {endpoint.role}")
        if endpoint.changes and caller.proof is not Proof.BEARER and not is_own_page(request.method, request.headers):
            raise HTTPException(403, "this request does not come from the console. Send JSON, without a foreign Origin")
        return caller


class OuterGate:
    """Around everything: who is behind a proxy, loopback names only where the hub is open, and security headers."""

    def __init__(self, app: ASGIApp, *, needs_loopback_name: bool, proxy: Proxy) -> None:
        self._app = app
        self._proxy = proxy
        self._needs_loopback_name = needs_loopback_name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        self._proxy.behind(scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += OWN_HEADERS
            await send(message)

        if self._needs_loopback_name and not names_loopback(HTTPConnection(scope).headers.get("host", "")):
            await self._turn_away(scope, receive, send_with_headers)
        else:
            await self._app(scope, receive, send_with_headers)

    async def _turn_away(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await WebSocket(scope, receive, send).close(POLICY_VIOLATION)
            return
        problem = "this hub has neither tokens nor users and answers only to localhost, 127.0.0.1 and [::1]"
        await refusal(scope["path"], status=403, problem=problem)(scope, receive, send)


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

    async def whoami(request: Request) -> Response:
        caller: Caller = request.state.caller
        return ok(name=caller.name, role=caller.role, needs_sign_in=caller.proof is not Proof.LOOPBACK)

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
            gives={"name": str, "role": Role, "needs_sign_in": bool},
        ),
        Endpoint(("GET",), LIVE_PATH, Role.VIEWER, not_a_socket, words=LIVE_WORDS),
    ]


async def say_no(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404 and pages.is_lost(request):
        return pages.console(404)
    headers: Mapping[str, str] | None = error.headers
    return refusal(request.url.path, status=error.status_code, problem=str(error.detail), headers=headers)


async def say_trouble(request: Request, error: Exception) -> Response:
    """Our own errors: someone else was faster or the step is not allowed (409), or a part of the hub is away (503)."""
    status = 409 if isinstance(error, (IllegalMove, JournalConflict)) else 503
    if isinstance(error, HubError) and error.status is not None:
        status = error.status
    return refusal(request.url.path, status=status, problem=str(error))


async def say_broken(request: Request, error: Exception) -> Response:
    log.error("A request failed", exc_info=error, extra=fields(path=request.url.path))
    return refusal(request.url.path, status=500, problem="the hub failed to answer; its log says why")
