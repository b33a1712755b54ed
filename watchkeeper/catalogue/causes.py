"""Every cause that a finding may name, from packs/causes.csv: family, severity and texts.

Incidents are keyed by `family`, so that two signals of one fault join one incident; titles and next steps are
templates over `{place}` and `{node}`, filled by `CauseRow.headline` and `CauseRow.advice`.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from watchkeeper.catalogue import pack
from watchkeeper.model import alerts, diagnosis

FILE = "causes.csv"
SCOPES = frozenset({"gpu", "node", "rack", "workload", "fleet"})
PLACEHOLDERS = frozenset({"place", "node"})


@dataclass(frozen=True, slots=True)
class CauseRow:
    """One cause id. `scope` is the kind of place the fault belongs to; `runbook` is a slug in docs/runbooks."""

    cause: str
    family: str
    severity: alerts.Severity
    scope: str
    title: str
    why: str
    next_step: str
    runbook: str

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

    def advice(self, place: str, node: str | None = None) -> str:
        return self.next_step.format(place=place, node=node or place)


def lookup(cause: str) -> CauseRow:
    """The row of a cause id; an id that is not shipped gets the row of `unknown`."""
    return _by_id().get(cause) or _by_id()[diagnosis.UNKNOWN_CAUSE]


def all_causes() -> tuple[CauseRow, ...]:
    return tuple(_by_id().values())


def read_row(cells: Mapping[str, str]) -> CauseRow:
    return CauseRow(
        cause=pack.required(cells["cause"]),
        family=pack.required(cells["family"]),
        severity=alerts.Severity(cells["severity"]),
        scope=pack.choice(cells["scope"], SCOPES),
        title=_template(cells["title"]),
        why=pack.required(cells["why"]),
        next_step=_template(cells["next_step"]),
        runbook=pack.required(cells["runbook"]),
    )


def _template(text: str) -> str:
    names = {name for _, name, _, _ in string.Formatter().parse(pack.required(text)) if name is not None}
    if names - PLACEHOLDERS:
        raise ValueError(f"unknown placeholder {', '.join(sorted(names - PLACEHOLDERS))}; known: place, node")
    return text


@cache
def _by_id() -> dict[str, CauseRow]:
    return {row.cause: row for row in pack.load(FILE, read_row)}
