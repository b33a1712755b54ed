"""uvicorn for the hub and the simulator: the caller decides when it stops, and every socket is closed."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from watchkeeper.net import listening


class AsgiServer(uvicorn.Server):
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            await listening.close_server(server)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
