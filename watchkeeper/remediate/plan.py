"""Make a plan from a finding: which actions, on which place, with the exact call of each.

`make_plan` decides and is pure; `dry_run` reads the call of each action from the driver and changes nothing. Plans that
share a reboot name each other's incidents, because one reboot is enough.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import product

from watchkeeper.catalogue import causes
from watchkeeper.errors import ActionFailed, ActionRefused
from watchkeeper.kit import wire
from watchkeeper.model import actions, diagnosis, fleet, incidents
from watchkeeper.model.actions import Action, ActionId, ActionKind, Plan, Receipt, Result
from watchkeeper.model.repairs import DOMAIN_KINDS, MANUAL_KINDS, NOTIFY_KINDS, OUT_OF_SERVICE_KINDS, RECLAIM_KINDS
from watchkeeper.model.trust import Mode
from watchkeeper.remediate.driver import Driver, NodeObservation
from watchkeeper.remediate.policy import PolicyStep, RepairPolicy

NODE_ACTIONS = frozenset(
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
GPU_ACTIONS = frozenset({ActionKind.RESET_GPU, ActionKind.LOWER_POWER})
# Actions whose arguments name pods and jobs.
WORKLOAD_ACTIONS = RECLAIM_KINDS | {ActionKind.RESTART_APP}
# A `drain` with this argument set to `gpu` evicts only the holders of the faulty GPU.
SCOPE = "scope"
# By node; why it could not be observed, as text.
Observations = dict[fleet.Place, NodeObservation | str]
_SHARED_TEXT = re.compile(r" \(also planned for ([^:)]+): one reboot is enough\)")


@dataclass(frozen=True, slots=True)
class PlanDraft:
    """A plan before its dry run."""

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
    format_place: Callable[[fleet.Place], str] = str,
    nodes_of: Callable[[fleet.Place], Iterable[fleet.Place]] = lambda _: (),
) -> PlanDraft:
    """Return the policy's steps for the finding, or for the incident if there is no finding.

    `nodes_of` lists the nodes of a failure domain, because a plan for a rack has a step for each of its nodes.

    The same incident and finding give the same action ids, so that performing a plan again is harmless.
    """
    cause = finding.cause if finding is not None else incident.cause
    place = finding.place if finding is not None else incident.place
    row = causes.lookup(cause)
    is_domain = place.domain is not None
    advice = incident.advice or row.advice(format_place(place), format_place(place.whole_node), is_domain=is_domain)
    if finding is not None and finding.actions:
        advice = finding.actions[0].do
    nodes = sorted(nodes_of(place), key=str) if is_domain else []
    planned = tuple(_build_actions(incident, place, policy.steps(cause, pool, place), nodes=nodes))
    return PlanDraft(incident.id, row.cause, advice, mode, planned)


def dry_run(draft: PlanDraft, driver: Driver, *, now: datetime) -> Plan:
    observations: Observations = {}
    receipts = tuple(_describe(action, driver, now=now, observations=observations) for action in draft.actions)
    return Plan(draft.incident, draft.cause, draft.mode, made_at=now, next_step=draft.next_step, receipts=receipts)


def _build_actions(
    incident: incidents.Incident, place: fleet.Place, steps: tuple[PolicyStep, ...], *, nodes: Sequence[fleet.Place]
) -> Iterator[Action]:
    """Turn steps into actions; a step whose node or GPU is unknown becomes one manual inspection."""
    if nodes:
        yield from _build_domain_actions(incident, place, steps, nodes=nodes)
        return
    missing_facts: set[str] = set()
    for at, step in enumerate(steps, start=1):
        kind, why, action_place = step.action, step.why, _find_place(step, place)
        if action_place is None:
            missing = "GPU" if place.node else "node"
            if missing in missing_facts:
                continue
            missing_facts.add(missing)
            why = f"Find the affected {missing}: {step.action} is not possible without it"
            kind, action_place = ActionKind.INSPECT, place
        arguments = _build_arguments(step, incident, action_place) if kind is step.action else {}
        yield Action(ActionId(f"{at}-{kind}"), kind, action_place, incident.id, why, arguments)


def _build_domain_actions(
    incident: incidents.Incident, place: fleet.Place, steps: tuple[PolicyStep, ...], *, nodes: Sequence[fleet.Place]
) -> Iterator[Action]:
    """Make each step on every node; a cordon and its drain on one node before the next."""
    rows = list(enumerate(steps, start=1))
    for is_per_node, group in itertools.groupby(rows, key=lambda row: row[1].action in OUT_OF_SERVICE_KINDS):
        run = list(group)
        order = product(enumerate(nodes, start=1), run) if is_per_node else _step_major(run, nodes)
        for (number, node), (at, step) in order:
            if step.action in DOMAIN_KINDS:
                id = ActionId(f"{at}-{step.action}-{number}")
                yield Action(id, step.action, node, incident.id, step.why, _build_arguments(step, incident, node))
            elif number == 1:
                yield Action(ActionId(f"{at}-{step.action}"), step.action, place, incident.id, step.why)


def _step_major(
    run: Sequence[tuple[int, PolicyStep]], nodes: Sequence[fleet.Place]
) -> Iterator[tuple[tuple[int, fleet.Place], tuple[int, PolicyStep]]]:
    return ((numbered, row) for row, numbered in product(run, enumerate(nodes, start=1)))


def _build_arguments(step: PolicyStep, incident: incidents.Incident, place: fleet.Place) -> Mapping[str, str]:
    """Return the policy's arguments of a step, with the checks, the cause, and the affected pods and jobs."""
    arguments = {name: text for name, text in step.arguments.items() if name != SCOPE}
    if step.checks:
        arguments["checks"] = ",".join(step.checks)
    if step.action is ActionKind.CORDON:
        arguments["cause"] = incident.cause
    # A workload that an incident of the whole node affects need not hold this GPU.
    is_same_gpu = place.gpu is None or place.gpu == incident.place.gpu
    if is_same_gpu and (step.action in WORKLOAD_ACTIONS or (step.action is ActionKind.DRAIN and place.gpu)):
        pods = [name for name in incident.workloads if "/" in name]
        jobs = [name for name in incident.workloads if "/" not in name]
        arguments |= {name: ",".join(names) for name, names in (("pods", pods), ("jobs", jobs)) if names}
        # A pod that a controller starts later under the same name is not meant.
        arguments["before"] = wire.format_time(incident.opened_at)
    return arguments


