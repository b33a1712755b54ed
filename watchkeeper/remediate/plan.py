"""From a finding to a plan: which actions, where, and what each would do.

`make_plan` decides and is pure; `dry_run` asks a driver to describe every action and touches nothing.
The hub keeps the Plan in the journal, and the console shows it beside the incident.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from watchkeeper.catalogue import causes
from watchkeeper.errors import ActionFailed, ActionRefused
from watchkeeper.kit import wire
from watchkeeper.model import diagnosis, fleet, incidents
from watchkeeper.model.actions import Action, ActionId, ActionKind, Plan, Receipt, Result
from watchkeeper.model.repairs import RECLAIMS
from watchkeeper.model.trust import Mode
from watchkeeper.remediate.driver import Driver, NodeObservation
from watchkeeper.remediate.policy import PolicyStep, RepairPolicy

ON_NODE = frozenset(
    {
        ActionKind.CORDON,
        ActionKind.DRAIN,
        ActionKind.REBOOT,
        ActionKind.VALIDATE,
        ActionKind.UNCORDON,
        ActionKind.RESTART_SERVICE,
        ActionKind.CHECK_FABRIC,
    }
)
ON_GPU = frozenset({ActionKind.RESET_GPU, ActionKind.LOWER_POWER})
# They name the pods and jobs that are meant.
ON_WORKLOAD = RECLAIMS | {ActionKind.RESTART_APP}
# `drain` with this argument set to `gpu` moves only what holds the sick GPU.
SCOPE = "scope"
NEEDS_PERSON = frozenset({ActionKind.INSPECT, ActionKind.NOTIFY_OWNER, ActionKind.HAND_OVER})


@dataclass(frozen=True, slots=True)
class Draft:
    """What is to be done, before anybody was asked how."""

    incident: incidents.IncidentId
    cause: str
    next_step: str
    mode: Mode
    actions: tuple[Action, ...]


def make_plan(
    incident: incidents.Incident,
    finding: diagnosis.Finding | None,
    policy: RepairPolicy,
    *,
    mode: Mode = Mode.OBSERVE,
    pool: str = "",
    names: Callable[[fleet.Place], str] = str,
) -> Draft:
    """The policy's steps for the finding's cause at its place; without a finding, for the incident as it is.

    The same incident and finding give the same action ids, so that performing a plan again is harmless.
    """
    cause = finding.cause if finding is not None else incident.cause
    place = finding.place if finding is not None else incident.place
    row = causes.lookup(cause)
    advice = row.advice(names(place), names(place.whole_node))
    return Draft(incident.id, row.cause, advice, mode, tuple(_actions(incident, place, policy.steps(cause, pool))))


def dry_run(draft: Draft, driver: Driver, *, now: datetime) -> Plan:
    """Every action with the call that it would be; nothing is touched, whatever the mode."""
    seen: dict[fleet.Place, NodeObservation | str] = {}
    receipts = tuple(_describe(action, driver, now=now, seen=seen) for action in draft.actions)
    return Plan(draft.incident, draft.cause, draft.mode, made_at=now, next_step=draft.next_step, receipts=receipts)


def _actions(incident: incidents.Incident, place: fleet.Place, steps: tuple[PolicyStep, ...]) -> Iterator[Action]:
    """An action that has no machine or no GPU to act on becomes a look by a person, once."""
    blocked: set[str] = set()
    for at, step in enumerate(steps, start=1):
        kind, why, where = step.action, step.why, _place_for(step, place)
        if where is None:
            lack = "which GPU it is" if place.node else "which node it is"
            if lack in blocked:
                continue
            blocked.add(lack)
            kind, why, where = ActionKind.INSPECT, f"Find out {lack}; without that, no {step.action} is possible", place
        arguments = _arguments(step, incident, where) if kind is step.action else {}
        yield Action(ActionId(f"{at}-{kind}"), kind, where, incident.id, why, arguments)


def _arguments(step: PolicyStep, incident: incidents.Incident, where: fleet.Place) -> Mapping[str, str]:
    """What the policy says, and what a driver cannot know: whose pods and jobs are meant, and for what."""
    told = {name: text for name, text in step.arguments.items() if name != SCOPE}
    if step.checks:
        told["checks"] = ",".join(step.checks)
    if step.action is ActionKind.CORDON:
        told["cause"] = incident.cause
    # Who suffers from an incident of a whole node need not hold this GPU of it.
    is_exact = where.gpu is None or where.gpu == incident.place.gpu
    if is_exact and (step.action in ON_WORKLOAD or (step.action is ActionKind.DRAIN and where.gpu)):
        pods = [name for name in incident.workloads if "/" in name]
        jobs = [name for name in incident.workloads if "/" not in name]
        told |= {name: ",".join(found) for name, found in (("pods", pods), ("jobs", jobs)) if found}
        # Not those that a controller starts in their place, under the same name.
        told["before"] = wire.format_time(incident.opened_at)
    return told


def _place_for(step: PolicyStep, place: fleet.Place) -> fleet.Place | None:
    """Where a step is carried out; None when the place is too vague for it."""
    kind = step.action
    if kind in ON_GPU or (kind is ActionKind.DRAIN and step.arguments.get(SCOPE) == "gpu"):
        return fleet.Place(place.cluster, node=place.node, gpu=place.gpu) if place.gpu else None
    if kind in ON_NODE:
        return place.whole_node if place.node else None
    return place


def _describe(
    action: Action, driver: Driver, *, now: datetime, seen: dict[fleet.Place, NodeObservation | str]
) -> Receipt:
    try:
        text = _checks(action) or driver.describe(action)
    except (ActionRefused, ActionFailed) as error:
        return Receipt(action, now, Result.REFUSED, str(error))
    if action.kind in NEEDS_PERSON or action.place.node is None:
        return Receipt(action, now, Result.DESCRIBED, text)
    node = action.place.whole_node
    if node not in seen:
        seen[node] = _observe(driver, node)
    observed = seen[node]
    if isinstance(observed, str):
        return Receipt(action, now, Result.DESCRIBED, f"{text} (its state is unknown: {observed})")
    if not observed.exists:
        return Receipt(action, now, Result.REFUSED, f"{driver.name} does not know {node.node}")
    if action.kind is ActionKind.CORDON and observed.is_schedulable is False:
        owner = observed.cordoned_by or "someone"
        return Receipt(action, now, Result.ALREADY_SO, f"{node.node} is already cordoned by {owner}")
    if action.kind is ActionKind.DRAIN and observed.workloads:
        text += f" (moves {', '.join(observed.workloads[:5])}{' …' if len(observed.workloads) > 5 else ''})"
    return Receipt(action, now, Result.DESCRIBED, text)


def _checks(action: Action) -> str:
    """A validation that names its checks is made by the hub, not by the driver."""
    names = action.arguments.get("checks", "") if action.kind is ActionKind.VALIDATE else ""
    return f"ask until all have passed: {names.replace(',', ', ')}" if names else ""


def _observe(driver: Driver, node: fleet.Place) -> NodeObservation | str:
    try:
        return driver.observe(node)
    except ActionFailed as error:
        return str(error)
