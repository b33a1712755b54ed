"""Requests to one server over kept connections, with deadline, retries and a limit on the answer.

The engine, the sender and the reader of a server's rules each have a `Client`. It blocks: the hub calls engines
in worker threads, and each of them has a connection of its own. Every request that goes through here
may be repeated without harm, remote write included, because a server that has a sample already keeps it.
Credentials are read from their files for each request, so that a rotated one is used at once; they appear in
no message.
"""

from __future__ import annotations

import random
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from email.utils import parsedate_to_datetime
from pathlib import Path

from watchkeeper import __version__, errors
from watchkeeper.config import settings
from watchkeeper.kit import backoff
from watchkeeper.net import access as net_access
from watchkeeper.net import sync_http
from watchkeeper.net.sync_http import Request, Response

__all__ = ["RETRY_BACKOFF", "Request", "Response", "ServerClient"]

# Someone else's trouble that may be over in a moment: too many requests, and a proxy without its server.
PASSING = frozenset({429, 502, 503, 504})
RETRY_BACKOFF = backoff.Backoff(0.2, 10.0)
IDLE_CONNECTIONS = 8


class ServerClient:
    """One server; any number of threads may `send` at the same time."""

    def __init__(
        self,
        access: settings.QuerySettings,
        url: str,
        *,
        key: str = "query.url",
        pause: Callable[[float], object] | None = None,
    ) -> None:
        # What stands behind a question mark (VictoriaMetrics' extra_label) goes with each request and into no message.
        address, mark, query = url.partition("?")
        self.url = address.rstrip("/")
        self._access = access
        self._key = key
        self._closed = threading.Event()
        self._pause = pause or self._closed.wait
        self._headers = dict(_header(line) for line in access.headers)
        limits = sync_http.HttpLimits(access.timeout_seconds, answer_bytes=access.max_answer_mebibytes * 1024 * 1024)
        self._client = sync_http.HttpClient(
            f"{self.url}{mark}{query}", limits=limits, access=_certificates(access, url), max_idle=IDLE_CONNECTIONS
        )

    def send(self, request: Request) -> Response:
        """The server's answer, whatever its status; StoreError when there is none within the time and retries."""
        deadline = time.monotonic() + self._access.timeout_seconds
        tries = self._access.retries + 1
        for turn in range(1, tries + 1):
            response, wait, may_pass = None, None, True
            try:
                response = self._client.send(replace(request, headers=self._all_headers(request)), deadline=deadline)
                if not _will_pass(response):
                    return response
                wait = _retry_after(response.headers)
            except sync_http.ResponseTooLarge as error:
                raise errors.QueryLimit(
                    error.problem, remedy="Ask for fewer series or steps, or raise query.max_answer_mebibytes"
                ) from error
            except sync_http.NoAnswer as error:
                problem = error
                may_pass = not error.is_timeout and not isinstance(error.__cause__, ssl.SSLCertVerificationError)
            pause = wait if wait is not None else RETRY_BACKOFF.delay_seconds(turn) * random.uniform(0.5, 1.0)
            is_last = turn == tries or time.monotonic() + pause >= deadline
            if is_last or self._closed.is_set() or not may_pass:
                if response is not None:
                    return response
                raise self._error(problem.problem, turn) from problem
            self._pause(pause)
        raise AssertionError("the last turn returns or raises")

    def close(self) -> None:
        """Let the connections go, and let nobody wait for another try."""
        self._closed.set()
        self._client.close()

    def _error(self, problem: str, turn: int) -> errors.StoreError:
        tried = "once" if turn == 1 else f"{turn} times"
        return errors.StoreError(
            problem, where=self.url, now=f"It was tried {tried}", remedy=f"Check {self._key} and that the server is up"
        )

    def _all_headers(self, request: Request) -> dict[str, str]:
        access = self._access
        headers = {"User-Agent": f"watchkeeper/{__version__}", "Accept-Encoding": "gzip", **self._headers}
        if access.headers_file:
            headers |= dict(_header(line) for line in _secret(access.headers_file).splitlines() if line.strip())
        if access.tenant:
            headers["X-Scope-OrgID"] = access.tenant
        if access.bearer_token_file:
            headers["Authorization"] = f"Bearer {_one_line(access.bearer_token_file)}"
        elif access.username:
            password = _one_line(access.password_file) if access.password_file else ""
            headers["Authorization"] = net_access.basic_authorization(access.username, password)
        return headers | dict(request.headers)


def _will_pass(response: Response) -> bool:
    """True where a repetition may help. Prometheus also answers 503 to a query that ran out of time: it would again."""
    return response.status in PASSING and b'"errorType":"timeout"' not in response.body[:1000]


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks for; a date counts from the server's own clock."""
    text = headers.get("retry-after", "")
    if text.isascii() and text.isdecimal():
        return min(float(text), 3600.0)
    try:
        asked = parsedate_to_datetime(text) - parsedate_to_datetime(headers.get("date", ""))
    except (ValueError, TypeError):
        return None
    return max(asked.total_seconds(), 0.0)


def _certificates(access: settings.QuerySettings, url: str) -> net_access.Access:
    files = access.ca_file, access.client_cert_file, access.client_key_file
    ca, cert, key = (path or "" for path in files)
    found = net_access.Access(
        ca_file=ca, cert_file=cert, key_file=key, insecure_skip_verify=access.insecure_skip_verify
    )
    if not url.startswith("https:"):
        return found
    try:
        found.tls_context()
    except errors.CollectError as error:
        raise errors.StartRefused(
            f"the certificates for the server cannot be read: {error.__cause__}",
            where=", ".join(filter(None, files)),
            remedy="Name readable PEM files in query.ca_file, query.client_cert_file and query.client_key_file",
        ) from error
    return found


def _header(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()


def _secret(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise errors.StoreError(
            f"the credentials cannot be read: {what}", where=path, remedy="Name a readable file"
        ) from error


def _one_line(path: str) -> str:
    text = _secret(path)
    if not text or not text.isascii() or not text.isprintable():
        raise errors.StoreError("is not one line of plain characters", where=path, remedy="Put only the secret there")
    return text
