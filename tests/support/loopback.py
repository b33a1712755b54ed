"""A tiny HTTP server on 127.0.0.1 whose answers a test writes by hand, byte for byte."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from watchkeeper.net import listening


@dataclass(frozen=True)
class Heard:
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    writer: asyncio.StreamWriter


Answer = Callable[[Heard], bytes | Awaitable[bytes]]


@dataclass
class Loopback:
    origin: str = ""
    heard: list[Heard] = field(default_factory=list)
    connections: int = 0

    @property
    def address(self) -> str:
        return self.origin.partition("://")[2]


def reply(body: bytes | str = b"", *, status: int = 200, **headers: str) -> bytes:
    """A whole answer with Content-Length; header names are written with underscores."""
    content = body.encode() if isinstance(body, str) else body
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    head = "\r\n".join([f"HTTP/1.1 {status} x", f"Content-Length: {len(content)}", *lines, "", ""])
    return head.encode() + content


@asynccontextmanager
async def serve(answer: Answer, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Loopback]:
    """Answer every request with `answer`; an empty answer closes the connection."""
    loopback, talks = Loopback(), dict[asyncio.Task[None], asyncio.StreamWriter]()

    # Not a coroutine: one that is cancelled before its first step would leave its connection open.
    def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not server.is_serving():
            writer.close()
            return
        loopback.connections += 1
        talks[asyncio.create_task(talk(reader, writer))] = writer

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                method, path, _ = line.decode().split()
                headers = {}
                while (header := (await reader.readline()).decode().strip()) != "":
                    name, _, value = header.partition(":")
                    headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                loopback.heard.append(Heard(method, path, headers, body, writer))
                given = answer(loopback.heard[-1])
                content = given if isinstance(given, bytes) else await given
                if not content:
                    return
                writer.write(content)
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(meet, "127.0.0.1", 0, ssl=tls)
    loopback.origin = f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield loopback
    finally:
        await listening.close_server(server)
        for task, writer in talks.items():
            task.cancel()
            writer.close()
        await asyncio.gather(*talks, return_exceptions=True)
