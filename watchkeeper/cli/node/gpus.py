"""`watchkeeper gpus`: which GPUs this node has, as the driver and the PCI bus know them, and how near they are."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click

from watchkeeper.agent.gpus import gpu_groups, scan_readings
from watchkeeper.agent.gpus.gpu_samples import GpuSample
from watchkeeper.cli import groups
from watchkeeper.cli.node.gpu_choice import with_gpus
from watchkeeper.cli.options import as_json, print_json, print_table
from watchkeeper.kit import clock, logs
from watchkeeper.model import fleet, gpu_selectors
from watchkeeper.readers.node import pci_sysfs
from watchkeeper.readers.nvml import choice

CANNOT_TELL = 3


@dataclass(frozen=True, slots=True)
class NodeGpuRow:
    """One GPU; `is_answering` False: it is on the bus, and the driver does not give it to us."""

    pci: str
    index: int | None
    uuid: str | None
    model: str | None
    numa_node: int | None
    nvlinks: int | None
    is_answering: bool
    # UUID of each MIG slice to its instance.
    slices: Mapping[str, int] = field(default_factory=dict)


@click.group("gpus", cls=groups.FullHelpGroup, invoke_without_command=True)
@as_json
@with_gpus
@click.option("--sysfs", type=click.Path(path_type=Path), default=Path("/sys"), hidden=True)
def command(as_json: bool, sysfs: Path, chosen: gpu_selectors.GpuSelection | None) -> None:
    """List the GPUs of this node and how they are connected.

    The matrix uses the words of `nvidia-smi topo`: PIX one PCIe switch, PXB several, PHB a host bridge, NODE the
    same NUMA node, SYS another one. Exit codes: 0, 1 if a GPU does not answer or is lost, 3 if nothing is known.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    logs.configure(level="critical")
    devices = [device for device in pci_sysfs.read(sysfs) if device.kind is pci_sysfs.DeviceKind.GPU]
    with scan_readings.running_sampler(
        scan_readings.ReadingOptions(choice.choose_families()), clock.ScaledClock()
    ) as sampler:
        gpus, faults = sampler.snapshot().gpus, sampler.faults()
    found, absent = rows(gpus, devices), []
    if chosen is not None:
        absent = chosen.unmatched_texts(map(_named, found))
        found = [row for row in found if chosen.includes(_named(row))]
        devices = [device for device in devices if device.pci in {row.pci for row in found}]
    if as_json:
        print_json({"gpus": [_plain(row) for row in found], "distance": distances(devices)})
    else:
        _print(found, devices)
    for fault in faults:
        click.echo(f"{fault.cause}: {fault.evidence}", err=True)
    for word in absent:
        click.echo(f"GPU {word} is not there.", err=True)
    if not found and not absent:
        click.echo("No GPU is known, neither to the driver nor on the PCI bus.", err=True)
        sys.exit(CANNOT_TELL)
    # A GPU that is lost has no row where the bus does not show it either.
    is_lost = chosen is None and bool(faults)
    sys.exit(1 if absent or is_lost or not all(row.is_answering for row in found) else 0)


@command.group("group")
def group() -> None:
    """Named groups of this node's GPUs, for -g of scan, gpus and dmon.

    Root's groups are everyone's, in /etc/watchkeeper/gpu_groups.json; others keep their own.
    """


@group.command("create")
@click.argument("name")
@click.argument("gpus", nargs=-1, required=True, metavar="GPU…")
def create(name: str, gpus: tuple[str, ...]) -> None:
    """Name some GPUs: indices, 0-3, UUIDs, PCI addresses, or 0/1 and MIG-… for slices."""
    own = gpu_groups.find_user_file()
    own.create(name, gpus)
    click.echo(f"{name}: {' '.join(own.load()[name])}, kept in {own.path}")


@group.command("list")
@as_json
def list_groups(as_json: bool) -> None:
    """Show every group and its GPUs."""
    known = gpu_groups.load_all_groups(gpu_groups.find_user_file())
    if as_json:
        print_json({"groups": known})
    elif known:
        print_table(("group", "gpus"), [(name, " ".join(words)) for name, words in sorted(known.items())])
    else:
        click.echo("There are no groups. `watchkeeper gpus group create NAME GPU…` makes one.")


@group.command("delete")
@click.argument("name")
def delete(name: str) -> None:
    """Forget a group."""
    own = gpu_groups.find_user_file()
    if not own.delete(name):
        raise click.UsageError(f"there is no group {name[:70]} in {own.path}")
    click.echo(f"{name} is deleted.")


def rows(gpus: tuple[GpuSample, ...], devices: list[pci_sysfs.PciDevice]) -> list[NodeGpuRow]:
    """What answers, by index, and then what is only on the bus."""
    by_pci = {device.pci: device for device in devices}
    found = []
    for gpu in gpus:
        pci = fleet.normalise_pci(gpu.identity["pci"])
        device = by_pci.pop(pci, None)
        errors = gpu.values.get("watchkeeper_gpu_nvlink_errors_total")
        links = len({part.partition(".")[0] for part in errors}) if isinstance(errors, Mapping) else None
        numa = None if device is None else device.numa_node
        answers, slices = bool(gpu.values), {part.uuid: part.id for part in gpu.mig_instances if part.uuid}
        found.append(
            NodeGpuRow(pci, gpu.index, gpu.identity["uuid"], gpu.identity["model"], numa, links, answers, slices)
        )
    found += [NodeGpuRow(device.pci, None, None, None, device.numa_node, None, False) for device in by_pci.values()]
    return found


def distances(devices: list[pci_sysfs.PciDevice]) -> dict[str, dict[str, str]]:
    return {
        one.pci: {other.pci: pci_sysfs.distance(one, other) for other in devices if other is not one} for one in devices
    }


def _named(row: NodeGpuRow) -> gpu_selectors.SelectableGpu:
    return gpu_selectors.SelectableGpu(row.index, row.uuid, row.pci, row.slices)


def _plain(row: NodeGpuRow) -> dict[str, object]:
    return {name: getattr(row, name) for name in NodeGpuRow.__slots__}


def _print(found: list[NodeGpuRow], devices: list[pci_sysfs.PciDevice]) -> None:
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
