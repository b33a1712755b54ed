"""`render slurm`: prolog, epilog and HealthCheckProgram, and what slurm.conf and gres.conf need for them.

The scripts are packs/slurm with the path of the command put in. The nodes of gres.conf and how many GPUs each
has come from the inventory; what it does not say is left to Slurm's own detection.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib import resources
from itertools import groupby

from watchkeeper.config import settings as config
from watchkeeper.render import fleet_facts
from watchkeeper.render.tree import RenderedFile

FOLDER = "etc/slurm"
# A name that ends in a number: gpu-r01-07
NUMBERED = re.compile(r"(.*?)(\d+)")
SLURM_CONF = """\
# For slurm.conf, which takes it with the line: Include watchkeeper.conf
# Prologs and epilogs that are there already stay: let theirs and these stand in one folder and name it as prolog.d/*
Prolog=/etc/slurm/watchkeeper-prolog.sh
Epilog=/etc/slurm/watchkeeper-epilog.sh
# The prolog runs when the job gets its nodes, not at its first step: a sick node is found before the job starts.
PrologFlags=Alloc
# A minute for the script itself, some for a busy node; longer means that a driver call hangs.
PrologEpilogTimeout=120

HealthCheckProgram=/etc/slurm/watchkeeper-health.sh
HealthCheckInterval=300
# Also while jobs run; CYCLE spreads the nodes over the interval.
HealthCheckNodeState=ANY,CYCLE
# slurm.conf itself must say, once: GresTypes=gpu
"""
GRES_CONF = """\
# For gres.conf, which takes it with the line: Include watchkeeper-gres.conf
# AutoDetect=nvml finds models, cores and links by itself where Slurm was built with NVML. The lines below say what
# must be there: a node that has fewer comes up as `inval` instead of losing jobs.
"""
NO_NODES = """\
# No node is written out in the inventory ([fleet] inventory), so there is nothing to promise here.
AutoDetect=nvml
"""


def files(settings: config.Settings) -> list[RenderedFile]:
    scripts = [
        RenderedFile(f"{FOLDER}/watchkeeper-{when}.sh", script("prolog.sh", settings, when=when), is_executable=True)
        for when in ("prolog", "epilog")
    ]
    health = RenderedFile(f"{FOLDER}/watchkeeper-health.sh", script("health.sh", settings), is_executable=True)
    return [
        *scripts,
        health,
        RenderedFile(f"{FOLDER}/watchkeeper.conf", SLURM_CONF + nodes_text(settings)),
        RenderedFile(f"{FOLDER}/watchkeeper-gres.conf", gres_text(settings)),
    ]


def script(name: str, settings: config.Settings, *, when: str = "") -> str:
    text = resources.files("watchkeeper").joinpath("packs", "slurm", name).read_text(encoding="utf-8")
    expected = settings.render.scan_expected_gpus
    filled = {
        "@WATCHKEEPER@": settings.render.command,
        "@WHEN@": when,
        "@EXPECTED@": "" if expected is None else str(expected),
    }
    for mark, value in filled.items():
        text = text.replace(mark, value)
    return text


def nodes_text(settings: config.Settings) -> str:
    """How the NodeName lines of slurm.conf must count GPUs; these lines are the site's own."""
    rows = [f"#   NodeName={names} … Gres=gpu:{count}" for count, names in _counted(settings)]
    return "".join(f"{row}\n" for row in ["# The nodes of the inventory have, on their own lines:", *rows] if rows)


def gres_text(settings: config.Settings) -> str:
    rows = [
        f"NodeName={names} Name=gpu File=/dev/nvidia{'0' if count == 1 else f'[0-{count - 1}]'}"
        for count, names in _counted(settings)
    ]
    return GRES_CONF + ("".join(f"{row}\n" for row in rows) if rows else NO_NODES)


def _counted(settings: config.Settings) -> Iterable[tuple[int, str]]:
    """Nodes in Slurm's short form by how many GPUs they have; those of unknown number are left out."""
    counts: dict[int, list[str]] = {}
    for node in fleet_facts.nodes(settings):
        if node.expected_gpus is not None:
            counts.setdefault(node.expected_gpus, []).append(node.name)
    return [(count, fold_names(names)) for count, names in counts.items()]


def fold_names(names: Sequence[str]) -> str:
    """Names in Slurm's short form: runs of their last number in brackets."""
    parts: list[str] = []
    for (head, width), members in groupby(names, key=_head):
        if not width:
            parts.append(head)
            continue
        runs = _runs([int(name[len(head) :]) for name in members], width)
        parts.append(f"{head}{runs}" if runs.isdigit() else f"{head}[{runs}]")
    return ",".join(parts)


def _head(name: str) -> tuple[str, int]:
    """What stands before the last number, and how wide that number is; 0 where a name ends otherwise."""
    match = NUMBERED.fullmatch(name)
    return (match[1], len(match[2])) if match else (name, 0)


def _runs(numbers: Sequence[int], width: int) -> str:
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ",".join(f"{run[0]:0{width}d}" + (f"-{run[-1]:0{width}d}" if len(run) > 1 else "") for run in found)
