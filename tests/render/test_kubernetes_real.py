"""What is rendered for Kubernetes, on a real API server: it takes the objects, and their rights are enough, no more."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.support import render_tools
from tests.support.clusters import kubernetes_server
from tests.support.clusters.kubernetes_server import Cluster
from tests.support.waiting import until, until_async
from watchkeeper.clusters.kubernetes.kubernetes_watch import KubernetesWatch
from watchkeeper.config import settings as config
from watchkeeper.kit import clock, own_metrics
from watchkeeper.net import access
from watchkeeper.render import kubernetes

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(240)]
# The API server that tests can have is 1.20: policy/v1 came with 1.21, the others are custom resources.
NOT_THERE = {"PodDisruptionBudget", "PodMonitor", "ServiceMonitor", "PrometheusRule"}
HUB = "system:serviceaccount:watchkeeper:hub"
AGENT = "system:serviceaccount:watchkeeper:agent"
SETTINGS = config.Settings(render=config.RenderSettings(values=("repair.enabled=false", "dashboards.enabled=true")))
WAIT_SECONDS = 90.0


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that a server of this age knows, in one file."""
    where = render_tools.write(kubernetes.files(SETTINGS), tmp_path_factory.mktemp("tree"))
    built = render_tools.objects(render_tools.run([render_tools.program("kubectl"), "kustomize", where]))
    kept = [one for one in built.values() if one["kind"] not in NOT_THERE]
    path = tmp_path_factory.mktemp("manifest") / "all.yaml"
    path.write_text(yaml.safe_dump_all(kept))
    return path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, manifest: Path) -> Iterator[Cluster]:
    """A cluster of two GPU nodes in which it is all installed, and the class that the GPU Operator would bring."""
    kubernetes_server.require()
    with kubernetes_server.running(tmp_path_factory.mktemp("kubernetes")) as running:
        runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "nvidia"}
        running.create("/apis/node.k8s.io/v1/runtimeclasses", {**runtime, "metadata": {"name": "nvidia"}})
        kubectl(running, "create", "namespace", "watchkeeper")
        kubectl(running, "apply", "--dry-run=server", "-f", str(manifest))
        kubectl(running, "apply", "-f", str(manifest))
        yield running


def kubectl(cluster: Cluster, *words: str) -> str:
    return render_tools.run([render_tools.program("kubectl"), "--kubeconfig", cluster.kubeconfig, *words])


def may(cluster: Cluster, who: str, *words: str) -> bool:
    command = [
        render_tools.program("kubectl"),
        "--kubeconfig",
        cluster.kubeconfig,
        "auth",
        "can-i",
        "--as",
        who,
        *words,
    ]
    return subprocess.run([str(part) for part in command], capture_output=True, check=False).returncode == 0


def test_an_agent_is_placed_on_each_gpu_node(cluster: Cluster) -> None:
    def counts() -> tuple[int | None, int | None]:
        found = cluster.ask("/apis/apps/v1/namespaces/watchkeeper/daemonsets/watchkeeper-agent").get("status", {})
        return found.get("desiredNumberScheduled"), found.get("currentNumberScheduled")

    until(lambda: counts() == (2, 2), what=lambda: f"scheduled: {counts()}", timeout_seconds=WAIT_SECONDS)


def test_the_hub_watches_everything_with_exactly_these_rights(cluster: Cluster) -> None:
    async def story() -> list[str]:
        reached = cluster.reached()
        let_in = replace(reached.access, credentials="hub-token")
        assert isinstance(let_in, access.Access)
        watch = KubernetesWatch(
            replace(reached, access=let_in), cluster="main", time=clock.ScaledClock(), metrics=own_metrics.Registry()
        )
        task = asyncio.create_task(watch.run())

        def is_answered() -> bool:
            return all(kind.is_synced or kind.problem for kind in watch.kinds)

        await until_async(is_answered, timeout_seconds=WAIT_SECONDS)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert {node.name for node in watch.nodes()} == {"hollow-0", "hollow-1"}
        return list(watch.problems())

    assert asyncio.run(story()) == []


@pytest.mark.parametrize("right", ["list nodes", "watch pods -A", "list events -A", "watch jobs.batch -A"])
def test_the_hub_may_what_it_needs(cluster: Cluster, right: str) -> None:
    assert may(cluster, HUB, *right.split())


@pytest.mark.parametrize(
    "right",
    [
        "get secrets -A",
        "list configmaps -A",
        "patch nodes",
        "delete pods -A",
        "create pods/eviction -A",
        "get nodes/proxy",
    ],
)
def test_neither_hub_nor_agent_may_more(cluster: Cluster, right: str) -> None:
    assert not may(cluster, HUB, *right.split())
    assert not may(cluster, AGENT, *right.split())


def test_the_agent_may_ask_the_api_server_nothing(cluster: Cluster) -> None:
    assert not may(cluster, AGENT, "list", "nodes")
    assert not may(cluster, AGENT, "list", "pods", "-A")


def test_rights_to_repair_come_with_their_component_alone(cluster: Cluster, tmp_path: Path) -> None:
    rights = tmp_path / "repair.yaml"
    rights.write_text(
        next(file.text for file in kubernetes.files(SETTINGS) if file.path == "components/repair/rbac.yaml")
    )
    kubectl(cluster, "apply", "-f", str(rights))
    try:
        assert may(cluster, HUB, "patch", "nodes")
        assert may(cluster, HUB, "create", "pods", "--subresource=eviction", "-A")
        assert not may(cluster, HUB, "delete", "pods", "-A")
    finally:
        kubectl(cluster, "delete", "-f", str(rights))
