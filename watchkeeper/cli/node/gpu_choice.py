"""The options `-i GPUS` and `-g GROUP`, which select GPUs of this node."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from watchkeeper.agent.gpus import gpu_groups
from watchkeeper.agent.gpus.gpu_samples import GpuSample
from watchkeeper.model import fleet, gpu_selectors


def with_gpus(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add both options, and pass the command a `selection`, None for all GPUs."""

    @click.option(
        "-i",
        "--gpus",
        "gpus_text",
        metavar="GPUS",
        help="Use only these GPUs: 0,2-3, UUIDs or PCI addresses; MIG instances as 0/1 or MIG-…  [default: all]",
    )
    @click.option("-g", "--group", metavar="NAME", help="Use only the GPUs of this group of `watchkeeper gpus group`.")
    @functools.wraps(command)
    def wrapper(*args: Any, gpus_text: str | None, group: str | None, **options: Any) -> Any:
        return command(*args, selection=parse_choice(gpus_text, group), **options)

    return wrapper


def parse_choice(gpus_text: str | None, group: str | None) -> gpu_selectors.GpuSelection | None:
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


def selectable_gpu(gpu: GpuSample) -> gpu_selectors.SelectableGpu:
    slices = {part.uuid: part.id for part in gpu.mig_instances if part.uuid}
    return gpu_selectors.SelectableGpu(
        gpu.index, gpu.identity["uuid"], fleet.normalise_pci(gpu.identity["pci"]), slices
    )
