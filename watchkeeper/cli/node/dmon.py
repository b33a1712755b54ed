"""`watchkeeper dmon`: numbers of this node's GPUs line by line, for those who know `dcgmi dmon`."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

import click

from watchkeeper.agent.gpus import scan_readings
from watchkeeper.agent.gpus.gpu_samples import GpuSample, Value
from watchkeeper.catalogue import pack
from watchkeeper.cli.node.gpu_choice import named, with_gpus
from watchkeeper.kit import clock, logs
from watchkeeper.model import gpu_selectors
from watchkeeper.readers.nvml import choice, families

CANNOT_TELL = 3
DEFAULT = "DCGM_FI_DEV_GPU_UTIL,DCGM_FI_DEV_FB_USED,DCGM_FI_DEV_GPU_TEMP,DCGM_FI_DEV_POWER_USAGE,DCGM_FI_DEV_SM_CLOCK"
# A header again after this many lines, so that one is always on the screen.
LINES_PER_HEADER = 40
NOTHING = "N/A"
Numbers = Mapping[str, Value]
PREFIXES = ("DCGM_FI_DEV_", "DCGM_FI_", "watchkeeper_gpu_")


@click.command("dmon")
@click.option("-e", "--fields", "wanted", metavar="FIELDS", default=DEFAULT, help="DCGM names or ids, with commas.")
@click.option("-d", "--delay", type=click.FloatRange(0.5, 3600), default=1.0, help="Seconds between lines.")
@click.option("-c", "--count", type=click.IntRange(0), default=0, help="How many rounds; 0 goes on for ever.")
@with_gpus
@click.option("-l", "--list", "is_list", is_flag=True, help="List the fields that NVML can give, and end.")
def command(wanted: str, delay: float, count: int, chosen: gpu_selectors.GpuSelection | None, is_list: bool) -> None:
    """Print chosen fields of each GPU, again and again.

    Unlike `dcgmi dmon`, -d takes seconds. N/A is a number that the GPU does not have, or did not give in time.
    """
    if is_list:
        for number, name in sorted(ids().items()):
            click.echo(f"{number:<6}{name}")
        return
    logs.configure(level="critical")
    fields = [find(text.strip()) for text in wanted.split(",") if text.strip()]
    # The temperature says whether a GPU answers at all, whatever else is asked for.
    alive = choice.dcgm_families()["DCGM_FI_DEV_GPU_TEMP"][0]
    asked = tuple({family.name: family for family in (*fields, alive)}.values())
    look = scan_readings.ReadingOptions(choice.Choice(asked), interval_seconds=delay)
    with scan_readings.running_sampler(look, clock.ScaledClock()) as sampler:
        # On the standard error, as lines are for programs: a GPU that is lost has none.
        for fault in sampler.faults():
            click.echo(f"{fault.cause}: {fault.evidence}", err=True)
        if not sampler.snapshot().gpus:
            sys.exit(CANNOT_TELL)
        absent = chosen.unmatched_texts(map(named, sampler.snapshot().gpus)) if chosen is not None else []
        if absent:
            raise click.UsageError(f"there is no GPU {', '.join(absent)} on this node; `watchkeeper gpus` lists them")
        rounds = 0
        lines = 0
        while True:
            since = time.monotonic() - 2 * delay - 1
            rows = [row for gpu in sampler.snapshot().gpus for row in meant(gpu, chosen, fresh_since=since)]
            for name, values in rows:
                if lines % LINES_PER_HEADER == 0:
                    click.echo("#GPU  " + "".join(f"{short(family):>{width(family)}}" for family in fields))
                click.echo(line(name, fields, values))
                lines += 1
            rounds += 1
            if rounds == count:
                return
            time.sleep(delay)


def ids() -> dict[int, str]:
    rows = pack.load("dcgm_fields.csv", lambda cells: (int(cells["field_id"]), cells["name"]))
    return {number: name for number, name in rows if name in choice.dcgm_families()}


def find(text: str) -> families.NvmlFamily:
    """A family by DCGM's id or name, old or new, or by our own name."""
    name = ids().get(int(text), text) if text.isascii() and text.isdigit() else text
    known = {family.name: family for family in choice.own_families()} | {
        key: row for key, (row, _) in choice.dcgm_families().items()
    }
    family = known.get(name)
    if family is None or family.prom_type == "label" or family.cadence is families.Cadence.EVENT:
        raise click.UsageError(f"-e {text}: NVML has no such number; `watchkeeper dmon -l` lists what there is")
    return family


def meant(
    gpu: GpuSample, chosen: gpu_selectors.GpuSelection | None, *, fresh_since: float
) -> list[tuple[str, Numbers]]:
    """The lines of one GPU: itself, or those of its slices that were chosen.

    A GPU that has stopped answering has no numbers: its old ones are not repeated.
    """
    if chosen is not None and not chosen.includes(named(gpu)):
        return []
    is_fresh = gpu.read_at.get(families.Cadence.FAST, float("-inf")) >= fresh_since
    slices = None if chosen is None else chosen.slices(named(gpu))
    if slices is None:
        return [(str(gpu.index), gpu.values if is_fresh else {})]
    values = {part.id: part.values for part in gpu.mig_instances if is_fresh}
    return [(f"{gpu.index}/{id}", values.get(id, {})) for id in sorted(slices)]


def short(family: families.NvmlFamily) -> str:
    return next((family.name.removeprefix(start) for start in PREFIXES if family.name.startswith(start)), family.name)


def width(family: families.NvmlFamily) -> int:
    return max(10, len(short(family)) + 2)


def line(name: str, fields: list[families.NvmlFamily], values: Numbers) -> str:
    cells = []
    for family in fields:
        value = values.get(family.name)
        number = sum(value.values()) if isinstance(value, Mapping) else value
        text = NOTHING if number is None else f"{number:.3f}" if family.is_float else f"{number:g}"
        cells.append(f"{text:>{width(family)}}")
    return f"{name:<6}" + "".join(cells)
