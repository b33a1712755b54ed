"""A small HTTP/1.1 client on asyncio: what scraping, discovery, inventories and event pushes need.

One `Connection` belongs to one target and stays open between requests. Every request has a deadline
and a body limit, counted after decompression. It is standard library only, because the agent uses it.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urljoin, urlsplit

from watchkeeper.errors import CollectError, quote
from watchkeeper.net import addresses, streams
from watchkeeper.net.access import NO_ACCESS, Access, proxy_headers

# A page of an 8-GPU node is 0.1 MiB, one about all pods of a large cluster tens of them.
MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_HEADER_LINES = 100
REDIRECTS = frozenset({301, 302, 303, 307, 308})
# What a broken or closing peer looks like, whatever the layer that noticed it.
BROKEN = (OSError, EOFError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, zlib.error)


@dataclass(frozen=True, slots=True)
class Request:
    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    """Header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def error_summary(self) -> str:
        """The status and the beginning of the body, for a message about what was refused."""
        return f"answered {self.status}: {self.body[:200].decode('utf-8', 'replace')}"


class HttpStatusError(CollectError):
    """An endless answer that was refused with an HTTP status."""

    def __init__(self, status: int, *, where: str) -> None:
        super().__init__(f"answered {status}", where=where)
        self.status = status


