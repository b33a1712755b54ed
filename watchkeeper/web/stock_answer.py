"""GET /api/fleet, made once for all who ask at the same time: the inventory, who holds what, and whose that is.

Ten thousand GPUs are two megabytes of JSON and three questions to the engine, and every page of the console begins with
it. So the answer is kept for some seconds, compressed, and browsers that have it already are told that they do. A page
that opens says that an older one will do: `live` keeps one ready, and giving it has the next one made.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.web import holders, inventory
from watchkeeper.web.answers import whole_number
from watchkeeper.web.view import HubView

# Who holds a GPU may be as old as a scrape without harm; a new inventory is answered at once.
KEPT_SECONDS = 10.0
# Level 1 takes a third of the time of the default and leaves a tenth more.
GZIP_LEVEL = 1
# Twice as long as a hub that nobody looks at takes between two answers.
OLDEST_SECONDS = 120
OPENING_SECONDS = 2.0


class StockAnswer:
    def __init__(self, hub: HubView) -> None:
        self._hub = hub
        self._busy = asyncio.Lock()
        self._kept: tuple[float, str, bytes, str] | None = None
        self._renewal: asyncio.Task[None] | None = None

    async def answer(self, request: Request) -> Response:
        text = request.query_params.get("max_age", f"{KEPT_SECONDS:g}")
        oldest = whole_number(text)
        if oldest is None or oldest > OLDEST_SECONDS:
            raise HTTPException(400, f"max_age `{text[:20]}` is not a number of seconds from 0 to {OLDEST_SECONDS}")
        body, tag = await self._body(oldest)
        headers = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(body, media_type="application/json", headers=headers | {"Content-Encoding": "gzip"})
        return Response(gzip.decompress(body), media_type="application/json", headers=headers)

    async def make_ready(self) -> None:
        """Have an answer that is at most some seconds old."""
        await self._body(KEPT_SECONDS)

    def stop(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()

    async def _renew(self) -> None:
        # Not at once: the page that was just answered still fetches its code.
        await asyncio.sleep(OPENING_SECONDS)
        await self.make_ready()

    async def _body(self, oldest_seconds: float) -> tuple[bytes, str]:
        stock = inventory.take(self._hub.fleet)
        ready = self._ready(stock, oldest_seconds)
        if ready is None:
            async with self._busy:
                # Who had to wait takes what the one before has made.
                return self._ready(stock, oldest_seconds) or await self._make(stock)
        if self._ready(stock, KEPT_SECONDS) is None and (self._renewal is None or self._renewal.done()):
            self._renewal = asyncio.create_task(self._renew())
        return ready

    def _ready(self, stock: inventory.Inventory, oldest_seconds: float) -> tuple[bytes, str] | None:
        """What is kept, if it is of this inventory and young enough."""
        if self._kept is None or self._kept[1] != stock.version:
            return None
        age = self._hub.clock.now().timestamp() - self._kept[0]
        return self._kept[2:] if 0 <= age < oldest_seconds else None

    async def _make(self, stock: inventory.Inventory) -> tuple[bytes, str]:
        now = self._hub.clock.now().timestamp()
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
