"""A small HTTP/1.1 client for threads: one server, a deadline for the whole exchange, a limit for the answer.

Receivers, a Prometheus, slurmrestd, the API server of Kubernetes, the simulator and a hub's command line are asked
through it; whoever asks decides what a status means and whether to try again. It stands on http.client and not on
urllib3, because the command line asks a hub without the hub's own libraries. What answers under a socket's own
timeout may drip for ever, as that begins anew with each byte: here time is counted from the first address tried to the
last byte. Only the look-up of a name is left to the resolver's own limits.
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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast
from urllib.parse import urljoin, urlsplit

from watchkeeper.errors import CollectError, error_reason
from watchkeeper.net import addresses
from watchkeeper.net.access import NO_ACCESS, Access, proxy_headers

PIECE_BYTES = 256 * 1024
REDIRECTS = frozenset({301, 302, 303, 307, 308})
MOST_REDIRECTS = 10
MAX_BODY_BYTES = 64 * 1024 * 1024
# What a broken or closing peer looks like, whatever the layer that noticed it.
BROKEN = (OSError, EOFError, http.client.HTTPException, zlib.error)


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """`whole_seconds` for everything together, `wait_seconds` for each sign of life, and what is read of an answer."""

    total_seconds: float = 30.0
    idle_seconds: float = math.inf
    answer_bytes: int = MAX_BODY_BYTES


@dataclass(frozen=True, slots=True)
class Request:
    """`path` stands behind that of the client's address."""

    method: str
    path: str = ""
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response:
    """Header names are lower case; the body is unpacked."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class NoAnswer(CollectError):
    """There was no answer, or none that could be read to its end; `is_late` where time was the reason."""

    is_timeout = False


class ResponseTooLarge(NoAnswer):
    """The answer has more bytes than the limits allow."""


class InvalidAddress(CollectError):
    """What should be an address is none."""


class LocalAddressRefused(CollectError):
    """A name that leads to an address which means something to this machine only."""


class HttpClient:
    """One server; any number of threads may ask at the same time, each over a connection of its own."""

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
            raise InvalidAddress(f"is no address: {error}", where=url[:60]) from error
        self._host = self._parts.hostname or ""
        self._netloc = self._parts.netloc.rpartition("@")[2]
        self.where = f"{self._parts.scheme}://{self._netloc}"
        self.limits = limits
        self._access = access
        self._most_idle = max_idle
        self._may_lead_inward = allows_local_address
        self._proxy = access.proxy_for(self._host)
        self._idle: list[_Connection] = []
        self._is_closed = False
        self._lock = threading.Lock()

    def send(self, request: Request, *, deadline: float = math.inf, use_new_connection: bool = False) -> Response:
        """The whole answer, whatever its status; NoAnswer if there is none before `until`, a time of `monotonic`."""
        with self.open(request, deadline=deadline, use_new_connection=use_new_connection) as answer:
            headers = {name.lower(): value for name, value in answer.getheaders()}
            return Response(answer.status, headers, self._read(answer, headers))

    @contextlib.contextmanager
    def open(
        self, request: Request, *, deadline: float = math.inf, use_new_connection: bool = False
    ) -> Iterator[http.client.HTTPResponse]:
        """An answer that is still to be read; what goes wrong until its end is a NoAnswer."""
        deadline = min(deadline, time.monotonic() + self.limits.total_seconds)
        wire = None if use_new_connection else self._take()
        try:
            try:
                is_kept = wire is not None
                wire = wire or self._connect(deadline)
                answer = self._exchange(wire, request, until=deadline)
            except BROKEN as error:
                if wire is None or not is_kept or isinstance(error, TimeoutError):
                    raise
                # The server has closed a connection that lay idle; that says nothing about a new one.
                wire.close()
                wire = self._connect(deadline)
                answer = self._exchange(wire, request, until=deadline)
            with answer:
                yield answer
                if answer.isclosed() and not answer.will_close:
                    self._idle_again(wire)
                    wire = None
        except BROKEN as error:
            raise self._no_answer(error, deadline) from error
        finally:
            if wire is not None:
                wire.close()

    def close(self) -> None:
        """Let the connections go; whoever is answered after that keeps none."""
        with self._lock:
            self._is_closed, idle, self._idle = True, self._idle, []
        for wire in idle:
            wire.close()

    def _take(self) -> _Connection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _idle_again(self, wire: _Connection) -> None:
        with self._lock:
            if not self._is_closed and len(self._idle) < self._most_idle:
                self._idle.append(wire)
                return
        wire.close()

    def _no_answer(self, error: BaseException, until: float) -> NoAnswer:
        if not isinstance(error, TimeoutError):
            return NoAnswer(_plain(error), where=self.where)
        is_whole = time.monotonic() >= until
        what = "whole answer" if is_whole and self.limits.idle_seconds < math.inf else "answer"
        seconds = self.limits.total_seconds if is_whole else self.limits.idle_seconds
        late = NoAnswer(f"no {what} within {seconds:g} s", where=self.where)
        late.is_timeout = True
        return late

    def _connect(self, until: float) -> _Connection:
        proxy = urlsplit(self._proxy)
        if self._parts.scheme == "unix":
            return _Connection([(socket.AF_UNIX, self._parts.path)], self.limits.idle_seconds, until)
        host, port = (proxy.hostname or "", proxy.port or 80) if self._proxy else (self._host, self._port)
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        wire = _Connection([(family, address) for family, *_, address in found], self.limits.idle_seconds, until)
        try:
            if not self._may_lead_inward and addresses.is_unexpectedly_local(host, wire.reached):
                raise LocalAddressRefused(
                    f"its name leads to {wire.reached}, which is this machine's own; write that address if it is meant",
                    where=self.where,
                )
            if self._parts.scheme == "https":
                if self._proxy:
                    self._open_tunnel(wire)
                wire.encrypt(self._access.tls_context(), self._access.server_name or self._host)
            return wire
        except BaseException:
            wire.close()
            raise

    def _open_tunnel(self, wire: _Connection) -> None:
        host = f"[{self._host}]" if ":" in self._host else self._host
        target = f"{host}:{self._port}"
        answer = wire.ask("CONNECT", target, {"Host": target, **proxy_headers(self._proxy)})
        if answer.status >= 300:
            raise NoAnswer(f"the proxy answered {answer.status} to CONNECT {target}", where=self.where)

    def _exchange(self, wire: _Connection, request: Request, *, until: float) -> http.client.HTTPResponse:
        wire.until = until
        is_unix, headers = self._parts.scheme == "unix", {"User-Agent": "watchkeeper", **request.headers}
        base = "" if is_unix else self._parts.path
        target = f"{base.rstrip('/')}{request.path}" if request.path else base or "/"
        if self._parts.query:
            target += f"{'&' if '?' in target else '?'}{self._parts.query}"
        if self._proxy and self._parts.scheme == "http":
            target, headers = f"{self.where}{target}", {**headers, **proxy_headers(self._proxy)}
        headers["Host"] = self._netloc or "localhost"
        return wire.ask(request.method, target, headers, request.body)

    def _read(self, answer: http.client.HTTPResponse, headers: Mapping[str, str]) -> bytes:
        limit = self.limits.answer_bytes
        unpack = zlib.decompressobj(wbits=31) if headers.get("content-encoding") == "gzip" else None
        pieces, size = [], 0
        while piece := answer.read1(PIECE_BYTES):
            if unpack is not None:
                piece = unpack.decompress(piece, limit + 1 - size)
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise ResponseTooLarge(f"the answer has {size} bytes or more, the limit is {limit}", where=self.where)
        if answer.length or (unpack is not None and not unpack.eof):
            raise EOFError
        # read1 leaves an answer open that it has read to the end.
        answer.close()
        return b"".join(pieces)


@contextlib.contextmanager
def open_with_redirects(
    url: str, request: Request, *, limits: HttpLimits, access: Access
) -> Iterator[http.client.HTTPResponse]:
    """As `Client.open` at an address, by the proxy that the environment names, and where a GET is redirected to."""
    for turn in range(MOST_REDIRECTS + 1):
        client = HttpClient(url, limits=limits, access=replace(access, proxy_url=_proxy_of_environment(url)))
        with client.open(request) as answer:
            target = answer.headers.get("location", "")
            if request.method != "GET" or answer.status not in REDIRECTS or not target or turn == MOST_REDIRECTS:
                yield answer
                return
        before, url = urlsplit(url), urljoin(url, target)
        if urlsplit(url).hostname != before.hostname:
            # Another server does not get our credentials.
            request = replace(
                request, headers={name: text for name, text in request.headers.items() if name != "Authorization"}
            )


class _Connection:
    """A connection to the first address that answers. Each wait on it ends with the time for the whole, or before."""

    def __init__(self, found: list[tuple[int, Any]], wait_seconds: float, until: float) -> None:
        self.until = until
        self._wait_seconds = wait_seconds
        problem = OSError("the name has no address")
        for family, address in found:
            self._socket = socket.socket(family)
            try:
                self._limit()
                self._socket.connect(address)
            except OSError as error:
                self._socket.close()
                problem = error
                continue
            if family != socket.AF_UNIX:
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.reached = str(address[0])
            return
        raise problem

    def encrypt(self, context: ssl.SSLContext, name: str) -> None:
        self._limit()
        self._socket = context.wrap_socket(self._socket, server_hostname=name)

    def ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> http.client.HTTPResponse:
        """The head of the answer; it asks for nothing of a socket but what is here."""
        writer = http.client.HTTPConnection("")
        writer.sock = cast(socket.socket, self)
        try:
            writer.request(method, target, body=body, headers=headers)
        except (ValueError, http.client.InvalidURL):
            # http.client's words hold the header or the path, which may be a secret.
            raise http.client.InvalidURL("a header or the path has characters that HTTP does not have") from None
        answer = http.client.HTTPResponse(cast(socket.socket, self), method=method)
        try:
            answer.begin()
        except BaseException:
            answer.close()
            raise
        return answer

    def sendall(self, content: bytes) -> None:
        rest = memoryview(content)
        while rest:
            self._limit()
            rest = rest[self._socket.send(rest) :]

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_SocketStream(self.receive))

    def receive(self, buffer: Any) -> int:
        self._limit()
        return self._socket.recv_into(buffer)

    def close(self) -> None:
        self._socket.close()

    def _limit(self) -> None:
        left = min(self._wait_seconds, self.until - time.monotonic())
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(None if left == math.inf else left)


class _SocketStream(io.RawIOBase):
    def __init__(self, receive: Callable[[Any], int]) -> None:
        self._receive = receive

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._receive(buffer)


def _proxy_of_environment(url: str) -> str:
    # Here, because most who ask a server need none of it.
    from urllib import request

    parts = urlsplit(url)
    proxy = "" if request.proxy_bypass(parts.netloc) else request.getproxies().get(parts.scheme, "")
    return proxy if "://" in proxy or not proxy else f"http://{proxy}"


def _plain(error: BaseException) -> str:
    """A library's error as a sentence."""
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, EOFError | http.client.IncompleteRead | ConnectionError):
        return "the connection was closed in the middle of the answer"
    return error_reason(cast(Exception, error)) or type(error).__name__
