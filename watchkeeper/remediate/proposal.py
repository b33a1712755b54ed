"""Propose a repair from a plan. Pure.

The hub makes a proposal from every plan, and on the fast path from an incident alone; `Repairs.submit` turns it into a
repair. A plan with only manual steps, or without a node, proposes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from watchkeeper.catalogue import causes, xid
from watchkeeper.model import actions, alerts, fleet, incidents, repairs, trust
from watchkeeper.remediate import guards
from watchkeeper.remediate.plan import WORKLOAD_ACTIONS
from watchkeeper.remediate.policy import RepairPolicy
from watchkeeper.remediate.trust_rules import ModeDecision
from watchkeeper.store.journal import chain

DIGEST_LENGTH = 16
# In the id of a step that is made on each node of a domain.
NODE_NUMBER = re.compile(r"-\d+$")


@dataclass(frozen=True, slots=True)
class RepairProposal:
    incident: incidents.IncidentId
    opening: int
    node: fleet.Place
    pool: str
    cause: str
    allowed: ModeDecision
    actions: tuple[actions.Action, ...]
    limit_seconds: Mapping[str, float]
    # The active faults of the incident that justify the plan.
    faults: tuple[incidents.Member, ...] = ()

    @property
    def mode(self) -> trust.Mode:
        return self.allowed.mode

    @property
    def digest(self) -> str:
        return plan_digest(self.cause, self.actions)

    @property
    def takes_node_out(self) -> bool:
        is_domain = self.node.domain is not None
        return not is_domain and any(action.kind in repairs.OUT_OF_SERVICE_KINDS for action in self.actions)

    @property
    def is_reclaim(self) -> bool:
        return any(action.kind in repairs.RECLAIM_KINDS for action in self.actions)

    @property
    def workloads(self) -> frozenset[str]:
        return named_workloads(self.actions)

    @property
    def gpu(self) -> str | None:
        return next((action.place.gpu for action in self.actions if action.place.gpu), None)


def build_request(source: repairs.Repair | RepairProposal) -> guards.RepairRequest:
    return guards.RepairRequest(
        source.node,
        source.cause,
        source.mode,
        source.gpu,
        takes_node_out=source.takes_node_out,
        is_reclaim=source.is_reclaim,
    )


def is_urgent(incident: incidents.Incident, mode: trust.Mode) -> bool:
    """True for an open critical hardware fault in mode `act` whose kernel log line needs no further lines."""
    row = causes.lookup(incident.cause)
    is_critical = incident.is_open and row.is_hardware and row.severity is alerts.Severity.CRITICAL
    return is_critical and mode is trust.Mode.ACT and xid.settle_seconds(incident.cause) == 0


def plan_digest(cause: str, steps: Sequence[actions.Action]) -> str:
    """Return a digest of the cause and of each step's kind, place and arguments: an approval is for exactly these."""
    approved = (step for step in steps if step.kind not in repairs.NOTIFY_KINDS)
    texts = (f"{step.kind} {step.place} {sorted(step.arguments.items())}" for step in approved)
    return chain.digest([cause, *texts])[:DIGEST_LENGTH]


def propose_repair(
    incident: incidents.Incident,
    cause: str,
    steps: Sequence[actions.Action],
    *,
    policy: RepairPolicy,
    pool: str,
    mode_decision: ModeDecision,
) -> RepairProposal | None:
    automatic = [step for step in steps if is_automatic(step)]
    nodes = {(step.place.cluster, step.place.node) for step in automatic}
    is_domain = incident.place.domain is not None and {step.kind for step in automatic} <= repairs.DOMAIN_KINDS
    if not nodes or None in {node for _, node in nodes} or (len(nodes) > 1 and not is_domain):
        return None
    if mode_decision.mode is trust.Mode.OBSERVE:
        return None
    cluster, node = next(iter(nodes))
    place = incident.place if is_domain else fleet.Place(cluster, node=node)
    rules = enumerate(policy.steps(cause, pool, place), start=1)
    policy_steps = {f"{at}-{rule.action}": rule for at, rule in rules}
    rule_ids = {str(step.id): NODE_NUMBER.sub("", step.id) for step in steps}
    limits = {id: policy.limit_seconds(policy_steps[rule]) for id, rule in rule_ids.items() if rule in policy_steps}
    if mode_decision.mode is trust.Mode.ACT and steps[0].kind in repairs.MANUAL_KINDS:
        mode_decision = ModeDecision(trust.Mode.ASK, f"{mode_decision.why}, but the plan starts with a manual step")
    # Active faults with the plan's cause, or hardware faults as severe, that no repair caused.
    active = (member for member in incident.members if member.until is None and not member.by_repair)
    faults = tuple(member for member in active if member.cause == cause or _is_as_severe(member, cause))
    opening, planned = incident.reopened, tuple(steps)
    return RepairProposal(incident.id, opening, place, pool, cause, mode_decision, planned, limits, faults)


def _is_as_severe(member: incidents.Member, cause: str) -> bool:
    return causes.lookup(member.cause).is_hardware and member.severity.rank >= causes.lookup(cause).severity.rank


def named_workloads(steps: Iterable[actions.Action]) -> frozenset[str]:
    listed = (step.arguments.get(argument, "") for step in steps for argument in ("pods", "jobs"))
    return frozenset(name for names in listed for name in names.split(",") if name)


def is_automatic(step: actions.Action) -> bool:
    """Whether Watchkeeper can perform a step: not a manual one, nor one whose pods and jobs are unknown."""
    if step.kind in WORKLOAD_ACTIONS and not {"pods", "jobs"} & set(step.arguments):
        return False
    return step.kind not in repairs.MANUAL_KINDS | repairs.NOTIFY_KINDS


def number_actions(proposal: RepairProposal, attempt: int) -> tuple[tuple[actions.Action, ...], Mapping[str, float]]:
    """Return the actions and time limits of an attempt; from the second on, the ids start with its number."""
    if attempt == 1:
        return proposal.actions, proposal.limit_seconds
    renumbered = tuple(replace(step, id=actions.ActionId(f"{attempt}.{step.id}")) for step in proposal.actions)
    return renumbered, {f"{attempt}.{id}": limit for id, limit in proposal.limit_seconds.items()}
