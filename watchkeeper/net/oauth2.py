"""Tokens of an OAuth 2.0 server, by client credentials (RFC 6749, 4.4): fetched when needed, shared by a whole job.

`prometheus_config` reads the settings of a job's `oauth2`; `Access.authorised` asks for the token before each scrape.
A token is used until shortly before it ends. Names and defaults are Prometheus' (`oauth2` in its configuration).
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from urllib.parse import quote_plus, urlencode

from watchkeeper.errors import CollectError
from watchkeeper.net import http
from watchkeeper.net.access import NO_ACCESS, Access, basic_authorization, read_secret_file

# As golang.org/x/oauth2, which Prometheus uses: a token that ends sooner than this is not used any more.
ENDS_SOON_SECONDS = 10.0
# A server that names no end leaves it to us; an hour is what most grant.
LASTS_SECONDS = 3600.0
MAX_ANSWER_BYTES = 64 * 1024
# All targets of a job wait for one token, each in a place that another target could have: a server that does not answer
# is not waited for long, and not asked again at once.
TIMEOUT_SECONDS = 5.0
REFUSED_SECONDS = 30.0
FORM = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}


@dataclass(slots=True)
class _TokenState:
    token: str = ""
    until: float = 0.0
    problem: str = ""
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """Where tokens come from, and the one in use; two are equal if their settings are."""

    token_url: str
    client_id: str
    client_secret: str = field(default="", repr=False)
    client_secret_file: str = ""
    scopes: tuple[str, ...] = ()
    parameters: tuple[tuple[str, str], ...] = ()
    access: Access = NO_ACCESS
    state: _TokenState = field(default_factory=_TokenState, compare=False, repr=False)

    async def authorization(self) -> str:
        """The value of the Authorization header; CollectError if the server gives no token."""
        async with self.state.asking:
            if asyncio.get_running_loop().time() >= self.state.until:
                await self._renew()
            if self.state.problem:
                raise CollectError(self.state.problem, where=self.token_url)
            return f"Bearer {self.state.token}"

    async def _renew(self) -> None:
        """Fetch a token, or remember for a while why there is none."""
        try:
            self.state.token, lasts = await self._fetch()
            self.state.problem = ""
        except CollectError as error:
            self.state.problem, lasts = error.problem, REFUSED_SECONDS + ENDS_SOON_SECONDS
        self.state.until = asyncio.get_running_loop().time() + max(0.0, lasts - ENDS_SOON_SECONDS)

    async def _fetch(self) -> tuple[str, float]:
        secret = read_secret_file(self.client_secret_file) if self.client_secret_file else self.client_secret
        form = [("grant_type", "client_credentials"), *self.parameters]
        form += [("scope", " ".join(self.scopes))] if self.scopes else []
        name, word = quote_plus(self.client_id), quote_plus(secret)
        response = await self._post(form, {"Authorization": basic_authorization(name, word)})
        if response.status in (400, 401):
            # Some servers read the credentials from the form only (RFC 6749, 2.3.1).
            response = await self._post([*form, ("client_id", self.client_id), ("client_secret", secret)], {})
        if response.status != 200:
            raise CollectError(f"the token server answered {response.status}", where=self.token_url)
        return _read_token(response.body, self.token_url)

    async def _post(self, form: list[tuple[str, str]], headers: dict[str, str]) -> http.Response:
        connection = http.Connection(
            access=self.access, max_body_bytes=MAX_ANSWER_BYTES, timeout_seconds=TIMEOUT_SECONDS
        )
        request = http.Request(
            self.token_url, method="POST", headers={**FORM, **headers}, body=urlencode(form).encode("ascii")
        )
        try:
            return await connection.send(request)
        finally:
            await connection.aclose()


def _read_token(body: bytes, where: str) -> tuple[str, float]:
    try:
        answer = json.loads(body)
        token, lasts = str(answer["access_token"]), float(answer.get("expires_in") or LASTS_SECONDS)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CollectError("the token server's answer holds no access_token", where=where) from error
    if not token or not token.isprintable():
        raise CollectError("the token server's answer holds no usable access_token", where=where)
    return token, lasts
