"""`watchkeeper dmon`: print metrics of this node's GPUs line by line, like `dcgmi dmon`."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

import click

from watchkeeper.agent.gpus import scan_readings
from watchkeeper.agent.gpus.gpu_samples import GpuSample, Value
from watchkeeper.catalogue import pack
from watchkeeper.cli.node.gpu_choice import selectable_gpu, with_gpus
from watchkeeper.cli.options import EXIT_UNKNOWN
from watchkeeper.kit import clock, logs
from watchkeeper.model import gpu_selectors
from watchkeeper.readers.nvml import choice, families

DEFAULT_FIELDS = (
    "DCGM_FI_DEV_GPU_UTIL,DCGM_FI_DEV_FB_USED,DCGM_FI_DEV_GPU_TEMP,DCGM_FI_DEV_POWER_USAGE,DCGM_FI_DEV_SM_CLOCK"
)
FIELDS_HELP = "DCGM field names or ids, separated by commas."
# Repeat the header after this many lines, so that it stays on the screen.
LINES_PER_HEADER = 40
NOT_AVAILABLE = "N/A"
GpuValues = Mapping[str, Value]
PREFIXES = ("DCGM_FI_DEV_", "DCGM_FI_", "watchkeeper_gpu_")


@click.command("dmon")
@click.option("-e", "--fields", "field_names", metavar="FIELDS", default=DEFAULT_FIELDS, help=FIELDS_HELP)
@click.option("-d", "--delay", type=click.FloatRange(0.5, 3600), default=1.0, help="Seconds between readings.")
@click.option("-c", "--count", type=click.IntRange(0), default=0, help="Number of readings; 0 repeats until Ctrl-C.")
@with_gpus
@click.option("-l", "--list", "is_list", is_flag=True, help="List the fields that NVML provides, and exit.")
def command(
    field_names: str, delay: float, count: int, selection: gpu_selectors.GpuSelection | None, is_list: bool
) -> None:
    """Print selected fields of each GPU repeatedly.

    Unlike `dcgmi dmon`, -d takes seconds. N/A means that the GPU does not report the value, or not in time.
    """
    if is_list:
        for number, name in sorted(field_ids().items()):
            click.echo(f"{number:<6}{name}")
        return
    logs.configure(level="critical")
    fields = [find_field(text.strip()) for text in field_names.split(",") if text.strip()]
    # The temperature shows whether a GPU answers, whichever fields are selected.
    temperature = choice.load_dcgm_families()["DCGM_FI_DEV_GPU_TEMP"][0]
    read_families = tuple({family.name: family for family in (*fields, temperature)}.values())
    reading = scan_readings.ReadingOptions(choice.FamilyChoice(read_families), interval_seconds=delay)
    with scan_readings.running_sampler(reading, clock.ScaledClock()) as sampler:
        # On standard error, because standard output is for programs. A lost GPU has no line.
        for fault in sampler.faults():
            click.echo(f"{fault.cause}: {fault.evidence}", err=True)
        gpus = sampler.snapshot().gpus
        if not gpus:
            sys.exit(EXIT_UNKNOWN)
        if selection is not None and (unmatched := selection.unmatched_texts(map(selectable_gpu, gpus))):
            raise click.UsageError(f"no GPU {', '.join(unmatched)} on this node; list GPUs with `watchkeeper gpus`")
        rounds = lines = 0
        while True:
            since = time.monotonic() - 2 * delay - 1
            rows = [row for gpu in sampler.snapshot().gpus for row in select_rows(gpu, selection, fresh_since=since)]
            for name, values in rows:
                if lines % LINES_PER_HEADER == 0:
                    click.echo("#GPU  " + "".join(f"{short_name(family):>{column_width(family)}}" for family in fields))
                click.echo(format_line(name, fields, values))
                lines += 1
            rounds += 1
            if rounds == count:
                return
            time.sleep(delay)


def field_ids() -> dict[int, str]:
    rows = pack.load("dcgm_fields.csv", lambda cells: (int(cells["field_id"]), cells["name"]))
    return {number: name for number, name in rows if name in choice.load_dcgm_families()}


def find_field(text: str) -> families.NvmlFamily:
    """Find a field by DCGM id or name, old or new, or by Watchkeeper's name."""
    name = field_ids().get(int(text), text) if text.isascii() and text.isdigit() else text
    own_families = {family.name: family for family in choice.load_own_families()}
    family, _ = choice.load_dcgm_families().get(name, (own_families.get(name), False))
    if family is None or family.prom_type == "label" or family.cadence is families.Cadence.EVENT:
        raise click.UsageError(f"-e {text}: NVML has no such field; list fields with `watchkeeper dmon -l`")
    return family


def select_rows(
    gpu: GpuSample, selection: gpu_selectors.GpuSelection | None, *, fresh_since: float
) -> list[tuple[str, GpuValues]]:
    """Names and values of one GPU, or of its selected MIG instances; no values if the GPU stopped answering."""
    if selection is not None and not selection.includes(selectable_gpu(gpu)):
        return []
    is_fresh = gpu.read_at.get(families.Cadence.FAST, float("-inf")) >= fresh_since
    slices = None if selection is None else selection.slices(selectable_gpu(gpu))
    if slices is None:
        return [(str(gpu.index), gpu.values if is_fresh else {})]
    values = {part.id: part.values for part in gpu.mig_instances if is_fresh}
    return [(f"{gpu.index}/{id}", values.get(id, {})) for id in sorted(slices)]


def short_name(family: families.NvmlFamily) -> str:
    return next((family.name.removeprefix(start) for start in PREFIXES if family.name.startswith(start)), family.name)


def column_width(family: families.NvmlFamily) -> int:
    return max(10, len(short_name(family)) + 2)


def format_line(name: str, fields: list[families.NvmlFamily], values: GpuValues) -> str:
    cells = []
    for family in fields:
        value = values.get(family.name)
        number = sum(value.values()) if isinstance(value, Mapping) else value
        text = NOT_AVAILABLE if number is None else f"{number:.3f}" if family.is_float else f"{number:g}"
        cells.append(f"{text:>{column_width(family)}}")
    return f"{name:<6}" + "".join(cells)
