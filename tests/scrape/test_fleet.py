"""What the fleet knows of its nodes and GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from watchkeeper.model.fleet import Gpu, Node, Place
from watchkeeper.scrape import fleet as fleet_module
from watchkeeper.scrape.fleet import ScrapedInventory, gpu_of, inventory_samples

NODE = Node("sim", "gpu-r07-12", pool="h200", aliases=frozenset({"10.0.0.7"}), expected_gpus=8, domains={"rack": "r07"})
FIRST, SECOND = Gpu("GPU-1", index=0, pci="0000:0a:00"), Gpu("GPU-2", index=3, pci="0000:5d:00", model="NVIDIA H200")
BOTH = {gpu.uuid: gpu for gpu in (FIRST, SECOND)}


def fleet() -> ScrapedInventory:
    inventory = ScrapedInventory()
    inventory.set_expected_nodes([NODE], 0)
    inventory.record_page(NODE, BOTH, at_ms=1000, source="page")
    return inventory


def test_a_node_is_found_by_name_and_by_alias() -> None:
    assert fleet().node("gpu-r07-12") == fleet().node("10.0.0.7", "sim") == NODE
    assert fleet().node("gpu-r07-12", "other") is None
    assert fleet().node("unknown") is None


def test_a_gpu_is_found_by_uuid() -> None:
    gpu = fleet().gpu("GPU-2")
    assert gpu is not None
    assert gpu.place == Place("sim", node="gpu-r07-12", gpu="GPU-2")


def test_places_are_named_as_people_say_them() -> None:
    inventory = fleet()
    assert inventory.place_name(Place("sim", node="gpu-r07-12", gpu="GPU-2")) == "GPU 3 on gpu-r07-12"
    assert inventory.place_name(Place("sim", node="gpu-r07-12", gpu="GPU-9")) == "GPU-9 on gpu-r07-12"
    assert inventory.place_name(Place("sim", domain="rack=r07")) == "rack r07"
    assert inventory.place_name(Place("sim", node="n1")) == "n1"
    assert inventory.place_name(Place("sim")) == "cluster sim"


def test_a_gpu_that_is_no_longer_reported_is_gone_since_it_was_last_seen() -> None:
    inventory = fleet()
    inventory.record_page(NODE, {"GPU-1": FIRST}, at_ms=2000, source="page")
    gone = inventory.gpu("GPU-2")
    assert gone is not None
    assert gone.gone_since_ms == 1000
    assert [gpu.gone_since_ms for gpu in inventory.gpus_of(NODE)] == [None, 1000]
    inventory.record_page(NODE, BOTH, at_ms=3000, source="page")
    assert [gpu.gone_since_ms for gpu in inventory.gpus_of(NODE)] == [None, None]


def test_a_second_exporter_that_knows_fewer_gpus_loses_none() -> None:
    inventory = fleet()
    inventory.record_page(NODE, {"GPU-1": FIRST}, at_ms=2000, source="other page")
    inventory.record_page(NODE, {}, at_ms=3000, source="other page")
    assert [gpu.gone_since_ms for gpu in inventory.gpus_of(NODE)] == [None, None]


def test_a_page_that_nobody_reads_any_more_does_not_keep_a_gpu_there() -> None:
    inventory = fleet()
    for at in range(60, 600, 60):
        inventory.record_page(NODE, BOTH, at_ms=at * 1000, source="page of the exporter that was started anew")
    inventory.record_page(NODE, {FIRST.uuid: FIRST}, at_ms=600_000, source="page of the exporter that was started anew")
    lost = inventory.gpu(SECOND.uuid)
    assert lost is not None
    assert lost.gone_since_ms == 540_000


def test_of_the_pages_of_a_node_some_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "MAX_PAGES", 3)
    inventory = fleet()
    for number in range(10):
        inventory.record_page(NODE, BOTH, at_ms=2000 + number, source=f"page {number}")
    assert list(inventory._reported["sim", "gpu-r07-12"]) == ["page 7", "page 8", "page 9"]


def test_a_gpu_that_moved_to_another_node_is_not_gone() -> None:
    inventory, other = fleet(), Node("sim", "gpu-r07-13")
    inventory.record_page(other, {"GPU-2": SECOND}, at_ms=2000, source="its page")
    inventory.record_page(NODE, {"GPU-1": FIRST}, at_ms=2500, source="page")
    moved = inventory.gpu("GPU-2")
    assert moved is not None
    assert (moved.node, moved.gone_since_ms) == ("gpu-r07-13", None)
    assert [gpu.gpu.uuid for gpu in inventory.gpus_of(NODE)] == ["GPU-1"]


def test_a_node_that_discovery_forgets_is_gone_and_comes_back() -> None:
    inventory = fleet()
    inventory.set_expected_nodes([], 5000)
    assert (inventory.nodes(), inventory.gone_nodes()) == ([], [(NODE, 5000)])
    inventory.set_expected_nodes([NODE], 6000)
    assert (inventory.nodes(), inventory.gone_nodes()) == ([NODE], [])


def test_a_node_nobody_expects_is_learned_from_its_gpus() -> None:
    inventory, stranger = ScrapedInventory(), Node("main", "box", source="http://box:9400/metrics")
    inventory.record_page(stranger, {"GPU-1": FIRST}, at_ms=1, source="page")
    inventory.set_expected_nodes([], 2)
    assert (inventory.nodes(), inventory.node("box"), inventory.gone_nodes()) == ([stranger], stranger, [])


def test_of_nodes_that_nobody_expects_so_many_are_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "MAX_LEARNED_NODES", 1)
    inventory = fleet()
    for name in ("stranger", "second"):
        inventory.record_page(Node("sim", name), {}, at_ms=2000, source="page")
    assert [node.name for node in inventory.nodes()] == ["gpu-r07-12", "stranger"]


def test_of_what_is_gone_the_longest_gone_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "MAX_GONE", 1)
    inventory = fleet()
    for at, left in enumerate(([SECOND], []), start=2):
        inventory.record_page(NODE, {gpu.uuid: gpu for gpu in left}, at_ms=at * 1000, source="page")
    assert [gpu.gpu for gpu in inventory.gpus()] == [SECOND]
    others = [replace(NODE, name=name, aliases=frozenset()) for name in ("a", "b")]
    for at in range(3):
        inventory.set_expected_nodes(others[at:], 5000 + at)
    assert [node.name for node, _ in inventory.gone_nodes()] == ["b"]


def test_dcgm_labels_describe_a_gpu_and_other_labels_none() -> None:
    labels = {"UUID": "GPU-2", "gpu": "3", "pci_bus_id": "00000000:5D:00.0", "modelName": "NVIDIA H200"}
    assert gpu_of(labels) == SECOND
    assert gpu_of({"UUID": "GPU-2", "gpu": "x", "pci_bus_id": "?"}) == Gpu("GPU-2")
    assert gpu_of({"gpu": "3"}) is None


def test_join_series_tell_each_node_and_claim_no_expectation_that_is_unknown() -> None:
    inventory = ScrapedInventory()
    inventory.set_expected_nodes([NODE, Node("sim", "n2")], 0)
    values = {str(sample.labels): sample.value for sample in inventory_samples(inventory, 7)}
    assert values == {
        'watchkeeper_node_info{Hostname="gpu-r07-12", cluster="sim", pool="h200", rack="r07"}': 1.0,
        'watchkeeper_node_expected_gpus{Hostname="gpu-r07-12", cluster="sim"}': 8.0,
        'watchkeeper_node_info{Hostname="n2", cluster="sim"}': 1.0,
    }


def test_a_gpu_that_breaks_before_its_first_page_is_called_as_the_event_calls_it() -> None:
    place, inventory = Place("sim", node="n1", gpu="GPU-a"), ScrapedInventory()
    assert inventory.place_name(place) == "GPU-a on n1"
    inventory.record_gpu_index("GPU-a", "three")
    assert inventory.place_name(place) == "GPU-a on n1"
    inventory.record_gpu_index("GPU-a", "3")
    assert inventory.place_name(place) == "GPU 3 on n1"


def test_a_number_that_no_gpu_has_is_none() -> None:
    inventory = fleet()
    inventory.record_gpu_index("GPU-9", "9" * 5000)
    assert inventory.place_name(Place("sim", node="gpu-r07-12", gpu="GPU-9")) == "GPU-9 on gpu-r07-12"


def test_of_too_many_names_before_a_page_the_last_told_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "MAX_ANNOUNCED_GPUS", 2)
    inventory = ScrapedInventory()
    for index in range(3):
        inventory.record_gpu_index(f"GPU-{index}", str(index))
    names = [inventory.place_name(Place("sim", node="n1", gpu=f"GPU-{index}")) for index in range(3)]
    assert names == ["GPU-0 on n1", "GPU 1 on n1", "GPU 2 on n1"]


def test_an_inventory_counts_its_changes_and_what_stays_the_same_is_none() -> None:
    inventory = fleet()
    revisions = [inventory.revision]

    def changed() -> bool:
        revisions.append(inventory.revision)
        return revisions[-1] != revisions[-2]

    inventory.record_page(NODE, BOTH, at_ms=2000, source="page")
    inventory.set_expected_nodes([replace(NODE)], 2000)
    assert not changed()
    inventory.record_page(NODE, {FIRST.uuid: FIRST}, at_ms=3000, source="page")
    assert changed(), "one is gone"
    inventory.record_page(NODE, BOTH, at_ms=4000, source="page")
    assert changed(), "it is back"
    inventory.record_page(replace(NODE, name="stranger"), {"GPU-3": Gpu("GPU-3")}, at_ms=5000, source="other")
    assert changed(), "an unlisted node"
    inventory.set_expected_nodes([replace(NODE, domains={"rack": "r08"})], 6000)
    assert changed(), "another rack"
    inventory.set_expected_nodes([], 7000)
    assert changed(), "no longer listed"
