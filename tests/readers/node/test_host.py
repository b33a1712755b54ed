"""The driver's page about one GPU."""

from __future__ import annotations

from watchkeeper.model import fleet
from watchkeeper.readers.node import host

PAGE = """Model: \t\t NVIDIA H200
IRQ:   \t\t 0
GPU UUID: \t {uuid}
Bus Type: \t PCIe
Bus Location: \t 0000:5d:00.0
Device Minor: \t 3
"""


def test_the_page_gives_uuid_address_and_model() -> None:
    page = PAGE.format(uuid="GPU-1a2b3c4d-0000-1111-2222-333344445555")
    expected = fleet.Gpu("GPU-1a2b3c4d-0000-1111-2222-333344445555", pci="0000:5d:00", model="NVIDIA H200")
    assert host.read_gpu_information(page) == expected


def test_a_gpu_the_driver_has_not_named_yet_is_unknown() -> None:
    assert host.read_gpu_information(PAGE.format(uuid="GPU-????????-????-????-????-????????????")) is None
    assert host.read_gpu_information("") is None
