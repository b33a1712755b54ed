"""Requests to one server over kept connections, with deadline, retries and a limit on the answer.

The engine, the sender and the reader of a server's rules each have a `Client`. It blocks: the hub calls engines
in worker threads, and a pool hands each of them a connection of its own. Every request that goes through here
may be repeated without harm, remote write included, because a server that has a sample already keeps it.
Credentials are read from their files for each request, so that a rotated one is used at once; they appear in
no message.
"""

from __future__ import annotations

import base64
import http.client
import random
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

from watchkeeper import __version__, errors
from watchkeeper.config import settings
from watchkeeper.kit import backoff

# Someone else's trouble that may be over in a moment: too many requests, and a proxy without its server.
PASSING = frozenset({429, 502, 503, 504})
PAUSES = backoff.Backoff(0.2, 10.0)
IDLE_CONNECTIONS = 8
PIECE_BYTES = 256 * 1024
BROKEN = (OSError, http.client.HTTPException, zlib.error)


@dataclass(frozen=True, slots=True)
class Response:
    """Header names are lower case; the body is unpacked."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Client:
    """One server; any number of threads may `send` at the same time."""

    def __init__(
        self,
        access: settings.Query,
        url: str,
        *,
        key: str = "query.url",
        pause: Callable[[float], object] | None = None,
    ) -> None:
        parts = urlsplit(url)
        # What stands behind a question mark (VictoriaMetrics' extra_label) goes with each request and into no message.
        self.url, self._query = url.partition("?")[0].rstrip("/"), parts.query
        self._access = access
        self._key = key
        self._closed = threading.Event()
        self._pause = pause or self._closed.wait
        self._host, self._path = parts.hostname or "", parts.path.rstrip("/")
        self._port = parts.port
        self._tls = _tls(access) if parts.scheme == "https" else None
        self._headers = dict(_header(line) for line in access.headers)
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def send(self, request: Request) -> Response:
        """The server's answer, whatever its status; StoreError when there is none within the time and retries."""
        timeout_seconds = self._access.timeout_seconds
        deadline = time.monotonic() + timeout_seconds
        tries = self._access.retries + 1
        for turn in range(1, tries + 1):
            response, cause = None, None
            try:
                response = self._exchange(request, deadline)
                if not _will_pass(response):
                    return response
                wait = _retry_after(response.headers)
            except TimeoutError as error:
                raise self._error(f"no answer within {timeout_seconds:g} s", turn) from error
            except BROKEN as error:
                wait, cause = None, error
            pause = wait if wait is not None else PAUSES.seconds(turn) * random.uniform(0.5, 1.0)
            is_last = turn == tries or time.monotonic() + pause >= deadline
            if is_last or self._closed.is_set() or isinstance(cause, ssl.SSLCertVerificationError):
                if response is not None:
                    return response
                raise self._error(_plain(cause), turn) from cause
            self._pause(pause)
        raise AssertionError("the last turn returns or raises")

    def close(self) -> None:
        """Let the connections go, and let nobody wait for another try."""
        self._closed.set()
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _error(self, problem: str, turn: int) -> errors.StoreError:
        tried = "once" if turn == 1 else f"{turn} times"
        return errors.StoreError(
            problem, where=self.url, now=f"It was tried {tried}", remedy=f"Check {self._key} and that the server is up"
        )

    def _exchange(self, request: Request, deadline: float) -> Response:
        headers = self._all_headers(request)
        while True:
            connection, was_kept = self._take()
            try:
                connection.timeout = _left(deadline)
                if connection.sock is not None:
                    connection.sock.settimeout(connection.timeout)
                connection.request(request.method, self._target(request.path), body=request.body, headers=headers)
                response = connection.getresponse()
                answer = self._read(connection, response, deadline)
            except BaseException as error:
                connection.close()
                # The server has closed a connection that lay idle; that says nothing about a new one.
                if was_kept and isinstance(error, http.client.RemoteDisconnected | ConnectionError):
                    continue
                raise
            if response.will_close:
                connection.close()
            else:
                self._give_back(connection)
            return answer

    def _read(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse, deadline: float
    ) -> Response:
        headers = {name.lower(): value for name, value in response.getheaders()}
        limit = self._access.max_answer_mebibytes * 1024 * 1024
        unpack = zlib.decompressobj(wbits=31) if headers.get("content-encoding") == "gzip" else None
        pieces, size = [], 0
        sock = connection.sock
        while piece := response.read1(PIECE_BYTES):
            if unpack is not None:
                piece = unpack.decompress(piece, limit + 1 - size)
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise errors.QueryLimit(
                    f"the server's answer has {size} bytes or more, the limit is {limit}",
                    remedy="Ask for fewer series or steps, or raise query.max_answer_mebibytes",
                )
            left = _left(deadline)
            if sock is not None:
                sock.settimeout(left)
        if response.length or (unpack is not None and not unpack.eof):
            raise http.client.IncompleteRead(b"")
        # read1 leaves an answer open that it has read to the end, and the connection busy with it.
        response.close()
        return Response(response.status, headers, b"".join(pieces))

    def _target(self, path: str) -> str:
        whole, mark = f"{self._path}{path}" or "/", "&" if "?" in path else "?"
        return f"{whole}{mark}{self._query}" if self._query else whole

    def _take(self) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            if self._idle:
                return self._idle.pop(), True
        if self._tls is not None:
            return http.client.HTTPSConnection(self._host, self._port, context=self._tls), False
        return http.client.HTTPConnection(self._host, self._port), False

    def _give_back(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            # Whoever is closed while an answer comes keeps nothing.
            if len(self._idle) < IDLE_CONNECTIONS and not self._closed.is_set():
                self._idle.append(connection)
                return
        connection.close()

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
            pair = base64.b64encode(f"{access.username}:{password}".encode()).decode()
            headers["Authorization"] = f"Basic {pair}"
        return headers | dict(request.headers)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


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


def _plain(error: BaseException | None) -> str:
    """A library's error as a sentence."""
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, http.client.IncompleteRead | http.client.RemoteDisconnected | ConnectionError):
        return "the connection was closed in the middle of the answer"
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _tls(access: settings.Query) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=access.ca_file)
        if access.client_cert_file:
            context.load_cert_chain(access.client_cert_file, access.client_key_file)
    except (OSError, ssl.SSLError) as error:
        named = [path for path in (access.ca_file, access.client_cert_file, access.client_key_file) if path]
        raise errors.StartRefused(
            f"the certificates for the server cannot be read: {error}",
            where=", ".join(named),
            remedy="Name readable PEM files in query.ca_file, query.client_cert_file and query.client_key_file",
        ) from error
    if access.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


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
