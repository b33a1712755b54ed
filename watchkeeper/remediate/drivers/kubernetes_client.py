"""Calls to a Kubernetes API server, on connections that stay open, each with a deadline for all of it.

Everything that passes by itself is met here: a connection that was closed between two calls is replaced, a token or
certificate that was renewed is read again, a busy server is asked again when it said so. What is left becomes `NotNow`,
which the driver shows as something that is waited for. All calls of the driver may be repeated, because each of them
states what is wanted: a version, an id, a name. Decision 0015 says why this is no library.
"""

from __future__ import annotations

import http.client
import io
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast
from urllib.parse import urlsplit

from watchkeeper.errors import ActionFailed, CollectError
from watchkeeper.model.fleet import Place
from watchkeeper.readers.clusters import kubeconfig
from watchkeeper.remediate.drivers.performing import NotNow

# A node has some 110 pods of 10 KiB; ten times that is not an answer about one node.
MOST_ANSWER_BYTES = 16 * 1024 * 1024
MOST_IDLE_LINES = 8
# A connection that was closed meanwhile, credentials that were renewed, a busy server: once each, and once more.
MOST_TRIES = 4
JSON = "application/json"
# Of what the API server says about itself, in its own words.
LONGEST_MESSAGE = 300
BROKEN = (OSError, EOFError, http.client.HTTPException, ValueError)


@dataclass(frozen=True, slots=True)
class Answer:
    """`at` is the API server's own time, the one that all its timestamps are in."""

    status: int
    body: Mapping[str, Any] = field(default_factory=dict)
    at: datetime | None = None
    retry_after_seconds: float | None = None

    @property
    def message(self) -> str:
        return str(self.body.get("message") or f"HTTP {self.status}")[:LONGEST_MESSAGE]


