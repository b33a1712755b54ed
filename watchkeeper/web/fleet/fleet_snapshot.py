"""GET /api/fleet: the inventory with the holder of each GPU and its team, built once for all callers.

For 10,000 GPUs the response is 2 MB of JSON and takes three queries, so it is cached compressed for some seconds. A
page that opens accepts an older snapshot, even of an inventory that has changed since: `live` keeps that of its newest
frame ready, and serving it starts a renewal. `live` sends open pages only the nodes that differ from their edition.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import orjson
from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.hub import fleet_layout, holders, services
from watchkeeper.hub.fleet_gpus import FleetGpus, FleetGpuStates
from watchkeeper.net import compression
from watchkeeper.web.endpoint import read_number

# Holders may be as old as a scrape; a changed inventory is never served from the cache.
CACHE_SECONDS = 10.0
# Twice the interval between two snapshots of a hub without viewers.
MAX_AGE_SECONDS = 120
RENEWAL_DELAY_SECONDS = 2.0
# While a fleet is discovered, each frame has another inventory; a page that is further behind loads the whole response.
MAX_EDITIONS = 16


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """A response of /api/fleet: time, inventory version and nodes as JSON; `workloads` None means unknown holders."""

    at: float
    version: str
    nodes: tuple[bytes, ...]
    workloads: Mapping[str, str] | None
    teams: Mapping[str, str]
    edition: str
    body: bytes = b""
    """Compressed, for the console: with empty `workloads`, because each GPU contains its workload."""

    @property
    def has_holders(self) -> bool:
        return self.workloads is not None


class FleetSnapshots:
    def __init__(self, hub: services.Services, gpus: FleetGpus) -> None:
        self._runtime, self._fleet, self._gpus = hub.runtime, hub.fleet, gpus
        self._lock = asyncio.Lock()
        self._cached: FleetSnapshot | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._newest: FleetSnapshot | None = None
        # The nodes of each edition that a page may have.
        self._editions: dict[str, tuple[bytes, ...]] = {}
        self._long_body = ("", b"")
        self._last_changes = ("", "", "")

    async def respond(self, request: Request) -> Response:
        max_age_seconds = read_number(request, "max_age", default=round(CACHE_SECONDS), least=0, limit=MAX_AGE_SECONDS)
        snapshot = await self._load(max_age_seconds)
        headers = {"ETag": f'"{snapshot.edition}"', "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if snapshot.edition in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        body = snapshot.body if request.query_params.get("workloads") == "0" else await self._load_long_body(snapshot)
        if compression.accepts_gzip(request.headers.get("accept-encoding", "")):
            return Response(body, media_type="application/json", headers=headers | {"Content-Encoding": "gzip"})
        return Response(gzip.decompress(body), media_type="application/json", headers=headers)

    def newest_for(self, version: str) -> FleetSnapshot | None:
        """The newest snapshot, if it has this inventory version."""
        return self._newest if self._newest is not None and self._newest.version == version else None

    def age_seconds(self) -> float:
        """The age of the newest snapshot, even of one without holders."""
        return math.inf if self._newest is None else self._runtime.clock.now().timestamp() - self._newest.at

    def has_edition(self, edition: str) -> bool:
        return edition in self._editions

    def changes_since(self, since: str, snapshot: FleetSnapshot) -> str:
        """The message that updates a page from edition `since`; without nodes if this edition is not kept any more."""
        # Most viewers have the same edition.
        if self._last_changes[:2] != (since, snapshot.edition):
            self._last_changes = (since, snapshot.edition, write_changes(since, self._editions.get(since), snapshot))
        return self._last_changes[2]

    def stop(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()

    async def _renew(self) -> None:
        # Deliberately delayed: the page that got the response is still loading its code.
        await asyncio.sleep(RENEWAL_DELAY_SECONDS)
        # For a changed inventory, `live` builds the snapshot with its frame.
        if self._cached is not None and self._cached.version == fleet_layout.current_layout(self._fleet).version:
            await self._load(CACHE_SECONDS)

    async def _load(self, max_age_seconds: float) -> FleetSnapshot:
        if max_age_seconds > CACHE_SECONDS and (snapshot := self._cached_within(max_age_seconds)) is not None:
            if self._renewal is None or self._renewal.done():
                self._renewal = asyncio.create_task(self._renew())
            return snapshot
        layout = fleet_layout.current_layout(self._fleet)
        async with self._lock:
            # Another request may have built it while this one waited for the lock.
            snapshot = self._cached_within(max_age_seconds)
            if snapshot is None or snapshot.version != layout.version:
                snapshot = await self.build(await self._gpus.load())
                self.set_cached(snapshot)
        return snapshot

    def _cached_within(self, max_age_seconds: float) -> FleetSnapshot | None:
        """The cached snapshot, if it is not older than this."""
        age = 0.0 if self._cached is None else self._runtime.clock.now().timestamp() - self._cached.at
        return self._cached if 0 <= age < max_age_seconds else None

    def set_cached(self, snapshot: FleetSnapshot) -> None:
        """Cache a snapshot for the next requests; one without holders is not cached."""
        self._cached = snapshot if snapshot.has_holders else None

    async def build(self, gpus: FleetGpuStates) -> FleetSnapshot:
        now = (gpus.at or self._runtime.clock.now()).timestamp()
        previous = () if self._newest is None else self._newest.nodes
        snapshot = await asyncio.to_thread(make_snapshot, gpus.layout, gpus.gpu_holders, now=now, previous=previous)
        self._newest = snapshot
        self._editions.pop(snapshot.edition, None)
        self._editions[snapshot.edition] = snapshot.nodes
        if len(self._editions) > MAX_EDITIONS:
            del self._editions[next(iter(self._editions))]
        return snapshot

    async def _load_long_body(self, snapshot: FleetSnapshot) -> bytes:
        if self._long_body[0] != snapshot.edition:
            body = await asyncio.to_thread(compress_snapshot, snapshot, snapshot.workloads)
            self._long_body = snapshot.edition, body
        return self._long_body[1]


def make_snapshot(
    layout: fleet_layout.FleetLayout, gpu_holders: holders.GpuHolders, *, now: float, previous: Sequence[bytes] = ()
) -> FleetSnapshot:
    """Build the response; a GPU with several holders shows the first, and without a team, its namespace or user."""
    first = {uuid: held[0] for uuid, held in gpu_holders.by_gpu.items() if held and uuid in layout.slot_by_uuid}
    workloads = {uuid: holder.workload_name for uuid, holder in first.items()}
    teams = {holder.workload_name: holder.team or holder.namespace or holder.user for holder in first.values()}
    # Equal nodes of two editions share memory.
    shared_nodes = {node: node for node in previous}
    nodes = tuple(shared_nodes.get(node, node) for node in map(orjson.dumps, layout.to_plain(workloads)))
    has_holders = gpu_holders.problem is None
    header = orjson.dumps([layout.version, has_holders, teams], option=orjson.OPT_SORT_KEYS)
    digest = hashlib.blake2s(header, digest_size=8)
    for node in nodes:
        digest.update(node)
    snapshot = FleetSnapshot(now, layout.version, nodes, workloads if has_holders else None, teams, digest.hexdigest())
    return replace(snapshot, body=compress_snapshot(snapshot, {} if has_holders else None))


def compress_snapshot(snapshot: FleetSnapshot, workloads: Mapping[str, str] | None) -> bytes:
    return compression.gzip_body(_join_json({"ok": True}, snapshot, snapshot.nodes, workloads))


def write_changes(since: str, before: Sequence[bytes] | None, snapshot: FleetSnapshot) -> str:
    """A message for a page with edition `since`, whose nodes were `before`."""
    if before is None:
        return orjson.dumps({"kind": "fleet", "edition": snapshot.edition}).decode()
    nodes = changed_nodes(before, snapshot.nodes)
    return _join_json({"kind": "fleet", "since": since}, snapshot, nodes, {} if snapshot.has_holders else None).decode()


def changed_nodes(before: Sequence[bytes], after: Sequence[bytes]) -> Iterator[bytes]:
    """The nodes of `after` in order: a changed node, or `[first,end]` for a range of equal nodes in `before`."""
    positions = {node: at for at, node in enumerate(before)}
    at = 0
    while at < len(after):
        first = end = positions.get(after[at], -1)
        if first < 0:
            yield after[at]
            at += 1
            continue
        while at < len(after) and end < len(before) and after[at] == before[end]:
            at, end = at + 1, end + 1
        yield b"[%d,%d]" % (first, end)


def _join_json(
    head: Mapping[str, object], snapshot: FleetSnapshot, nodes: Iterable[bytes], workloads: Mapping[str, str] | None
) -> bytes:
    """Join the response as one JSON object; the nodes are already JSON."""
    rest = {"version": snapshot.version, "edition": snapshot.edition, "workloads": workloads, "teams": snapshot.teams}
    return orjson.dumps({**head, **rest})[:-1] + b',"nodes":[' + b",".join(nodes) + b"]}"
