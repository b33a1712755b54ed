"""`-i GPUS` and `-g GROUP`: which of this node's GPUs a command is about."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from watchkeeper.agent.gpus import gpu_groups
from watchkeeper.agent.gpus.gpu_samples import GpuSample
from watchkeeper.model import fleet, gpu_selectors


def with_gpus(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add both options, and hand the command `chosen`: a Selection, or None for every GPU."""

    @click.option(
        "-i",
        "--gpus",
        "words",
        metavar="GPUS",
        help="Indices, 0-3, UUIDs, PCI addresses, 0/1 or MIG-… for a slice; with commas. All by default.",
    )
    @click.option("-g", "--group", metavar="NAME", help="A group of `watchkeeper gpus group`.")
    @functools.wraps(command)
    def wrapper(*given: Any, words: str | None, group: str | None, **options: Any) -> Any:
        return command(*given, chosen=choose(words, group), **options)

    return wrapper


def choose(words: str | None, group: str | None) -> gpu_selectors.GpuSelection | None:
    if words is not None and group is not None:
        raise click.UsageError("-i and -g: either some GPUs or a group of them")
    if group is not None:
        return gpu_groups.find_group(group, gpu_groups.find_user_file())
    if words is None:
        return None
    try:
        return gpu_selectors.parse_selection([words])
    except ValueError as error:
        raise click.UsageError(f"-i {words[:60]}: {error}") from error


def named(gpu: GpuSample) -> gpu_selectors.SelectableGpu:
    slices = {part.uuid: part.id for part in gpu.mig_instances if part.uuid}
    return gpu_selectors.SelectableGpu(
        gpu.index, gpu.identity["uuid"], fleet.normalise_pci(gpu.identity["pci"]), slices
    )
