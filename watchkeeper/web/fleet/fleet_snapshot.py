"""GET /api/fleet, made once for all who ask at the same time: the inventory, who holds what, and whose that is.

Ten thousand GPUs are two megabytes of JSON and three questions to the engine, and every page of the console begins with
it. So the answer is kept for some seconds, compressed, and browsers that have it already are told that they do. A page
that opens says that an older one will do, also of an inventory that has changed since: `live` keeps the one ready that
belongs to its newest picture, and giving it has the next one made. A page that is open is brought from the edition that
it has to the newest by `live`, with `news`: the nodes that are not as they were.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.hub import services
from watchkeeper.hub.runtime import Runtime
from watchkeeper.hub.samples import Queries
from watchkeeper.net import compression
from watchkeeper.web.endpoint import parse_whole_number
from watchkeeper.web.fleet import fleet_layout, holders

# Who holds a GPU may be as old as a scrape without harm; a new inventory is answered at once.
KEPT_SECONDS = 10.0
# Twice as long as a hub that nobody looks at takes between two answers.
OLDEST_SECONDS = 120
OPENING_SECONDS = 2.0
# While a fleet is being met each picture has another inventory; a page that fell further behind fetches the whole.
MOST_EDITIONS = 16


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """An answer: when it was made, of which inventory, its nodes as JSON; `workloads` is None where nobody can say."""

    at: float
    version: str
    nodes: tuple[bytes, ...]
    workloads: Mapping[str, str] | None
    teams: Mapping[str, str]
    edition: str
    body: bytes = b""
    """Compressed, as the console reads it: `workloads` are left out, since each GPU names its own."""

    @property
    def is_whole(self) -> bool:
        return self.workloads is not None


class FleetSnapshots:
    def __init__(self, runtime: Runtime, queries: Queries, *, fleet: services.FleetProtocol) -> None:
        self._runtime, self._queries, self._fleet = runtime, queries, fleet
        self._busy = asyncio.Lock()
        self._kept: FleetSnapshot | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._newest: FleetSnapshot | None = None
        # The nodes of each edition that a page may have.
        self._editions: dict[str, tuple[bytes, ...]] = {}
        self._long = ("", b"")
        self._news = ("", "", "")

    async def answer(self, request: Request) -> Response:
        text = request.query_params.get("max_age", f"{KEPT_SECONDS:g}")
        oldest = parse_whole_number(text)
        if oldest is None or oldest > OLDEST_SECONDS:
            raise HTTPException(400, f"max_age `{text[:20]}` is not a number of seconds from 0 to {OLDEST_SECONDS}")
        made = await self._found(oldest)
        headers = {"ETag": f'"{made.edition}"', "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if made.edition in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        body = made.body if request.query_params.get("workloads") == "0" else await self._long_body(made)
        if compression.accepts_gzip(request.headers.get("accept-encoding", "")):
            return Response(body, media_type="application/json", headers=headers | {"Content-Encoding": "gzip"})
        return Response(gzip.decompress(body), media_type="application/json", headers=headers)

    def newest_for(self, version: str) -> FleetSnapshot | None:
        """The newest answer, if it is about that inventory."""
        return self._newest if self._newest is not None and self._newest.version == version else None

    def age_seconds(self) -> float:
        """How old the newest answer is, also one that had to leave the holders out."""
        return math.inf if self._newest is None else self._runtime.clock.now().timestamp() - self._newest.at

    def has_edition(self, edition: str) -> bool:
        return edition in self._editions

    def changes_since(self, since: str, made: FleetSnapshot) -> str:
        """The message that takes a page from its edition to this one; without nodes where nobody knows that edition."""
        # Most viewers have the same edition.
        if self._news[:2] != (since, made.edition):
            self._news = (since, made.edition, write_changes(since, self._editions.get(since), made))
        return self._news[2]

    def stop(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()

    async def _renew(self) -> None:
        # Not at once: the page that was just answered still fetches its code.
        await asyncio.sleep(OPENING_SECONDS)
        # Another inventory comes with its picture.
        if self._kept is not None and self._kept.version == fleet_layout.current_layout(self._fleet).version:
            await self._found(KEPT_SECONDS)

    async def _found(self, oldest_seconds: float) -> FleetSnapshot:
        if oldest_seconds > KEPT_SECONDS and (ready := self._young(oldest_seconds)) is not None:
            if self._renewal is None or self._renewal.done():
                self._renewal = asyncio.create_task(self._renew())
            return ready
        stock = fleet_layout.current_layout(self._fleet)
        async with self._busy:
            # Who had to wait takes what the one before has made.
            ready = self._young(oldest_seconds)
            if ready is None or ready.version != stock.version:
                ready = await self.make(stock)
                self.keep(ready)
        return ready

    def _young(self, oldest_seconds: float) -> FleetSnapshot | None:
        """What is kept, if it is young enough."""
        age = 0.0 if self._kept is None else self._runtime.clock.now().timestamp() - self._kept.at
        return self._kept if 0 <= age < oldest_seconds else None

    def keep(self, made: FleetSnapshot) -> None:
        """Answer with this from now on; what had to leave the holders out is asked for again."""
        self._kept = made if made.is_whole else None

    async def make(self, stock: fleet_layout.FleetLayout) -> FleetSnapshot:
        now = self._runtime.clock.now().timestamp()
        held = await holders.load_holders(self._queries)
        before = () if self._newest is None else self._newest.nodes
        made = await asyncio.to_thread(make_snapshot, stock, held, now=now, before=before)
        self._newest = made
        self._editions.pop(made.edition, None)
        self._editions[made.edition] = made.nodes
        if len(self._editions) > MOST_EDITIONS:
            del self._editions[next(iter(self._editions))]
        return made

    async def _long_body(self, made: FleetSnapshot) -> bytes:
        if self._long[0] != made.edition:
            self._long = (made.edition, await asyncio.to_thread(compressed, made, made.workloads))
        return self._long[1]


def make_snapshot(
    stock: fleet_layout.FleetLayout, held: holders.GpuHolders, *, now: float, before: Sequence[bytes] = ()
) -> FleetSnapshot:
    """The answer. Where a GPU has several holders the first is named; a team may be a namespace."""
    first = {uuid: those[0] for uuid, those in held.by_gpu.items() if those and uuid in stock.position}
    workloads = {uuid: one.called for uuid, one in first.items()}
    teams = {one.called: one.team or one.namespace or one.user for one in first.values()}
    # Editions share the nodes that are the same in both.
    known = {node: node for node in before}
    nodes = tuple(known.get(node, node) for node in map(orjson.dumps, stock.to_plain(workloads)))
    is_known = held.problem is None
    rest = orjson.dumps([stock.version, is_known, teams], option=orjson.OPT_SORT_KEYS)
    content = hashlib.blake2s(rest, digest_size=8)
    for node in nodes:
        content.update(node)
    made = FleetSnapshot(now, stock.version, nodes, workloads if is_known else None, teams, content.hexdigest())
    return replace(made, body=compressed(made, {} if is_known else None))


def compressed(made: FleetSnapshot, workloads: Mapping[str, str] | None) -> bytes:
    return compression.gzip_body(_joined({"ok": True}, made, made.nodes, workloads))


def write_changes(since: str, before: Sequence[bytes] | None, made: FleetSnapshot) -> str:
    """A message for a page that has the edition `since`, of which the nodes are `before`."""
    if before is None:
        return orjson.dumps({"kind": "fleet", "edition": made.edition}).decode()
    head = {"kind": "fleet", "since": since}
    return _joined(head, made, changed_nodes(before, made.nodes), {} if made.is_whole else None).decode()


def changed_nodes(before: Sequence[bytes], after: Sequence[bytes]) -> Iterator[bytes]:
    """The nodes of `after` in order: a node that is new, or `[first,end]` for those that are the same in `before`."""
    places = {node: at for at, node in enumerate(before)}
    at = 0
    while at < len(after):
        first = end = places.get(after[at], -1)
        if first < 0:
            yield after[at]
            at += 1
            continue
        while at < len(after) and end < len(before) and after[at] == before[end]:
            at, end = at + 1, end + 1
        yield b"[%d,%d]" % (first, end)


def _joined(
    head: Mapping[str, object], made: FleetSnapshot, nodes: Iterable[bytes], workloads: Mapping[str, str] | None
) -> bytes:
    """One JSON object; the nodes are JSON already."""
    rest = {"version": made.version, "edition": made.edition, "workloads": workloads, "teams": made.teams}
    return orjson.dumps({**head, **rest})[:-1] + b',"nodes":[' + b",".join(nodes) + b"]}"
