"""Log in and out: a name and a password, or a token, become a session cookie that scripts cannot read.

`login_limit` counts failed attempts. Passwords are checked in threads, at most `MAX_CONCURRENT_CHECKS` at a time,
because each check takes 64 MiB.
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
from watchkeeper.web.auth.auth import COOKIE, SESSION_LIFETIME, Token, User, is_same_origin
from watchkeeper.web.auth.auth_reload import AuthFiles
from watchkeeper.web.auth.login_limit import LoginLimit
from watchkeeper.web.endpoint import POST, get, ok_response, read_body
from watchkeeper.web.shedding import ConcurrencyLimit

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 4096
MAX_CONCURRENT_CHECKS, MAX_WAITING = 2, 16


@dataclass(frozen=True, slots=True)
class LoginAttempt:
    """The credentials of a login; `name` is empty for a token."""

    name: str
    secret: str


class LoginApi:
    def __init__(self, runtime: Runtime, auth_files: AuthFiles) -> None:
        self._clock, self._auth_files, self._limit = runtime.clock, auth_files, LoginLimit()
        self._checks = asyncio.Semaphore(MAX_CONCURRENT_CHECKS)
        problem = f"{{count}} logins are waiting, the limit is {MAX_WAITING}. Try again in 2 s"
        self._waiting = ConcurrencyLimit(MAX_WAITING, problem, status=503, retry_after_seconds=2)
        self._attempts_counter = runtime.metrics.counter("watchkeeper_hub_logins_total", "Login attempts, by result")

    @get("/api/login", role=None, methods=POST, body=dict[str, str])
    async def login(self, request: Request) -> Response:
        """Sign in from the console with a name and a password, or with a token; sets a session cookie."""
        if not is_same_origin(request.method, request.headers):
            raise HTTPException(403, "login is only allowed from the console of this hub")
        attempt = await _read(request)
        account = await self._authenticate(attempt, request.client.host if request.client else "")
        answer = ok_response(name=account.name, role=account.role)
        now = self._clock.now()
        answer.set_cookie(
            COOKIE,
            self._auth_files.current(now).make_session(account, now=now),
            max_age=int(SESSION_LIFETIME.total_seconds()),
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return answer

    async def _authenticate(self, attempt: LoginAttempt, address: str) -> Token | User:
        now = self._clock.now()
        # A token has no name before it is matched: all attempts with a token from one address count together.
        key = attempt.name or address
        if wait_seconds := self._limit.start_attempt(address, key, now=now):
            self._attempts_counter.add(result="too many")
            raise HTTPException(
                429, f"too many failed logins. Try again in {wait_seconds} s", {"Retry-After": str(wait_seconds)}
            )
        account = await self._find_account(attempt)
        # Deliberately not logged: an unknown name may be a password that was typed into the wrong field.
        user_name = account.name if account else attempt.name if self._find_user(attempt.name) else "(unknown)"
        if account is None:
            self._attempts_counter.add(result="refused")
            log.warning("login failed", extra=fields(user=user_name, address=address))
            raise HTTPException(401, "wrong name or password" if attempt.name else "unknown token")
        self._limit.record_success(address, key)
        self._attempts_counter.add(result="let in")
        log.info("login succeeded", extra=fields(user=user_name, address=address))
        return account

    def _find_user(self, name: str) -> User | None:
        access = self._auth_files.current(self._clock.now())
        return next((user for user in access.users if user.name == name), None)

    async def _find_account(self, attempt: LoginAttempt) -> Token | User | None:
        if not attempt.name:
            return self._auth_files.current(self._clock.now()).find_token(attempt.secret)
        with self._waiting:
            async with self._checks:
                user = self._find_user(attempt.name)
                is_correct = await asyncio.to_thread(users.password_matches, user, attempt.secret)
        return user if is_correct else None

    @get("/api/logout", role=None, methods=POST)
    async def logout(self, request: Request) -> Response:
        """Sign out of the console."""
        if not is_same_origin(request.method, request.headers):
            raise HTTPException(403, "logout is only allowed from the console of this hub")
        if (cookie := request.cookies.get(COOKIE)) and self._auth_files.current(self._clock.now()).caller(
            {}, {COOKIE: cookie}, now=self._clock.now()
        ):
            self._auth_files.end_session(cookie)
        answer = ok_response()
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer


async def _read(request: Request) -> LoginAttempt:
    try:
        body = orjson.loads(await read_body(request, MAX_BODY_BYTES))
        if "token" in body:
            return LoginAttempt("", str(body["token"]))
        name = str(body["name"])
        if not name:
            raise KeyError("name")
        return LoginAttempt(name, str(body["password"]))
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise HTTPException(400, 'the body must be {"name": "…", "password": "…"} or {"token": "…"}') from error
