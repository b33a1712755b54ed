"""Fetch OAuth 2.0 tokens with client credentials (RFC 6749, 4.4); all targets of a job share one token.

A token is used until shortly before it expires. Names and defaults are Prometheus' (`oauth2` in its configuration).
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from urllib.parse import quote_plus, urlencode

from watchkeeper.errors import CollectError
from watchkeeper.net import http
from watchkeeper.net.access import NO_ACCESS, Access, basic_authorization, read_secret_file

# As in golang.org/x/oauth2, which Prometheus uses: a token that expires sooner than this is renewed.
EXPIRY_MARGIN_SECONDS = 10.0
# For a server that sends no expires_in; most servers grant an hour.
DEFAULT_LIFETIME_SECONDS = 3600.0
MAX_ANSWER_BYTES = 64 * 1024
# All targets of a job wait for one token, and each occupies a scrape slot: the timeout is short, and a failure is not
# retried at once.
TIMEOUT_SECONDS = 5.0
RETRY_SECONDS = 30.0
FORM_HEADERS = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}


@dataclass(slots=True)
class _TokenState:
    token: str = ""
    expires_at: float = 0.0
    problem: str = ""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """The settings of a token server, and the current token; equal if the settings are equal."""

    token_url: str
    client_id: str
    client_secret: str = field(default="", repr=False)
    client_secret_file: str = ""
    scopes: tuple[str, ...] = ()
    parameters: tuple[tuple[str, str], ...] = ()
    access: Access = NO_ACCESS
    state: _TokenState = field(default_factory=_TokenState, compare=False, repr=False)

    async def authorization(self) -> str:
        """The value of the Authorization header; CollectError if the server issues no token."""
        async with self.state.lock:
            if asyncio.get_running_loop().time() >= self.state.expires_at:
                await self._renew()
            if self.state.problem:
                raise CollectError(self.state.problem, where=self.token_url)
            return f"Bearer {self.state.token}"

    async def _renew(self) -> None:
        """Fetch a token, or keep the problem until the next retry."""
        try:
            self.state.token, lifetime_seconds = await self._fetch()
            self.state.problem = ""
        except CollectError as error:
            self.state.problem, lifetime_seconds = error.problem, RETRY_SECONDS + EXPIRY_MARGIN_SECONDS
        self.state.expires_at = asyncio.get_running_loop().time() + max(0.0, lifetime_seconds - EXPIRY_MARGIN_SECONDS)

    async def _fetch(self) -> tuple[str, float]:
        secret = read_secret_file(self.client_secret_file) if self.client_secret_file else self.client_secret
        form = [("grant_type", "client_credentials"), *self.parameters]
        form += [("scope", " ".join(self.scopes))] if self.scopes else []
        authorization = basic_authorization(quote_plus(self.client_id), quote_plus(secret))
        response = await self._post(form, {"Authorization": authorization})
        if response.status in (400, 401):
            # Some servers read the credentials from the form only (RFC 6749, 2.3.1).
            response = await self._post([*form, ("client_id", self.client_id), ("client_secret", secret)], {})
        if response.status != 200:
            raise CollectError(f"the token server answered {response.status}", where=self.token_url)
        return _read_token(response.body, self.token_url)

    async def _post(self, form: list[tuple[str, str]], headers: dict[str, str]) -> http.HttpResponse:
        client = http.Connection(access=self.access, max_body_bytes=MAX_ANSWER_BYTES, timeout_seconds=TIMEOUT_SECONDS)
        request = http.HttpRequest(
            self.token_url, method="POST", headers={**FORM_HEADERS, **headers}, body=urlencode(form).encode("ascii")
        )
        try:
            return await client.send(request)
        finally:
            await client.aclose()


def _read_token(body: bytes, where: str) -> tuple[str, float]:
    try:
        answer = json.loads(body)
        token = str(answer["access_token"])
        lifetime_seconds = float(answer.get("expires_in") or DEFAULT_LIFETIME_SECONDS)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CollectError("the token server's answer has no access_token", where=where) from error
    if not token or not token.isprintable():
        raise CollectError("the token server's answer has no valid access_token", where=where)
    return token, lifetime_seconds
