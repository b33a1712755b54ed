"""The options `-i GPUS` and `-g GROUP`, which select GPUs of this node."""

from __future__ import annotations

import click

from watchkeeper.agent.gpus import gpu_groups
from watchkeeper.agent.gpus.gpu_samples import GpuSample
from watchkeeper.cli import options
from watchkeeper.model import fleet, gpu_selectors

GPUS_HELP = "Use only these GPUs: 0,2-3, UUIDs or PCI addresses; MIG instances as 0/1 or MIG-…  [default: all]"


def parse_choice(gpus_text: str | None, group: str | None) -> gpu_selectors.GpuSelection | None:
    """The selected GPUs; None for all."""
    if gpus_text is not None and group is not None:
        raise click.UsageError("use either -i or -g")
    if group is not None:
        return gpu_groups.find_group(group, gpu_groups.find_user_file())
    if gpus_text is None:
        return None
    try:
        return gpu_selectors.parse_selection([gpus_text])
    except ValueError as error:
        raise click.UsageError(f"-i {gpus_text[:60]}: {error}") from error


with_gpus = options.combined(
    "selection",
    parse_choice,
    click.option("-i", "--gpus", "gpus_text", metavar="GPUS", help=GPUS_HELP),
    click.option("-g", "--group", metavar="NAME", help="Use only the GPUs of this group of `watchkeeper gpus group`."),
)


def selectable_gpu(gpu: GpuSample) -> gpu_selectors.SelectableGpu:
    slices = {part.uuid: part.id for part in gpu.mig_instances if part.uuid}
    pci = fleet.normalise_pci(gpu.identity["pci"])
    return gpu_selectors.SelectableGpu(gpu.index, gpu.identity["uuid"], pci, slices)
