"""A cluster's nodes are expected with what they should have, and one pod of each is read."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.clusters.kubernetes.watched import DEFAULTS, watched, watching
from tests.support.clusters.api_server import NODES, PODS, Raw, node, pod
from tests.support.waiting import until_async
from watchkeeper.clusters.kubernetes import kubernetes_discovery
from watchkeeper.errors import SettingsError
from watchkeeper.model import fleet as fleet_model
from watchkeeper.readers.clusters import kubernetes_objects as objects
from watchkeeper.scrape import discovery, fleet
from watchkeeper.scrape.discovery import DiscoveredTargets

AGENT, EXPORTER = {"app.kubernetes.io/name": "watchkeeper-agent"}, {"app": "nvidia-dcgm-exporter"}


def exporter(name: str, labels: dict[str, str], address: str, *ports: tuple[str, int], **status: Any) -> Raw:
    raw = pod(name, node="n1", namespace="gpu-operator", podIP=address, **status)
    raw["metadata"]["labels"] = labels
    raw["spec"]["containers"][0]["ports"] = [{"name": called, "containerPort": port} for called, port in ports]
    return raw


def found(*nodes: Raw, pods: tuple[Raw, ...] = (), listed: DiscoveredTargets | None = None) -> DiscoveredTargets:
    return watched({NODES: list(nodes), PODS: list(pods)}).discover(listed or DiscoveredTargets())


def test_a_node_is_expected_with_its_gpus_its_names_and_its_place() -> None:
    labels = {
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.clique": "7b3c.1",
        "topology.kubernetes.io/zone": "z1",
        "topology.kubernetes.io/rack": "r7",
        "network.topology.nvidia.com/leaf": "s1",
        "cloud.google.com/gke-nodepool": "h200",
    }
    (expected,) = found(node("n1", labels=labels)).nodes
    assert expected == fleet_model.Node(
        "main",
        "n1",
        pool="h200",
        aliases=frozenset({"10.0.0.2"}),
        expected_gpus=8,
        domains={"nvlink": "7b3c.1", "zone": "z1", "rack": "r7", "leaf": "s1"},
        source="kubernetes",
    )


def test_our_own_labels_win_over_those_of_others() -> None:
    labels = {"topology.kubernetes.io/rack": "r7", "watchkeeper.dev/rack": "r8", "watchkeeper.dev/pool": "train"}
    (expected,) = found(node("n1", labels=labels)).nodes
    assert (expected.pool, expected.domains) == ("train", {"rack": "r8"})


def test_a_node_without_gpus_is_not_expected() -> None:
    assert found(node("cpu-1", gpus=None)).nodes == ()


@pytest.mark.parametrize(
    ("gpus", "labels", "expected"),
    [
        (8, {}, 8),
        (8, {"nvidia.com/gpu.count": "8"}, 8),
        (32, {"nvidia.com/gpu.count": "8", "nvidia.com/gpu.replicas": "4"}, 8),
        (32, {"nvidia.com/gpu.replicas": "4"}, None),
        (56, {"nvidia.com/gpu.count": "56", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"}, None),
        (None, {"nvidia.com/gpu.present": "true"}, None),
        (None, {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.count": "many"}, None),
    ],
)
def test_a_nodes_expectation_counts_gpus_and_never_slices_or_shares(
    gpus: int | None, labels: dict[str, str], expected: int | None
) -> None:
    assert found(node("n1", gpus=gpus, labels=labels)).nodes[0].expected_gpus == expected


def test_a_gpu_that_falls_out_is_still_expected_until_the_machine_is_another() -> None:
    def machine(gpus: int, uid: str, product: str) -> Raw:
        raw = node("n1", gpus=gpus, labels={"nvidia.com/gpu.product": product})
        raw["metadata"]["uid"] = uid
        return raw

    async def story() -> list[int | None]:
        counts = []
        async with watching({NODES: [machine(8, "a", "H100")]}) as (server, source):
            for raw in (machine(7, "a", "H100"), machine(4, "a", "B200"), machine(2, "b", "B200")):
                source.discover(DiscoveredTargets())
                server.put(NODES, raw)
                now = [objects.read_node(raw)]
                await until_async(lambda now=now: source.watch.nodes() == now)
                counts.append(source.discover(DiscoveredTargets()).nodes[0].expected_gpus)
        return counts

    assert asyncio.run(story()) == [8, 4, 2]


def test_an_agent_is_read_at_its_named_port_and_the_exporter_beside_it_is_not() -> None:
    pods = (
        exporter("dcgm", EXPORTER, "10.1.0.2", ("gpu-metrics", 9400)),
        exporter("agent", AGENT, "10.1.0.3", ("health", 8080), ("metrics", 9410)),
    )
    (target,) = found(node("n1"), pods=pods).targets
    assert (target.url, target.node) == ("http://10.1.0.3:9410/metrics", "n1")


def test_without_an_agent_the_exporter_is_read() -> None:
    (target,) = found(node("n1"), pods=(exporter("dcgm", EXPORTER, "fd00::2"),)).targets
    assert target.url == "http://[fd00::2]:9400/metrics"
    assert target.discovered["__meta_kubernetes_pod_name"] == "dcgm"


@pytest.mark.parametrize("status", [{"phase": "Pending"}, {"podIP": ""}])
def test_a_pod_that_does_not_run_or_has_no_address_is_no_target(status: dict[str, str]) -> None:
    raw = exporter("agent", AGENT, "10.1.0.3")
    raw["status"] |= status
    assert found(node("n1"), pods=(raw,)).targets == ()


def test_a_node_that_a_list_has_a_target_for_keeps_it() -> None:
    group = {"targets": ["10.9.9.9:9400"], "labels": {"__meta_watchkeeper_node": "n1"}}
    listed = discovery.read_groups([group], "list")
    assert found(node("n1"), pods=(exporter("agent", AGENT, "10.1.0.3"),), listed=listed).targets == ()


def test_labels_of_the_settings_choose_the_pods() -> None:
    chosen = replace(DEFAULTS, kubernetes_targets=("team=gpu",))
    source = watched({NODES: [node("n1")], PODS: [exporter("mine", {"team": "gpu"}, "10.1.0.3", ("x", 1))]}, chosen)
    assert [target.address for target in source.discover(DiscoveredTargets()).targets] == ["10.1.0.3:1"]


@pytest.mark.parametrize("text", ["app", "=x", "app=", "a=b,c=d"])
def test_a_label_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="is not a label with a value"):
        kubernetes_discovery.parse_selectors((text,))


def test_a_node_that_leaves_the_cluster_is_gone_and_not_forgotten() -> None:
    async def story() -> None:
        known = fleet.ScrapedInventory()
        async with watching({NODES: [node("n1"), node("n2")]}) as (server, source):
            known.set_expected_nodes(source.discover(DiscoveredTargets()).nodes, 1_000)
            server.delete(NODES, "n2")
            await until_async(lambda: len(source.watch.nodes()) == 1)
            known.set_expected_nodes(source.discover(DiscoveredTargets()).nodes, 2_000)
        assert [(gone.name, since) for gone, since in known.gone_nodes()] == [("n2", 2_000)]

    asyncio.run(story())


def test_an_api_server_that_is_away_takes_no_node_out_of_the_fleet() -> None:
    async def story() -> None:
        async with watching({NODES: [node("n1")]}) as (server, source):
            await server.stop()
            await until_async(source.problems)
            assert [one.name for one in source.discover(DiscoveredTargets()).nodes] == ["n1"]
            assert source.view().problem.endswith("The last objects are kept")
            await server.start()

    asyncio.run(story())
