"""A hub with nothing but a kubeconfig: it finds nodes and exporters, reads them, and knows who holds the GPUs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.support import loopback
from tests.support.clusters.api_server import NODES, PODS, ApiServer, node, pod, serving, waiting
from tests.support.opened import opened
from tests.support.waiting import PROGRAM_SECONDS, until_async
from tests.web import stories
from tests.web.small_hub import SmallHub
from watchkeeper.config import settings
from watchkeeper.hub.hub import Hub
from watchkeeper.incidents import incident_labels
from watchkeeper.kit import clock

GPU = "GPU-0d7b8a1c-5e1f-4a3b-9c2d-111111111111"
PAGE = f'DCGM_FI_DEV_GPU_UTIL{{gpu="0",UUID="{GPU}",Hostname="n1"}} 97\n'


@asynccontextmanager
async def watched(server: ApiServer, folder: Path) -> AsyncIterator[Hub]:
    named = {"name": "x"}
    content = {
        "current-context": "x",
        "clusters": [named | {"cluster": {"server": server.url}}],
        "users": [named | {"user": {"token": server.token}}],
        "contexts": [named | {"context": {"cluster": "x", "user": "x"}}],
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(content))
    wanted = settings.Settings(
        hub=settings.HubSettings(data=str(folder / "data")),
        fleet=settings.FleetSettings(cluster="prod", kubeconfig=str(folder / "kubeconfig"), scrape_interval="1s"),
    )
    hub, stop = opened(wanted, time=clock.ScaledClock()), asyncio.Event()
    task = asyncio.create_task(hub.run(stop))
    try:
        yield hub
    finally:
        stop.set()
        await task
        hub.close()


async def answer(hub: Hub, expr: str) -> dict[str, float]:
    """What the hub says, as soon as it says anything."""

    async def latest() -> dict[str, float]:
        found = await hub.services.queries.instant(expr, clock.to_ms(hub.runtime.clock.now()))
        return {str(labels): value for labels, value in found.latest().items()}

    return await until_async(latest, interval_seconds=PROGRAM_SECONDS)


def test_an_incident_is_routed_to_the_team_that_the_inventory_names(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text("[[teams]]\nteam = 'language'\nnamespaces = ['research']\n")
    wanted = settings.Settings(
        hub=settings.HubSettings(data=str(tmp_path / "data")),
        fleet=settings.FleetSettings(inventory=str(tmp_path / "fleet.toml")),
    )
    hub = opened(wanted, time=clock.ScaledClock())
    try:
        about = hub.current.stages.notifier._dependencies.inventory
        incident = replace(stories.lose_gpu(SmallHub()), workloads=("research/llm-0", "vision/detector-1", "4711"))
        assert incident_labels.collect_labels(incident, about)["team"] == {"language", "vision", "unmapped"}
    finally:
        hub.close()


@pytest.mark.slow
def test_a_hub_with_a_kubeconfig_finds_reads_and_attributes(tmp_path: Path) -> None:
    async def story() -> None:
        async with loopback.serve(lambda _: loopback.reply(PAGE)) as page, serving() as server:
            exporter = pod("dcgm", node="n1", podIP="127.0.0.1")
            exporter["metadata"]["labels"] = {"app": "nvidia-dcgm-exporter"}
            port = {"name": "gpu-metrics", "containerPort": int(page.address.rpartition(":")[2])}
            exporter["spec"]["containers"][0]["ports"] = [port]
            late = pod("late", gpus=1, **waiting("0/1 nodes are available: 1 Insufficient nvidia.com/gpu."))
            server.fill(NODES, [node("n1", gpus=1)])
            server.fill(PODS, [exporter, pod("train", gpus=1, node="n1"), late])
            async with watched(server, tmp_path) as hub:
                (util,) = (await answer(hub, "DCGM_FI_DEV_GPU_UTIL")).values()
                assert util == 97
                assert [(one.name, one.expected_gpus) for one in hub.fleet.fleet.nodes()] == [("n1", 1)]
                (held,) = await answer(hub, "watchkeeper_gpu_workload_info")
                assert 'workload="train"' in held
                pending = await answer(hub, "watchkeeper_pending_gpus")
                assert list(pending.values()) == [1]
                assert await answer(hub, 'kube_node_status_capacity{cluster="prod"}')

    asyncio.run(story())
