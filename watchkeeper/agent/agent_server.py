"""The agent's small HTTP server: three pages to read, nothing to command.

    GET /metrics      the snapshot of GPUs, host and the agent itself; guarded where the world can reach it
    GET /-/healthy    200 while the agent runs
    GET /-/ready      200 once the first snapshot is there, else 503 and why

Standard library only. Requests are bounded in size, a slow client is cut off, and the number of connections is
limited, so that nobody who can reach the port can keep the agent from watching. `agent.py` gives it the pages.
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

from watchkeeper.errors import SettingsError, StartRefused
from watchkeeper.net import compression, listening
from watchkeeper.net.addresses import is_loopback

PORT = 9400
# A scrape's request has a few hundred bytes.
MAX_HEAD_BYTES = 8 * 1024
REQUEST_SECONDS = 5.0
ANSWER_SECONDS = 10.0
# Prometheus keeps a connection open between scrapes, up to a minute apart.
IDLE_SECONDS = 90.0
# A few servers that scrape and a person; the rest waits outside.
MAX_CONNECTIONS = 32
HASHED = "sha256:"
TEXT = "text/plain; charset=utf-8"
PAGE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class HttpPage:
    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = TEXT
    is_packed: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """`is_guarded` pages need a proof wherever there is one to give."""

    make: Callable[[], HttpPage]
    needs_credentials: bool = True


@dataclass(frozen=True, slots=True)
class Credentials:
    """SHA-256 of what a client may send as Authorization; none at all means that everyone may read."""

    digests: frozenset[bytes] = frozenset()

    def allows(self, authorization: str) -> bool:
        if not self.digests:
            return True
        scheme, _, proof = authorization.partition(" ")
        said = _digest(_plain(scheme.lower(), proof.strip()))
        # Each one is compared, so that the time tells nothing.
        return any([hmac.compare_digest(said, digest) for digest in self.digests])  # noqa: C419


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """Where to listen. `is_open` says that `/metrics` may be read by everyone who reaches the address."""

    host: str = "127.0.0.1"
    port: int = PORT
    socket: Path | None = None
    credentials: Credentials = field(default_factory=Credentials)
    is_open: bool = False
    certificate: Path | None = None
    key: Path | None = None

    def check(self) -> None:
        """Refuse to show the node to the network by accident."""
        if self.socket is None and not self.credentials.digests and not self.is_open and not is_loopback(self.host):
            raise StartRefused(
                "everyone who reaches this address could read /metrics",
                where=f"listen address {self.host}",
                remedy="Give --token-file or --basic-auth-file, or allow it with --open-metrics",
            )
        if (self.certificate is None) != (self.key is None):
            raise StartRefused("TLS needs a certificate and its key", remedy="Give both --tls-cert and --tls-key")

    def tls(self) -> ssl.SSLContext | None:
        if self.certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise StartRefused(f"the certificate cannot be used: {error}", where=str(self.certificate)) from error
        return context


def load_credentials(token_file: Path | None, basic_file: Path | None) -> Credentials:
    """Tokens, one a line, and `user:password` lines; `sha256:` and a hash may stand for either secret."""
    found: set[bytes] = set()
    for path, scheme in ((token_file, "bearer"), (basic_file, "basic")):
        if path is not None:
            found |= {_guard(scheme, line, path) for line in _lines(path)}
    return Credentials(frozenset(found))


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SettingsError(f"the file of secrets cannot be read: {why}", where=str(path)) from error
    lines = [line.strip() for line in text.splitlines()]
    found = [line for line in lines if line and not line.startswith("#")]
    if not found:
        raise SettingsError("there is no secret in the file", where=str(path))
    return found


def _guard(scheme: str, line: str, path: Path) -> bytes:
    if scheme == "basic" and ":" not in line:
        raise SettingsError("a line must be user:password", where=str(path))
    if scheme == "basic" and line.partition(":")[2].startswith(HASHED):
        # The hash is of the whole `user:password`.
        line = line.partition(":")[2]
    if not line.startswith(HASHED):
        return _digest(_plain(scheme, line) if scheme == "bearer" else f"basic {line}")
    try:
        inner = bytes.fromhex(line.removeprefix(HASHED))
    except ValueError as error:
        raise SettingsError("after sha256: a hash in hexadecimal is needed", where=str(path)) from error
    return hashlib.sha256(scheme.encode() + inner).digest()


def _digest(proof: str) -> bytes:
    """Two rounds, so that a file may hold the hash of the secret alone."""
    scheme, _, secret = proof.partition(" ")
    return hashlib.sha256(scheme.encode() + hashlib.sha256(secret.encode()).digest()).digest()


def _plain(scheme: str, proof: str) -> str:
    if scheme != "basic":
        return f"{scheme} {proof}"
    try:
        return f"basic {base64.b64decode(proof, validate=True).decode()}"
    except (binascii.Error, ValueError):
        return "basic "


@contextlib.asynccontextmanager
async def serving(listen: ListenSettings, routes: Mapping[str, Route]) -> AsyncIterator[str]:
    """Serve while the block runs; gives the address. StartRefused if it cannot be had."""
    listen.check()
    tls = listen.tls()
    talk = _Connections(routes, listen.credentials)
    # Whoever has not spoken TLS yet is not among the connections that are counted, and must not stay for long.
    patience = None if tls is None else REQUEST_SECONDS
    try:
        if listen.socket is not None:
            _remove_stale(listen.socket)
            server = await asyncio.start_unix_server(
                talk.meet, listen.socket, limit=MAX_HEAD_BYTES, ssl=tls, ssl_handshake_timeout=patience
            )
            address = f"unix:{listen.socket}"
        else:
            server = await asyncio.start_server(
                talk.meet, listen.host, listen.port, limit=MAX_HEAD_BYTES, ssl=tls, ssl_handshake_timeout=patience
            )
            port = server.sockets[0].getsockname()[1]
            shown = f"[{listen.host}]" if ":" in listen.host else listen.host
            address = f"{'http' if tls is None else 'https'}://{shown}:{port}"
    except OSError as error:
        raise _refusal(listen, error) from error
    try:
        yield address
    finally:
        await listening.close_server(server)
        await talk.end()
        if listen.socket is not None:
            listen.socket.unlink(missing_ok=True)


def _refusal(listen: ListenSettings, error: OSError) -> StartRefused:
    where = str(listen.socket) if listen.socket is not None else f"{listen.host}:{listen.port}"
    if error.errno == errno.EADDRINUSE:
        return StartRefused(
            "another program listens there",
            where=where,
            remedy="Stop it, or choose another path with --socket"
            if listen.socket is not None
            else "Stop it (dcgm-exporter uses 9400 as well), or choose another port with --listen",
        )
    return StartRefused(f"cannot listen there: {error.strerror or error}", where=where)


def _remove_stale(path: Path) -> None:
    """A socket that nobody answers on is left over from a process that was killed; anything else stays."""
    import socket

    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise StartRefused("something else than a socket is there", where=str(path))
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
    """The conversations of one server."""

    def __init__(self, routes: Mapping[str, Route], guards: Credentials) -> None:
        self._routes = routes
        self._guards = guards
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._is_over = False

    # Not a coroutine: one that is cancelled before its first step would leave its connection open.
    def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_over:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._open[task] = writer
        task.add_done_callback(self._open.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # One too many is closed without a word: an answer to an unread request would be lost anyway.
            # A first request comes at once; whoever only holds a place among the few must not keep it.
            patience = REQUEST_SECONDS
            while len(self._open) <= MAX_CONNECTIONS and await self._one(reader, writer, patience):
                patience = IDLE_SECONDS
        except (OSError, EOFError, TimeoutError, asyncio.CancelledError):
            pass
        finally:
            # Not close: a client that reads nothing would keep what is left for it.
            writer.transport.abort()

    async def end(self) -> None:
        self._is_over = True
        for task, writer in self._open.items():
            task.cancel()
            writer.transport.abort()
        await asyncio.gather(*self._open, return_exceptions=True)
        # One more turn, in which the aborted transports let go of their sockets.
        await asyncio.sleep(0)

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, patience_seconds: float) -> bool:
        """One request and its answer; False when the connection is over."""
        async with asyncio.timeout(patience_seconds):
            first = await reader.read(1)
        if not first:
            return False
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                head = first + await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            words = f"the request has more than {MAX_HEAD_BYTES} bytes"
            await _send(writer, _said(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, words), keep=False)
            return False
        lines = head.decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        parts = lines[0].split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            await _send(writer, _said(HTTPStatus.BAD_REQUEST, "this is not HTTP/1.1"), keep=False)
            return False
        method, target, version = parts
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        keep = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close" and not has_body
        page = self._answer(method, target.partition("?")[0], headers.get("authorization", ""))
        page = _packed(page, headers.get("accept-encoding", ""))
        await _send(writer, page, keep=keep, is_head=method == "HEAD")
        return keep

    def _answer(self, method: str, path: str, authorization: str) -> HttpPage:
        route = self._routes.get(path)
        if route is None:
            return _said(HTTPStatus.NOT_FOUND, f"known: {', '.join(self._routes)}")
        if method not in ("GET", "HEAD"):
            return _said(HTTPStatus.METHOD_NOT_ALLOWED, "this agent takes no commands; only GET")
        if route.needs_credentials and not self._guards.allows(authorization):
            return _said(HTTPStatus.UNAUTHORIZED, "a token, or user and password, is needed")
        return route.make()


def _said(status: HTTPStatus, words: str) -> HttpPage:
    return HttpPage(f"{words}\n".encode(), status)


def _packed(page: HttpPage, accepted: str) -> HttpPage:
    """As gzip, where the reader takes it and the page is worth it."""
    if len(page.body) < compression.MIN_BYTES or not compression.accepts_gzip(accepted):
        return page
    return replace(page, body=compression.gzip_body(page.body), is_packed=True)


async def _send(writer: asyncio.StreamWriter, page: HttpPage, *, keep: bool, is_head: bool = False) -> None:
    lines = [
        f"HTTP/1.1 {page.status.value} {page.status.phrase}",
        f"Content-Type: {page.content_type}",
        f"Content-Length: {len(page.body)}",
        f"Connection: {'keep-alive' if keep else 'close'}",
    ]
    if page.is_packed:
        lines.append("Content-Encoding: gzip")
    if page.status is HTTPStatus.UNAUTHORIZED:
        lines.append('WWW-Authenticate: Basic realm="watchkeeper"')
    if page.status is HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: GET, HEAD")
    writer.write("\r\n".join([*lines, "", ""]).encode() + (b"" if is_head else page.body))
    async with asyncio.timeout(ANSWER_SECONDS):
        await writer.drain()
    if not keep:
        # All of it must be out before the connection is torn down.
        async with asyncio.timeout(ANSWER_SECONDS):
            writer.close()
            await writer.wait_closed()
