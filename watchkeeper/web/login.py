"""Log in and out: a name and a password, or a token, become a session cookie that scripts cannot read.

After a few failures, each further failure doubles the wait, by address and by name; an attempt is counted before its
password is checked, so that concurrent attempts are counted too. Passwords are checked in threads, at most
`MAX_CONCURRENT_CHECKS` at a time, because each check takes 64 MiB.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.hub.runtime import Runtime
from watchkeeper.kit.logs import fields
from watchkeeper.net.origins import is_same_origin
from watchkeeper.web.auth import users
from watchkeeper.web.auth.auth import COOKIE, SESSION_LIFETIME, Token, User
from watchkeeper.web.auth.auth_reload import AuthFiles
from watchkeeper.web.endpoint import POST, get, ok_response, read_body
from watchkeeper.web.shedding import ConcurrencyLimit

log = logging.getLogger(__name__)

MAX_KEYS = 10_000
# A count is dropped after this time without a failure.
FORGET_AFTER = timedelta(minutes=15)
# Users mistype, and several users can share an address behind a NAT.
FREE_ATTEMPTS_BY_NAME, FREE_ATTEMPTS_BY_ADDRESS = 5, 20
# By name the wait stays short: otherwise anyone who knows a name could lock its owner out.
MAX_WAIT_BY_NAME, MAX_WAIT_BY_ADDRESS = timedelta(minutes=1), timedelta(minutes=15)
MAX_BODY_BYTES = 4096
MAX_CONCURRENT_CHECKS, MAX_WAITING = 2, 16


@dataclass(slots=True)
class AttemptCount:
    """Consecutive attempts that failed or have not ended; the next one is allowed at `blocked_until`."""

    attempts: int
    last_at: datetime
    blocked_until: datetime


class LoginLimit:
    def __init__(self) -> None:
        self._by_name: OrderedDict[str, AttemptCount] = OrderedDict()
        self._by_address: OrderedDict[str, AttemptCount] = OrderedDict()

    def start_attempt(self, address: str, name: str, *, now: datetime) -> int:
        """Seconds to wait before the next attempt, or 0 if this attempt is allowed; then it is counted."""
        network = client_network(address)
        waits = [
            (count.blocked_until - now).total_seconds()
            for count in (self._by_name.get(name), self._by_address.get(network))
            # An attempt in the future was counted before the clock was set back: it is ignored.
            if count is not None and count.last_at <= now
        ]
        if (wait_seconds := max(waits, default=0.0)) > 0:
            return math.ceil(wait_seconds)
        _count_attempt(self._by_name, name, now=now, free_attempts=FREE_ATTEMPTS_BY_NAME, max_wait=MAX_WAIT_BY_NAME)
        _count_attempt(
            self._by_address, network, now=now, free_attempts=FREE_ATTEMPTS_BY_ADDRESS, max_wait=MAX_WAIT_BY_ADDRESS
        )
        return 0

    def record_success(self, address: str, name: str) -> None:
        """Clear the count of the name, and only one attempt of the address, which may try other names as well."""
        self._by_name.pop(name, None)
        if (count := self._by_address.get(client_network(address))) is not None:
            count.attempts -= 1

    def __len__(self) -> int:
        return len(self._by_name) + len(self._by_address)


def client_network(address: str) -> str:
    """An IPv4 address itself, or the /64 of an IPv6 address, because one client can use all of a /64."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ip) if ip.version == 4 else str(ipaddress.ip_network((ip, 64), strict=False))


def _count_attempt(
    counts: OrderedDict[str, AttemptCount], key: str, *, now: datetime, free_attempts: int, max_wait: timedelta
) -> None:
    previous = counts.pop(key, None)
    attempts = 1 if previous is None or now - previous.last_at > FORGET_AFTER else previous.attempts + 1
    # Limited, because a long attack would overflow timedelta.
    exponent = min(attempts - free_attempts, 20)
    wait = timedelta() if exponent < 0 else min(max_wait, timedelta(seconds=2**exponent))
    counts[key] = AttemptCount(attempts, now, now + wait)
    while len(counts) > MAX_KEYS:
        counts.popitem(last=False)


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
        name, secret = await _read_credentials(request)
        account = await self._authenticate(name, secret, address=request.client.host if request.client else "")
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

    async def _authenticate(self, name: str, secret: str, *, address: str) -> Token | User:
        now = self._clock.now()
        # A token has no name before it is matched: all attempts with a token from one address count together.
        key = name or address
        if wait_seconds := self._limit.start_attempt(address, key, now=now):
            self._attempts_counter.add(result="too many")
            raise HTTPException(
                429, f"too many failed logins. Try again in {wait_seconds} s", {"Retry-After": str(wait_seconds)}
            )
        account = await self._find_account(name, secret)
        # Deliberately not logged: an unknown name may be a password that was typed into the wrong field.
        user_name = account.name if account else name if self._find_user(name) else "(unknown)"
        if account is None:
            self._attempts_counter.add(result="refused")
            log.warning("login failed", extra=fields(user=user_name, address=address))
            raise HTTPException(401, "wrong name or password" if name else "unknown token")
        self._limit.record_success(address, key)
        self._attempts_counter.add(result="let in")
        log.info("login succeeded", extra=fields(user=user_name, address=address))
        return account

    def _find_user(self, name: str) -> User | None:
        access = self._auth_files.current(self._clock.now())
        return next((user for user in access.users if user.name == name), None)

    async def _find_account(self, name: str, secret: str) -> Token | User | None:
        if not name:
            return self._auth_files.current(self._clock.now()).find_token(secret)
        with self._waiting:
            async with self._checks:
                user = self._find_user(name)
                is_correct = await asyncio.to_thread(users.password_matches, user, secret)
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


async def _read_credentials(request: Request) -> tuple[str, str]:
    """The name and the password of a login; the name is empty for a token."""
    try:
        body = orjson.loads(await read_body(request, MAX_BODY_BYTES))
        if "token" in body:
            return "", str(body["token"])
        name = str(body["name"])
        if not name:
            raise KeyError("name")
        return name, str(body["password"])
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise HTTPException(400, 'the body must be {"name": "…", "password": "…"} or {"token": "…"}') from error
