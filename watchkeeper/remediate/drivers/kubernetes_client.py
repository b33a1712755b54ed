"""Calls to a Kubernetes API server, on connections that stay open, each with a deadline for all of it.

Everything that passes by itself is met here: a connection that was closed between two calls is replaced, a token or
certificate that was renewed is read again, a busy server is asked again when it said so. What is left becomes `NotNow`,
which the driver shows as something that is waited for. All calls of the driver may be repeated, because each of them
states what is wanted: a version, an id, a name. Decision 0015 says why this is no library.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from watchkeeper.errors import ActionFailed, CollectError
from watchkeeper.model.fleet import Place
from watchkeeper.net import sync_http
from watchkeeper.readers.clusters import kubeconfig
from watchkeeper.remediate.drivers.cluster_driver import ClusterUnavailable

# A node has some 110 pods of 10 KiB; ten times that is not an answer about one node.
MOST_ANSWER_BYTES = 16 * 1024 * 1024
MOST_IDLE_LINES = 8
# Credentials that were renewed, a server that is busy twice, and once more.
MOST_TRIES = 4
JSON = "application/json"
# Of what the API server says about itself, in its own words.
LONGEST_MESSAGE = 300


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """`at` is the API server's own time, the one that all its timestamps are in."""

    status: int
    body: Mapping[str, Any] = field(default_factory=dict)
    at: datetime | None = None
    retry_after_seconds: float | None = None

    @property
    def message(self) -> str:
        return str(self.body.get("message") or f"HTTP {self.status}")[:LONGEST_MESSAGE]


@dataclass(frozen=True, slots=True)
class ApiCall:
    method: str
    path: str
    body: Mapping[str, Any] | None = None
    content_type: str = JSON

    def __str__(self) -> str:
        """As a person would write it down; the dry run shows it."""
        shown = "" if self.body is None else " " + json.dumps(self.body, separators=(",", ":"), ensure_ascii=False)
        return f"{self.method} {self.path}{shown}"


class ApiClient:
    """Threads may call at the same time; each has a connection of its own for as long as the call takes."""

    def __init__(
        self,
        server: kubeconfig.ApiServer,
        *,
        timeout_seconds: float = 5.0,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self.server = server
        self.timeout_seconds = timeout_seconds
        self._wait = wait
        limits = sync_http.HttpLimits(total_seconds=timeout_seconds, answer_bytes=MOST_ANSWER_BYTES)
        self._client = sync_http.HttpClient(server.url, limits=limits, access=server.access, max_idle=MOST_IDLE_LINES)

    def send(self, call: ApiCall, *, is_throttle: Callable[[ApiResponse], bool] = lambda _: True) -> ApiResponse:
        """The answer, whatever its status; NotNow where there is none. `is_throttle` tells a busy server's 429."""
        until = time.monotonic() + self.timeout_seconds
        needs_fresh = False
        for _ in range(MOST_TRIES):
            answer = self._ask(call, until=until, needs_fresh=needs_fresh)
            if answer.status == 401 and not needs_fresh:
                # A new connection also shows a certificate that was renewed.
                needs_fresh = True
            elif answer.status == 401:
                raise self._not_now(call, f"it does not accept our credentials: {answer.message}")
            elif answer.status in (429, 503) and is_throttle(answer):
                self._pause(call, answer, until=until)
            else:
                return answer
        raise self._not_now(call, f"it was busy, {MOST_TRIES} times")

    def close(self) -> None:
        self._client.close()

    def _ask(self, call: ApiCall, *, until: float, needs_fresh: bool) -> ApiResponse:
        content = None if call.body is None else json.dumps(call.body).encode()
        try:
            headers = {"Accept": JSON, "Content-Type": call.content_type, **self.server.access.authorization_header()}
            request = sync_http.Request(call.method, call.path, content, headers)
            return _answer(self._client.send(request, deadline=until, use_new_connection=needs_fresh))
        except sync_http.NoAnswer as error:
            raise self._not_now(call, error.problem) from error
        except CollectError as error:
            raise self._not_now(call, str(error)) from error

    def _pause(self, call: ApiCall, answer: ApiResponse, *, until: float) -> None:
        seconds = 1.0 if answer.retry_after_seconds is None else answer.retry_after_seconds
        if seconds >= until - time.monotonic():
            raise self._not_now(call, f"it is busy and asks for {seconds:g} s of patience: {answer.message}")
        self._wait(seconds)

    def _not_now(self, call: ApiCall, what: str) -> ClusterUnavailable:
        return ClusterUnavailable(
            f"the Kubernetes API server did not take {call.method} {call.path.partition('?')[0]}: {what}",
            where=self.server.url,
            remedy="It is asked again",
        )


def _answer(response: sync_http.Response) -> ApiResponse:
    try:
        found = json.loads(response.body) if response.body else {}
    except (ValueError, RecursionError):
        # A proxy, or the throttle in front of the API, answers in plain text.
        found = {"message": response.body[:LONGEST_MESSAGE].decode("utf-8", "replace").strip()}
    patience = response.headers.get("retry-after", "")
    return ApiResponse(
        response.status,
        found if isinstance(found, dict) else {},
        at=_time(response.headers.get("date")),
        retry_after_seconds=float(patience) if patience.isdigit() else None,
    )


def _time(text: str | None) -> datetime | None:
    try:
        return parsedate_to_datetime(text) if text else None
    except ValueError:
        return None


def good(answer: ApiResponse, place: Place) -> ApiResponse:
    """An answer that means yes; NotNow where the server is in trouble, ActionFailed where it means no."""
    if answer.status < 300:
        return answer
    where = place.node or str(place)
    if answer.status >= 500 or answer.status == 409:
        raise ClusterUnavailable(f"the Kubernetes API server cannot do it now: {answer.message}", where=where)
    if answer.status == 403:
        raise ActionFailed(
            answer.message,
            where=where,
            now="Nothing was changed by this call",
            remedy="docs/howto/repair-kubernetes.md has the rights that the hub needs",
        )
    raise ActionFailed(f"the Kubernetes API server said no: {answer.message}", where=where)
