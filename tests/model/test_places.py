"""Places: their names, and which place is inside which."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.model.strategies import places
from watchkeeper.model import fleet


@given(places())
def test_a_printed_place_is_read_back(place: fleet.Place) -> None:
    assert fleet.Place.parse(str(place)) == place


@given(places(), places(), places())
def test_enclosing_is_a_partial_order(first: fleet.Place, other: fleet.Place, third: fleet.Place) -> None:
    assert first.encloses(first)
    if first.encloses(other) and other.encloses(first):
        assert first == other
    if first.encloses(other) and other.encloses(third):
        assert first.encloses(third)


@given(places())
def test_every_place_is_inside_its_cluster_and_its_parents(place: fleet.Place) -> None:
    assert fleet.Place(place.cluster).encloses(place)
    if place.parent is not None:
        assert place.parent.encloses(place)
        assert not place.encloses(place.parent)


def test_a_gpu_does_not_enclose_its_neighbour_nor_another_cluster() -> None:
    gpu = fleet.Place("main", node="n1", gpu="GPU-1")
    assert not gpu.encloses(fleet.Place("main", node="n1", gpu="GPU-2"))
    assert not fleet.Place("main").encloses(fleet.Place("other", node="n1", gpu="GPU-1"))


@pytest.mark.parametrize(
    "parts",
    [
        {"cluster": ""},
        {"cluster": "main", "gpu": "GPU-1"},
        {"cluster": "main", "node": "n1", "domain": "rack=r1"},
        {"cluster": "main", "node": "n1", "slice": "1"},
        {"cluster": "main", "node": "n1", "gpu": "GPU-1", "port": "1"},
    ],
)
def test_a_place_that_cannot_be_is_refused(parts: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"a place|needs its"):
        fleet.Place(**parts)


@pytest.mark.parametrize("text", ["", "/node=n1", "main/n1", "main/shelf=3", "main/cluster=x", "main/gpu=g", "main/"])
def test_text_that_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"place|needs its node"):
        fleet.Place.parse(text)


def test_a_part_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a place"):
        fleet.Place.parse("main/node=a/node=b")


def test_a_node_is_inside_each_of_its_failure_domains() -> None:
    node = fleet.Node("main", "n1", domains={"rack": "r12", "leaf": "leaf-01"})
    assert [str(place) for place in node.failure_domains()] == ["main/domain=leaf%3Dleaf-01", "main/domain=rack%3Dr12"]


@pytest.mark.parametrize("text", ["PCI:0000:5d:00", "00000000:5D:00.0", "5d:00.0", "0000:5d:00.0"])
def test_one_pci_address_has_one_spelling(text: str) -> None:
    assert fleet.normalise_pci(text) == "0000:5d:00"
