"""Close an asyncio server without leaking a socket."""

from __future__ import annotations

import asyncio


async def close_server(server: asyncio.Server) -> None:
    """Stop accepting, finish a connection that is being accepted, then close."""
    # asyncio cannot create a connection for a closed server: it would drop the socket without closing it.
    for listener in server.sockets:
        server.get_loop().remove_reader(listener.fileno())
    try:
        await asyncio.sleep(0)
    finally:
        server.close()
