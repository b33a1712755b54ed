"""An HTTP client for one server, with persistent connections, deadline, retries and a response size limit.

It blocks: the hub calls engines in worker threads, and each thread has its own connection. Every request is safe to
retry, including remote write, because a server ignores a sample that it already has.
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

# Errors that may pass soon: too many requests, and a proxy whose server is down.
RETRYABLE_STATUSES = frozenset({429, 502, 503, 504})
RETRY_BACKOFF = backoff.Backoff(0.2, 10.0)
IDLE_CONNECTIONS = 8


class ServerClient:
    """A client for one server; any number of threads may call `send` at the same time."""

    def __init__(
        self,
        access: settings.QuerySettings,
        url: str,
        *,
        key: str = "query.url",
        pause: Callable[[float], object] | None = None,
    ) -> None:
        # The query string (VictoriaMetrics' extra_label) is part of each request, and of no message.
        address, separator, query = url.partition("?")
        self.url = address.rstrip("/")
        self._access = access
        self._key = key
        self._closed = threading.Event()
        self._pause = pause or self._closed.wait
        self._headers = dict(_parse_header(line) for line in access.headers)
        limits = sync_http.HttpLimits(access.timeout_seconds, answer_bytes=access.max_answer_mebibytes * 1024 * 1024)
        self._client = sync_http.HttpClient(
            f"{self.url}{separator}{query}", limits=limits, access=_build_access(access, url), max_idle=IDLE_CONNECTIONS
        )

    def send(self, request: Request) -> Response:
        """Send a request and return the response with any status; StoreError after the last retry or the deadline."""
        deadline = time.monotonic() + self._access.timeout_seconds
        max_attempts = self._access.retries + 1
        for attempt in range(1, max_attempts + 1):
            response, retry_after, may_retry = None, None, True
            try:
                response = self._client.send(replace(request, headers=self._build_headers(request)), deadline=deadline)
                # Whether a retry may help. It does not help a query that timed out, for which Prometheus returns 503
                # too.
                if not (response.status in RETRYABLE_STATUSES and b'"errorType":"timeout"' not in response.body[:1000]):
                    return response
                retry_after = _retry_after(response.headers)
            except sync_http.ResponseTooLarge as error:
                raise errors.QueryLimit(
                    error.problem, remedy="Request fewer series or steps, or raise query.max_answer_mebibytes"
                ) from error
            except sync_http.NoAnswer as error:
                problem = error
                may_retry = not error.is_timeout and not isinstance(error.__cause__, ssl.SSLCertVerificationError)
            pause = (
                retry_after
                if retry_after is not None
                else RETRY_BACKOFF.delay_seconds(attempt) * random.uniform(0.5, 1.0)
            )
            is_last = attempt == max_attempts or time.monotonic() + pause >= deadline
            if is_last or self._closed.is_set() or not may_retry:
                if response is not None:
                    return response
                tried = "1 attempt" if attempt == 1 else f"{attempt} attempts"
                raise errors.StoreError(
                    problem.problem,
                    where=self.url,
                    now=f"Failed after {tried}",
                    remedy=f"Check {self._key} and that the server is up",
                ) from problem
            self._pause(pause)
        raise AssertionError("the last attempt returns or raises")

    def close(self) -> None:
        self._closed.set()
        self._client.close()

    def _build_headers(self, request: Request) -> dict[str, str]:
        access = self._access
        headers = {"User-Agent": f"watchkeeper/{__version__}", "Accept-Encoding": "gzip", **self._headers}
        if access.headers_file:
            headers |= dict(
                _parse_header(line) for line in _read_secret(access.headers_file).splitlines() if line.strip()
            )
        if access.tenant:
            headers["X-Scope-OrgID"] = access.tenant
        if access.bearer_token_file:
            headers["Authorization"] = f"Bearer {_read_one_line(access.bearer_token_file)}"
        elif access.username:
            password = _read_one_line(access.password_file) if access.password_file else ""
            headers["Authorization"] = net_access.basic_authorization(access.username, password)
        return headers | dict(request.headers)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of the Retry-After header; a date is compared with the server's own clock."""
    text = headers.get("retry-after", "")
    if text.isascii() and text.isdecimal():
        return min(float(text), 3600.0)
    try:
        delay = parsedate_to_datetime(text) - parsedate_to_datetime(headers.get("date", ""))
    except (ValueError, TypeError):
        return None
    return max(delay.total_seconds(), 0.0)


def _build_access(access: settings.QuerySettings, url: str) -> net_access.Access:
    files = access.ca_file, access.client_cert_file, access.client_key_file
    ca, cert, key = (path or "" for path in files)
    tls = net_access.Access(ca_file=ca, cert_file=cert, key_file=key, insecure_skip_verify=access.insecure_skip_verify)
    if not url.startswith("https:"):
        return tls
    try:
        tls.tls_context()
    except errors.CollectError as error:
        raise errors.StartRefused(
            f"the certificates for the server cannot be read: {error.__cause__}",
            where=", ".join(filter(None, files)),
            remedy="Set query.ca_file, query.client_cert_file and query.client_key_file to readable PEM files",
        ) from error
    return tls


def _parse_header(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()


def _read_secret(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise errors.StoreError(
            f"the credentials cannot be read: {reason}", where=path, remedy="Set the path of a readable file"
        ) from error


def _read_one_line(path: str) -> str:
    text = _read_secret(path)
    if not text or not text.isascii() or not text.isprintable():
        raise errors.StoreError(
            "the file is not one line of printable ASCII characters", where=path, remedy="Write only the secret there"
        )
    return text
