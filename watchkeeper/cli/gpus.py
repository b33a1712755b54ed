"""`watchkeeper gpus`: which GPUs this node has, as the driver and the PCI bus know them, and how near they are."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from watchkeeper.cli.options import as_json, print_json, print_table
from watchkeeper.collect import scan_readings
from watchkeeper.collect.gpu_samples import GpuSample
from watchkeeper.kit import clock, logs
from watchkeeper.model import fleet
from watchkeeper.readers import pci_sysfs
from watchkeeper.readers.nvml import choice

CANNOT_TELL = 3


@dataclass(frozen=True, slots=True)
class Row:
    """One GPU; `is_answering` False: it is on the bus, and the driver does not give it to us."""

    pci: str
    index: int | None
    uuid: str | None
    model: str | None
    numa_node: int | None
    nvlinks: int | None
    is_answering: bool


@click.command("gpus")
@as_json
@click.option("--sysfs", type=click.Path(path_type=Path), default=Path("/sys"), hidden=True)
def command(as_json: bool, sysfs: Path) -> None:
    """List the GPUs of this node and how they are connected.

    The matrix uses the words of `nvidia-smi topo`: PIX one PCIe switch, PXB several, PHB a host bridge, NODE the
    same NUMA node, SYS another one. Exit codes: 0, 1 if a GPU on the bus does not answer, 3 if nothing is known.
    """
    logs.start(level="critical")
    devices = [device for device in pci_sysfs.read(sysfs) if device.kind is pci_sysfs.DeviceKind.GPU]
    with scan_readings.sampling(scan_readings.Look(choice.choose()), clock.ScaledClock()) as sampler:
        gpus, faults = sampler.snapshot().gpus, sampler.faults()
    found = rows(gpus, devices)
    if as_json:
        print_json({"gpus": [_plain(row) for row in found], "distance": distances(devices)})
    else:
        _print(found, devices)
    for fault in faults:
        click.echo(f"{fault.cause}: {fault.evidence}", err=True)
    if not found:
        click.echo("No GPU is known, neither to the driver nor on the PCI bus.", err=True)
        sys.exit(CANNOT_TELL)
    sys.exit(0 if all(row.is_answering for row in found) else 1)


def rows(gpus: tuple[GpuSample, ...], devices: list[pci_sysfs.PciDevice]) -> list[Row]:
    """What answers, by index, and then what is only on the bus."""
    by_pci = {device.pci: device for device in devices}
    found = []
    for gpu in gpus:
        pci = fleet.same_pci(gpu.identity["pci"])
        device = by_pci.pop(pci, None)
        errors = gpu.values.get("watchkeeper_gpu_nvlink_errors_total")
        links = len({part.partition(".")[0] for part in errors}) if isinstance(errors, Mapping) else None
        numa = None if device is None else device.numa_node
        answers = bool(gpu.values)
        found.append(Row(pci, gpu.index, gpu.identity["uuid"], gpu.identity["model"], numa, links, answers))
    found += [Row(device.pci, None, None, None, device.numa_node, None, False) for device in by_pci.values()]
    return found


def distances(devices: list[pci_sysfs.PciDevice]) -> dict[str, dict[str, str]]:
    return {
        one.pci: {other.pci: pci_sysfs.distance(one, other) for other in devices if other is not one} for one in devices
    }


def _plain(row: Row) -> dict[str, object]:
    return {name: getattr(row, name) for name in Row.__slots__}


def _print(found: list[Row], devices: list[pci_sysfs.PciDevice]) -> None:
    def said(value: object) -> str:
        return "?" if value is None else str(value)

    header = ("gpu", "uuid", "pci", "model", "numa", "nvlinks", "driver")
    lines = [
        (
            *(said(value) for value in (row.index, row.uuid, row.pci, row.model, row.numa_node, row.nvlinks)),
            "answers" if row.is_answering else "does not answer",
        )
        for row in found
    ]
    print_table(header, lines)
    if len(devices) > 1:
        table = distances(devices)
        click.echo()
        print_table(
            ("", *table), [(one, *("X" if one == other else table[one][other] for other in table)) for one in table]
        )
