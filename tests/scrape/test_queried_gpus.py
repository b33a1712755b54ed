"""GPUs that the hub does not read itself are known by the labels of their samples on a server."""

from __future__ import annotations

from watchkeeper.model import fleet
from watchkeeper.model.labels import Labels
from watchkeeper.scrape.fleet import ScrapedInventory, record_queried_gpus, restore_gpus


def gpu_labels(node: str, uuid: str, **more: str) -> Labels:
    return Labels({"Hostname": node, "UUID": uuid, "gpu": "0", "pci_bus_id": "00000000:5D:00.0", **more})


def test_nodes_and_gpus_are_learnt_and_an_expected_node_keeps_what_the_inventory_says() -> None:
    inventory = ScrapedInventory()
    inventory.set_expected_nodes([fleet.Node("main", "n1", pool="a", expected_gpus=2)], 0)
    answer = [
        gpu_labels("n1", "GPU-1"),
        gpu_labels("n2", "GPU-2", cluster="far"),
        gpu_labels("", "GPU-3"),
        Labels({"Hostname": "n1"}),
    ]
    record_queried_gpus(inventory, answer, "main", at_ms=1000)
    assert {gpu.gpu.uuid: (gpu.cluster, gpu.node) for gpu in inventory.gpus()} == {
        "GPU-1": ("main", "n1"),
        "GPU-2": ("far", "n2"),
    }
    assert [(node.name, node.pool, node.expected_gpus) for node in inventory.nodes()] == [
        ("n1", "a", 2),
        ("n2", "", None),
    ]


def test_a_gpu_that_its_node_no_longer_has_is_gone_and_a_node_without_samples_says_nothing() -> None:
    inventory = ScrapedInventory()
    record_queried_gpus(
        inventory, [gpu_labels("n1", "GPU-1"), gpu_labels("n1", "GPU-2"), gpu_labels("n2", "GPU-3")], "main", at_ms=1000
    )
    record_queried_gpus(inventory, [gpu_labels("n1", "GPU-1")], "main", at_ms=2000)
    assert {gpu.gpu.uuid: gpu.gone_since_ms for gpu in inventory.gpus()} == {
        "GPU-1": None,
        "GPU-2": 1000,
        "GPU-3": None,
    }


def test_gpus_of_a_node_that_is_down_at_a_restart_are_known_as_gone_until_a_page_reports_them() -> None:
    inventory = ScrapedInventory()
    node = fleet.Node("main", "n1", expected_gpus=2)
    inventory.set_expected_nodes([node], 0)
    restore_gpus(inventory, [gpu_labels("n1", "GPU-1"), gpu_labels("retired", "GPU-9")], "main", at_ms=1000)
    assert {gpu.gpu.uuid: gpu.gone_since_ms for gpu in inventory.gpus()} == {"GPU-1": 1000}
    assert [listed.name for listed in inventory.nodes()] == ["n1"]
    inventory.record_page(node, {"GPU-1": fleet.Gpu("GPU-1", index=0)}, at_ms=2000, source="page")
    assert {gpu.gpu.uuid: gpu.gone_since_ms for gpu in inventory.gpus()} == {"GPU-1": None}
