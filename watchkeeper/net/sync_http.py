"""A small HTTP/1.1 client for threads, with a deadline for the whole exchange and a size limit for the answer.

It uses http.client instead of urllib3, because the command line works without the hub's libraries. A socket timeout
starts again with each byte: here the deadline covers everything from the first connection attempt to the last byte,
except name resolution.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import math
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast
from urllib.parse import urljoin, urlsplit

from watchkeeper.errors import CollectError, error_reason
from watchkeeper.net import addresses
from watchkeeper.net.access import NO_ACCESS, Access, proxy_headers

CHUNK_BYTES = 256 * 1024
REDIRECTS = frozenset({301, 302, 303, 307, 308})
MAX_REDIRECTS = 10
MAX_BODY_BYTES = 64 * 1024 * 1024
# The errors of a closed or failed connection, in all layers.
CONNECTION_ERRORS = (OSError, EOFError, http.client.HTTPException, zlib.error)


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of an exchange: `total_seconds` for all of it, `idle_seconds` between bytes, `answer_bytes` of body."""

    total_seconds: float = 30.0
    idle_seconds: float = math.inf
    answer_bytes: int = MAX_BODY_BYTES


@dataclass(frozen=True, slots=True)
class Request:
    """`path` is appended to the path of the client's URL."""

    method: str
    path: str = ""
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response:
    """Header names are lower case; the body is decompressed."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class NoAnswer(CollectError):
    """There is no answer, or an incomplete one; `is_timeout` if a time limit passed."""

    is_timeout = False


class ResponseTooLarge(NoAnswer):
    """The answer is larger than the limit."""


class InvalidAddress(CollectError):
    """A URL is invalid."""


class LocalAddressRefused(CollectError):
    """A name resolved to an address of this machine."""


class HttpClient:
    """A client of one server; several threads may use it at the same time, each over its own connection."""

    def __init__(
        self,
        url: str,
        *,
        limits: HttpLimits = HttpLimits(),  # noqa: B008 (frozen)
        access: Access = NO_ACCESS,
        max_idle: int = 0,
        allows_local_address: bool = True,
    ) -> None:
        try:
            self._parts = urlsplit(url)
            self._port = self._parts.port or (443 if self._parts.scheme == "https" else 80)
        except ValueError as error:
            raise InvalidAddress(f"is not a valid URL: {error}", where=url[:60]) from error
        self._host = self._parts.hostname or ""
        self._netloc = self._parts.netloc.rpartition("@")[2]
        self.where = f"{self._parts.scheme}://{self._netloc}"
        self.limits = limits
        self._access = access
        self._max_idle = max_idle
        self._allows_local_address = allows_local_address
        self._proxy = access.proxy_for(self._host)
        self._idle: list[_Connection] = []
        self._is_closed = False
        self._lock = threading.Lock()

    def send(self, request: Request, *, deadline: float = math.inf, use_new_connection: bool = False) -> Response:
        """The whole answer, whatever its status; NoAnswer if it is not complete at `deadline`, by `time.monotonic`."""
        with self.open(request, deadline=deadline, use_new_connection=use_new_connection) as answer:
            headers = {name.lower(): value for name, value in answer.getheaders()}
            return Response(answer.status, headers, self._read_body(answer, headers))

    @contextlib.contextmanager
    def open(
        self, request: Request, *, deadline: float = math.inf, use_new_connection: bool = False
    ) -> Iterator[http.client.HTTPResponse]:
        """An answer whose body you read; any failure before its end is a NoAnswer."""
        deadline = min(deadline, time.monotonic() + self.limits.total_seconds)
        connection = None if use_new_connection else self._take_idle()
        try:
            try:
                is_reused = connection is not None
                connection = connection or self._connect(deadline)
                answer = self._exchange(connection, request, deadline=deadline)
            except CONNECTION_ERRORS as error:
                if connection is None or not is_reused or isinstance(error, TimeoutError):
                    raise
                # The server has closed an idle connection; a new one may work.
                connection.close()
                connection = self._connect(deadline)
                answer = self._exchange(connection, request, deadline=deadline)
            with answer:
                yield answer
                if answer.isclosed() and not answer.will_close:
                    self._keep_idle(connection)
                    connection = None
        except CONNECTION_ERRORS as error:
            raise self._no_answer(error, deadline) from error
        finally:
            if connection is not None:
                connection.close()

    def close(self) -> None:
        """Close the idle connections; requests in progress close theirs when they end."""
        with self._lock:
            self._is_closed, idle, self._idle = True, self._idle, []
        for connection in idle:
            connection.close()

    def _take_idle(self) -> _Connection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _keep_idle(self, connection: _Connection) -> None:
        with self._lock:
            if not self._is_closed and len(self._idle) < self._max_idle:
                self._idle.append(connection)
                return
        connection.close()

    def _no_answer(self, error: BaseException, deadline: float) -> NoAnswer:
        if not isinstance(error, TimeoutError):
            return NoAnswer(_describe_error(error), where=self.where)
        is_past_deadline = time.monotonic() >= deadline
        subject = "whole answer" if is_past_deadline and self.limits.idle_seconds < math.inf else "answer"
        seconds = self.limits.total_seconds if is_past_deadline else self.limits.idle_seconds
        timeout = NoAnswer(f"no {subject} within {seconds:g} s", where=self.where)
        timeout.is_timeout = True
        return timeout

    def _connect(self, deadline: float) -> _Connection:
        proxy = urlsplit(self._proxy)
        if self._parts.scheme == "unix":
            return _Connection([(socket.AF_UNIX, self._parts.path)], self.limits.idle_seconds, deadline)
        host, port = (proxy.hostname or "", proxy.port or 80) if self._proxy else (self._host, self._port)
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        candidates = [(family, address) for family, *_, address in resolved]
        connection = _Connection(candidates, self.limits.idle_seconds, deadline)
        try:
            if not self._allows_local_address and addresses.is_unexpectedly_local(host, connection.peer_address):
                raise LocalAddressRefused(
                    f"its name resolves to {connection.peer_address}, an address of this machine; if you mean it, write"
                    " the address instead of the name",
                    where=self.where,
                )
            if self._parts.scheme == "https":
                if self._proxy:
                    self._open_tunnel(connection)
                connection.encrypt(self._access.tls_context(), self._access.server_name or self._host)
            return connection
        except BaseException:
            connection.close()
            raise

    def _open_tunnel(self, connection: _Connection) -> None:
        target = addresses.join_port(self._host, self._port)
        answer = connection.request("CONNECT", target, {"Host": target, **proxy_headers(self._proxy)})
        if answer.status >= 300:
            raise NoAnswer(f"the proxy answered {answer.status} to CONNECT {target}", where=self.where)

    def _exchange(self, connection: _Connection, request: Request, *, deadline: float) -> http.client.HTTPResponse:
        connection.deadline = deadline
        is_unix, headers = self._parts.scheme == "unix", {"User-Agent": "watchkeeper", **request.headers}
        base = "" if is_unix else self._parts.path
        target = f"{base.rstrip('/')}{request.path}" if request.path else base or "/"
        if self._parts.query:
            target += f"{'&' if '?' in target else '?'}{self._parts.query}"
        if self._proxy and self._parts.scheme == "http":
            target, headers = f"{self.where}{target}", {**headers, **proxy_headers(self._proxy)}
        headers["Host"] = self._netloc or "localhost"
        return connection.request(request.method, target, headers, request.body)

    def _read_body(self, answer: http.client.HTTPResponse, headers: Mapping[str, str]) -> bytes:
        limit = self.limits.answer_bytes
        decompressor = zlib.decompressobj(wbits=31) if headers.get("content-encoding") == "gzip" else None
        parts, size = [], 0
        while chunk := answer.read1(CHUNK_BYTES):
            if decompressor is not None:
                chunk = decompressor.decompress(chunk, limit + 1 - size)
            parts.append(chunk)
            size += len(chunk)
            if size > limit:
                raise ResponseTooLarge(f"the answer has {size} bytes or more, the limit is {limit}", where=self.where)
        if answer.length or (decompressor is not None and not decompressor.eof):
            raise EOFError
        # read1 does not close an answer that it has read to the end.
        answer.close()
        return b"".join(parts)


@contextlib.contextmanager
def open_with_redirects(
    url: str, request: Request, *, limits: HttpLimits, access: Access
) -> Iterator[http.client.HTTPResponse]:
    """`HttpClient.open` for a URL, through the proxy of the environment; redirects of a GET are followed."""
    for redirects in range(MAX_REDIRECTS + 1):
        client = HttpClient(url, limits=limits, access=replace(access, proxy_url=_environment_proxy(url)))
        with client.open(request) as answer:
            target = answer.headers.get("location", "")
            if request.method != "GET" or answer.status not in REDIRECTS or not target or redirects == MAX_REDIRECTS:
                yield answer
                return
        previous, url = urlsplit(url), urljoin(url, target)
        if urlsplit(url).hostname != previous.hostname:
            # Another server must not receive our credentials.
            headers = {name: text for name, text in request.headers.items() if name != "Authorization"}
            request = replace(request, headers=headers)


class _Connection:
    """A connection to the first address that accepts; each wait ends after `idle_seconds` or at the deadline."""

    def __init__(self, candidates: Sequence[tuple[int, Any]], idle_seconds: float, deadline: float) -> None:
        self.deadline = deadline
        self._idle_seconds = idle_seconds
        problem = OSError("the name has no address")
        for family, address in candidates:
            self._socket = socket.socket(family)
            try:
                self._set_timeout()
                self._socket.connect(address)
            except OSError as error:
                self._socket.close()
                problem = error
                continue
            if family != socket.AF_UNIX:
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.peer_address = str(address[0])
            return
        raise problem

    def encrypt(self, context: ssl.SSLContext, name: str) -> None:
        self._set_timeout()
        self._socket = context.wrap_socket(self._socket, server_hostname=name)

    def request(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> http.client.HTTPResponse:
        """Send a request and read the headers of the answer; http.client uses only the socket methods defined here."""
        sender = http.client.HTTPConnection("")
        sender.sock = cast(socket.socket, self)
        try:
            sender.request(method, target, body=body, headers=headers)
        except (ValueError, http.client.InvalidURL):
            # http.client's message contains the header or the path, which may be secret.
            raise http.client.InvalidURL("a header or the path has characters that HTTP does not allow") from None
        answer = http.client.HTTPResponse(cast(socket.socket, self), method=method)
        try:
            answer.begin()
        except BaseException:
            answer.close()
            raise
        return answer

    def sendall(self, content: bytes) -> None:
        remaining = memoryview(content)
        while remaining:
            self._set_timeout()
            remaining = remaining[self._socket.send(remaining) :]

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_SocketStream(self.receive))

    def receive(self, buffer: Any) -> int:
        self._set_timeout()
        return self._socket.recv_into(buffer)

    def close(self) -> None:
        self._socket.close()

    def _set_timeout(self) -> None:
        remaining_seconds = min(self._idle_seconds, self.deadline - time.monotonic())
        if remaining_seconds <= 0:
            raise TimeoutError
        self._socket.settimeout(None if remaining_seconds == math.inf else remaining_seconds)


class _SocketStream(io.RawIOBase):
    def __init__(self, receive: Callable[[Any], int]) -> None:
        self._receive = receive

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._receive(buffer)


def _environment_proxy(url: str) -> str:
    # Imported here, because most callers do not need it.
    from urllib import request

    parts = urlsplit(url)
    proxy = "" if request.proxy_bypass(parts.netloc) else request.getproxies().get(parts.scheme, "")
    return proxy if "://" in proxy or not proxy else f"http://{proxy}"


def _describe_error(error: BaseException) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, EOFError | http.client.IncompleteRead | ConnectionError):
        return "the connection was closed before the end of the answer"
    return error_reason(cast(Exception, error)) or type(error).__name__
