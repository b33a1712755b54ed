"""`watchkeeper gpus`: list the GPUs of the driver and of the PCI bus, and how they are connected."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click

from watchkeeper.agent.gpus import gpu_groups, scan_readings
from watchkeeper.agent.gpus.gpu_samples import GpuSample
from watchkeeper.cli.node.gpu_choice import with_gpus
from watchkeeper.cli.options import EXIT_UNKNOWN, FullHelpGroup, as_json, print_json, print_rows, print_table
from watchkeeper.kit import clock, logs
from watchkeeper.model import fleet, gpu_selectors
from watchkeeper.readers.node import pci_sysfs
from watchkeeper.readers.nvml import choice


@dataclass(frozen=True, slots=True)
class NodeGpuRow:
    """One GPU; `is_answering` is False if it is on the PCI bus but the driver does not report it."""

    pci: str
    index: int | None
    uuid: str | None
    model: str | None
    numa_node: int | None
    nvlinks: int | None
    is_answering: bool
    # UUID of each MIG instance to its id.
    slices: Mapping[str, int] = field(default_factory=dict)


@click.group("gpus", cls=FullHelpGroup, invoke_without_command=True)
@as_json
@with_gpus
@click.option("--sysfs", type=click.Path(path_type=Path), default=Path("/sys"), hidden=True)
def command(as_json: bool, sysfs: Path, selection: gpu_selectors.GpuSelection | None) -> None:
    """List the GPUs of this node and how they are connected.

    The matrix uses the terms of `nvidia-smi topo`: PIX one PCIe switch, PXB several, PHB a host bridge, NODE the same
    NUMA node, SYS another NUMA node. Exit codes: 0 all GPUs answer, 1 a GPU does not answer or is lost, 3 no GPU.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    logs.configure(level="critical")
    devices = [device for device in pci_sysfs.read(sysfs) if device.kind is pci_sysfs.DeviceKind.GPU]
    reading = scan_readings.ReadingOptions(choice.choose_families())
    with scan_readings.running_sampler(reading, clock.ScaledClock()) as sampler:
        gpus, faults = sampler.snapshot().gpus, sampler.faults()
    gpu_rows, unmatched = build_rows(gpus, devices), []
    if selection is not None:
        unmatched = selection.unmatched_texts(map(_selectable_gpu, gpu_rows))
        gpu_rows = [row for row in gpu_rows if selection.includes(_selectable_gpu(row))]
        devices = [device for device in devices if device.pci in {row.pci for row in gpu_rows}]
    if as_json:
        print_json({"gpus": [asdict(row) for row in gpu_rows], "distance": distances(devices)})
    else:
        _print_rows(gpu_rows, devices)
    for fault in faults:
        click.echo(f"{fault.cause}: {fault.evidence}", err=True)
    for word in unmatched:
        click.echo(f"This node has no GPU {word}.", err=True)
    if not gpu_rows and not unmatched:
        click.echo("No GPU: neither the driver nor the PCI bus reports one.", err=True)
        sys.exit(EXIT_UNKNOWN)
    # A lost GPU that is not on the bus has no row.
    is_lost = selection is None and bool(faults)
    sys.exit(1 if unmatched or is_lost or not all(row.is_answering for row in gpu_rows) else 0)


@command.group("group")
def group() -> None:
    """Manage named groups of this node's GPUs, for -g of scan, gpus, diag and dmon.

    Groups that root creates are for all users, in /etc/watchkeeper/gpu_groups.json; other users have their own.
    """


@group.command("create")
@click.argument("name")
@click.argument("gpus", nargs=-1, required=True, metavar="GPU…")
def create(name: str, gpus: tuple[str, ...]) -> None:
    """Create a group of GPUs, given as 0, 2-3, UUID or PCI address; MIG instances as 0/1 or MIG-…"""
    user_groups = gpu_groups.find_user_file()
    user_groups.create(name, gpus)
    click.echo(f"{name}: {' '.join(user_groups.load()[name])}, saved in {user_groups.path}")


@group.command("list")
@as_json
def list_groups(as_json: bool) -> None:
    """List all groups and their GPUs."""
    groups_by_name = gpu_groups.load_all_groups(gpu_groups.find_user_file())
    rows = [(name, " ".join(gpus)) for name, gpus in sorted(groups_by_name.items())]
    empty = "No groups. Create one with `watchkeeper gpus group create NAME GPU…`."
    print_rows({"groups": groups_by_name}, ("group", "gpus"), rows, as_json=as_json, empty=empty)


@group.command("delete")
@click.argument("name")
def delete(name: str) -> None:
    """Delete a group."""
    user_groups = gpu_groups.find_user_file()
    if not user_groups.delete(name):
        raise click.UsageError(f"no group {name[:70]} in {user_groups.path}")
    click.echo(f"Group {name} deleted.")


def build_rows(gpus: tuple[GpuSample, ...], devices: list[pci_sysfs.PciDevice]) -> list[NodeGpuRow]:
    """Rows of GPUs that the driver reports, by index, then of GPUs that are only on the bus."""
    by_pci = {device.pci: device for device in devices}
    gpu_rows = []
    for gpu in gpus:
        pci = fleet.normalise_pci(gpu.identity["pci"])
        device = by_pci.pop(pci, None)
        errors = gpu.values.get("watchkeeper_gpu_nvlink_errors_total")
        links = len({part.partition(".")[0] for part in errors}) if isinstance(errors, Mapping) else None
        numa = None if device is None else device.numa_node
        slices = {part.uuid: part.id for part in gpu.mig_instances if part.uuid}
        uuid, model = gpu.identity["uuid"], gpu.identity["model"]
        gpu_rows.append(NodeGpuRow(pci, gpu.index, uuid, model, numa, links, bool(gpu.values), slices))
    gpu_rows += [NodeGpuRow(device.pci, None, None, None, device.numa_node, None, False) for device in by_pci.values()]
    return gpu_rows


def distances(devices: list[pci_sysfs.PciDevice]) -> dict[str, dict[str, str]]:
    return {
        device.pci: {other.pci: pci_sysfs.topology_distance(device, other) for other in devices if other is not device}
        for device in devices
    }


def _selectable_gpu(row: NodeGpuRow) -> gpu_selectors.SelectableGpu:
    return gpu_selectors.SelectableGpu(row.index, row.uuid, row.pci, row.slices)


def _print_rows(gpu_rows: list[NodeGpuRow], devices: list[pci_sysfs.PciDevice]) -> None:
    lines = []
    for row in gpu_rows:
        facts = (row.index, row.uuid, row.pci, row.model, row.numa_node, row.nvlinks)
        driver = "answers" if row.is_answering else "does not answer"
        lines.append([*("?" if fact is None else str(fact) for fact in facts), driver])
    print_table(("gpu", "uuid", "pci", "model", "numa", "nvlinks", "driver"), lines)
    if len(devices) > 1:
        table = distances(devices)
        click.echo()
        print_table(("", *table), [(pci, *({pci: "X", **row}[other] for other in table)) for pci, row in table.items()])
