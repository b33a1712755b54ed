"""Read the nodes of the simulator's cluster: which are cordoned, by which mark, and which are rebooting.

Its jobs are on the metrics pages. The simulator sends the nodes again only after they changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from watchkeeper.clusters.cluster_series import NODE_STATE
from watchkeeper.errors import CollectError
from watchkeeper.kit import clock
from watchkeeper.model import cluster as model
from watchkeeper.model.labels import METRIC_NAME, Labels
from watchkeeper.net import http
from watchkeeper.scrape import discovery
from watchkeeper.scrape.fleet import ScrapedInventory

SOURCE = "simulator"
POLL_SECONDS = 1.0


class SimulatedCluster:
    required_query = None

    def __init__(self, url: str, *, cluster: str, time: clock.Clock) -> None:
        self.cluster = cluster
        self._url, self._time = url, time
        self._revision = -1
        self._slurm_nodes: frozenset[str] = frozenset()
        self._view = model.ClusterView(SOURCE)

    def view(self) -> model.ClusterView:
        return self._view

    def problems(self) -> list[str]:
        return [f"{SOURCE}: {self._view.problem}"] if self._view.problem else []

    async def run(self) -> None:
        while True:
            await self.refresh()
            await self._time.sleep(POLL_SECONDS)

    async def wait_for_first_read(self) -> None:
        if self._view.at_ms is None:
            await self.refresh()

    async def refresh(self) -> None:
        at_ms = clock.to_ms(self._time.now())
        connection = http.Connection()
        try:
            request = http.HttpRequest(f"{self._url}/cluster/nodes?after={self._revision}")
            answer = json.loads((await connection.send(request)).body)
        except (CollectError, ValueError) as error:
            self._view = replace(self._view, problem=str(error))
            return
        finally:
            await connection.aclose()
        if "nodes" in answer:
            self._revision = answer["revision"]
            self._slurm_nodes = frozenset(node["name"] for node in answer["nodes"] if node["scheduler"] == "slurm")
            nodes = tuple(_scheduled_node(node, self.cluster) for node in answer["nodes"])
            self._view = replace(self._view, nodes=nodes)
        self._view = replace(self._view, at_ms=at_ms, problem="")

    def discover(self, listed: discovery.DiscoveredTargets) -> discovery.DiscoveredTargets:  # noqa: ARG002
        return discovery.DiscoveredTargets()

    def series(self, query_result: Iterable[Mapping[str, str]]) -> dict[Labels, float]:  # noqa: ARG002
        """The state of drained nodes, as of Slurm; those of Kubernetes are on the page of kube-state-metrics."""
        labels = {METRIC_NAME: NODE_STATE, "cluster": self.cluster, "source": SOURCE, "state": "drained"}
        drained = (node for node in self._view.nodes if not node.is_schedulable and node.name in self._slurm_nodes)
        return {Labels({**labels, "Hostname": node.name}): 1.0 for node in drained}

    def workload_series(self, fleet: ScrapedInventory, attributed: Iterable[Labels]) -> dict[Labels, float]:  # noqa: ARG002
        return {}


def _scheduled_node(node: Mapping[str, Any], cluster_name: str) -> model.ScheduledNode:
    """Convert a node; its state is written as in `kubectl get nodes`."""
    is_ready, owner = node["state"] == "ready", node["cordoned_by"]
    ready = "Ready" if is_ready else "NotReady"
    return model.ScheduledNode(
        cluster_name,
        node["name"],
        SOURCE,
        state=ready if owner is None else f"{ready},SchedulingDisabled",
        is_ready=is_ready,
        is_schedulable=owner is None,
        unschedulable_by=owner or "",
    )