class Connection:
    """One kept-alive connection to one origin; a request at a time."""

    def __init__(
        self,
        *,
        timeout_seconds: float = 10.0,
        max_body_bytes: int = MAX_BODY_BYTES,
        access: Access = NO_ACCESS,
        unix_socket: str | None = None,
    ) -> None:
        self.timeout_seconds = timeout_seconds
        self._unix_socket = unix_socket
        self.max_body_bytes = max_body_bytes
        self._access = access
        self._origin: tuple[str, str] | None = None
        # The address that the connection was last found to lead to.
        self._url = ""
        # What a proxy that relays our requests wants to hear; None where there is none.
        self._relay: Mapping[str, str] | None = None
        # The request before, as it went over the wire: a scraper sends the same one for years.
        self._written: tuple[Request, bytes] | None = None
        self._reader: streams.SocketReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def send(self, request: Request) -> Response:
        """The answer with its body, after at most one redirect; CollectError says what went wrong."""
        try:
            async with asyncio.timeout(self.timeout_seconds):
                response = await self._send_once(request)
                if response.status in REDIRECTS and request.method == "GET" and "location" in response.headers:
                    target = urljoin(request.url, response.headers["location"])
                    await self._connect(target)
                    self._refuse_inwards(request.url, target)
                    headers = _headers_for(target, request, private=self._access.private_headers)
                    response = await self._send_once(Request(target, headers=headers))
                return response
        except TimeoutError as error:
            self.close()
            raise CollectError(f"no answer within {self.timeout_seconds:g} s", where=request.url) from error
        except CollectError as error:
            self.close()
            error.where = error.where or request.url
            raise
        except BROKEN as error:
            self.close()
            raise CollectError(_plain(error), where=request.url) from error
        except asyncio.CancelledError:
            self.close()
            raise

    async def stream_lines(
        self, request: Request, *, idle_seconds: float, on_open: Callable[[], None] = lambda: None
    ) -> AsyncGenerator[bytes, None]:
        """Each line of an endless answer as it arrives; a peer silent for `quiet_seconds` is given up.

        `on_open` is called when the peer has agreed to answer, which may be long before the first line.
        """
        patience_seconds = self.timeout_seconds
        try:
            async with asyncio.timeout(patience_seconds):
                response = await self._ask(request)
            if response.status != 200:
                raise HttpStatusError(response.status, where=request.url)
            on_open()
            pending = b""
            chunks = self._chunks(response.headers)
            patience_seconds = idle_seconds
            while True:
                async with asyncio.timeout(patience_seconds):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    return
                *whole, pending = (pending + chunk).split(b"\n")
                if len(pending) > self.max_body_bytes:
                    self._refuse_length(len(pending))
                for line in whole:
                    yield line
        except TimeoutError as error:
            raise CollectError(f"silent for more than {patience_seconds:g} s", where=request.url) from error
        except BROKEN as error:
            raise CollectError(_plain(error), where=request.url) from error
        finally:
            self.close()

    def _refuse_inwards(self, url: str, target: str) -> None:
        """A server may not send us to an address that only means something here, such as a cloud's metadata."""
        peer = self._writer.get_extra_info("peername") if self._writer is not None else None
        reached = peer[0] if isinstance(peer, tuple) else ""
        # A proxy of ours may be on this machine, and looks names up itself.
        is_direct = not self._access.proxy_for(urlsplit(target).hostname or "")
        if is_direct and addresses.is_unexpectedly_local(urlsplit(url).hostname or "", reached):
            raise CollectError(f"redirects to {reached}, which is this machine's own")

    def close(self) -> None:
        """Let go at once: TLS's farewell waits for a peer that may hang, and for a loop that may have ended."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    async def aclose(self) -> None:
        """Close and wait until the socket is gone, which tests and shutdown want."""
        writer = self._writer
        self.close()
        if writer is not None:
            with suppress(*BROKEN):
                await writer.wait_closed()

    async def _send_once(self, request: Request) -> Response:
        response = await self._ask(request)
        # 204 and 304 have no body by definition (RFC 9110, 6.4.1).
        if request.method == "HEAD" or response.status in (204, 304):
            body = b""
        else:
            body = await self._body(response.headers)
        if response.headers.get("connection", "").lower() == "close":
            self.close()
        return Response(response.status, response.headers, body)

    async def _ask(self, request: Request) -> Response:
        """Send the request and read the head of the answer, anew if the kept connection had died meanwhile."""
        was_kept = await self._connect(request.url)
        try:
            return await self._exchange(request)
        except BROKEN:
            if not was_kept:
                raise
        self.close()
        await self._connect(request.url)
        return await self._exchange(request)

    async def _connect(self, url: str) -> bool:
        """Make sure there is a connection to the origin of `url`; True if an old one is used again."""
        if self._writer is not None and url == self._url and not self._writer.is_closing():
            return True
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CollectError("is not an http or https address", where=quote(url))
        origin = (parts.scheme, parts.netloc)
        if self._writer is not None and origin == self._origin and not self._writer.is_closing():
            self._url = url
            return True
        self.close()
        self._relay = self._written = None
        secure = self._access.tls_context() if parts.scheme == "https" else None
        port = parts.port or (443 if secure else 80)
        if self._unix_socket is not None:
            self._reader, self._writer = await streams.open_unix_connection(self._unix_socket)
        elif proxy := self._access.proxy_for(parts.hostname):
            host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
            await self._connect_through(proxy, f"{host}:{port}", is_secure=secure is not None)
        else:
            self._reader, self._writer = await streams.open_connection(parts.hostname, port)
        if secure is not None and self._writer is not None:
            # In two steps: who is cancelled while asyncio makes both at once may leave a socket behind (Python 3.11).
            await self._writer.start_tls(secure, server_hostname=self._access.server_name or parts.hostname)
        self._origin, self._url = origin, url
        return False

    async def _connect_through(self, proxy: str, target: str, *, is_secure: bool) -> None:
        """Connect to an HTTP proxy, which relays plain requests and opens a tunnel for TLS."""
        parts = urlsplit(proxy)
        self._reader, self._writer = await streams.open_connection(parts.hostname or "", parts.port or 80)
        admission = proxy_headers(proxy)
        if not is_secure:
            self._relay = admission
            return
        head = "".join(f"{key}: {value}\r\n" for key, value in {"Host": target, **admission}.items())
        self._writer.write(f"CONNECT {target} HTTP/1.1\r\n{head}\r\n".encode("latin-1"))
        await self._writer.drain()
        answer = (await self._reader.readline()).split(None, 2)
        await self._read_headers()
        if len(answer) < 2 or not answer[1].startswith(b"2"):
            status = answer[1].decode("latin-1") if len(answer) > 1 else "nothing"
            raise CollectError(f"the proxy {parts.hostname}:{parts.port or 80} answered {status} to CONNECT {target}")

    async def _exchange(self, request: Request) -> Response:
        assert self._reader is not None
        assert self._writer is not None
        if self._written is None or self._written[0] is not request:
            self._written = (request, self._write(request))
        self._writer.write(self._written[1])
        await self._writer.drain()
        status_line = (await self._reader.readline()).split(None, 2)
        if len(status_line) < 2 or not status_line[0].startswith(b"HTTP/1."):
            raise CollectError("does not speak HTTP/1.1", where=request.url)
        return Response(int(status_line[1]), await self._read_headers())

    def _write(self, request: Request) -> bytes:
        parts = urlsplit(request.url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = {"Host": parts.netloc.rpartition("@")[2], "User-Agent": "watchkeeper", **request.headers}
        if self._relay is not None:
            path, headers = f"http://{headers['Host']}{path}", {**headers, **self._relay}
        if request.body or request.method == "POST":
            headers["Content-Length"] = str(len(request.body))
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"{request.method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + request.body

    async def _read_headers(self) -> dict[str, str]:
        assert self._reader is not None
        lines = await self._reader.read_block()
        if len(lines) > MAX_HEADER_LINES:
            raise CollectError(f"more than {MAX_HEADER_LINES} header lines")
        pairs = (line.decode("latin-1").partition(":") for line in lines)
        return {name.strip().lower(): value.strip() for name, _, value in pairs}

    async def _body(self, headers: Mapping[str, str]) -> bytes:
        is_packed = headers.get("content-encoding", "").lower() == "gzip"
        if not is_packed and "content-length" in headers and not _is_chunked(headers):
            return await self._by_length(headers)
        unpack = zlib.decompressobj(wbits=31) if is_packed else None
        pieces, size = [], 0
        async for chunk in self._chunks(headers):
            if unpack is not None:
                chunk = unpack.decompress(chunk, self.max_body_bytes + 1 - size)
            pieces.append(chunk)
            size += len(chunk)
            if size > self.max_body_bytes:
                self._refuse_length(size)
        if unpack is not None and not unpack.eof:
            raise EOFError
        return b"".join(pieces)

    async def _chunks(self, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
        """The body as it arrives, by chunks, by length, or until the peer closes."""
        assert self._reader is not None
        reader = self._reader
        if _is_chunked(headers):
            while size := int((await reader.readline()).split(b";")[0], 16):
                if size > self.max_body_bytes:
                    self._refuse_length(size)
                yield await reader.readexactly(size)
                await reader.readline()
            while (await reader.readline()).strip():
                pass
        elif "content-length" in headers:
            yield await self._by_length(headers)
        else:
            while piece := await reader.read(65536):
                yield piece
            self.close()

    async def _by_length(self, headers: Mapping[str, str]) -> bytes:
        assert self._reader is not None
        length = int(headers["content-length"])
        if length > self.max_body_bytes:
            self._refuse_length(length)
        return await self._reader.readexactly(length)

    def _refuse_length(self, found: int) -> None:
        raise CollectError(f"the body has {found} bytes or more, the limit is {self.max_body_bytes}")


def _is_chunked(headers: Mapping[str, str]) -> bool:
    return headers.get("transfer-encoding", "").lower() == "chunked"


def _headers_for(target: str, request: Request, *, private: frozenset[str]) -> Mapping[str, str]:
    """A redirect to another origin does not get our credentials."""
    if urlsplit(target)[:2] == urlsplit(request.url)[:2]:
        return request.headers
    return {name: value for name, value in request.headers.items() if name.lower() not in private}


def _plain(error: BaseException) -> str:
    """A library's error as a sentence."""
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(error, EOFError):
        return "the connection was closed in the middle of the answer"
    return f"{type(error).__name__}: {error}".rstrip(": ")
