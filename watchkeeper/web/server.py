"""Run the web server: listen on a port, serve the application, and stop within seconds.

The command line calls `listen` first, so that a port in use is reported before any data directory is opened, and then
`serve`, which returns after its `stop` event is set.
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

# How long requests in progress may take at shutdown; WebSockets are closed immediately.
SHUTDOWN_GRACE_SECONDS = 2
BACKLOG = 2048
# Python's thread switch interval, 5 ms by default: rule evaluation releases the GIL at each NumPy call, thousands of
# times, and each time waits for a thread that answers a query before it gets the GIL back.
SWITCH_INTERVAL_SECONDS = 0.001
TCP_LISTEN = "0A"


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket, or raise StartRefused with the process that uses the port; 0 is any free port."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise StartRefused(f"cannot listen: {error.strerror}", where=f"{host}:{port}", remedy="Check --host") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. Without it, a response body waits 40 ms until the client acknowledges the headers.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _refused(host, port, error) from error
    listener.setblocking(False)
    return listener


def _refused(host: str, port: int, error: OSError) -> StartRefused:
    problem, remedy = f"cannot listen: {error.strerror}", "Check --host"
    if error.errno == errno.EADDRINUSE:
        problem = f"the port is in use by {find_listening_process(port) or 'another process'}"
        remedy = "Stop it, or choose another port with --port"
    elif error.errno == errno.EACCES:
        problem, remedy = "no permission to use this port", "Choose a port from 1024 to 65535 with --port"
    return StartRefused(problem, where=f"{host}:{port}", remedy=remedy)


def find_listening_process(port: int) -> str | None:
    """The process that listens on a port, or None if this user cannot see it."""
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
    """Build the WebSocket protocol; imported at the first connection, so that queries do not wait for it at startup."""
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
        # Close connections that did not end within the grace period.
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
    """Serve requests until `stop` is set; return when all connections are closed, within seconds.

    `is_serving` is set when the server accepts connections.
    """
    config = uvicorn.Config(
        app,
        http=HttpToolsProtocol,
        # uvicorn calls it as it would call a class.
        ws=_websocket,  # type: ignore[arg-type]
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        # `auth.proxy` decides which proxies are trusted; uvicorn would trust every process on this machine.
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
