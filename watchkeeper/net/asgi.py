"""uvicorn as the hub and the simulator run it: whoever serves decides when to stop, and no socket is left behind."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from watchkeeper.net import listening


class AsgiServer(uvicorn.Server):
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for one in self.servers:
            await listening.close_server(one)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
