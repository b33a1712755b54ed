"""Signing in and out: a name with its password, or a token, becomes a cookie that scripts cannot read.

`app` puts these endpoints beside the others. Wrong tries are counted in `login_limit`, and passwords are checked in a
thread, few at a time, because each check takes 64 MiB.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.hub.runtime import Runtime
from watchkeeper.kit.logs import fields
from watchkeeper.web.auth import users
from watchkeeper.web.auth.auth import COOKIE, SESSION, Token, User, is_own_page
from watchkeeper.web.auth.auth_reload import AuthFiles
from watchkeeper.web.auth.login_limit import LoginLimit
from watchkeeper.web.endpoint import Endpoint, ok_response, read_body

log = logging.getLogger(__name__)

LIMIT_BYTES = 4096
CHECKS_AT_ONCE, MOST_WAITING = 2, 16
# Tokens have no names until they are found; all tries with one from an address count together.
BY_TOKEN = ""


@dataclass(frozen=True, slots=True)
class LoginAttempt:
    """What somebody brings to be let in; a token has no name."""

    name: str
    secret: str


class LoginApi:
    def __init__(self, runtime: Runtime, doors: AuthFiles) -> None:
        self._clock = runtime.clock
        self._doors = doors
        self._limit = LoginLimit()
        self._checks = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._waiting = 0
        self._tries = runtime.metrics.counter("watchkeeper_hub_logins_total", "Login attempts, by result")

    async def login(self, request: Request) -> Response:
        if not is_own_page(request.method, request.headers):
            raise HTTPException(403, "sign in from the console itself")
        tried = await _read(request)
        holder = await self._let_in(tried, request.client.host if request.client else "")
        answer = ok_response(name=holder.name, role=holder.role)
        now = self._clock.now()
        answer.set_cookie(
            COOKIE,
            self._doors.current(now).make_session(holder, now=now),
            max_age=int(SESSION.total_seconds()),
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return answer

    async def _let_in(self, tried: LoginAttempt, address: str) -> Token | User:
        now = self._clock.now()
        key = tried.name if tried.name else f"{BY_TOKEN}{address}"
        if wait := self._limit.start_attempt(address, key, now=now):
            self._tries.add(result="too many")
            raise HTTPException(429, f"too many tries. Try again in {wait} s", {"Retry-After": str(wait)})
        holder = await self._holder(tried)
        # A name that nobody has may be a password in the wrong field.
        named = holder.name if holder else tried.name if self._user(tried.name) else "nobody we know"
        if holder is None:
            self._tries.add(result="refused")
            log.warning("Somebody was not let in", extra=fields(name=named, address=address))
            raise HTTPException(401, "no such name with this password" if tried.name else "no such token")
        self._limit.record_success(address, key)
        self._tries.add(result="let in")
        log.info("Somebody signed in", extra=fields(name=named, address=address))
        return holder

    def _user(self, name: str) -> User | None:
        access = self._doors.current(self._clock.now())
        return next((user for user in access.users if user.name == name), None)

    async def _holder(self, tried: LoginAttempt) -> Token | User | None:
        if not tried.name:
            return self._doors.current(self._clock.now()).find_token(tried.secret)
        if self._waiting >= MOST_WAITING:
            raise HTTPException(503, f"{self._waiting} others wait to be let in; try again", {"Retry-After": "2"})
        self._waiting += 1
        try:
            async with self._checks:
                user = self._user(tried.name)
                is_theirs = await asyncio.to_thread(users.password_matches, user, tried.secret)
        finally:
            self._waiting -= 1
        return user if is_theirs else None

    async def logout(self, request: Request) -> Response:
        if not is_own_page(request.method, request.headers):
            raise HTTPException(403, "sign out from the console itself")
        if (cookie := request.cookies.get(COOKIE)) and self._doors.current(self._clock.now()).caller(
            {}, {COOKIE: cookie}, now=self._clock.now()
        ):
            self._doors.end_session(cookie)
        answer = ok_response()
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer


def endpoints(runtime: Runtime, doors: AuthFiles) -> list[Endpoint]:
    desk = LoginApi(runtime, doors)
    return [
        Endpoint(
            ("POST",),
            "/api/login",
            None,
            desk.login,
            summary="Sign in from the console: a cookie for a name with its password, or for a token",
            body=dict[str, str],
        ),
        Endpoint(("POST",), "/api/logout", None, desk.logout, summary="Sign out of the console", gives={}),
    ]


async def _read(request: Request) -> LoginAttempt:
    try:
        body = orjson.loads(await read_body(request, LIMIT_BYTES))
        if "token" in body:
            return LoginAttempt("", str(body["token"]))
        name = str(body["name"])
        if not name:
            raise KeyError("name")
        return LoginAttempt(name, str(body["password"]))
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise HTTPException(400, 'the body must be {"name": "…", "password": "…"} or {"token": "…"}') from error
