"""What a fault brings along, from packs/effects.csv: at the same place, and at jobs that have a rank there.

An effect is a family of causes inside the place of its cause, which of a job are the GPUs that it holds, or a cause of
jobs. `incidents.correlate` asks, so that people are told of the cause and not of its effects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache

from watchkeeper.catalogue import causes, pack
from watchkeeper.kit import durations

FILE = "effects.csv"
# As long as the fault itself lasts.
ALWAYS = timedelta.max


@dataclass(frozen=True, slots=True)
class EffectRow:
    """What one cause explains; `within` is how long after it was first seen its effects on jobs may begin."""

    cause: str
    families: frozenset[str]
    on_jobs: frozenset[str]
    within: timedelta


def affected_families(cause: str) -> frozenset[str]:
    """The families that this cause explains inside its place."""
    return _table()[0].get(cause, frozenset())


def job_effects(cause: str) -> Mapping[str, timedelta]:
    """The causes of jobs that this cause explains where they have a rank, and how soon they must begin."""
    return _table()[1].get(cause, {})


def is_effect_of_jobs(family: str) -> bool:
    """True for what is seen of GPUs and pods because the job that holds them does not get on."""
    return any(family in found for cause, found in _table()[0].items() if causes.lookup(cause).scope == "workload")


def is_job_effect(cause: str) -> bool:
    """True for what a job may suffer because something else broke."""
    return any(cause in found for found in _table()[1].values())


@cache
def _table() -> tuple[Mapping[str, frozenset[str]], Mapping[str, Mapping[str, timedelta]]]:
    families: dict[str, frozenset[str]] = {}
    jobs: dict[str, dict[str, timedelta]] = {}
    for row in pack.load(FILE, read_row):
        if row.families:
            families[row.cause] = families.get(row.cause, frozenset()) | row.families
        jobs.setdefault(row.cause, {}).update(dict.fromkeys(row.on_jobs, row.within))
    return families, jobs


def read_row(cells: Mapping[str, str]) -> EffectRow:
    pack.required(cells["why"])
    families = frozenset(row.family for row in causes.all_causes())
    of_jobs = frozenset(row.cause for row in causes.all_causes() if row.scope == "workload")
    named = [pack.choice(name, families | of_jobs) for name in pack.required(cells["effect"]).split()]
    return EffectRow(
        pack.choice(cells["cause"], frozenset(row.cause for row in causes.all_causes())),
        frozenset(name for name in named if name in families),
        frozenset(name for name in named if name not in families),
        timedelta(seconds=durations.parse_seconds(cells["within"])) if cells["within"] else ALWAYS,
    )
