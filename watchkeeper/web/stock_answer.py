"""GET /api/fleet, made once for all who ask at the same time: the inventory, who holds what, and whose that is.

Ten thousand GPUs are two megabytes of JSON and three questions to the engine, and every page of the console begins with
it. So the answer is kept for some seconds, compressed, and browsers that have it already are told that they do.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib

import orjson
from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.web import holders, inventory
from watchkeeper.web.view import HubView

# Who holds a GPU may be as old as a scrape without harm; a new inventory is answered at once.
KEPT_SECONDS = 10.0
# Level 1 takes a third of the time of the default and leaves a tenth more.
GZIP_LEVEL = 1


class StockAnswer:
    def __init__(self, hub: HubView) -> None:
        self._hub = hub
        self._busy = asyncio.Lock()
        self._kept: tuple[float, str, bytes, str] | None = None

    async def answer(self, request: Request) -> Response:
        async with self._busy:
            body, tag = await self._body()
        headers = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(body, media_type="application/json", headers=headers | {"Content-Encoding": "gzip"})
        return Response(gzip.decompress(body), media_type="application/json", headers=headers)

    async def _body(self) -> tuple[bytes, str]:
        stock, now = inventory.take(self._hub.fleet), self._hub.clock.now().timestamp()
        if self._kept is not None and self._kept[1] == stock.version and 0 <= now - self._kept[0] < KEPT_SECONDS:
            return self._kept[2], self._kept[3]
        held = await holders.ask(self._hub)
        body = await asyncio.to_thread(write, stock, held)
        tag = f'"{hashlib.blake2s(body, digest_size=8).hexdigest()}"'
        self._kept = (now, stock.version, body, tag) if held.problem is None else None
        return body, tag


def write(stock: inventory.Inventory, held: holders.Holders) -> bytes:
    """The answer, compressed. Where a GPU has several holders the first is named; a team may be a namespace."""
    first = {uuid: those[0] for uuid, those in held.by_gpu.items() if those and uuid in stock.position}
    content = {
        "ok": True,
        **stock.to_plain(),
        "workloads": None if held.problem is not None else {uuid: one.called for uuid, one in first.items()},
        "teams": {one.called: one.team or one.namespace or one.user for one in first.values()},
    }
    return gzip.compress(orjson.dumps(content), GZIP_LEVEL, mtime=0)
