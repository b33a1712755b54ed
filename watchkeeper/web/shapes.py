"""What answers hold that is not a dataclass as it stands: cards, details, and dataclasses with something beside them.

Only for `openapi`: rows of the endpoint tables name these types, the walk in tests/web/test_openapi.py holds the
answers of a running hub against them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, TypedDict

from watchkeeper.incidents.blast import Blast
from watchkeeper.model import actions, fleet, incidents, orders
from watchkeeper.model.diagnosis import Diagnosis
from watchkeeper.model.incidents import Incident
from watchkeeper.model.repairs import Repair, Switch
from watchkeeper.model.silences import Silence
from watchkeeper.remediate import explanation
from watchkeeper.rules.budgets import Budget
from watchkeeper.rules.reload import Reload
from watchkeeper.web.answers import Asked
from watchkeeper.web.schema import Shown


class NodeName(TypedDict):
    """What is said of a node that no list names any more."""

    name: str


class SilencedBy(TypedDict):
    id: str
    author: str
    reason: str
    ends_at: datetime
    keeper: str


class Truth(TypedDict):
    cause: str
    action: str
    severity: str
    place: str


class Fault(TypedDict):
    """What is broken on purpose in the simulated fleet; the simulator answers so."""

    id: str
    scenario: str
    node: str
    gpu: int | None
    uuid: str | None
    place: str
    at: datetime
    strikes_in_seconds: float
    truth: Truth


class Swept(TypedDict):
    """How the fabric was last looked at; None where it never was."""

    source: str | None
    at: datetime | None
    seconds: float | None
    problem: str
    links: int
    links_down: int
    unlisted_hosts: list[str]
    unnamed_hosts: int


class Colour(TypedDict):
    title: str
    unit: str
    low: float | None
    high: float | None
    metric: str


Card = Annotated[
    Incident,
    Shown(
        "incidents.Card",
        also={
            "place_name": str,
            "signals": int,
            "gpus": list[str],
            "why": str | None,
            "confidence": float | None,
            "next_step": str | None,
            "plan": list[str],
            "silenced_by": SilencedBy | None,
        },
        without=("members",),
    ),
]
NamedIncident = Annotated[Incident, Shown("incidents.NamedIncident", also={"place_name": str})]
ShownSilence = Annotated[Silence, Shown("silences.ShownSilence", also={"matchers": list[str]})]
ListedSilence = Annotated[Silence, Shown("silences.ListedSilence", also={"matchers": list[str], "active": bool})]
ShownRepair = Annotated[
    Repair,
    Shown(
        "repairs.ShownRepair",
        also={"action": str | None, "incidents": list[str], "is_running": bool, "is_held": bool},
    ),
]
ShownSwitch = Annotated[Switch, Shown("repairs.ShownSwitch", also={"is_stopped": bool, "is_tripped": bool})]
ExplainedRepair = Annotated[
    explanation.Explanation,
    Shown("explanation.ExplainedRepair", also={"repair": ShownRepair | None, "switch": ShownSwitch}),
]
ShownBudget = Annotated[Budget, Shown("budgets.ShownBudget", also={"covered": str | None, "incidents": list[str]})]
Outcome = Annotated[Reload, Shown("reload.Outcome", also={"is_successful": bool})]
RuleState = Annotated[Reload, Shown("reload.RuleState", also={"is_successful": bool, "owner": str})]
ShownOrder = Annotated[orders.Order, Shown("orders.ShownOrder", without=("nonce",))]
GivenOrder = Annotated[orders.Tracked, Shown("orders.GivenOrder", also={"order": ShownOrder, "state": str})]

GpuEvent = Annotated[incidents.Member, Shown("incidents.GpuEvent", also={"incident": str})]
NODE_OR_NAME = fleet.Node | NodeName


@dataclass(frozen=True, slots=True)
class Detail:
    incident: NamedIncident
    diagnosis: Diagnosis | None
    plan: actions.Plan | None
    silenced_by: SilencedBy | None
    runbook: str
    timeline: list[incidents.Happened]


@dataclass(frozen=True, slots=True)
class FullDetail(Detail):
    blast: Blast | None


CLUSTER = Asked("cluster", "only this cluster")
FROM = Asked("from", "RFC 3339 or seconds since 1970; a day before `to` unless given")
TO = Asked("to", "RFC 3339 or seconds since 1970; now unless given")
BY = Asked("by", "dimensions such as team, user, job, node, model; `team` unless given", list[str])
OF = Asked("of", "only lines of this, such as team=vision", list[str])
