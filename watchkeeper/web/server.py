"""Running the application: a socket bound before anything else, and a stop that takes seconds.

`hub.py` or the command line calls `listen` first, so that a taken port is known before a data
directory is touched, and then `serve` until its `stop` event is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from watchkeeper.errors import StartRefused
from watchkeeper.net import asgi
from watchkeeper.web.auth.tls import REFRESH_SECONDS, Certificates

# Requests in progress get this long to end; open WebSockets are told to go at once.
SHUTDOWN_GRACE_SECONDS = 2
BACKLOG = 2048
# How long one thread may keep the interpreter while others wait, instead of Python's 5 ms: rules let go of it with each
# step of NumPy, thousands of times in an evaluation, and wait for whoever answers questions before they have it again.
SWITCH_INTERVAL_SECONDS = 0.001
TCP_LISTEN = "0A"


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, or StartRefused with who holds the port; port 0 takes a free one."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise StartRefused(f"cannot listen there: {error.strerror}", where=f"{host}:{port}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. Without, the body of an answer waits 40 ms for the client to acknowledge its head.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _refused(host, port, error) from error
    listener.setblocking(False)
    return listener


def _refused(host: str, port: int, error: OSError) -> StartRefused:
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        process = find_listening_process(port) or "another process"
        return StartRefused(
            f"the port is taken by {process}", where=where, remedy="Stop it, or choose another port with --port"
        )
    if error.errno == errno.EACCES:
        return StartRefused("this port needs more rights", where=where, remedy="Choose one from 1024 on with --port")
    return StartRefused(f"cannot listen there: {error.strerror}", where=where, remedy="Check --host")


def find_listening_process(port: int) -> str | None:
    """Which process listens on a port, as far as this user may see."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                columns = line.split()
                if columns[3] == TCP_LISTEN and int(columns[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{columns[9]}]")
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(str(link.readlink()) in inodes for link in (folder / "fd").iterdir()):
                return f"{(folder / 'comm').read_text().strip()} (process {folder.name})"
    return None


def _websocket(**options: Any) -> asyncio.Protocol:
    """Imported for the first viewer: questions do not wait for it."""
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

    return WebSocketsSansIOProtocol(**options)


class _Server(asgi.AsgiServer):
    def __init__(self, config: uvicorn.Config, is_serving: asyncio.Event) -> None:
        super().__init__(config)
        self._is_serving = is_serving

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._is_serving.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        # Who has not taken leave by now is not waited for.
        for connection in self.server_state.connections:
            connection.transport.abort()
        await asyncio.sleep(0)


async def serve(
    app: ASGIApp,
    listener: socket.socket,
    *,
    stop: asyncio.Event,
    certificates: Certificates | None = None,
    is_serving: asyncio.Event | None = None,
) -> None:
    """Answer requests until `stop` is set; returns once every connection is closed, at most seconds later.

    `is_up` is set when connections are accepted.
    """
    config = uvicorn.Config(
        app,
        http=HttpToolsProtocol,
        # It is called as a class would be.
        ws=_websocket,  # type: ignore[arg-type]
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        # `proxy` decides whose headers are believed; uvicorn would believe everybody on this machine.
        proxy_headers=False,
        timeout_graceful_shutdown=SHUTDOWN_GRACE_SECONDS,
        ws_max_size=65536,
    )
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    config.load()
    config.ssl = None if certificates is None else certificates.context
    server = _Server(config, is_serving or asyncio.Event())
    running = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    renewing = asyncio.create_task(_renew_certificates(certificates))
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await running
    finally:
        stopping.cancel()
        renewing.cancel()
        listener.close()


async def _renew_certificates(certificates: Certificates | None) -> None:
    while certificates is not None:
        await asyncio.sleep(REFRESH_SECONDS)
        certificates.refresh()