@dataclass(frozen=True, slots=True)
class Call:
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
        self._idle: list[_Line] = []
        self._lock = threading.Lock()

    def send(self, call: Call, *, is_throttle: Callable[[Answer], bool] = lambda _: True) -> Answer:
        """The answer, whatever its status; NotNow where there is none. `is_throttle` tells a busy server's 429."""
        until = time.monotonic() + self.timeout_seconds
        needs_fresh = False
        for _ in range(MOST_TRIES):
            answer = self._try(call, None if needs_fresh else self._take(), until=until)
            if answer is None or (answer.status == 401 and not needs_fresh):
                # A new connection also shows a certificate that was renewed.
                needs_fresh = True
            elif answer.status == 401:
                raise self._not_now(call, f"it does not accept our credentials: {answer.message}")
            elif answer.status in (429, 503) and is_throttle(answer):
                self._pause(call, answer, until=until)
            else:
                return answer
        raise self._not_now(call, f"it closed the connection or was busy, {MOST_TRIES} times")

    def close(self) -> None:
        with self._lock:
            lines, self._idle = self._idle, []
        for line in lines:
            line.close()

    def _try(self, call: Call, line: _Line | None, *, until: float) -> Answer | None:
        """One exchange; None where a connection that had been idle turned out to be closed."""
        was_idle = line is not None
        try:
            content = self._written(call)
            line = line or self._open(until)
            answer = line.exchange(content, method=call.method, until=until)
        except TimeoutError as error:
            _end(line)
            raise self._not_now(call, f"no answer within {self.timeout_seconds:g} s") from error
        except BROKEN as error:
            _end(line)
            if was_idle:
                return None
            raise self._not_now(call, str(error) or type(error).__name__) from error
        except CollectError as error:
            _end(line)
            raise self._not_now(call, str(error)) from error
        self._keep(line)
        return answer

    def _pause(self, call: Call, answer: Answer, *, until: float) -> None:
        seconds = 1.0 if answer.retry_after_seconds is None else answer.retry_after_seconds
        if seconds >= until - time.monotonic():
            raise self._not_now(call, f"it is busy and asks for {seconds:g} s of patience: {answer.message}")
        self._wait(seconds)

    def _written(self, call: Call) -> bytes:
        parts = urlsplit(self.server.url)
        body = b"" if call.body is None else json.dumps(call.body).encode()
        headers = {
            "Host": parts.netloc,
            "User-Agent": "watchkeeper",
            "Accept": JSON,
            "Content-Type": call.content_type,
            "Content-Length": str(len(body)),
            **self.server.access.headers(),
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"{call.method} {parts.path}{call.path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body

    def _open(self, until: float) -> _Line:
        parts = urlsplit(self.server.url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        raw = socket.create_connection((host, port), timeout=_left(until))
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if parts.scheme != "https":
                return _Line(raw)
            raw.settimeout(_left(until))
            return _Line(
                self.server.access.tls().wrap_socket(raw, server_hostname=self.server.access.server_name or host)
            )
        except BaseException:
            raw.close()
            raise

    def _take(self) -> _Line | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _keep(self, line: _Line) -> None:
        with self._lock:
            if line.may_stay_open and len(self._idle) < MOST_IDLE_LINES:
                self._idle.append(line)
                return
        line.close()

    def _not_now(self, call: Call, what: str) -> NotNow:
        return NotNow(
            f"the Kubernetes API server did not take {call.method} {call.path.partition('?')[0]}: {what}",
            where=self.server.url,
            remedy="It is asked again",
        )


class _Line:
    """One open connection. Its time is counted for a whole exchange, not for each piece that arrives."""

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        self._until = 0.0
        self.may_stay_open = True

    def exchange(self, content: bytes, *, method: str, until: float) -> Answer:
        self._until = until
        self._socket.settimeout(_left(until))
        self._socket.sendall(content)
        # It asks for nothing of a socket but makefile.
        response = http.client.HTTPResponse(cast(socket.socket, self), method=method)
        with response:
            response.begin()
            body = response.read(MOST_ANSWER_BYTES + 1)
            if len(body) > MOST_ANSWER_BYTES:
                raise ValueError(f"the answer has more than {MOST_ANSWER_BYTES:,} bytes")
            self.may_stay_open = not response.will_close
            return _answer(response, body)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Pieces(self))

    def receive(self, buffer: Any) -> int:
        self._socket.settimeout(_left(self._until))
        return self._socket.recv_into(buffer)

    def close(self) -> None:
        self._socket.close()


class _Pieces(io.RawIOBase):
    def __init__(self, line: _Line) -> None:
        self._line = line

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._line.receive(buffer)


def _end(line: _Line | None) -> None:
    if line is not None:
        line.close()


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _answer(response: http.client.HTTPResponse, body: bytes) -> Answer:
    try:
        found = json.loads(body) if body else {}
    except (ValueError, RecursionError):
        # A proxy, or the throttle in front of the API, answers in plain text.
        found = {"message": body[:LONGEST_MESSAGE].decode("utf-8", "replace").strip()}
    patience = response.getheader("Retry-After", "")
    return Answer(
        response.status,
        found if isinstance(found, dict) else {},
        at=_time(response.getheader("Date")),
        retry_after_seconds=float(patience) if patience.isdigit() else None,
    )


def _time(text: str | None) -> datetime | None:
    try:
        return parsedate_to_datetime(text) if text else None
    except ValueError:
        return None


def good(answer: Answer, place: Place) -> Answer:
    """An answer that means yes; NotNow where the server is in trouble, ActionFailed where it means no."""
    if answer.status < 300:
        return answer
    where = place.node or str(place)
    if answer.status >= 500 or answer.status == 409:
        raise NotNow(f"the Kubernetes API server cannot do it now: {answer.message}", where=where)
    if answer.status == 403:
        raise ActionFailed(
            answer.message,
            where=where,
            now="Nothing was changed by this call",
            remedy="docs/howto/repair-kubernetes.md has the rights that the hub needs",
        )
    raise ActionFailed(f"the Kubernetes API server said no: {answer.message}", where=where)
