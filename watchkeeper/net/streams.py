"""Connections that cost little for each answer: bytes arrive in one buffer of the thread, and are copied once.

asyncio's own streams make room for 256 KiB before each piece that they receive, give back what was too much, and copy
the rest twice, which for a node's page takes longer than all that follows. `http` opens its connections here; they are
used as asyncio's.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterable
from typing import SupportsIndex, cast

# A page of an 8-GPU node, whole.
ROOM_BYTES = 128 * 1024
# What a peer may send before somebody asks for it; a line of a head has to fit in.
UNASKED_BYTES = 64 * 1024
EMPTY_LINE = re.compile(rb"\n\r?\n")


class SocketReader(asyncio.StreamReader):
    """What has arrived and was not yet read. One coroutine reads at a time."""

    def __init__(self) -> None:
        super().__init__()
        # The bytes from `_at` on come first, then the pieces behind them; `_size` counts both.
        self._held, self._at = b"", 0
        self._behind: list[bytes] = []
        self._size = 0
        self._wanted = 0
        self._waits: asyncio.Future[None] | None = None
        self._line: asyncio.ReadTransport | None = None
        self._is_paused = self._has_ended = False
        self._broken: Exception | None = None

    def set_transport(self, transport: asyncio.BaseTransport) -> None:
        self._line = cast(asyncio.ReadTransport, transport)

    def exception(self) -> Exception | None:
        return self._broken

    def set_exception(self, exc: Exception) -> None:
        self._broken = exc
        self._wake()

    def feed_eof(self) -> None:
        self._has_ended = True
        self._wake()

    def at_eof(self) -> bool:
        return self._has_ended and not self._size

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        piece = bytes(data)
        self._behind.append(piece)
        self._size += len(piece)
        if self._size >= self._wanted:
            self._wake()
        if self._size > max(self._wanted, UNASKED_BYTES) and not self._is_paused and self._line is not None:
            self._is_paused = True
            self._line.pause_reading()

    async def readline(self) -> bytes:
        while True:
            self._gather()
            end = self._held.find(b"\n", self._at)
            if end >= 0:
                return self._take(end + 1 - self._at)
            await self._have_more()

    async def read_block(self) -> list[bytes]:
        """The lines up to an empty one, which is read and left out; lines may end with \\n alone (RFC 9112, 2.2)."""
        while True:
            self._gather()
            if self._held.startswith((b"\r\n", b"\n"), self._at):
                await self.readline()
                return []
            found = EMPTY_LINE.search(self._held, self._at)
            if found is not None:
                return self._take(found.end() - self._at).split(b"\n")[:-2]
            await self._have_more()

    async def _have_more(self) -> None:
        if self._size > UNASKED_BYTES:
            raise asyncio.LimitOverrunError(f"more than {UNASKED_BYTES} bytes without an end", self._size)
        if not await self._have(self._size + 1):
            raise asyncio.IncompleteReadError(self._take(self._size), None)

    async def readexactly(self, n: int) -> bytes:
        if n < 0:
            raise ValueError(f"{n} bytes cannot be read")
        if not await self._have(n):
            self._gather()
            raise asyncio.IncompleteReadError(self._take(self._size), n)
        self._gather()
        return self._take(n)

    async def read(self, n: int = -1) -> bytes:
        """Some bytes, at most `n`; none when the peer has closed."""
        await self._have(1)
        self._gather()
        return self._take(self._size if n < 0 else min(n, self._size))

    async def _have(self, size: int) -> bool:
        """Wait until so many bytes are here; False if the peer has closed before."""
        while self._size < size:
            if self._broken is not None:
                raise self._broken
            if self._has_ended:
                return False
            self._wanted = size
            if self._is_paused and self._line is not None:
                self._is_paused = False
                self._line.resume_reading()
            self._waits = asyncio.get_running_loop().create_future()
            try:
                await self._waits
            finally:
                self._waits, self._wanted = None, 0
        return True

    def _wake(self) -> None:
        if self._waits is not None and not self._waits.done():
            self._waits.set_result(None)

    def _gather(self) -> None:
        """Put what lies behind to the rest of what is held."""
        if self._behind:
            rest = [self._held[self._at :]] if self._at < len(self._held) else []
            pieces = rest + self._behind
            self._held, self._at, self._behind = pieces[0] if len(pieces) == 1 else b"".join(pieces), 0, []

    def _take(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        self._size -= size
        taken = self._held[start : self._at]
        if self._at == len(self._held):
            self._held, self._at = b"", 0
        return taken


class _Room(threading.local):
    """Each thread has a loop of its own, which fills the room and empties it again before anything else happens."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(ROOM_BYTES))


_room = _Room()


class _Received(asyncio.StreamReaderProtocol, asyncio.BufferedProtocol):
    """Hands a reader what has arrived in the shared room."""

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 (asyncio asks so)
        return _room.view

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(_room.view[:nbytes]))


async def open_connection(host: str, port: int) -> tuple[SocketReader, asyncio.StreamWriter]:
    """As `asyncio.open_connection`."""
    loop, reader = asyncio.get_running_loop(), SocketReader()
    transport, protocol = await loop.create_connection(lambda: _Received(reader, loop=loop), host, port)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def open_unix_connection(path: str) -> tuple[SocketReader, asyncio.StreamWriter]:
    """As `asyncio.open_unix_connection`."""
    loop, reader = asyncio.get_running_loop(), SocketReader()
    transport, protocol = await loop.create_unix_connection(lambda: _Received(reader, loop=loop), path)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