def _find_place(step: PolicyStep, place: fleet.Place) -> fleet.Place | None:
    """Return where a step acts; None if the node or GPU that it needs is unknown."""
    kind = step.action
    if kind in GPU_ACTIONS or (kind is ActionKind.DRAIN and step.arguments.get(SCOPE) == "gpu"):
        return fleet.Place(place.cluster, node=place.node, gpu=place.gpu) if place.gpu else None
    if kind in NODE_ACTIONS:
        return place.whole_node if place.node else None
    return place


def _describe(action: Action, driver: Driver, *, now: datetime, observations: Observations) -> Receipt:
    # The hub runs the named checks of a validation instead of the driver.
    names = action.arguments.get("checks", "") if action.kind is ActionKind.VALIDATE else ""
    try:
        text = f"repeat until passed: {names.replace(',', ', ')}" if names else driver.describe(action)
    except (ActionRefused, ActionFailed) as error:
        return Receipt(action, now, Result.REFUSED, str(error))
    if action.kind in MANUAL_KINDS | NOTIFY_KINDS or action.place.node is None:
        return Receipt(action, now, Result.DESCRIBED, text)
    node = action.place.whole_node
    if node not in observations:
        try:
            observations[node] = driver.observe(node)
        except ActionFailed as error:
            observations[node] = str(error)
    observed = observations[node]
    if isinstance(observed, str):
        return Receipt(action, now, Result.DESCRIBED, f"{text} (state of the node unknown: {observed})")
    if not observed.exists:
        return Receipt(action, now, Result.REFUSED, f"{driver.name} does not know {node.node}")
    if action.kind is ActionKind.CORDON and observed.is_schedulable is False:
        owner = observed.cordoned_by or "another user"
        return Receipt(action, now, Result.ALREADY_SO, f"{node.node} is already cordoned by {owner}")
    if action.kind is ActionKind.DRAIN and observed.workloads:
        text += f" (affects {', '.join(observed.workloads[:5])}{' …' if len(observed.workloads) > 5 else ''})"
    return Receipt(action, now, Result.DESCRIBED, text)


def rebooted_nodes(plan: actions.Plan) -> set[fleet.Place]:
    return {receipt.action.place for receipt in plan.receipts if _is_reboot(receipt)}


def with_shared_incidents(plan: actions.Plan, others: Iterable[str]) -> actions.Plan:
    added = set(others)
    if not added:
        return plan
    receipts = (_add_incidents(receipt, added) if _is_reboot(receipt) else receipt for receipt in plan.receipts)
    return replace(plan, receipts=tuple(receipts))


def is_shared_with(plan: actions.Plan, incident: str) -> bool:
    return any(incident in read_shared_incidents(receipt) for receipt in plan.receipts)


def have_same_steps(plan: actions.Plan, other: actions.Plan | None) -> bool:
    """Whether both plans have the same steps, shared with the same incidents."""
    return other is not None and _comparable_steps(plan) == _comparable_steps(other)


def read_shared_incidents(receipt: actions.Receipt) -> tuple[str, ...]:
    """Return the incidents that share the action; older journals have them only in the text."""
    in_text = {id for listed in _SHARED_TEXT.findall(receipt.text) for id in listed.split(", ")}
    return receipt.shared_with or tuple(sorted(in_text))


def _add_incidents(receipt: actions.Receipt, added: set[str]) -> actions.Receipt:
    previous = read_shared_incidents(receipt)
    all_incidents = tuple(sorted({*previous, *added}))
    text = receipt.text.removesuffix(_format_shared(previous)) + _format_shared(all_incidents)
    return replace(receipt, text=text, shared_with=all_incidents)


def _format_shared(incidents: tuple[str, ...]) -> str:
    return f" (also planned for {', '.join(incidents)}: one reboot is enough)" if incidents else ""


def _is_reboot(receipt: actions.Receipt) -> bool:
    return receipt.action.kind is actions.ActionKind.REBOOT


def _comparable_steps(plan: actions.Plan) -> object:
    return [
        (receipt.action, receipt.result, read_shared_incidents(receipt), receipt.text if _is_reboot(receipt) else "")
        for receipt in plan.receipts
    ]
