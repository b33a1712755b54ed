"""Every cause that a finding may name, from packs/causes.csv: family, severity, texts, events, effects and rivals.

Incidents are keyed by `family`, so that two signals of one fault join one incident; a cause is notified and its effects
at the same place or on jobs are not. Rivals are causes with similar symptoms, and the check that distinguishes them.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import cache, partial

from watchkeeper.catalogue import pack
from watchkeeper.kit import durations
from watchkeeper.model import alerts, diagnosis, events

FILE, EFFECTS_FILE, DOMAIN_FILE = "causes.csv", "effects.csv", "domain_advice.csv"
# An effect can begin while the fault lasts.
ALWAYS = timedelta.max
SCOPES = frozenset({"gpu", "node", "rack", "workload", "fleet"})
PLACEHOLDERS = frozenset({"place", "node"})


class GpuEffect(StrEnum):
    """What a cause does to GPUs: `WAITING` are all GPUs of its job, the others those at its place."""

    LOST = "lost"
    IDLE = "idle"
    WAITING = "waiting"


def _template(text: str) -> str:
    names = {name for _, name, _, _ in string.Formatter().parse(pack.required(text)) if name is not None}
    if names - PLACEHOLDERS:
        raise ValueError(f"unknown placeholder {', '.join(sorted(names - PLACEHOLDERS))}; known: place, node")
    return text


@dataclass(frozen=True, slots=True)
class CauseRow:
    """One cause id. `scope` is the kind of place the fault belongs to; `runbook` is a slug in docs/runbooks."""

    cause: str = pack.cell(pack.required)
    family: str = pack.cell(pack.required)
    severity: alerts.Severity = pack.cell(alerts.Severity)
    scope: str = pack.cell(partial(pack.choice, choices=SCOPES))
    title: str = pack.cell(_template)
    why: str = pack.cell(pack.required)
    next_step: str = pack.cell(_template)
    runbook: str = pack.cell(pack.required)

    @property
    def is_hardware(self) -> bool:
        return self.scope in ("gpu", "node") and self.cause != diagnosis.UNKNOWN_CAUSE

    @property
    def is_secondary(self) -> bool:
        """Whether it usually follows from a faulty GPU: failed applications, requested resets, unknown lines."""
        return self.family in ("application", "recovery", diagnosis.UNKNOWN_CAUSE)

    @property
    def explains_others(self) -> bool:
        """Whether it is a critical hardware fault, so that other faults at the same place are its consequences."""
        return self.is_hardware and not self.is_secondary and self.severity is alerts.Severity.CRITICAL

    def headline(self, place: str, node: str | None = None) -> str:
        """The title for a place, for example `gpu 3 of n7` on `node`."""
        return self.title.format(place=place, node=node or place)

    def advice(self, place: str, node: str | None = None, *, is_domain: bool = False) -> str:
        """The next step; `is_domain`: the place is a rack or another failure domain, where it may be another one."""
        next_step = _domain_next_steps().get(self.cause, self.next_step) if is_domain else self.next_step
        return next_step.format(place=place, node=node or place)


def _shipped_cause(text: str) -> str:
    if text not in _by_id():
        raise ValueError(f"{text} is not a cause of {FILE}")
    return text


@dataclass(frozen=True, slots=True)
class EffectRow:
    """The effects of one cause; effects on jobs must begin `within` this time after the fault."""

    cause: str
    families: frozenset[str]
    on_jobs: frozenset[str]
    within: timedelta


@dataclass(frozen=True, slots=True)
class Rival:
    """A cause with similar symptoms: `tell_apart` is what to check, `command` one way to check it."""

    cause: str = pack.cell(_shipped_cause)
    rival: str = pack.cell(_shipped_cause)
    tell_apart: str = pack.cell(pack.required)
    command: str = pack.cell(pack.required)


def lookup(cause: str) -> CauseRow:
    """The row of a cause id; an id that is not shipped gets the row of `unknown`."""
    return _by_id().get(cause) or _by_id()[diagnosis.UNKNOWN_CAUSE]


def all_causes() -> tuple[CauseRow, ...]:
    return tuple(_by_id().values())


def cause_of(kind: events.EventKind) -> str | None:
    """The cause that an event of this kind stands for; None if it is not a fault or carries its own cause."""
    return _by_event_kind().get(kind)


def rivals_of(cause: str) -> tuple[Rival, ...]:
    """The causes that it is mistaken for, the most frequent first."""
    return _rivals().get(cause, ())


def rival_between(cause: str, other: str) -> Rival | None:
    rows = (*rivals_of(cause), *rivals_of(other))
    return next((row for row in rows if {row.cause, row.rival} == {cause, other}), None)


def affected_families(cause: str) -> frozenset[str]:
    """The families that this cause explains inside its place; for a job, on the GPUs allocated to it."""
    return _effects()[0].get(cause, frozenset())


def job_effects(cause: str) -> Mapping[str, timedelta]:
    """The job causes that this cause explains where the job has a rank, and how soon they must begin."""
    return _effects()[1].get(cause, {})


def is_effect_of_jobs(family: str) -> bool:
    """Whether a job that makes no progress shows this family on its GPUs and pods."""
    return any(family in affected for cause, affected in _effects()[0].items() if lookup(cause).scope == "workload")


def gpu_effect(cause: str) -> GpuEffect | None:
    """How GPUs do no work because of this cause; None: they work on, or nothing tells."""
    return _gpu_effects().get(cause)


def is_job_effect(cause: str) -> bool:
    """Whether another fault can have this effect on a job."""
    return any(cause in effects for effects in _effects()[1].values())


read_row = pack.row_reader(CauseRow)


@cache
def _by_id() -> dict[str, CauseRow]:
    return {row.cause: row for row in pack.load(FILE, read_row)}


@cache
def _by_event_kind() -> Mapping[events.EventKind, str]:
    def read(cells: Mapping[str, str]) -> tuple[events.EventKind, str]:
        pack.required(cells["why"])
        return events.EventKind(cells["kind"]), pack.choice(cells["cause"], frozenset(_by_id()))

    return dict(pack.load("event_causes.csv", read))


@cache
def _domain_next_steps() -> Mapping[str, str]:
    return dict(pack.load(DOMAIN_FILE, lambda cells: (_shipped_cause(cells["cause"]), _template(cells["next_step"]))))


@cache
def _gpu_effects() -> Mapping[str, GpuEffect]:
    def read(cells: Mapping[str, str]) -> tuple[str, GpuEffect]:
        pack.required(cells["why"])
        return _shipped_cause(cells["cause"]), GpuEffect(cells["gpus"])

    return dict(pack.load("gpu_effects.csv", read))


@cache
def _rivals() -> Mapping[str, tuple[Rival, ...]]:
    by_cause: dict[str, tuple[Rival, ...]] = {}
    for row in pack.load("rivals.csv", pack.row_reader(Rival)):
        by_cause[row.cause] = (*by_cause.get(row.cause, ()), row)
    return by_cause


@cache
def _effects() -> tuple[Mapping[str, frozenset[str]], Mapping[str, Mapping[str, timedelta]]]:
    families: dict[str, frozenset[str]] = {}
    jobs: dict[str, dict[str, timedelta]] = {}
    for row in pack.load(EFFECTS_FILE, read_effect):
        if row.families:
            families[row.cause] = families.get(row.cause, frozenset()) | row.families
        jobs.setdefault(row.cause, {}).update(dict.fromkeys(row.on_jobs, row.within))
    return families, jobs


def read_effect(cells: Mapping[str, str]) -> EffectRow:
    pack.required(cells["why"])
    rows = all_causes()
    families = frozenset(row.family for row in rows)
    of_jobs = frozenset(row.cause for row in rows if row.scope == "workload")
    effects = frozenset(pack.choice(name, families | of_jobs) for name in pack.required(cells["effect"]).split())
    return EffectRow(
        pack.choice(cells["cause"], frozenset(row.cause for row in rows)),
        effects & families,
        effects - families,
        timedelta(seconds=durations.parse_seconds(cells["within"])) if cells["within"] else ALWAYS,
    )
