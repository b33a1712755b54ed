"""Ending a server of asyncio without leaving a socket behind."""

from __future__ import annotations

import asyncio


async def close_server(server: asyncio.Server) -> None:
    """Accept nobody else, let a connection that is being accepted be made, then close.

    asyncio cannot make a connection for a server that is closed: it would drop the socket without closing it.
    """
    for listener in server.sockets:
        server.get_loop().remove_reader(listener.fileno())
    try:
        await asyncio.sleep(0)
    finally:
        server.close()
