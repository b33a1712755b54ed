"""`render slurm`: prolog, epilog and HealthCheckProgram, and fragments of slurm.conf and gres.conf.

The scripts are packs/slurm with the path of the command. Nodes and GPU counts of gres.conf come from the inventory;
without them Slurm detects the GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

from watchkeeper.catalogue import pack
from watchkeeper.config import settings as config
from watchkeeper.render import fleet_facts
from watchkeeper.render.tree import RenderedFile

FOLDER = "etc/slurm"
# A name that ends in a number: gpu-r01-07
NUMBERED = re.compile(r"(.*?)(\d+)")
SLURM_CONF = """\
# Add to slurm.conf: Include watchkeeper.conf
# To keep existing prologs and epilogs, put all scripts into one folder and set Prolog=/etc/slurm/prolog.d/*
Prolog=/etc/slurm/watchkeeper-prolog.sh
Epilog=/etc/slurm/watchkeeper-epilog.sh
# The prolog runs when the job gets its nodes, not at its first step: an unhealthy node is found before the job starts.
PrologFlags=Alloc
# The script needs up to a minute, more on a busy node; longer means that a driver call hangs.
PrologEpilogTimeout=120

HealthCheckProgram=/etc/slurm/watchkeeper-health.sh
HealthCheckInterval=300
# Also while jobs run; CYCLE spreads the nodes over the interval.
HealthCheckNodeState=ANY,CYCLE
# slurm.conf also needs: GresTypes=gpu
"""
GRES_CONF = """\
# Add to gres.conf: Include watchkeeper-gres.conf
# AutoDetect=nvml finds models, cores and links if Slurm was built with NVML. The lines below set the expected GPUs:
# a node with fewer registers as `inval` and gets no jobs.
"""
NO_NODES = """\
# The inventory ([fleet] inventory) lists no nodes, so no expected GPUs are set.
AutoDetect=nvml
"""


def files(settings: config.Settings) -> list[RenderedFile]:
    scripts = [
        RenderedFile(f"{FOLDER}/watchkeeper-{when}.sh", script("prolog.sh", settings, when=when), is_executable=True)
        for when in ("prolog", "epilog")
    ]
    return [
        *scripts,
        RenderedFile(f"{FOLDER}/watchkeeper-health.sh", script("health.sh", settings), is_executable=True),
        RenderedFile(f"{FOLDER}/watchkeeper.conf", SLURM_CONF + nodes_text(settings)),
        RenderedFile(f"{FOLDER}/watchkeeper-gres.conf", gres_text(settings)),
    ]


def script(name: str, settings: config.Settings, *, when: str = "") -> str:
    expected = settings.render.scan_expected_gpus
    text = pack.text_of(f"slurm/{name}").replace("@WATCHKEEPER@", settings.render.command).replace("@WHEN@", when)
    return text.replace("@EXPECTED@", "" if expected is None else str(expected))


def nodes_text(settings: config.Settings) -> str:
    """A comment with the GPU counts that the site's NodeName lines need."""
    rows = [f"#   NodeName={names} … Gres=gpu:{count}" for count, names in _nodes_by_gpu_count(settings)]
    return "".join(f"{row}\n" for row in ["# Set these GPU counts on your own NodeName lines:", *rows] if rows)


def gres_text(settings: config.Settings) -> str:
    rows = [
        f"NodeName={names} Name=gpu File=/dev/nvidia{'0' if count == 1 else f'[0-{count - 1}]'}"
        for count, names in _nodes_by_gpu_count(settings)
    ]
    return GRES_CONF + ("".join(f"{row}\n" for row in rows) if rows else NO_NODES)


def _nodes_by_gpu_count(settings: config.Settings) -> Iterable[tuple[int, str]]:
    """Nodes in Slurm's short form by number of GPUs; nodes with an unknown number are omitted."""
    counts: dict[int, list[str]] = {}
    for name, count in fleet_facts.expected_gpus(settings).items():
        if count is not None:
            counts.setdefault(count, []).append(name)
    return [(count, fold_names(names)) for count, names in counts.items()]


def fold_names(names: Sequence[str]) -> str:
    """Fold names into Slurm's short form, with ranges of their last number in brackets."""

    def split_number(name: str) -> tuple[str, int]:
        match = NUMBERED.fullmatch(name)
        return (match[1], len(match[2])) if match else (name, 0)

    parts: list[str] = []
    for (head, width), members in groupby(names, key=split_number):
        runs = _runs([int(name[len(head) :]) for name in members], width) if width else ""
        parts.append(f"{head}[{runs}]" if runs and not runs.isdigit() else f"{head}{runs}")
    return ",".join(parts)


def _runs(numbers: Sequence[int], width: int) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]:0{width}d}" + (f"-{run[-1]:0{width}d}" if len(run) > 1 else "") for run in runs)
