"""`watchkeeper doctor stack` against a real Kubernetes API server; the operator's own kinds from a stand-in.

The API server that `scripts/kubernetes` builds crashes on objects of custom kinds (its JSON encoder and Go 1.19), so
ServiceMonitors come from `tests.support.clusters.api_server`, over the same wire and in pages.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests import servers
from tests.support.clusters import api_server, kubernetes_server
from tests.support.waiting import until
from watchkeeper.cli.doctor import doctor

EXPORTER = {"app": "nvidia-dcgm-exporter"}
MONITORING = "/apis/monitoring.coreos.com/v1/"


def ran(*arguments: str | Path) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(doctor.command, ["stack", "--json", *map(str, arguments)])
    assert result.stdout, result
    return result.exit_code, json.loads(result.stdout)


def named(name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "gpu-operator", "labels": EXPORTER}, **more}


def kubeconfig(folder: Path, url: str, token: str) -> Path:
    plain = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": token}}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(plain))
    return path


def test_monitors_are_listed_in_pages_and_judged(tmp_path: Path) -> None:
    async def story() -> tuple[int, dict[str, Any]]:
        async with api_server.serving() as server:
            ports = [{"name": "gpu-metrics", "port": 9400}]
            server.fill("/api/v1/services", [named("nvidia-dcgm-exporter", spec={"ports": ports})])
            monitor_spec = {"selector": {"matchLabels": EXPORTER}, "endpoints": [{"port": "metrics"}]}
            server.fill(
                f"{MONITORING}servicemonitors", [named(f"m{number}", spec=monitor_spec) for number in range(600)]
            )
            server.refused["/api/v1/pods"] = 403
            return await asyncio.to_thread(ran, "--kubeconfig", kubeconfig(tmp_path, server.url, server.token))

    code, plain = asyncio.run(story())
    assert (code, len(plain["findings"])) == (1, 600)
    assert {finding["check"] for finding in plain["findings"]} == {"wrong_port_names"}
    assert "not read: /api/v1/pods (answered 403)" in plain["looked_at"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubernetes_server.Cluster]:
    """One GPU node with a taint, and an exporter that does not tolerate it."""
    kubernetes_server.require()
    with kubernetes_server.running(tmp_path_factory.mktemp("kubernetes"), nodes=1) as running:
        (node,) = running.ask("/api/v1/nodes")["items"]
        taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
        running.ask(f"/api/v1/nodes/{node['metadata']['name']}", method="PATCH", body={"spec": {"taints": [taint]}})
        pod = {"metadata": {"labels": EXPORTER}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
        spec = {"selector": {"matchLabels": EXPORTER}, "template": pod}
        daemon = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "dcgm-exporter"}, "spec": spec}
        running.create("/apis/apps/v1/namespaces/default/daemonsets", daemon)
        yield running


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_gpu_node_whose_taint_keeps_the_exporter_away_is_found(cluster: kubernetes_server.Cluster) -> None:
    code, plain = ran("--kubeconfig", cluster.kubeconfig)
    (finding,) = plain["findings"]
    assert (code, finding["check"]) == (1, "gpu_nodes_without_exporter")
    assert finding["evidence"] == ["taints that the exporter does not tolerate: nvidia.com/gpu=present:NoSchedule"]
    assert f"not read: {MONITORING}servicemonitors (answered 404)" in plain["looked_at"]


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_new_cluster_names_its_next_step_and_the_one_after_it(cluster: kubernetes_server.Cluster) -> None:
    def read_steps() -> dict[str, Any]:
        plain = ran("--steps", "--kubeconfig", cluster.kubeconfig)[1]
        states = {step["step"]: step["state"] for step in plain["steps"] if step["was_read"]}
        return {"next": plain["next_step"], **states}

    states = read_steps()
    assert (states["api_server"], states["nodes_ready"], states["next"]) == ("passed", "passed", "cluster_dns")
    (node,) = cluster.ask("/api/v1/nodes")["items"]
    dns = {"labels": {"k8s-app": "kube-dns"}, "name": "coredns"}
    spec = {
        "containers": [{"name": "coredns", "image": "none"}],
        "nodeName": node["metadata"]["name"],
        "tolerations": [{"operator": "Exists"}],
    }
    cluster.create("/api/v1/namespaces/kube-system/pods", {"metadata": dns, "spec": spec})
    states = until(lambda: read if (read := read_steps())["cluster_dns"] == "passed" else {}, what="CoreDNS is ready")
    assert (states["next"], states["gpus_allocatable"], states["watchkeeper"]) == ("watchkeeper", "passed", "failed")


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_cluster_that_refuses_access_is_cannot_tell(cluster: kubernetes_server.Cluster, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    kubeconfig = cluster.kubeconfig.read_text().replace(kubernetes_server.TOKEN, "wrong")
    path.write_text(
        kubeconfig.replace("certificate-authority: ", f"certificate-authority: {cluster.kubeconfig.parent}/")
    )
    code, plain = ran("--kubeconfig", path, "--prometheus", f"http://127.0.0.1:{servers.free_port()}")
    assert (code, plain["findings"]) == (3, [])
    assert "not read: /api/v1/pods (answered 401)" in plain["looked_at"]
    assert "connection refused" in plain["unread"][0]
