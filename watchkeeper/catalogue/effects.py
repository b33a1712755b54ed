"""The effects of each cause, from packs/effects.csv: at the same place, and on jobs that have a rank there.

An effect is a family of causes inside the place of its cause (for a job, the GPUs allocated to it), or a cause that
affects jobs. `incidents.correlate` uses it, so that the cause is notified and its effects are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache

from watchkeeper.catalogue import causes, pack
from watchkeeper.kit import durations

FILE = "effects.csv"
# While the fault lasts.
ALWAYS = timedelta.max


@dataclass(frozen=True, slots=True)
class EffectRow:
    """The effects of one cause; effects on jobs must begin `within` this time after the fault."""

    cause: str
    families: frozenset[str]
    on_jobs: frozenset[str]
    within: timedelta


def affected_families(cause: str) -> frozenset[str]:
    """The families that this cause explains inside its place."""
    return _table()[0].get(cause, frozenset())


def job_effects(cause: str) -> Mapping[str, timedelta]:
    """The job causes that this cause explains where the job has a rank, and how soon they must begin."""
    return _table()[1].get(cause, {})


def is_effect_of_jobs(family: str) -> bool:
    """Whether a job that makes no progress shows this family on its GPUs and pods."""
    return any(
        family in affected for cause, affected in _table()[0].items() if causes.lookup(cause).scope == "workload"
    )


def is_job_effect(cause: str) -> bool:
    """Whether another fault can have this effect on a job."""
    return any(cause in effects for effects in _table()[1].values())


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
    rows = causes.all_causes()
    families = frozenset(row.family for row in rows)
    of_jobs = frozenset(row.cause for row in rows if row.scope == "workload")
    effects = frozenset(pack.choice(name, families | of_jobs) for name in pack.required(cells["effect"]).split())
    return EffectRow(
        pack.choice(cells["cause"], frozenset(row.cause for row in rows)),
        effects & families,
        effects - families,
        timedelta(seconds=durations.parse_seconds(cells["within"])) if cells["within"] else ALWAYS,
    )
