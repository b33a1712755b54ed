"""What the fleet knows of its nodes and GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from watchkeeper.model.fleet import Gpu, Node, Place
from watchkeeper.scrape import fleet as inventory
from watchkeeper.scrape.fleet import ScrapedInventory, gpu_of, inventory_samples

NODE = Node("sim", "gpu-r07-12", pool="h200", aliases=frozenset({"10.0.0.7"}), expected_gpus=8, domains={"rack": "r07"})
FIRST, SECOND = Gpu("GPU-1", index=0, pci="0000:0a:00"), Gpu("GPU-2", index=3, pci="0000:5d:00", model="NVIDIA H200")
BOTH = {gpu.uuid: gpu for gpu in (FIRST, SECOND)}


def fleet() -> ScrapedInventory:
    known = ScrapedInventory()
    known.set_expected_nodes([NODE], 0)
    known.record_page(NODE, BOTH, at_ms=1000, source="page")
    return known


def test_a_node_is_found_by_name_and_by_alias() -> None:
    assert fleet().node("gpu-r07-12") == fleet().node("10.0.0.7", "sim") == NODE
    assert fleet().node("gpu-r07-12", "other") is None
    assert fleet().node("unknown") is None


def test_a_gpu_is_found_by_uuid() -> None:
    found = fleet().gpu("GPU-2")
    assert found is not None
    assert found.place == Place("sim", node="gpu-r07-12", gpu="GPU-2")


def test_places_are_named_as_people_say_them() -> None:
    known = fleet()
    assert known.place_name(Place("sim", node="gpu-r07-12", gpu="GPU-2")) == "GPU 3 on gpu-r07-12"
    assert known.place_name(Place("sim", node="gpu-r07-12", gpu="GPU-9")) == "GPU-9 on gpu-r07-12"
    assert known.place_name(Place("sim", domain="rack=r07")) == "rack r07"
    assert known.place_name(Place("sim", node="n1")) == "n1"
    assert known.place_name(Place("sim")) == "cluster sim"


def test_a_gpu_that_is_no_longer_reported_is_gone_since_it_was_last_seen() -> None:
    known = fleet()
    known.record_page(NODE, {"GPU-1": FIRST}, at_ms=2000, source="page")
    gone = known.gpu("GPU-2")
    assert gone is not None
    assert gone.gone_since_ms == 1000
    assert [seen.gone_since_ms for seen in known.gpus_of(NODE)] == [None, 1000]
    known.record_page(NODE, BOTH, at_ms=3000, source="page")
    assert [seen.gone_since_ms for seen in known.gpus_of(NODE)] == [None, None]


def test_a_second_exporter_that_knows_fewer_gpus_loses_none() -> None:
    known = fleet()
    known.record_page(NODE, {"GPU-1": FIRST}, at_ms=2000, source="other page")
    known.record_page(NODE, {}, at_ms=3000, source="other page")
    assert [seen.gone_since_ms for seen in known.gpus_of(NODE)] == [None, None]


def test_a_page_that_nobody_reads_any_more_does_not_keep_a_gpu_there() -> None:
    known = fleet()
    for at in range(60, 600, 60):
        known.record_page(NODE, BOTH, at_ms=at * 1000, source="page of the exporter that was started anew")
    known.record_page(NODE, {FIRST.uuid: FIRST}, at_ms=600_000, source="page of the exporter that was started anew")
    lost = known.gpu(SECOND.uuid)
    assert lost is not None
    assert lost.gone_since_ms == 540_000


def test_of_the_pages_of_a_node_some_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "MAX_PAGES", 3)
    known = fleet()
    for number in range(10):
        known.record_page(NODE, BOTH, at_ms=2000 + number, source=f"page {number}")
    assert list(known._reported["sim", "gpu-r07-12"]) == ["page 7", "page 8", "page 9"]


def test_a_gpu_that_moved_to_another_node_is_not_gone() -> None:
    known, other = fleet(), Node("sim", "gpu-r07-13")
    known.record_page(other, {"GPU-2": SECOND}, at_ms=2000, source="its page")
    known.record_page(NODE, {"GPU-1": FIRST}, at_ms=2500, source="page")
    moved = known.gpu("GPU-2")
    assert moved is not None
    assert (moved.node, moved.first_seen_ms, moved.gone_since_ms) == ("gpu-r07-13", 1000, None)
    assert [seen.gpu.uuid for seen in known.gpus_of(NODE)] == ["GPU-1"]


def test_a_node_that_discovery_forgets_is_gone_and_comes_back() -> None:
    known = fleet()
    known.set_expected_nodes([], 5000)
    assert (known.nodes(), known.gone_nodes()) == ([], [(NODE, 5000)])
    known.set_expected_nodes([NODE], 6000)
    assert (known.nodes(), known.gone_nodes()) == ([NODE], [])


def test_a_node_nobody_expects_is_learned_from_its_gpus() -> None:
    known, stranger = ScrapedInventory(), Node("main", "box", source="http://box:9400/metrics")
    known.record_page(stranger, {"GPU-1": FIRST}, at_ms=1, source="page")
    known.set_expected_nodes([], 2)
    assert (known.nodes(), known.node("box"), known.gone_nodes()) == ([stranger], stranger, [])


def test_of_nodes_that_nobody_expects_so_many_are_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "MAX_LEARNED_NODES", 1)
    known = fleet()
    for name in ("stranger", "second"):
        known.record_page(Node("sim", name), {}, at_ms=2000, source="page")
    assert [node.name for node in known.nodes()] == ["gpu-r07-12", "stranger"]


def test_of_what_is_gone_the_longest_gone_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "MAX_GONE", 1)
    known = fleet()
    for at, left in enumerate(([SECOND], []), start=2):
        known.record_page(NODE, {gpu.uuid: gpu for gpu in left}, at_ms=at * 1000, source="page")
    assert [seen.gpu for seen in known.gpus()] == [SECOND]
    others = [replace(NODE, name=name, aliases=frozenset()) for name in ("a", "b")]
    for at in range(3):
        known.set_expected_nodes(others[at:], 5000 + at)
    assert [node.name for node, _ in known.gone_nodes()] == ["b"]


def test_dcgm_labels_describe_a_gpu_and_other_labels_none() -> None:
    labels = {"UUID": "GPU-2", "gpu": "3", "pci_bus_id": "00000000:5D:00.0", "modelName": "NVIDIA H200"}
    assert gpu_of(labels) == SECOND
    assert gpu_of({"UUID": "GPU-2", "gpu": "x", "pci_bus_id": "?"}) == Gpu("GPU-2")
    assert gpu_of({"gpu": "3"}) is None


def test_join_series_tell_each_node_and_claim_no_expectation_that_is_unknown() -> None:
    known = ScrapedInventory()
    known.set_expected_nodes([NODE, Node("sim", "n2")], 0)
    told = {str(sample.labels): sample.value for sample in inventory_samples(known, 7)}
    assert told == {
        'watchkeeper_node_info{Hostname="gpu-r07-12", cluster="sim", pool="h200", rack="r07"}': 1.0,
        'watchkeeper_node_expected_gpus{Hostname="gpu-r07-12", cluster="sim"}': 8.0,
        'watchkeeper_node_info{Hostname="n2", cluster="sim"}': 1.0,
    }


def test_a_gpu_that_breaks_before_its_first_page_is_called_as_the_event_calls_it() -> None:
    place, known = Place("sim", node="n1", gpu="GPU-a"), ScrapedInventory()
    assert known.place_name(place) == "GPU-a on n1"
    known.record_gpu_index("GPU-a", "three")
    assert known.place_name(place) == "GPU-a on n1"
    known.record_gpu_index("GPU-a", "3")
    assert known.place_name(place) == "GPU 3 on n1"


def test_a_number_that_no_gpu_has_is_none() -> None:
    known = fleet()
    known.record_gpu_index("GPU-9", "9" * 5000)
    assert known.place_name(Place("sim", node="gpu-r07-12", gpu="GPU-9")) == "GPU-9 on gpu-r07-12"


def test_of_too_many_names_before_a_page_the_last_told_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "MAX_ANNOUNCED_GPUS", 2)
    known = ScrapedInventory()
    for index in range(3):
        known.record_gpu_index(f"GPU-{index}", str(index))
    names = [known.place_name(Place("sim", node="n1", gpu=f"GPU-{index}")) for index in range(3)]
    assert names == ["GPU-0 on n1", "GPU 1 on n1", "GPU 2 on n1"]


def test_an_inventory_counts_its_changes_and_what_stays_the_same_is_none() -> None:
    known = fleet()
    seen = [known.revision]

    def changed() -> bool:
        seen.append(known.revision)
        return seen[-1] != seen[-2]

    known.record_page(NODE, BOTH, at_ms=2000, source="page")
    known.set_expected_nodes([replace(NODE)], 2000)
    assert not changed()
    known.record_page(NODE, {FIRST.uuid: FIRST}, at_ms=3000, source="page")
    assert changed(), "one is gone"
    known.record_page(NODE, BOTH, at_ms=4000, source="page")
    assert changed(), "it is back"
    known.record_page(replace(NODE, name="stranger"), {"GPU-3": Gpu("GPU-3")}, at_ms=5000, source="other")
    assert changed(), "a node that nobody expects"
    known.set_expected_nodes([replace(NODE, domains={"rack": "r08"})], 6000)
    assert changed(), "another rack"
    known.set_expected_nodes([], 7000)
    assert changed(), "nobody names it"
