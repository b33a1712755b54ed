"""Cluster actions run once, and only the owner of a cordon can remove it."""

from __future__ import annotations

import pytest

from tests.sim import pages
from watchkeeper.errors import ActionRefused, CollectError
from watchkeeper.sim.simulation import SimSettings, Simulation

US, THEM = "watchkeeper:i1/a1", "someone:else"


@pytest.fixture
def fleet() -> Simulation:
    return Simulation(SimSettings(gpus=256, seed=11))


def test_only_the_mark_that_set_a_cordon_can_remove_it(fleet: Simulation) -> None:
    node, cluster = fleet.layout.nodes[0], fleet.cluster
    assert cluster.cordon(node, US).result == "done"
    assert cluster.cordon(node, US).result == "already_so"
    assert cluster.cordon(node, THEM).node.cordoned_by == US
    with pytest.raises(ActionRefused, match=f"belongs to {US}, not to {THEM}"):
        cluster.uncordon(node, THEM)
    assert not cluster.view(node).schedulable
    assert cluster.uncordon(node, US).result == "done"
    assert cluster.uncordon(node, THEM).result == "already_so"
    assert cluster.view(node).schedulable


def test_drained_workloads_start_again_elsewhere(fleet: Simulation) -> None:
    node = next(node for node in fleet.layout.nodes if len(fleet.machines.jobs.jobs_on_node(node)[:1]) == 1)
    job = fleet.machines.jobs.jobs_on_node(node)[0]
    outcome = fleet.cluster.drain(node, US)
    assert job.workload(node.row) in outcome.text
    assert outcome.node.workloads == ()
    assert fleet.cluster.drain(node, US).result == "already_so"
    for _ in range(40):
        fleet.advance(60)
        if again := [other for other in fleet.machines.jobs.running.values() if other.suffix == job.suffix]:
            break
    assert not set(again[0].rows) & set(range(node.rows.start, node.rows.stop))
    assert fleet.cluster.view(node).workloads == ()


def test_a_reboot_takes_90_seconds_and_repairs_a_lost_gpu(fleet: Simulation) -> None:
    fault = fleet.inject("xid-79")
    node, before = fault.node, fleet.inventory(fault.node.name)["boot"]
    assert fleet.cluster.reboot(node, US, now=fleet.second).node.state == "rebooting"
    fleet.advance(89)
    with pytest.raises(CollectError, match="rebooting"):
        fleet.node_page(node.name)
    fleet.advance(1)
    assert len(pages.by_gpu(fleet.node_page(node.name), "DCGM_FI_DEV_GPU_TEMP")) == 8
    assert set(pages.by_gpu(fleet.node_page(node.name), "DCGM_FI_DEV_XID_ERRORS").values()) == {0}
    assert fleet.inventory(node.name)["boot"] != before
    newest = [record for record in fleet.kernel_records_since(0) if record.node == node.name][-2:]
    assert [record.record.split(",")[1] for record in newest] == ["0", "1"]
    assert fleet.faults.active == {}
    assert fleet.cluster.reboot(node, US, now=fleet.second).result == "already_so"


def test_a_reset_needs_a_gpu_that_is_reachable_and_unused(fleet: Simulation) -> None:
    fault = fleet.inject("xid-79")
    lost, peer = fault.gpu, next(gpu for gpu in fault.node.gpus if gpu is not fault.gpu)
    assert lost is not None
    with pytest.raises(ActionRefused, match="cannot be reset"):
        fleet.cluster.reset_gpu(fault.node, lost, US)
    with pytest.raises(ActionRefused, match="is in use by"):
        fleet.cluster.reset_gpu(fault.node, peer, US)
    fleet.cluster.drain(fault.node, US)
    assert fleet.cluster.reset_gpu(fault.node, peer, US).result == "done"
    assert fleet.cluster.reset_gpu(fault.node, peer, US).result == "already_so"
    assert list(fleet.faults.active) == [fault.id]


def test_a_lower_power_limit_is_on_the_page_cools_the_node_and_ends_with_a_reboot(fleet: Simulation) -> None:
    node = next(node for node in fleet.layout.nodes if fleet.machines.jobs.jobs_on_node(node))

    def hottest(name: str) -> float:
        return max(pages.by_gpu(fleet.node_page(node.name), name).values())

    fleet.advance(300)
    watts, limit = hottest("DCGM_FI_DEV_POWER_USAGE"), hottest("DCGM_FI_DEV_ENFORCED_POWER_LIMIT")
    with pytest.raises(ActionRefused, match=r"20 % of the power limit, the boards allow 30 to 100 %"):
        fleet.cluster.lower_power(node, None, 20)
    assert fleet.cluster.lower_power(node, None, 40).result == "done"
    assert fleet.cluster.lower_power(node, None, 40).result == "already_so"
    fleet.advance(60)
    assert hottest("DCGM_FI_DEV_ENFORCED_POWER_LIMIT") == pytest.approx(0.4 * limit)
    assert hottest("DCGM_FI_DEV_POWER_USAGE") < min(watts, 0.45 * limit)
    fleet.cluster.reboot(node, US, now=fleet.second)
    fleet.advance(91)
    assert hottest("DCGM_FI_DEV_ENFORCED_POWER_LIMIT") == limit
