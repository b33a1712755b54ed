"""GET /api/bundle: everything the hub knows about an incident or a node as one file, for whoever repairs the machine.

`watchkeeper bundle` saves what comes from here; `remediate.evidence` says what is in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.hub.runtime import Runtime
from watchkeeper.remediate.evidence import EvidenceSources
from watchkeeper.web import shapes
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import Endpoint, QueryParam

# Each holds some ten MiB while it is made.
BUNDLES_AT_ONCE = 2


class BundleApi:
    def __init__(self, runtime: Runtime, evidence: Callable[[], EvidenceSources | None]) -> None:
        self._runtime, self._evidence = runtime, evidence
        self._running = 0

    async def make(self, request: Request) -> Response:
        sources, asked = self._evidence(), request.query_params
        incident, node = asked.get("incident"), asked.get("node")
        if (incident is None) == (node is None):
            raise HTTPException(400, "either `incident` or `node` is needed: evidence about what?")
        subject = incident or node or ""
        if sources is None:
            raise HTTPException(409, "a recording that is played has no journal to take evidence from")
        if self._running >= BUNDLES_AT_ONCE:
            raise HTTPException(429, f"{self._running} bundles are being made, the limit is {BUNDLES_AT_ONCE}")
        now, hides = self._runtime.clock.now(), asked.get("hide_names") == "1"
        self._running += 1
        try:
            if incident is not None:
                made = await asyncio.to_thread(sources.bundle_incident, subject, now=now, hides_names=hides)
            else:
                cluster = asked.get("cluster")
                made = await asyncio.to_thread(
                    sources.bundle_node, subject, cluster=cluster, now=now, hides_names=hides
                )
        finally:
            self._running -= 1
        if made is None:
            raise HTTPException(404, f"there is no {'node' if incident is None else 'incident'} {subject[:80]}")
        return Response(made, media_type="application/gzip")


def endpoints(api: BundleApi) -> list[Endpoint]:
    # Not for viewers: names of users, and what was printed on machines.
    asks = (
        QueryParam("incident", "evidence about this incident; either this or `node`"),
        QueryParam("node", "evidence about this node"),
        shapes.CLUSTER,
        QueryParam("hide_names", "1: names of users and machines become placeholders"),
    )
    words = "Everything known about an incident or a node as a tar.gz, for whoever repairs the machine"
    make = api.make
    return [
        Endpoint(
            ("GET",), "/api/bundle", Role.OPERATOR, make, summary=words, params=asks, media_type="application/gzip"
        ),
    ]
