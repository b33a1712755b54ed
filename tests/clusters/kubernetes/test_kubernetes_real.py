"""Against a real API server with its controllers, its scheduler and hollow nodes: what is watched is what is so."""

from __future__ import annotations

import asyncio
import re
import time
import urllib.error
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import yaml

from tests.clusters.kubernetes.watched import running
from tests.support.clusters import kubernetes_server
from tests.support.clusters.fake_kubelet import Kubelet, gpu_pod, serving
from tests.support.clusters.kubernetes_server import Cluster
from tests.support.paths import ROOT
from tests.support.waiting import until_async
from watchkeeper.agent.attribution.attribution import Attributor, NamedSource
from watchkeeper.agent.attribution.kubelet import PodResourcesClient
from watchkeeper.agent.gpus.gpu_samples import GpuSample
from watchkeeper.clusters.kubernetes import kubernetes_view
from watchkeeper.clusters.kubernetes.kubernetes_watch import KubernetesWatch
from watchkeeper.kit import clock, own_metrics
from watchkeeper.model.cluster import ScheduledNode
from watchkeeper.model.workloads import ScheduledWorkload, WorkloadState
from watchkeeper.net import access
from watchkeeper.readers.clusters import kubeconfig

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(240)]
GPU = "GPU-0d7b8a1c-5e1f-4a3b-9c2d-111111111111"
ATTRIBUTED_SECONDS = 5.0
MANIFEST = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    kubernetes_server.require()
    with kubernetes_server.running(tmp_path_factory.mktemp("kubernetes")) as running:
        yield running


@pytest.fixture(autouse=True)
def clean(cluster: Cluster) -> Iterator[None]:
    """Every test finds all GPUs free, whichever ran before it. Jobs go first: their pods would come back."""
    yield
    for kind, path in (("jobs", "/apis/batch/v1"), ("pods", "/api/v1")):
        for one in cluster.ask(f"{path}/{kind}")["items"]:
            about = one["metadata"]
            where = f"{path}/namespaces/{about['namespace']}/{kind}/{about['name']}"
            with suppress(urllib.error.HTTPError):
                cluster.ask(f"{where}?gracePeriodSeconds=0&propagationPolicy=Background", method="DELETE")


@asynccontextmanager
async def watching(reached: kubeconfig.ApiServer) -> AsyncIterator[KubernetesWatch]:
    watch = KubernetesWatch(reached, cluster="main", time=clock.ScaledClock(), metrics=own_metrics.Registry())
    async with running(watch):
        await until_async(lambda: watch.is_synced or any(watch.problems()))
        yield watch


def workload(watch: KubernetesWatch, name: str) -> ScheduledWorkload | None:
    found = kubernetes_view.build_view(watch).workloads
    return next((one for one in found if one.workload.name == name), None)


def is_on_a_node(watch: KubernetesWatch, name: str) -> bool:
    found = workload(watch, name)
    return found is not None and found.state is WorkloadState.RUNNING


def lists(watch: KubernetesWatch) -> dict[str, float]:
    metric = watch.kinds[0]._metrics.lists
    return {kind.kind.name: metric.get(resource=kind.kind.name) for kind in watch.kinds}


def test_hollow_nodes_are_seen_with_their_gpus(cluster: Cluster) -> None:
    async def story() -> None:
        async with watching(cluster.reached()) as watch:
            nodes = {node.name: node for node in kubernetes_view.build_view(watch).nodes}
            assert sorted(nodes) == ["hollow-0", "hollow-1"]
            assert [(node.gpus, node.state, node.is_schedulable) for node in nodes.values()] == [(8, "Ready", True)] * 2
            cluster.cordon("hollow-1")
            await until_async(lambda: not _node(watch, "hollow-1").is_schedulable)
            assert _node(watch, "hollow-1").state == "Ready,SchedulingDisabled"
            cluster.cordon("hollow-1", cordoned=False)
            await until_async(lambda: _node(watch, "hollow-1").is_schedulable)

    asyncio.run(story())


@pytest.mark.alone
def test_a_pod_that_starts_is_attributed_within_five_seconds(cluster: Cluster, tmp_path: Path) -> None:
    """The hub hears of it from the API server, the agent from its kubelet."""

    async def story() -> tuple[float, float]:
        gpu = GpuSample(0, {"uuid": GPU}, {}, {})
        with serving(Kubelet(tmp_path / "kubelet.sock")) as kubelet:
            holders = Attributor([NamedSource("kubelet", PodResourcesClient(kubelet.socket))], lambda _: {})
            async with watching(cluster.reached()) as watch:
                began = time.monotonic()
                await asyncio.to_thread(cluster.create_pod, "train", gpus=8)
                await until_async(lambda: is_on_a_node(watch, "train"))
                seen = time.monotonic() - began
                kubelet.pods = [gpu_pod("train", GPU, namespace="default")]
                held = (await holders.refresh([gpu], time.monotonic()))[GPU].holdings
                assert [str(one.workload) for one in held] == ["default/train"]
                return seen, time.monotonic() - began

    seen, attributed = asyncio.run(story())
    assert seen <= ATTRIBUTED_SECONDS
    assert attributed <= ATTRIBUTED_SECONDS


