"""Call a Kubernetes API server over persistent connections, with one deadline per call.

This module replaces closed connections, reads renewed tokens and certificates again, and retries a busy server after
its Retry-After. Every call of the driver may be repeated, because it names a version, an id or a name. Decision 0015
has the reasons for not using a library.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

from watchkeeper.errors import ActionFailed, CollectError
from watchkeeper.model.fleet import Place
from watchkeeper.net import sync_http
from watchkeeper.readers.clusters import kubeconfig
from watchkeeper.remediate.drivers.cluster_driver import ClusterUnavailable

# A node has some 110 pods of 10 KiB; a response about one node is less than ten times that.
MAX_RESPONSE_BYTES = 16 * 1024 * 1024
MAX_IDLE_CONNECTIONS = 8
# The first call, one with renewed credentials, and two after a busy server.
MAX_TRIES = 4
JSON = "application/json"
# Characters of a message of the API server.
MAX_MESSAGE_LENGTH = 300
# Kubernetes allows 1,024 characters in the message of an event.
MAX_EVENT_MESSAGE_LENGTH = 1000


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """A response; `at` is the time of the API server's clock."""

    status: int
    body: Mapping[str, Any] = field(default_factory=dict)
    at: datetime | None = None
    retry_after_seconds: float | None = None

    @property
    def message(self) -> str:
        return str(self.body.get("message") or f"HTTP {self.status}")[:MAX_MESSAGE_LENGTH]


IsThrottle = Callable[[ApiResponse], bool]


@dataclass(frozen=True, slots=True)
class ApiCall:
    method: str
    path: str
    body: Mapping[str, Any] | None = None
    content_type: str = JSON

    def __str__(self) -> str:
        """Format the call for the dry run."""
        body_text = "" if self.body is None else " " + json.dumps(self.body, separators=(",", ":"), ensure_ascii=False)
        return f"{self.method} {self.path}{body_text}"


def format_timestamp(at: datetime | None) -> str | None:
    return None if at is None else at.strftime("%Y-%m-%dT%H:%M:%SZ")


def build_object_event(
    name: str, involved: Mapping[str, str], *, reason: str, message: str, is_warning: bool, at: datetime | None
) -> ApiCall:
    """Build the call that creates an Event about an object; the API server refuses a second one of the same name."""
    namespace = involved.get("namespace", "default")
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": involved,
        "reason": reason,
        "message": message[:MAX_EVENT_MESSAGE_LENGTH],
        "type": "Warning" if is_warning else "Normal",
        "source": {"component": "watchkeeper"},
        "reportingComponent": "watchkeeper",
        "reportingInstance": "watchkeeper",
        "firstTimestamp": format_timestamp(at),
        "lastTimestamp": format_timestamp(at),
        "count": 1,
    }
    return ApiCall("POST", f"/api/v1/namespaces/{quote(namespace, safe='')}/events", body)


class ApiClient:
    """Thread-safe; each call in progress has its own connection."""

    def __init__(
        self, server: kubeconfig.ApiServer, *, timeout_seconds: float = 5.0, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.server = server
        self.timeout_seconds = timeout_seconds
        self._sleep = sleep
        limits = sync_http.HttpLimits(total_seconds=timeout_seconds, answer_bytes=MAX_RESPONSE_BYTES)
        access, max_idle = server.access, MAX_IDLE_CONNECTIONS
        self._client = sync_http.HttpClient(server.url, limits=limits, access=access, max_idle=max_idle)

    def send(self, call: ApiCall, *, is_throttle: IsThrottle = lambda _: True) -> ApiResponse:
        """Return the response of any status; ClusterUnavailable if there is none.

        `is_throttle` tells whether a 429 or 503 comes from a busy server, so that it is retried.
        """
        deadline = time.monotonic() + self.timeout_seconds
        use_new_connection = False
        for _ in range(MAX_TRIES):
            response = self._send_once(call, deadline=deadline, use_new_connection=use_new_connection)
            if response.status == 401 and not use_new_connection:
                # A new connection also shows a certificate that was renewed.
                use_new_connection = True
            elif response.status == 401:
                raise self._build_unavailable(call, f"it rejected our credentials: {response.message}")
            elif response.status in (429, 503) and is_throttle(response):
                seconds = 1.0 if response.retry_after_seconds is None else response.retry_after_seconds
                if seconds >= deadline - time.monotonic():
                    raise self._build_unavailable(call, f"it is busy, Retry-After {seconds:g} s: {response.message}")
                self._sleep(seconds)
            else:
                return response
        raise self._build_unavailable(call, f"it was busy in {MAX_TRIES} tries")

    def close(self) -> None:
        self._client.close()

    def _send_once(self, call: ApiCall, *, deadline: float, use_new_connection: bool) -> ApiResponse:
        content = None if call.body is None else json.dumps(call.body).encode()
        try:
            headers = {"Accept": JSON, "Content-Type": call.content_type, **self.server.access.authorization_header()}
            request = sync_http.Request(call.method, call.path, content, headers)
            return _parse_response(self._client.send(request, deadline=deadline, use_new_connection=use_new_connection))
        except sync_http.NoAnswer as error:
            raise self._build_unavailable(call, error.problem) from error
        except CollectError as error:
            raise self._build_unavailable(call, str(error)) from error

    def _build_unavailable(self, call: ApiCall, problem: str) -> ClusterUnavailable:
        return ClusterUnavailable(
            f"{call.method} {call.path.partition('?')[0]} to the Kubernetes API server failed: {problem}",
            where=self.server.url,
            remedy="It is retried",
        )


def _parse_response(response: sync_http.Response) -> ApiResponse:
    try:
        body = json.loads(response.body) if response.body else {}
    except (ValueError, RecursionError):
        # A proxy or rate limiter in front of the API server answers in plain text.
        body = {"message": response.body[:MAX_MESSAGE_LENGTH].decode("utf-8", "replace").strip()}
    retry_after = response.headers.get("retry-after", "")
    return ApiResponse(
        response.status,
        body if isinstance(body, dict) else {},
        at=_parse_date(response.headers.get("date")),
        retry_after_seconds=float(retry_after) if retry_after.isdigit() else None,
    )


def _parse_date(text: str | None) -> datetime | None:
    try:
        return parsedate_to_datetime(text) if text else None
    except ValueError:
        return None


def require_success(response: ApiResponse, place: Place) -> ApiResponse:
    """Return a successful response; ClusterUnavailable if a retry may help, else ActionFailed."""
    if response.status < 300:
        return response
    where = place.node or str(place)
    if response.status >= 500 or response.status == 409:
        raise ClusterUnavailable(f"the Kubernetes API server failed: {response.message}", where=where)
    if response.status == 403:
        raise ActionFailed(
            response.message,
            where=where,
            now="Nothing was changed by this call",
            remedy="Grant the permissions of docs/howto/repair-kubernetes.md",
        )
    raise ActionFailed(f"the Kubernetes API server refused: {response.message}", where=where)
