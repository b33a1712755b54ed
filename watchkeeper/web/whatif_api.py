"""POST /api/capacity/whatif: recorded jobs replayed on the fleet that this hub sees, as it is and as it might be.

The body has the jobs as text, because schedulers keep them and a hub does not; the fleet is the hub's own inventory.
One replay at a time, in a thread. The console's page Cost and capacity asks; nothing is changed.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.capacity import jobs, replay, stock, whatif
from watchkeeper.errors import WatchkeeperError
from watchkeeper.web import inventory
from watchkeeper.web.answers import Endpoint, ok, read_object
from watchkeeper.web.auth import Role
from watchkeeper.web.view import HubView

# A line of sacct is about 120 bytes: room for 60,000 jobs, of which the limit below are replayed.
BODY_BYTES = 8 << 20
MOST_JOBS = 50_000
MOST_GPUS = 1_000_000
MOST_NAMES = 1000


class WhatIfApi:
    def __init__(self, hub: HubView) -> None:
        self._hub = hub
        self._busy = asyncio.Lock()

    async def compare(self, request: Request) -> Response:
        body = await read_object(request, BODY_BYTES)
        change, policy = _change(body), _policy(body)
        text = body.get("jobs")
        if not isinstance(text, str) or not text.strip():
            raise HTTPException(400, 'the body needs recorded jobs as text: {"jobs": "…"}, as sacct --parsable2 or CSV')
        nodes = self._nodes()
        if not nodes:
            raise HTTPException(409, "this hub has seen no GPU yet: there is no fleet to replay on")

        def work() -> dict[str, Any]:
            recorded = jobs.read_jobs(text, where="jobs")
            if len(recorded.jobs) > MOST_JOBS:
                raise HTTPException(413, f"{len(recorded.jobs):,} jobs; the most is {MOST_JOBS:,}. Take a shorter time")
            return whatif.compare(recorded, nodes, change, policy=policy)

        async with self._busy:
            try:
                return ok(**await asyncio.to_thread(work))
            except WatchkeeperError as error:
                raise HTTPException(400, str(error)) from error

    def _nodes(self) -> list[stock.Node]:
        taken = inventory.take(self._hub.fleet)
        found = []
        for node in taken.nodes:
            slots = [taken.slots[at].gpu for at in taken.by_node[node.cluster, node.name]]
            models = {gpu.model for gpu in slots if gpu is not None and gpu.model}
            if slots:
                model = next(iter(models)) if len(models) == 1 else ""
                found.append(stock.Node(node.name, len(slots), model, node.domains.get("rack", "")))
        return found


def _change(body: dict[str, Any]) -> whatif.Change:
    return whatif.Change(
        _gpus(body, "add"),
        _gpus(body, "remove"),
        _names(body, "remove_racks"),
        _names(body, "remove_nodes"),
        _gpus(body, "slice_gpus"),
        _gpus(body, "slices"),
    )


def _gpus(body: dict[str, Any], name: str) -> int:
    value = body.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST_GPUS:
        raise HTTPException(400, f"{name} must be a whole number from 0 to {MOST_GPUS:,}")
    return value


def _names(body: dict[str, Any], name: str) -> tuple[str, ...]:
    value = body.get(name, [])
    if not isinstance(value, list) or len(value) > MOST_NAMES or not all(isinstance(one, str) for one in value):
        raise HTTPException(400, f"{name} must be a list of at most {MOST_NAMES:,} names")
    return tuple(value)


def _policy(body: dict[str, Any]) -> replay.Policy:
    text = body.get("policy", replay.Policy.BACKFILL)
    try:
        return replay.Policy(text)
    except ValueError as error:
        raise HTTPException(400, f"policy `{str(text)[:40]}`: there are {', '.join(replay.Policy)}") from error


def endpoints(hub: HubView) -> list[Endpoint]:
    return [
        Endpoint(
            ("POST",),
            "/api/capacity/whatif",
            Role.VIEWER,
            WhatIfApi(hub).compare,
            changes=True,
            words="Recorded jobs replayed on this fleet as it is and as it might be: waiting and utilisation of both",
            body={
                "jobs": str,
                "add": int,
                "remove": int,
                "remove_racks": list[str],
                "remove_nodes": list[str],
                "slice_gpus": int,
                "slices": int,
                "policy": str,
            },
        )
    ]