def test_a_pod_that_finds_no_gpus_says_why_it_waits(cluster: Cluster) -> None:
    async def story() -> None:
        async with watching(cluster.reached()) as watch:
            for name in ("one", "two"):
                cluster.create_pod(name, gpus=8)
            await until_async(lambda: is_on_a_node(watch, "one") and is_on_a_node(watch, "two"))
            cluster.create_pod("three", gpus=8)
            await until_async(lambda: getattr(workload(watch, "three"), "reason", "") == "Insufficient nvidia.com/gpu")
            waits = workload(watch, "three")
            assert waits is not None
            assert waits.state is WorkloadState.PENDING
            assert "0/2 nodes are available" in waits.detail
            cluster.delete_pod("one")
            await until_async(lambda: is_on_a_node(watch, "three"))

    asyncio.run(story())


def test_a_job_that_a_quota_holds_back_waits_with_that_reason(cluster: Cluster) -> None:
    cluster.create("/api/v1/namespaces", {"metadata": {"name": "team-a"}})
    hard = {"hard": {"requests.nvidia.com/gpu": "1"}}
    cluster.create("/api/v1/namespaces/team-a/resourcequotas", {"metadata": {"name": "gpus"}, "spec": hard})
    container = {"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    job = {"metadata": {"name": "sweep"}, "spec": {"parallelism": 3, "completions": 3, "template": template}}

    async def story() -> None:
        async with watching(cluster.reached()) as watch:
            await asyncio.to_thread(cluster.await_quota, "team-a")
            await until_async(lambda: _quota_used(watch) == 0)
            cluster.create("/apis/batch/v1/namespaces/team-a/jobs", job)
            # One of its three pods may start, and counts only once the job's controller has seen it.
            await until_async(lambda: getattr(workload(watch, "sweep"), "gpus", 0) == 2 and _quota_used(watch) == 1)
            held = workload(watch, "sweep")
            assert held is not None
            assert (held.reason, held.queue) == ("exceeded quota", "team-a")

    asyncio.run(story())


def test_an_api_server_that_restarts_is_watched_again_with_one_list_at_most(cluster: Cluster) -> None:
    async def story() -> None:
        async with watching(cluster.reached()) as watch:
            await until_async(lambda: all(lists(watch).values()))
            before = lists(watch)
            cluster.kill_api_server()
            try:
                await until_async(lambda: any(problem.startswith("nodes, pods,") for problem in watch.problems()))
                assert len(kubernetes_view.build_view(watch).nodes) == 2
            finally:
                await asyncio.to_thread(cluster.start_api_server)
            await asyncio.to_thread(cluster.create_pod, "after", gpus=1)
            await until_async(lambda: workload(watch, "after") is not None and not any(watch.problems()))
            # A server that has just started may not know older versions; more than one list it never needs.
            assert all(count <= before[name] + 1 for name, count in lists(watch).items())

    asyncio.run(story())


def test_the_role_of_the_how_to_is_enough_and_without_it_nothing_is_seen(cluster: Cluster) -> None:
    # tokens.csv gives this token the name that the service account of the page has.
    hub = kubeconfig.ApiServer(
        cluster.url, access.Access(credentials="hub-token", ca_file=str(cluster.ca_file)), "test"
    )

    async def problems() -> list[str]:
        async with watching(hub) as watch:
            await until_async(lambda: all(kind.is_synced or kind.problem for kind in watch.kinds))
            return list(watch.problems())

    (problem,) = asyncio.run(problems())
    assert problem.startswith("nodes, pods, resourcequotas, jobs, resourceclaims, events since")
    assert "not allowed (403)" in problem
    manifest = MANIFEST.search((ROOT / "docs" / "howto" / "kubernetes.md").read_text())
    assert manifest is not None
    for raw in yaml.safe_load_all(manifest[1]):
        cluster.create(_path(raw), raw)
    assert asyncio.run(problems()) == []


def _node(watch: KubernetesWatch, name: str) -> ScheduledNode:
    return next(node for node in kubernetes_view.build_view(watch).nodes if node.name == name)


def _quota_used(watch: KubernetesWatch) -> int | None:
    return next((used for quota in watch.quotas() for _, _, used in quota.lines), None)


def _path(raw: dict[str, dict[str, str]]) -> str:
    start = "/api/v1" if raw["apiVersion"] == "v1" else f"/apis/{raw['apiVersion']}"
    space = raw["metadata"].get("namespace")
    return f"{start}/namespaces/{space}/{raw['kind'].lower()}s" if space else f"{start}/{raw['kind'].lower()}s"
