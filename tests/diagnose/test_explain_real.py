"""`watchkeeper explain pod|node` against a hub that watches a real API server with its scheduler and controllers."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests import servers
from tests.support.clusters import kubernetes_server
from tests.support.clusters.kubernetes_server import Cluster
from tests.support.running_product import WATCHKEEPER

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(240)]
Ask = Callable[..., str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    kubernetes_server.require()
    with kubernetes_server.running(tmp_path_factory.mktemp("kubernetes")) as running:
        yield running


@pytest.fixture(scope="module")
def explain(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Ask the command line, again and again until its answer has the wanted words."""
    folder, port = tmp_path_factory.mktemp("hub"), servers.free_port()
    (folder / "hub.toml").write_text(
        f'[hub]\nport = {port}\ndata = "{folder}/kept"\n[fleet]\nkubeconfig = "{cluster.kubeconfig}"\n'
    )
    line = [*WATCHKEEPER, "hub", "--config", str(folder / "hub.toml")]
    log = folder / "log"

    def ask(*words: str, until: str) -> str:
        output = ""

        def is_printed() -> bool:
            nonlocal output
            command = [*WATCHKEEPER, "explain", *words, "--hub", f"http://127.0.0.1:{port}"]
            output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
            return until in output

        kubernetes_server.wait_until(is_printed, f"`{until}`", log)
        return output

    with servers.running(line, ready_url=f"http://127.0.0.1:{port}/-/ready", log=log):
        yield ask


def test_capacity_then_the_smallest_change(cluster: Cluster, explain: Ask) -> None:
    for name in ("one", "two"):
        cluster.create_pod(name, gpus=6)
    cluster.create_pod("three", gpus=5)
    output = explain("pod", "default/three", until="insufficient_gpu_capacity")
    assert "request 2, or free 3 nvidia.com/gpu" in output
    assert "has 2 of 8 nvidia.com/gpu free, 5 requested" in output
    cluster.create_pod("four", gpus=4)
    assert "4 nvidia.com/gpu are free, but at most 2 on one node" in explain("pod", "four", until="gpu_fragmentation")
    for name in ("one", "two", "three", "four"):
        cluster.delete_pod(name)


def test_a_selector_and_a_taint(cluster: Cluster, explain: Ask) -> None:
    cluster.create_pod("picky", gpus=1, nodeSelector={"gpu": "b300"})
    assert "remove gpu from the selector" in explain("pod", "picky", until="node_selector_mismatch")
    cluster.delete_pod("picky")
    taints = [{"key": "reserved", "value": "team-b", "effect": "NoSchedule"}]
    for node in ("hollow-0", "hollow-1"):
        cluster.ask(f"/api/v1/nodes/{node}", method="PATCH", body={"spec": {"taints": taints}})
    cluster.create_pod("shut-out", gpus=1)
    assert "tolerate reserved=team-b:NoSchedule" in explain("pod", "shut-out", until="untolerated_taint")
    cluster.delete_pod("shut-out")
    for node in ("hollow-0", "hollow-1"):
        cluster.ask(f"/api/v1/nodes/{node}", method="PATCH", body={"spec": {"taints": None}})


def test_a_job_that_exceeds_a_quota(cluster: Cluster, explain: Ask) -> None:
    cluster.create("/api/v1/namespaces", {"metadata": {"name": "team-q"}})
    hard = {"hard": {"requests.nvidia.com/gpu": "1"}}
    cluster.create("/api/v1/namespaces/team-q/resourcequotas", {"metadata": {"name": "gpus"}, "spec": hard})
    cluster.await_quota("team-q")
    container = {"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    job = {"metadata": {"name": "sweep"}, "spec": {"parallelism": 3, "completions": 3, "template": template}}
    cluster.create("/apis/batch/v1/namespaces/team-q/jobs", job)
    output = explain("pod", "team-q/sweep", until="quota_exceeded")
    assert "the others are not created" in output


def test_a_pod_that_asks_for_no_gpu_on_a_gpu_node(cluster: Cluster, explain: Ask) -> None:
    containers = [{"name": "main", "image": "none"}]
    cluster.create_pod("forgot", gpus=0, containers=containers, nodeName="hollow-0")
    assert "add `nvidia.com/gpu: 1`" in explain("pod", "forgot", until="missing_gpu_request")
    cluster.delete_pod("forgot")


def test_a_node_that_was_cordoned(cluster: Cluster, explain: Ask) -> None:
    cluster.cordon("hollow-1")
    output = explain("node", "hollow-1", until="accepts no workloads (Ready,SchedulingDisabled)")
    assert "kubectl uncordon hollow-1" in output
    cluster.cordon("hollow-1", cordoned=False)
    explain("node", "hollow-1", until="8 of 8 GPUs do not report")
