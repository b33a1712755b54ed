"""Servers that close while a client connects."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings

import pytest

from tests.support import waiting
from watchkeeper.net import listening


@pytest.mark.slow
@pytest.mark.parametrize("turns", range(6))
def test_close_server_leaves_no_connection_open(turns: int) -> None:
    def meet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def story() -> None:
        server = await asyncio.start_server(meet, "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()):
            await waiting.turns(turns)
            await listening.close_server(server)

    with warnings.catch_warnings(record=True) as left:
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run(story())
        gc.collect()
    assert not left
