"""What a hub answers beyond the nouns of model/: cards, details, series, budgets, hours.

`client.typed` makes them. tests/client holds each against the shape in the API's own document, field by field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from watchkeeper.model import actions, diagnosis, fleet, jobs, trust
from watchkeeper.model.alerts import Severity
from watchkeeper.model.incidents import Happened, Incident, IncidentState
from watchkeeper.model.repairs import Switch


@dataclass(frozen=True, slots=True)
class Card:
    """An incident in a list: without its members, with why and what to do next."""

    id: str
    place: fleet.Place
    place_name: str
    title: str
    severity: Severity
    state: IncidentState
    opened_at: datetime
    cause: str
    family: str
    signals: int
    why: str | None
    confidence: float | None
    next_step: str | None
    plan: tuple[str, ...]
    workloads: tuple[str, ...]
    resolved_at: datetime | None
    assignee: str | None
    part_of: str | None
    # Those that its signals name; an older hub does not tell.
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Detail:
    """One incident with everything that is known about it; `blast` None where nobody could be asked."""

    incident: Incident
    place_name: str
    diagnosis: diagnosis.Diagnosis | None
    plan: actions.Plan | None
    timeline: tuple[Happened, ...]
    blast: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Fleet:
    """The inventory in the order of the map; `workloads` by GPU, None where the samples cannot be asked."""

    nodes: tuple[fleet.NodeInFleet, ...]
    workloads: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class GpuPage:
    """One GPU; `labels` are those of its newest sample, None when it does not report."""

    gpu: fleet.Gpu
    node: str
    labels: Mapping[str, str] | None
    incidents: tuple[Card, ...]


@dataclass(frozen=True, slots=True)
class ShownRepair:
    """A repair as people follow it; `action` is the step that it is at."""

    id: str
    incident: str
    node: fleet.Place
    cause: str
    mode: trust.Mode
    mode_why: str
    digest: str
    state: str
    said: str
    since: datetime
    action: str | None
    approved_by: str | None
    is_running: bool
    is_held: bool


@dataclass(frozen=True, slots=True)
class Repairs:
    repairs: tuple[ShownRepair, ...]
    switch: Switch


@dataclass(frozen=True, slots=True)
class Silence:
    """`matchers` as people write them, such as node="gpu-r01-01"."""

    id: str
    matchers: tuple[str, ...]
    author: str
    reason: str
    starts_at: datetime
    ends_at: datetime
    is_maintenance: bool


@dataclass(frozen=True, slots=True)
class Jobs:
    """A page of jobs; `total` counts all that the filters kept, `problems` say what could not be asked."""

    jobs: tuple[jobs.JobLine, ...]
    total: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Budget:
    """What is left of an error budget; None where nothing is known."""

    name: str
    title: str
    labels: Mapping[str, str]
    objective: float
    window: str
    indicator: float | None
    left: float | None
    state: str
    incidents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hours:
    """GPU-hours by some dimensions; a line has the dimensions by name, and hours by part."""

    since: float
    until: float
    by: tuple[str, ...]
    lines: tuple[Mapping[str, Any], ...]
    total: Mapping[str, float]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Bill:
    """What it cost; a line has the dimensions by name, its money, and its hours by part."""

    since: float
    until: float
    by: tuple[str, ...]
    currency: str
    lines: tuple[Mapping[str, Any], ...]
    money: float
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """One line of an answer to PromQL: its labels, and (seconds since 1970, value) pairs."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]

    @property
    def newest(self) -> float | None:
        return self.points[-1][1] if self.points else None


@dataclass(frozen=True, slots=True)
class Asked:
    """An answer to PromQL; a scalar is one series without labels."""

    series: tuple[Series, ...]
    warnings: tuple[str, ...] = field(default=())
