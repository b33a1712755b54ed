"""Why this plan, why this mode, who would object, and what a policy would have done: answers for `act explain|test`.

Pure. `repair_loop` gathers what is known and asks here; the API and the command line show the answers as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from watchkeeper.model import actions, fleet, incidents, repairs, trust
from watchkeeper.remediate import guards
from watchkeeper.remediate.ladder import ModeDecision, TrustLadder
from watchkeeper.remediate.plan import make_plan
from watchkeeper.remediate.policy import RepairPolicy
from watchkeeper.remediate.proposal import RepairProposal, is_for_machine, propose_repair

# Incidents of the past that one rehearsal looks at.
MOST_REHEARSED = 10_000


@dataclass(frozen=True, slots=True)
class ExplanationStep:
    kind: actions.ActionKind
    place: str
    why: str
    # The exact call, as the driver would make it.
    call: str
    limit_seconds: float | None


@dataclass(frozen=True, slots=True)
class Explanation:
    incident: str
    cause: str
    # Where in the policy the steps stand.
    policy_key: str
    mode: trust.Mode
    mode_why: str
    # None: nothing would be done by a machine, and `why_not` says why.
    digest: str | None
    why_not: str
    steps: tuple[ExplanationStep, ...]
    refusals: tuple[guards.GuardRefusal, ...]
    repair: repairs.Repair | None


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What one incident of the past would have got."""

    incident: str
    opened_at: datetime
    cause: str
    place: str
    policy_key: str
    steps: tuple[actions.ActionKind, ...]
    mode: trust.Mode
    mode_why: str
    # What the first guard would have said; empty where the repair would have begun, or nothing was wanted.
    refusal: str
    would_begin: bool


def why_no_machine_action(want: RepairProposal | None, rung: ModeDecision, steps: Sequence[actions.Action]) -> str:
    """Why no machine would do anything about a plan; empty where one would."""
    if want is not None:
        return "people carry it out: the mode is suggest" if rung.mode is trust.Mode.SUGGEST else ""
    if rung.mode is trust.Mode.OBSERVE:
        return "the mode is observe: nothing is touched"
    if any(step.kind in repairs.RECLAIMS for step in steps):
        return "nobody knows which pods or jobs hold it, or on which node"
    if any(is_for_machine(step) for step in steps):
        return "the plan has no step on one node"
    if any(step.kind is actions.ActionKind.RESTART_APP for step in steps):
        return "nobody knows which pods or jobs are to be restarted"
    return "every step of the plan is a person's"


@dataclass(frozen=True, slots=True)
class RehearsalRules:
    """Under what the past is played again."""

    policy: RepairPolicy
    ladder: TrustLadder
    limits: guards.GuardLimits
    nodes: Sequence[fleet.Node]


def rehearse(past: Iterable[incidents.Incident], rules: RehearsalRules) -> list[Rehearsed]:
    """Each incident in its time; a node counts as out for as long as its incident was open."""
    stage = _Rehearsal(rules)
    return [stage.play(incident) for incident in sorted(past, key=lambda one: one.opened_at)[-MOST_REHEARSED:]]


def rehearse_alone(past: Sequence[incidents.Incident], chosen: RepairPolicy) -> list[Rehearsed]:
    """Incidents of a fleet that is not here: allowed to act, in an inventory of just their nodes, one by one."""
    found = []
    for incident in past:
        place = incident.place
        nodes = () if place.node is None else (fleet.Node(place.cluster, place.node, ""),)
        rules = RehearsalRules(chosen, TrustLadder(trust.Mode.ACT), guards.GuardLimits(), nodes)
        found += rehearse([incident], rules)
    return found


class _Rehearsal:
    """What the guards would have known at the time."""

    def __init__(self, rules: RehearsalRules) -> None:
        self._rules = rules
        self._pools = {node.place: node.pool for node in rules.nodes}
        self._starts: list[guards.RepairStart] = []
        self._out_until: dict[fleet.Place, datetime | None] = {}
        self._wanted_at: dict[fleet.Place, datetime] = {}
        self._switch = repairs.RepairSwitch()

    def play(self, incident: incidents.Incident) -> Rehearsed:
        rules, place = self._rules, incident.place
        pool = self._pools.get(place.whole_node, "")
        rung = rules.ladder.decide_mode(incident.cause, pool)
        draft = make_plan(incident, None, rules.policy, pool=pool)
        want = propose_repair(incident, draft.cause, draft.actions, policy=rules.policy, pool=pool, rung=rung)
        refusal = None if want is None else self._ask(want, incident)
        return Rehearsed(
            incident=incident.id,
            opened_at=incident.opened_at,
            cause=incident.cause,
            place=str(place),
            policy_key=rules.policy.entry(incident.cause, pool)[0],
            steps=tuple(step.kind for step in draft.actions),
            mode=rung.mode,
            mode_why=rung.why,
            refusal="" if refusal is None else f"{refusal.guard}: {refusal.text}",
            would_begin=want is not None and refusal is None and want.allowed.mode is trust.Mode.ACT,
        )

    def _ask(self, want: RepairProposal, incident: incidents.Incident) -> guards.GuardRefusal | None:
        now, limits = incident.opened_at, self._rules.limits
        self._wanted_at[want.node] = now
        tripped = guards.breaker_trip_reason(self._wanted_at, limits, since=None, now=now)
        if tripped is not None and not self._switch.is_tripped:
            self._switch = repairs.RepairSwitch(tripped_at=now, tripped_why=tripped)
        out = {place: "a repair" for place, until in self._out_until.items() if until is None or until > now}
        standing = guards.count_availability(self._rules.nodes, out, starts=self._starts, switch=self._switch)
        wish = guards.RepairRequest(
            want.node,
            want.cause,
            want.allowed.mode,
            want.gpu,
            takes_node_out=want.takes_node_out,
            is_reclaim=want.is_reclaim,
        )
        refusal = guards.find_first_refusal(wish, standing, limits, now=now)
        if refusal is None and want.allowed.mode is trust.Mode.ACT:
            self._starts.append(guards.RepairStart(now, want.node, want.cause, want.gpu, want.is_reclaim))
            if want.takes_node_out:
                self._out_until[want.node] = incident.resolved_at
        return refusal
