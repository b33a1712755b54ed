"""Network streams that copy little: bytes arrive in one buffer per thread, and are copied once.

asyncio's streams allocate 256 KiB for each read, return what was not needed and copy the rest twice, which for a node's
page takes longer than parsing it. `http` opens its connections here; they have the interface of asyncio's streams.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterable
from typing import SupportsIndex, cast

# One whole page of an 8-GPU node.
BUFFER_BYTES = 128 * 1024
# How much a peer may send before it is read; a header line must fit.
MAX_UNREAD_BYTES = 64 * 1024
EMPTY_LINE = re.compile(rb"\n\r?\n")


class SocketReader(asyncio.StreamReader):
    """Received bytes that were not read yet; one coroutine reads at a time."""

    def __init__(self) -> None:
        super().__init__()
        # Unread are the bytes of `_current` from `_offset` on, then `_chunks`; `_unread_bytes` counts both.
        self._current, self._offset = b"", 0
        self._chunks: list[bytes] = []
        self._unread_bytes = 0
        self._needed_bytes = 0
        self._arrival: asyncio.Future[None] | None = None
        self._read_transport: asyncio.ReadTransport | None = None
        self._is_paused = self._has_ended = False
        self._error: Exception | None = None

    def set_transport(self, transport: asyncio.BaseTransport) -> None:
        self._read_transport = cast(asyncio.ReadTransport, transport)

    def exception(self) -> Exception | None:
        return self._error

    def set_exception(self, exc: Exception) -> None:
        self._error = exc
        self._wake()

    def feed_eof(self) -> None:
        self._has_ended = True
        self._wake()

    def at_eof(self) -> bool:
        return self._has_ended and not self._unread_bytes

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        chunk = bytes(data)
        self._chunks.append(chunk)
        self._unread_bytes += len(chunk)
        if self._unread_bytes >= self._needed_bytes:
            self._wake()
        if (
            self._unread_bytes > max(self._needed_bytes, MAX_UNREAD_BYTES)
            and not self._is_paused
            and self._read_transport is not None
        ):
            self._is_paused = True
            self._read_transport.pause_reading()

    async def readline(self) -> bytes:
        while True:
            self._join_chunks()
            end = self._current.find(b"\n", self._offset)
            if end >= 0:
                return self._consume(end + 1 - self._offset)
            await self._wait_for_more()

    async def read_block(self) -> list[bytes]:
        """The lines before an empty line, which is consumed too; lines may end with \\n alone (RFC 9112, 2.2)."""
        while True:
            self._join_chunks()
            if self._current.startswith((b"\r\n", b"\n"), self._offset):
                await self.readline()
                return []
            end_match = EMPTY_LINE.search(self._current, self._offset)
            if end_match is not None:
                return self._consume(end_match.end() - self._offset).split(b"\n")[:-2]
            await self._wait_for_more()

    async def _wait_for_more(self) -> None:
        if self._unread_bytes > MAX_UNREAD_BYTES:
            raise asyncio.LimitOverrunError(f"more than {MAX_UNREAD_BYTES} bytes in one line", self._unread_bytes)
        if not await self._wait_for(self._unread_bytes + 1):
            raise asyncio.IncompleteReadError(self._consume(self._unread_bytes), None)

    async def readexactly(self, n: int) -> bytes:
        if n < 0:
            raise ValueError(f"{n} bytes cannot be read")
        if not await self._wait_for(n):
            self._join_chunks()
            raise asyncio.IncompleteReadError(self._consume(self._unread_bytes), n)
        self._join_chunks()
        return self._consume(n)

    async def read(self, n: int = -1) -> bytes:
        """Some bytes, at most `n`; empty when the peer has closed."""
        await self._wait_for(1)
        self._join_chunks()
        return self._consume(self._unread_bytes if n < 0 else min(n, self._unread_bytes))

    async def _wait_for(self, size: int) -> bool:
        """Wait until this many bytes are unread; False if the peer closed before."""
        while self._unread_bytes < size:
            if self._error is not None:
                raise self._error
            if self._has_ended:
                return False
            self._needed_bytes = size
            if self._is_paused and self._read_transport is not None:
                self._is_paused = False
                self._read_transport.resume_reading()
            self._arrival = asyncio.get_running_loop().create_future()
            try:
                await self._arrival
            finally:
                self._arrival, self._needed_bytes = None, 0
        return True

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _join_chunks(self) -> None:
        """Append `_chunks` to the unread rest of `_current`."""
        if self._chunks:
            rest = [self._current[self._offset :]] if self._offset < len(self._current) else []
            chunks = rest + self._chunks
            self._current, self._offset, self._chunks = chunks[0] if len(chunks) == 1 else b"".join(chunks), 0, []

    def _consume(self, size: int) -> bytes:
        start, self._offset = self._offset, self._offset + size
        self._unread_bytes -= size
        consumed = self._current[start : self._offset]
        if self._offset == len(self._current):
            self._current, self._offset = b"", 0
        return consumed


class _ThreadBuffer(threading.local):
    """One buffer for each thread; its event loop copies the bytes out before it does anything else."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(BUFFER_BYTES))


_thread_buffer = _ThreadBuffer()


class _BufferProtocol(asyncio.StreamReaderProtocol, asyncio.BufferedProtocol):
    """Passes received bytes from the shared buffer to a reader."""

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 (the interface of asyncio)
        return _thread_buffer.view

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(_thread_buffer.view[:nbytes]))


async def open_connection(host: str, port: int) -> tuple[SocketReader, asyncio.StreamWriter]:
    """As `asyncio.open_connection`."""
    loop, reader = asyncio.get_running_loop(), SocketReader()
    transport, protocol = await loop.create_connection(lambda: _BufferProtocol(reader, loop=loop), host, port)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def open_unix_connection(path: str) -> tuple[SocketReader, asyncio.StreamWriter]:
    """As `asyncio.open_unix_connection`."""
    loop, reader = asyncio.get_running_loop(), SocketReader()
    transport, protocol = await loop.create_unix_connection(lambda: _BufferProtocol(reader, loop=loop), path)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
