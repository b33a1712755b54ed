"""A small asyncio client for HTTP/1.1, used for scraping, discovery, inventories and event pushes.

One `Connection` belongs to one target and stays open between requests; every request has a timeout and a limit for the
decompressed body. Standard library only, because the agent uses it.
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

# A page of an 8-GPU node has 0.1 MiB, a page about all pods of a large cluster tens of MiB.
MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_HEADER_LINES = 100
REDIRECTS = frozenset({301, 302, 303, 307, 308})
# The errors of a closed or failed connection, in all layers.
CONNECTION_ERRORS = (OSError, EOFError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, zlib.error)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """Header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def error_summary(self) -> str:
        """The status and the start of the body, for an error message."""
        return f"answered {self.status}: {self.body[:200].decode('utf-8', 'replace')}"


class HttpStatusError(CollectError):
    """A stream was refused with an HTTP status."""

    def __init__(self, status: int, *, where: str) -> None:
        super().__init__(f"answered {status}", where=where)
        self.status = status


class Connection:
    """One keep-alive connection to one origin; it sends one request at a time."""

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
        # The URL of the last request: the same URL needs no check of its origin.
        self._url = ""
        # The headers for a proxy that relays our requests; None without such a proxy.
        self._relay_headers: Mapping[str, str] | None = None
        # The last request and its bytes: a scraper sends the same request for years.
        self._encoded: tuple[HttpRequest, bytes] | None = None
        self._reader: streams.SocketReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def send(self, request: HttpRequest) -> HttpResponse:
        """Send a request and return the whole answer, after at most one redirect; CollectError says what failed."""
        try:
            async with asyncio.timeout(self.timeout_seconds):
                response = await self._send_once(request)
                if response.status in REDIRECTS and request.method == "GET" and "location" in response.headers:
                    target = urljoin(request.url, response.headers["location"])
                    await self._connect(target)
                    self._refuse_local_redirect(request.url, target)
                    headers = _redirected_headers(target, request, private=self._access.private_headers)
                    response = await self._send_once(HttpRequest(target, headers=headers))
                return response
        except TimeoutError as error:
            self.close()
            raise CollectError(f"no answer within {self.timeout_seconds:g} s", where=request.url) from error
        except CollectError as error:
            self.close()
            error.where = error.where or request.url
            raise
        except CONNECTION_ERRORS as error:
            self.close()
            raise CollectError(_describe_error(error), where=request.url) from error
        except asyncio.CancelledError:
            self.close()
            raise

    async def stream_lines(
        self, request: HttpRequest, *, idle_seconds: float, on_open: Callable[[], None] = lambda: None
    ) -> AsyncGenerator[bytes, None]:
        """Yield each line of a stream as it arrives; CollectError after `idle_seconds` without data."""
        # `on_open` is called when the server accepts the request, which may be long before the first line.
        timeout_seconds = self.timeout_seconds
        try:
            async with asyncio.timeout(timeout_seconds):
                response = await self._exchange_with_reconnect(request)
            if response.status != 200:
                raise HttpStatusError(response.status, where=request.url)
            on_open()
            partial_line = b""
            chunks = self._read_chunks(response.headers)
            timeout_seconds = idle_seconds
            while True:
                async with asyncio.timeout(timeout_seconds):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    return
                *lines, partial_line = (partial_line + chunk).split(b"\n")
                if len(partial_line) > self.max_body_bytes:
                    self._refuse_size(len(partial_line))
                for line in lines:
                    yield line
        except TimeoutError as error:
            raise CollectError(f"no data within {timeout_seconds:g} s", where=request.url) from error
        except CONNECTION_ERRORS as error:
            raise CollectError(_describe_error(error), where=request.url) from error
        finally:
            self.close()

    def _refuse_local_redirect(self, url: str, target: str) -> None:
        """Refuse a redirect to an address of this machine, such as a cloud's metadata service."""
        peer = self._writer.get_extra_info("peername") if self._writer is not None else None
        peer_address = peer[0] if isinstance(peer, tuple) else ""
        # A proxy may run on this machine, and resolves names itself.
        is_direct = not self._access.proxy_for(urlsplit(target).hostname or "")
        if is_direct and addresses.is_unexpectedly_local(urlsplit(url).hostname or "", peer_address):
            raise CollectError(f"redirects to {peer_address}, an address of this machine")

    def close(self) -> None:
        """Abort the connection: a TLS shutdown would wait for a peer that may hang, or a loop that has ended."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    async def aclose(self) -> None:
        """Close and wait until the socket is closed, for tests and shutdown."""
        writer = self._writer
        self.close()
        if writer is not None:
            with suppress(*CONNECTION_ERRORS):
                await writer.wait_closed()

    async def _send_once(self, request: HttpRequest) -> HttpResponse:
        response = await self._exchange_with_reconnect(request)
        # 204 and 304 have no body by definition (RFC 9110, 6.4.1).
        if request.method == "HEAD" or response.status in (204, 304):
            body = b""
        else:
            body = await self._read_body(response.headers)
        if response.headers.get("connection", "").lower() == "close":
            self.close()
        return HttpResponse(response.status, response.headers, body)

    async def _exchange_with_reconnect(self, request: HttpRequest) -> HttpResponse:
        """Send the request and read the headers of the answer; retry once if a reused connection was closed."""
        was_kept = await self._connect(request.url)
        try:
            return await self._exchange(request)
        except CONNECTION_ERRORS:
            if not was_kept:
                raise
        self.close()
        await self._connect(request.url)
        return await self._exchange(request)

    async def _connect(self, url: str) -> bool:
        """Connect to the origin of `url`; True if the existing connection is reused."""
        if self._writer is not None and url == self._url and not self._writer.is_closing():
            return True
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CollectError("is not an http or https URL", where=quote(url))
        origin = (parts.scheme, parts.netloc)
        if self._writer is not None and origin == self._origin and not self._writer.is_closing():
            self._url = url
            return True
        self.close()
        self._relay_headers = self._encoded = None
        tls_context = self._access.tls_context() if parts.scheme == "https" else None
        port = parts.port or (443 if tls_context else 80)
        if self._unix_socket is not None:
            self._reader, self._writer = await streams.open_unix_connection(self._unix_socket)
        elif proxy := self._access.proxy_for(parts.hostname):
            target = addresses.join_port(parts.hostname, port)
            await self._connect_via_proxy(proxy, target, is_secure=tls_context is not None)
        else:
            self._reader, self._writer = await streams.open_connection(parts.hostname, port)
        if tls_context is not None and self._writer is not None:
            # In two steps: a cancelled `open_connection` with TLS can leak a socket (Python 3.11).
            await self._writer.start_tls(tls_context, server_hostname=self._access.server_name or parts.hostname)
        self._origin, self._url = origin, url
        return False

    async def _connect_via_proxy(self, proxy: str, target: str, *, is_secure: bool) -> None:
        """Connect to an HTTP proxy: it relays plain requests, and opens a tunnel for TLS."""
        parts = urlsplit(proxy)
        self._reader, self._writer = await streams.open_connection(parts.hostname or "", parts.port or 80)
        credentials = proxy_headers(proxy)
        if not is_secure:
            self._relay_headers = credentials
            return
        head = "".join(f"{key}: {value}\r\n" for key, value in {"Host": target, **credentials}.items())
        self._writer.write(f"CONNECT {target} HTTP/1.1\r\n{head}\r\n".encode("latin-1"))
        await self._writer.drain()
        answer = (await self._reader.readline()).split(None, 2)
        await self._read_headers()
        if len(answer) < 2 or not answer[1].startswith(b"2"):
            status = answer[1].decode("latin-1") if len(answer) > 1 else "nothing"
            raise CollectError(f"the proxy {parts.hostname}:{parts.port or 80} answered {status} to CONNECT {target}")

    async def _exchange(self, request: HttpRequest) -> HttpResponse:
        assert self._reader is not None
        assert self._writer is not None
        if self._encoded is None or self._encoded[0] is not request:
            self._encoded = (request, self._encode(request))
        self._writer.write(self._encoded[1])
        await self._writer.drain()
        status_line = (await self._reader.readline()).split(None, 2)
        if len(status_line) < 2 or not status_line[0].startswith(b"HTTP/1."):
            raise CollectError("the answer is not HTTP/1.1", where=request.url)
        return HttpResponse(int(status_line[1]), await self._read_headers())

    def _encode(self, request: HttpRequest) -> bytes:
        parts = urlsplit(request.url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = {"Host": parts.netloc.rpartition("@")[2], "User-Agent": "watchkeeper", **request.headers}
        if self._relay_headers is not None:
            path, headers = f"http://{headers['Host']}{path}", {**headers, **self._relay_headers}
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

    async def _read_body(self, headers: Mapping[str, str]) -> bytes:
        is_gzip = headers.get("content-encoding", "").lower() == "gzip"
        if not is_gzip and "content-length" in headers and not _is_chunked(headers):
            return await self._read_by_length(headers)
        decompressor = zlib.decompressobj(wbits=31) if is_gzip else None
        parts, size = [], 0
        async for chunk in self._read_chunks(headers):
            if decompressor is not None:
                chunk = decompressor.decompress(chunk, self.max_body_bytes + 1 - size)
            parts.append(chunk)
            size += len(chunk)
            if size > self.max_body_bytes:
                self._refuse_size(size)
        if decompressor is not None and not decompressor.eof:
            raise EOFError
        return b"".join(parts)

    async def _read_chunks(self, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
        """Yield the body as it arrives: chunked, by its length, or until the peer closes."""
        assert self._reader is not None
        reader = self._reader
        if _is_chunked(headers):
            while size := int((await reader.readline()).split(b";")[0], 16):
                if size > self.max_body_bytes:
                    self._refuse_size(size)
                yield await reader.readexactly(size)
                await reader.readline()
            while (await reader.readline()).strip():
                pass
        elif "content-length" in headers:
            yield await self._read_by_length(headers)
        else:
            while chunk := await reader.read(65536):
                yield chunk
            self.close()

    async def _read_by_length(self, headers: Mapping[str, str]) -> bytes:
        assert self._reader is not None
        length = int(headers["content-length"])
        if length > self.max_body_bytes:
            self._refuse_size(length)
        return await self._reader.readexactly(length)

    def _refuse_size(self, size: int) -> None:
        raise CollectError(f"the body has {size} bytes or more, the limit is {self.max_body_bytes}")


def _is_chunked(headers: Mapping[str, str]) -> bool:
    return headers.get("transfer-encoding", "").lower() == "chunked"


def _redirected_headers(target: str, request: HttpRequest, *, private: frozenset[str]) -> Mapping[str, str]:
    """The headers for a redirect: without our credentials if it leads to another origin."""
    if urlsplit(target)[:2] == urlsplit(request.url)[:2]:
        return request.headers
    return {name: value for name, value in request.headers.items() if name.lower() not in private}


def _describe_error(error: BaseException) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, EOFError):
        return "the connection was closed before the end of the answer"
    return f"{type(error).__name__}: {error}".rstrip(": ")
