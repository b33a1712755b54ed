"""Types of responses that are not plain dataclasses: cards, details, and dataclasses with added or omitted fields.

Only `openapi` uses them, through the `response` of endpoints. tests/web/test_openapi.py compares the responses of a
running hub with them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, TypedDict

from watchkeeper.incidents.blast_radius import BlastRadius
from watchkeeper.model import actions, fleet, incidents, orders
from watchkeeper.model.diagnosis import Diagnosis
from watchkeeper.model.incidents import Incident
from watchkeeper.model.repairs import Repair, RepairSwitch
from watchkeeper.model.silences import Silence
from watchkeeper.remediate import explanation
from watchkeeper.rules.budgets import ErrorBudget
from watchkeeper.rules.reload import Reload
from watchkeeper.web.endpoint import QueryParam
from watchkeeper.web.openapi import ResponseVariant


class NodeName(TypedDict):
    """A node that is not in the inventory any more."""

    name: str


class SilencedBy(TypedDict):
    id: str
    author: str
    reason: str
    ends_at: datetime
    keeper: str


class RepairBrief(TypedDict):
    """The repair that runs for an incident, or keeps its node cordoned; `activity` as `rebooting n1`."""

    id: str
    state: str
    activity: str


class FaultTruth(TypedDict):
    cause: str
    action: str
    severity: str
    place: str


class SimulatedFault(TypedDict):
    """A fault that was injected into the simulated fleet."""

    id: str
    scenario: str
    node: str
    gpu: int | None
    uuid: str | None
    place: str
    at: datetime
    strikes_in_seconds: float
    truth: FaultTruth


class SweepStatus(TypedDict):
    """The newest fabric sweep; `source`, `at` and `seconds` are None if there was none."""

    source: str | None
    at: datetime | None
    seconds: float | None
    problem: str
    links: int
    links_down: int
    unlisted_hosts: list[str]
    unnamed_hosts: int


class ColourScale(TypedDict):
    title: str
    unit: str
    low: float | None
    high: float | None
    metric: str


IncidentCard = Annotated[
    Incident,
    ResponseVariant(
        "incidents.IncidentCard",
        added={
            "place_name": str,
            "signals": int,
            "gpus": list[str],
            "why": str | None,
            "confidence": float | None,
            "next_step": str | None,
            "plan": list[str],
            "silenced_by": SilencedBy | None,
            "repair": RepairBrief | None,
        },
        omitted=("members",),
    ),
]
NamedIncident = Annotated[Incident, ResponseVariant("incidents.NamedIncident", added={"place_name": str})]
SilenceView = Annotated[Silence, ResponseVariant("silences.SilenceView", added={"matchers": list[str]})]
ListedSilence = Annotated[
    Silence, ResponseVariant("silences.ListedSilence", added={"matchers": list[str], "active": bool})
]
RepairView = Annotated[
    Repair,
    ResponseVariant(
        "repairs.RepairView",
        added={"action": str | None, "incidents": list[str], "is_running": bool, "is_held": bool, "activity": str},
    ),
]
RepairSwitchView = Annotated[
    RepairSwitch, ResponseVariant("repairs.RepairSwitchView", added={"is_stopped": bool, "is_tripped": bool})
]
ExplainedRepair = Annotated[
    explanation.Explanation,
    ResponseVariant("explanation.ExplainedRepair", added={"repair": RepairView | None, "switch": RepairSwitchView}),
]
SloStatus = Annotated[
    ErrorBudget, ResponseVariant("budgets.SloStatus", added={"covered": str | None, "incidents": list[str]})
]
ReloadOutcome = Annotated[Reload, ResponseVariant("reload.Outcome", added={"is_successful": bool})]
RuleFileStatus = Annotated[Reload, ResponseVariant("reload.ReloadOutcome", added={"is_successful": bool, "owner": str})]
OrderView = Annotated[orders.Order, ResponseVariant("orders.OrderView", omitted=("nonce",))]
OrderStatus = Annotated[
    orders.TrackedOrder, ResponseVariant("orders.OrderStatus", added={"order": OrderView, "state": str})
]

GpuEvent = Annotated[incidents.Member, ResponseVariant("incidents.GpuEvent", added={"incident": str})]
NodeOrName = fleet.Node | NodeName


class IncidentDetail(TypedDict):
    incident: NamedIncident
    diagnosis: Diagnosis | None
    plan: actions.Plan | None
    silenced_by: SilencedBy | None
    runbook: str
    timeline: list[incidents.TimelineEntry]


class FullIncidentDetail(IncidentDetail):
    blast: BlastRadius | None


CLUSTER = QueryParam("cluster", "Return only this cluster.")
FROM = QueryParam("from", "Start, as RFC 3339 or Unix seconds. Default: one day before `to`.")
TO = QueryParam("to", "End, as RFC 3339 or Unix seconds. Default: now.")
BY = QueryParam("by", "Group by these dimensions, such as team, user, job, node or model. Default: `team`.", list[str])
OF = QueryParam("of", "Return only the lines with this value of a dimension, such as `team=vision`.", list[str])


def limit_param(default: int, limit: int) -> QueryParam:
    return QueryParam("limit", f"Return at most this many rows, 1 to {limit:,}. Default: {default}.", int)
