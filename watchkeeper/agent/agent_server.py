"""The agent's HTTP server, with three read-only pages.

    GET /metrics      metrics of GPUs, host and agent; needs credentials if the network can reach it
    GET /-/healthy    200 while the agent runs
    GET /-/ready      200 once the GPUs have been read, else 503 and the reason

The size and duration of requests and the number of connections are limited, so that no client can block the agent.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import errno
import hashlib
import hmac
import os
import ssl
import stat
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

from watchkeeper.errors import SettingsError, StartRefused
from watchkeeper.net import compression, listening
from watchkeeper.net.addresses import is_loopback

PORT = 9400
# A scrape's request has a few hundred bytes.
MAX_HEAD_BYTES = 8 * 1024
REQUEST_SECONDS = 5.0
RESPONSE_SECONDS = 10.0
# Prometheus keeps a connection open between scrapes, up to a minute apart.
IDLE_SECONDS = 90.0
# Enough for several Prometheus servers and a person; more connections are closed.
MAX_CONNECTIONS = 32
HASH_PREFIX = "sha256:"
TEXT = "text/plain; charset=utf-8"
PAGE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class HttpPage:
    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = TEXT
    is_gzipped: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """A page; `needs_credentials`: clients must authenticate if credentials are configured."""

    render: Callable[[], HttpPage]
    needs_credentials: bool = True


@dataclass(frozen=True, slots=True)
class Credentials:
    """SHA-256 digests of the Authorization values that are accepted; empty: anyone may read."""

    digests: frozenset[bytes] = frozenset()

    def allows(self, authorization: str) -> bool:
        if not self.digests:
            return True
        scheme, _, secret = authorization.partition(" ")
        digest = _digest(_decode_basic(scheme.lower(), secret.strip()))
        # Compare with every digest, so that the duration reveals nothing.
        return any([hmac.compare_digest(digest, allowed_digest) for allowed_digest in self.digests])  # noqa: C419


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """Where to listen; `allows_anonymous`: anyone who can reach the address may read `/metrics`."""

    host: str = "127.0.0.1"
    port: int = PORT
    socket: Path | None = None
    credentials: Credentials = field(default_factory=Credentials)
    allows_anonymous: bool = False
    certificate: Path | None = None
    key: Path | None = None

    def check(self) -> None:
        """Refuse to expose the page to the network without credentials."""
        is_local = self.socket is not None or is_loopback(self.host)
        if not (is_local or self.credentials.digests or self.allows_anonymous):
            problem, where = "anyone who can reach this address could read /metrics", f"listen address {self.host}"
            remedy = "Set --token-file or --basic-auth-file, or allow it with --open-metrics"
            raise StartRefused(problem, where=where, remedy=remedy)
        if (self.certificate is None) != (self.key is None):
            raise StartRefused("TLS needs a certificate and its key", remedy="Set both --tls-cert and --tls-key")

    def load_tls(self) -> ssl.SSLContext | None:
        if self.certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise StartRefused(f"the certificate cannot be used: {error}", where=str(self.certificate)) from error
        return context


def load_credentials(token_file: Path | None, basic_file: Path | None) -> Credentials:
    """Read tokens, one per line, and `user:password` lines; `sha256:` and a hash may replace either secret."""
    digests: set[bytes] = set()
    for path, scheme in ((token_file, "bearer"), (basic_file, "basic")):
        if path is not None:
            digests |= {_digest_line(scheme, line, path) for line in _read_secrets(path)}
    return Credentials(frozenset(digests))


def _read_secrets(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SettingsError(f"the secrets file cannot be read: {reason}", where=str(path)) from error
    lines = [line.strip() for line in text.splitlines()]
    secrets = [line for line in lines if line and not line.startswith("#")]
    if not secrets:
        raise SettingsError("the secrets file has no secret", where=str(path))
    return secrets


def _digest_line(scheme: str, line: str, path: Path) -> bytes:
    if scheme == "basic" and ":" not in line:
        raise SettingsError("each line must be user:password", where=str(path))
    if scheme == "basic" and line.partition(":")[2].startswith(HASH_PREFIX):
        # The hash is of the whole `user:password`.
        line = line.partition(":")[2]
    if not line.startswith(HASH_PREFIX):
        return _digest(_decode_basic(scheme, line) if scheme == "bearer" else f"basic {line}")
    try:
        digest = bytes.fromhex(line.removeprefix(HASH_PREFIX))
    except ValueError as error:
        raise SettingsError("sha256: must be followed by a hexadecimal hash", where=str(path)) from error
    return hashlib.sha256(scheme.encode() + digest).digest()


def _digest(authorization: str) -> bytes:
    """Hash twice, so that the file needs only the hash of the secret."""
    scheme, _, secret = authorization.partition(" ")
    return hashlib.sha256(scheme.encode() + hashlib.sha256(secret.encode()).digest()).digest()


def _decode_basic(scheme: str, secret: str) -> str:
    if scheme != "basic":
        return f"{scheme} {secret}"
    try:
        return f"basic {base64.b64decode(secret, validate=True).decode()}"
    except (binascii.Error, ValueError):
        return "basic "


@contextlib.asynccontextmanager
async def serve(listen: ListenSettings, routes: Mapping[str, Route]) -> AsyncIterator[str]:
    """Serve while the block runs, and yield the address; StartRefused if the server cannot listen."""
    listen.check()
    tls = listen.load_tls()
    connections = _Connections(routes, listen.credentials)
    # Clients in the TLS handshake are not counted as connections, so the handshake needs a timeout.
    handshake_seconds = None if tls is None else REQUEST_SECONDS
    options: dict[str, Any] = {"limit": MAX_HEAD_BYTES, "ssl": tls, "ssl_handshake_timeout": handshake_seconds}
    try:
        if listen.socket is not None:
            _remove_stale_socket(listen.socket)
            server = await asyncio.start_unix_server(connections.accept, listen.socket, **options)
            address = f"unix:{listen.socket}"
        else:
            server = await asyncio.start_server(connections.accept, listen.host, listen.port, **options)
            port = server.sockets[0].getsockname()[1]
            host = f"[{listen.host}]" if ":" in listen.host else listen.host
            address = f"{'http' if tls is None else 'https'}://{host}:{port}"
    except OSError as error:
        raise _build_listen_error(listen, error) from error
    try:
        yield address
    finally:
        await listening.close_server(server)
        await connections.close()
        if listen.socket is not None:
            listen.socket.unlink(missing_ok=True)


def _build_listen_error(listen: ListenSettings, error: OSError) -> StartRefused:
    where = str(listen.socket) if listen.socket is not None else f"{listen.host}:{listen.port}"
    if error.errno == errno.EADDRINUSE:
        remedy = "Stop it (dcgm-exporter uses 9400 too), or choose another port with --listen"
        if listen.socket is not None:
            remedy = "Stop it, or choose another path with --socket"
        return StartRefused("another program listens on this address", where=where, remedy=remedy)
    return StartRefused(f"cannot listen on this address: {error.strerror or error}", where=where)


def _remove_stale_socket(path: Path) -> None:
    """Remove the socket of a process that was killed; a socket in use or another file stays."""
    import socket

    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise StartRefused("the path exists and is not a socket", where=str(path))
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
    raise OSError(errno.EADDRINUSE, "in use")


class _Connections:
    def __init__(self, routes: Mapping[str, Route], credentials: Credentials) -> None:
        self._routes = routes
        self._credentials = credentials
        self._writers: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._is_closed = False

    # Not a coroutine: if one is cancelled before its first step, its connection stays open.
    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_closed:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._writers[task] = writer
        task.add_done_callback(self._writers.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # Above the limit, a connection is closed without a response, which the client could not read anyway.
            # The first request must come at once: an idle client must not occupy a connection.
            timeout_seconds = REQUEST_SECONDS
            while len(self._writers) <= MAX_CONNECTIONS and await self._serve_request(reader, writer, timeout_seconds):
                timeout_seconds = IDLE_SECONDS
        except (OSError, EOFError, TimeoutError, asyncio.CancelledError):
            pass
        finally:
            # Not close(): for a client that does not read, the remaining data would stay in memory.
            writer.transport.abort()

    async def close(self) -> None:
        self._is_closed = True
        for task, writer in self._writers.items():
            task.cancel()
            writer.transport.abort()
        await asyncio.gather(*self._writers, return_exceptions=True)
        # Run the event loop once, so that the aborted transports close their sockets.
        await asyncio.sleep(0)

    async def _serve_request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, timeout_seconds: float
    ) -> bool:
        """Read one request and respond; False if the connection must be closed."""
        async with asyncio.timeout(timeout_seconds):
            first_byte = await reader.read(1)
        if not first_byte:
            return False
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                head = first_byte + await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            problem = f"the request has more than {MAX_HEAD_BYTES} bytes"
            await _send(writer, _text_page(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, problem), keep_alive=False)
            return False
        lines = head.decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        parts = lines[0].split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            await _send(writer, _text_page(HTTPStatus.BAD_REQUEST, "not an HTTP/1.1 request"), keep_alive=False)
            return False
        method, target, version = parts
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        keep_alive = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close" and not has_body
        page = self._build_page(method, target.partition("?")[0], headers.get("authorization", ""))
        if len(page.body) >= compression.MIN_BYTES and compression.accepts_gzip(headers.get("accept-encoding", "")):
            page = replace(page, body=compression.gzip_body(page.body), is_gzipped=True)
        await _send(writer, page, keep_alive=keep_alive, is_head=method == "HEAD")
        return keep_alive

    def _build_page(self, method: str, path: str, authorization: str) -> HttpPage:
        route = self._routes.get(path)
        if route is None:
            return _text_page(HTTPStatus.NOT_FOUND, f"not found; pages: {', '.join(self._routes)}")
        if method not in ("GET", "HEAD"):
            return _text_page(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are allowed")
        if route.needs_credentials and not self._credentials.allows(authorization):
            return _text_page(HTTPStatus.UNAUTHORIZED, "a token, or a user and password, is required")
        return route.render()


def _text_page(status: HTTPStatus, text: str) -> HttpPage:
    return HttpPage(f"{text}\n".encode(), status)


async def _send(writer: asyncio.StreamWriter, page: HttpPage, *, keep_alive: bool, is_head: bool = False) -> None:
    lines = [
        f"HTTP/1.1 {page.status.value} {page.status.phrase}",
        f"Content-Type: {page.content_type}",
        f"Content-Length: {len(page.body)}",
        f"Connection: {'keep-alive' if keep_alive else 'close'}",
    ]
    if page.is_gzipped:
        lines.append("Content-Encoding: gzip")
    if page.status is HTTPStatus.UNAUTHORIZED:
        lines.append('WWW-Authenticate: Basic realm="watchkeeper"')
    if page.status is HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: GET, HEAD")
    writer.write("\r\n".join([*lines, "", ""]).encode() + (b"" if is_head else page.body))
    async with asyncio.timeout(RESPONSE_SECONDS):
        await writer.drain()
    if not keep_alive:
        # Send everything before the connection is closed.
        async with asyncio.timeout(RESPONSE_SECONDS):
            writer.close()
            await writer.wait_closed()
