"""GET /api/bundle: the evidence about an incident or a node as one tar.gz, for the vendor or the repair team.

`watchkeeper bundle` saves the file; `remediate.evidence` defines its contents.
"""

from __future__ import annotations

import asyncio
import functools

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.hub import services
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import QueryParam, get
from watchkeeper.web.shedding import ConcurrencyLimit

# Each uses about 10 MiB of memory while it is built.
MAX_CONCURRENT_BUNDLES = 2


class BundleApi:
    def __init__(self, hub: services.Services) -> None:
        self._runtime, self._evidence = hub.runtime, hub.evidence
        problem = f"{{count}} bundles are being built, the limit is {MAX_CONCURRENT_BUNDLES}; retry later"
        self._limit = ConcurrencyLimit(MAX_CONCURRENT_BUNDLES, problem, retry_after_seconds=None)

    # Not for viewers: a bundle contains user names and the output of commands on nodes.
    @get(
        "/api/bundle",
        QueryParam("incident", "The id of an incident, such as INC-17; set either this or `node`."),
        QueryParam("node", "The name of a node; set either this or `incident`."),
        QueryParam("cluster", "Cluster of the node, if several clusters have a node with this name."),
        QueryParam("hide_names", "1: replace the names of users and nodes with placeholders."),
        role=Role.OPERATOR,
        media_type="application/gzip",
    )
    async def download(self, request: Request) -> Response:
        """Download the evidence about an incident or a node as a tar.gz."""
        sources, params = self._evidence(), request.query_params
        incident, node = params.get("incident"), params.get("node")
        if (incident is None) == (node is None):
            raise HTTPException(400, "set either `incident` or `node`")
        subject = incident or node or ""
        if sources is None:
            raise HTTPException(409, "evidence bundles are not available in a replayed recording: it has no journal")
        now, hides_names = self._runtime.clock.now(), params.get("hide_names") == "1"
        bundle_node = functools.partial(sources.bundle_node, cluster=params.get("cluster"))
        with self._limit:
            bundle = bundle_node if incident is None else sources.bundle_incident
            archive = await asyncio.to_thread(bundle, subject, now=now, hides_names=hides_names)
        if archive is None:
            raise HTTPException(404, f"{'node' if incident is None else 'incident'} {subject[:80]} not found")
        return Response(archive, media_type="application/gzip")
