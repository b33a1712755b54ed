"""Explain a plan, its mode and its refusals, and replay past incidents under a policy (`act explain`, `act test`).

Pure. `hub.repair_loop` collects the inputs; the API and the command line show the results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from watchkeeper.model import actions, fleet, incidents, repairs, trust
from watchkeeper.remediate import guards
from watchkeeper.remediate.plan import make_plan
from watchkeeper.remediate.policy import RepairPolicy
from watchkeeper.remediate.proposal import RepairProposal, build_request, is_automatic, propose_repair
from watchkeeper.remediate.trust_rules import TrustRules

# The newest incidents that one replay covers.
MAX_REPLAYED_INCIDENTS = 10_000


@dataclass(frozen=True, slots=True)
class ExplanationStep:
    kind: actions.ActionKind
    place: str
    why: str
    # The exact call of the driver.
    call: str
    limit_seconds: float | None


@dataclass(frozen=True, slots=True)
class Explanation:
    incident: str
    cause: str
    # The policy's key with these steps.
    policy_key: str
    mode: trust.Mode
    mode_why: str
    # None: Watchkeeper would not run the plan; `why_not` has the reason.
    digest: str | None
    why_not: str
    steps: tuple[ExplanationStep, ...]
    refusals: tuple[guards.GuardRefusal, ...]
    repair: repairs.Repair | None


@dataclass(frozen=True, slots=True)
class ReplayedIncident:
    incident: str
    opened_at: datetime
    cause: str
    place: str
    policy_key: str
    steps: tuple[actions.ActionKind, ...]
    mode: trust.Mode
    mode_why: str
    # The first guard that would have refused; empty if none would, or if no repair was proposed.
    refusal: str
    would_begin: bool


def why_no_machine_action(proposal: RepairProposal | None, mode: trust.Mode, steps: Sequence[actions.Action]) -> str:
    """Return why Watchkeeper would not run a plan; empty if it would."""
    if proposal is not None:
        return "the mode is suggest" if mode is trust.Mode.SUGGEST else ""
    if mode is trust.Mode.OBSERVE:
        return "the mode is observe"
    if any(step.kind in repairs.RECLAIM_KINDS for step in steps):
        return "the pods or jobs that hold the GPU, or their node, are unknown"
    if any(is_automatic(step) for step in steps):
        return "the plan has no steps on one single node"
    if any(step.kind is actions.ActionKind.RESTART_APP for step in steps):
        return "the pods or jobs to restart are unknown"
    return "all steps of the plan are manual"


def replay_reports(past: Sequence[incidents.Incident], policy: RepairPolicy) -> list[ReplayedIncident]:
    """Replay incidents of another fleet one by one: in mode act, with an inventory of only the affected node."""
    replayed = []
    for incident in past:
        place = incident.place
        nodes = () if place.node is None else (fleet.Node(place.cluster, place.node, ""),)
        replayed += PolicyReplay(policy, TrustRules(trust.Mode.ACT), guards.GuardLimits(), nodes=nodes).replay(
            [incident]
        )
    return replayed


class PolicyReplay:
    """Replays past incidents under a policy and the settings of guards."""

    def __init__(
        self, policy: RepairPolicy, trust_rules: TrustRules, limits: guards.GuardLimits, *, nodes: Sequence[fleet.Node]
    ) -> None:
        self._policy, self._trust_rules, self._limits, self._nodes = policy, trust_rules, limits, nodes
        self._pools = {node.place: node.pool for node in nodes}
        self._starts: list[guards.RepairStart] = []
        self._out_until: dict[fleet.Place, datetime | None] = {}
        self._requested_at: dict[fleet.Place, datetime] = {}
        self._switch = repairs.RepairSwitch()

    def replay(self, past: Iterable[incidents.Incident]) -> list[ReplayedIncident]:
        """Replay incidents in order; a repaired node counts as out of service until its incident was resolved."""
        ordered = sorted(past, key=lambda incident: incident.opened_at)
        return list(map(self._replay_incident, ordered[-MAX_REPLAYED_INCIDENTS:]))

    def _replay_incident(self, incident: incidents.Incident) -> ReplayedIncident:
        policy, place = self._policy, incident.place
        pool = self._pools.get(place.whole_node, "")
        mode_decision = self._trust_rules.decide_mode(incident.cause, pool)
        draft = make_plan(incident, None, policy, pool=pool, nodes_of=self._nodes_in)
        cause, steps = draft.cause, draft.actions
        proposal = propose_repair(incident, cause, steps, policy=policy, pool=pool, mode_decision=mode_decision)
        refusal = None if proposal is None else self._first_refusal(proposal, incident)
        return ReplayedIncident(
            incident=incident.id,
            opened_at=incident.opened_at,
            cause=incident.cause,
            place=str(place),
            policy_key=policy.entry(incident.cause, pool)[0],
            steps=tuple(step.kind for step in draft.actions),
            mode=mode_decision.mode,
            mode_why=mode_decision.why,
            refusal="" if refusal is None else f"{refusal.guard}: {refusal.text}",
            would_begin=proposal is not None and refusal is None and proposal.mode is trust.Mode.ACT,
        )

    def _nodes_in(self, domain: fleet.Place) -> list[fleet.Place]:
        return [node.place for node in self._nodes if domain in node.failure_domains()]

    def _first_refusal(self, proposal: RepairProposal, incident: incidents.Incident) -> guards.GuardRefusal | None:
        now, limits = incident.opened_at, self._limits
        self._requested_at[proposal.node] = now
        trip_reason = guards.breaker_trip_reason(self._requested_at, limits, since=None, now=now)
        if trip_reason is not None and not self._switch.is_tripped:
            self._switch = repairs.RepairSwitch(tripped_at=now, tripped_why=trip_reason)
        out = {place: "a repair" for place, until in self._out_until.items() if until is None or until > now}
        availability = guards.count_availability(self._nodes, out, starts=self._starts, switch=self._switch)
        inputs = guards.GuardInputs(build_request(proposal), availability, limits, now)
        refusal = next(guards.find_refusals(inputs), None)
        if refusal is None and proposal.mode is trust.Mode.ACT:
            node, cause = proposal.node, proposal.cause
            self._starts.append(guards.RepairStart(now, node, cause, proposal.gpu, proposal.is_reclaim))
            if proposal.takes_node_out:
                self._out_until[proposal.node] = incident.resolved_at
        return refusal
