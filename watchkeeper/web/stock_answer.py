"""GET /api/fleet, made once for all who ask at the same time: the inventory, who holds what, and whose that is.

Ten thousand GPUs are two megabytes of JSON and three questions to the engine, and every page of the console begins with
it. So the answer is kept for some seconds, compressed, and browsers that have it already are told that they do. A page
that opens says that an older one will do, also of an inventory that has changed since: `live` keeps the one ready that
belongs to its newest picture, and giving it has the next one made.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Made:
    """An answer, and what it is about: when, and which inventory."""

    at: float
    version: str
    body: bytes
    tag: str
    is_whole: bool


class StockAnswer:
    def __init__(self, hub: HubView) -> None:
        self._hub = hub
        self._busy = asyncio.Lock()
        self._kept: Made | None = None
        self._renewal: asyncio.Task[None] | None = None

    async def answer(self, request: Request) -> Response:
        text = request.query_params.get("max_age", f"{KEPT_SECONDS:g}")
        oldest = whole_number(text)
        if oldest is None or oldest > OLDEST_SECONDS:
            raise HTTPException(400, f"max_age `{text[:20]}` is not a number of seconds from 0 to {OLDEST_SECONDS}")
        made = await self._found(oldest)
        headers = {"ETag": made.tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if made.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(made.body, media_type="application/json", headers=headers | {"Content-Encoding": "gzip"})
        return Response(gzip.decompress(made.body), media_type="application/json", headers=headers)

    def stop(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()

    async def _renew(self) -> None:
        # Not at once: the page that was just answered still fetches its code.
        await asyncio.sleep(OPENING_SECONDS)
        # Another inventory comes with its picture.
        if self._kept is not None and self._kept.version == inventory.take(self._hub.fleet).version:
            await self._found(KEPT_SECONDS)

    async def _found(self, oldest_seconds: float) -> Made:
        if oldest_seconds > KEPT_SECONDS and (ready := self._young(oldest_seconds)) is not None:
            if self._renewal is None or self._renewal.done():
                self._renewal = asyncio.create_task(self._renew())
            return ready
        stock = inventory.take(self._hub.fleet)
        async with self._busy:
            # Who had to wait takes what the one before has made.
            ready = self._young(oldest_seconds)
            if ready is None or ready.version != stock.version:
                ready = await self.make(stock)
                self.keep(ready)
        return ready

    def _young(self, oldest_seconds: float) -> Made | None:
        """What is kept, if it is young enough."""
        age = 0.0 if self._kept is None else self._hub.clock.now().timestamp() - self._kept.at
        return self._kept if 0 <= age < oldest_seconds else None

    def keep(self, made: Made) -> None:
        """Answer with this from now on; what had to leave the holders out is asked for again."""
        self._kept = made if made.is_whole else None

    async def make(self, stock: inventory.Inventory) -> Made:
        now = self._hub.clock.now().timestamp()
        held = await holders.ask(self._hub)
        body = await asyncio.to_thread(write, stock, held)
        tag = f'"{hashlib.blake2s(body, digest_size=8).hexdigest()}"'
        return Made(now, stock.version, body, tag, is_whole=held.problem is None)


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
