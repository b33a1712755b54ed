"""Authenticate and authorise every request, add security headers, and turn errors into responses.

A request passes `SecurityMiddleware` (proxy headers, host name, security headers), is routed, and passes the role check
of its endpoint. Errors become JSON in the format of the path. `app` and `startup_app` build applications with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.status import WS_1008_POLICY_VIOLATION
from starlette.types import ASGIApp, Lifespan, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from watchkeeper.errors import HubError, InvalidTransition, JournalConflict, WatchkeeperError
from watchkeeper.kit import api_version
from watchkeeper.kit.logs import fields
from watchkeeper.net.origins import is_foreign_read, is_from_foreign_page, is_loopback_host, is_same_origin
from watchkeeper.web import pages
from watchkeeper.web.auth.auth import COOKIE, Caller, Proof, Role
from watchkeeper.web.auth.auth_reload import AuthFiles
from watchkeeper.web.auth.proxy import PROXY_USER_KEY, Proxy
from watchkeeper.web.disconnects import ClientDisconnected, DisconnectWatch
from watchkeeper.web.endpoint import Endpoint, RequestHandler, compress_response, error_response
from watchkeeper.web.shedding import LoadShedder

if TYPE_CHECKING:
    from watchkeeper.hub.runtime import Runtime

log = logging.getLogger(__name__)

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
RESPONSE_HEADERS = [
    (name.lower().encode(), text.encode())
    for name, text in {**SECURITY_HEADERS, api_version.HEADER: str(api_version.API_VERSION)}.items()
]
NO_STORE = (b"cache-control", b"no-store")


class Gate:
    """Checks each request against the role of its endpoint; under load, viewers wait while rules are evaluated."""

    def __init__(
        self, runtime: Runtime, auth_files: AuthFiles, *, is_evaluating: Callable[[], bool] = lambda: False
    ) -> None:
        self._clock, self._auth_files = runtime.clock, auth_files
        self._shedding = LoadShedder(runtime.metrics, is_evaluating)

    def find_caller(self, connection: HTTPConnection) -> Caller | None:
        now, proxy_user = self._clock.now(), connection.scope.get(PROXY_USER_KEY)
        access, cookies = self._auth_files.current(now), connection.cookies
        caller = access.caller(connection.headers, cookies, now=now, proxy_user=proxy_user)
        is_cookie = caller is not None and caller.proof is Proof.COOKIE
        return None if is_cookie and self._auth_files.is_ended_session(cookies[COOKIE]) else caller

    def may_connect(self, socket: WebSocket, role: Role) -> bool:
        """Whether a WebSocket may connect; browsers do not restrict its origin, so it is checked even for reads."""
        caller = self.find_caller(socket)
        return caller is not None and caller.has_role(role) and not is_from_foreign_page(socket.headers)

    def build_application(
        self,
        table: Sequence[Endpoint],
        others: Sequence[BaseRoute] = (),
        *,
        lifespan: Lifespan[Starlette] | None = None,
    ) -> Starlette:
        """An application with these endpoints behind the gate; `others` are routes with their own checks."""
        routes = [Route(row.path, self._guard(row), methods=list(row.methods)) for row in table]
        application = Starlette(routes=[*routes, *others], lifespan=lifespan, exception_handlers=ERROR_HANDLERS)
        access, proxy = self._auth_files.access, self._auth_files.proxy
        application.add_middleware(SecurityMiddleware, needs_loopback_name=access.is_open, proxy=proxy)
        return application

    def _guard(self, endpoint: Endpoint) -> RequestHandler:
        async def answer(request: Request) -> Response:
            if endpoint.role is not None:
                request.state.caller = self._admit(request, endpoint)
            if not self._shedding.start_request(endpoint):
                return await respond(request)
            try:
                async with (
                    DisconnectWatch(request) as watch,
                    self._shedding.acquire_slot(endpoint, client_of(request)),
                ):
                    return await respond(watch.request)
            except ClientDisconnected:
                self._shedding.count_cancelled(endpoint)
                raise
            finally:
                self._shedding.end_request()

        async def respond(request: Request) -> Response:
            response = await endpoint.respond(request)
            return await compress_response(response, request.headers.get("accept-encoding", ""))

        return answer

    def _admit(self, request: Request, endpoint: Endpoint) -> Caller:
        assert endpoint.role is not None
        caller = self.find_caller(request)
        if caller is None:
            raise HTTPException(401, "login required: send a bearer token, or sign in", {"WWW-Authenticate": "Bearer"})
        if not caller.has_role(endpoint.role):
            raise HTTPException(403, f"{caller.name} has the role {caller.role}; this needs the role {endpoint.role}")
        if caller.proof is Proof.BEARER:
            return caller
        # The browser of a person who is signed in, or who runs the hub without authentication, acts for any page.
        if endpoint.changes and not is_same_origin(request.method, request.headers):
            raise HTTPException(403, "this request is not from the console. Send JSON, and no Origin of another site")
        if is_foreign_read(request.method, request.headers):
            raise HTTPException(403, "a page of another site sent this request. Use a program with a bearer token")
        return caller


def client_of(request: Request) -> str:
    """Who shares the turns of panels: the callers of one name, or of one address without authentication."""
    caller: Caller = request.state.caller
    address = "" if request.client is None else request.client.host
    return address if caller.proof is Proof.LOOPBACK else caller.name


class SecurityMiddleware:
    """Applies proxy headers, adds security headers, and allows only loopback host names if no login is configured."""

    def __init__(self, app: ASGIApp, *, needs_loopback_name: bool, proxy: Proxy) -> None:
        self._app, self._proxy, self._needs_loopback_name = app, proxy, needs_loopback_name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        self._proxy.apply_headers(scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Answers depend on who asks; files of the console and snapshots set their own header.
                has_cache_control = any(name == b"cache-control" for name, _ in message["headers"])
                message["headers"] += RESPONSE_HEADERS if has_cache_control else [*RESPONSE_HEADERS, NO_STORE]
            await send(message)

        if self._needs_loopback_name and not is_loopback_host(HTTPConnection(scope).headers.get("host", "")):
            if scope["type"] == "websocket":
                await WebSocket(scope, receive, send_with_headers).close(WS_1008_POLICY_VIOLATION)
                return
            problem = "this hub has no tokens and no users, so it answers only to localhost, 127.0.0.1 and [::1]"
            await error_response(scope["path"], status=403, problem=problem)(scope, receive, send_with_headers)
        else:
            await self._app(scope, receive, send_with_headers)


async def answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404 and pages.is_missing_page(request):
        return pages.console_page(404)
    headers: Mapping[str, str] | None = error.headers
    return error_response(request.url.path, status=error.status_code, problem=str(error.detail), headers=headers)


async def answer_watchkeeper_error(request: Request, error: Exception) -> Response:
    """Return 409 for a conflict or a step that is not allowed, the error's own status, or else 503."""
    status = 409 if isinstance(error, (InvalidTransition, JournalConflict)) else 503
    if isinstance(error, HubError) and error.status is not None:
        status = error.status
    return error_response(request.url.path, status=status, problem=str(error))


async def answer_unexpected_error(request: Request, error: Exception) -> Response:
    log.error("request failed", exc_info=error, extra=fields(path=request.url.path))
    return error_response(request.url.path, status=500, problem="internal error; see the hub's log")


ERROR_HANDLERS = {
    HTTPException: answer_http_error,
    WatchkeeperError: answer_watchkeeper_error,
    Exception: answer_unexpected_error,
}
