"""What a plan wants of a machine: the repair that it would be, or nothing.

Pure. The hub makes one from every plan, and on the fast path from an incident alone; `repairs.Repairs.take` turns it
into a repair. A plan that only people can carry out, or that touches no node, wants nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from watchkeeper.catalogue import causes, xid
from watchkeeper.model import actions, alerts, fleet, incidents, repairs, trust
from watchkeeper.remediate.ladder import ModeDecision
from watchkeeper.remediate.plan import ON_WORKLOAD
from watchkeeper.remediate.policy import RepairPolicy
from watchkeeper.store.journal import chain

DIGEST_LENGTH = 16


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
    # What lasts of the incident and would be reason enough for such a plan.
    faults: tuple[incidents.Member, ...] = ()

    @property
    def digest(self) -> str:
        return plan_digest(self.cause, self.actions)

    @property
    def takes_node_out(self) -> bool:
        return any(action.kind in repairs.TAKES_OUT for action in self.actions)

    @property
    def is_reclaim(self) -> bool:
        return any(action.kind in repairs.RECLAIMS for action in self.actions)

    @property
    def workloads(self) -> frozenset[str]:
        return workloads_of(self.actions)

    @property
    def gpu(self) -> str | None:
        return next((action.place.gpu for action in self.actions if action.place.gpu), None)


def is_urgent(incident: incidents.Incident, mode: trust.Mode) -> bool:
    """True for an open critical hardware fault in mode `act` whose kernel log line needs no further lines."""
    row = causes.lookup(incident.cause)
    is_critical = incident.is_open and row.is_hardware and row.severity is alerts.Severity.CRITICAL
    return is_critical and mode is trust.Mode.ACT and xid.settle_seconds(incident.cause) == 0


def plan_digest(cause: str, steps: Sequence[actions.Action]) -> str:
    """Of what would be done and where, not of the words: an approval is for exactly this."""
    told = [
        f"{step.kind} {step.place} {sorted(step.arguments.items())}"
        for step in steps
        if step.kind not in repairs.BY_OTHERS
    ]
    return chain.digest([cause, *told])[:DIGEST_LENGTH]


def propose_repair(
    incident: incidents.Incident,
    cause: str,
    steps: Sequence[actions.Action],
    *,
    policy: RepairPolicy,
    pool: str,
    rung: ModeDecision,
) -> RepairProposal | None:
    machine = [step for step in steps if is_for_machine(step)]
    nodes = {(step.place.cluster, step.place.node) for step in machine}
    if rung.mode is trust.Mode.OBSERVE or len(nodes) != 1 or None in {node for _, node in nodes}:
        return None
    cluster, node = next(iter(nodes))
    rules = {f"{at}-{rule.action}": rule for at, rule in enumerate(policy.steps(cause, pool), start=1)}
    limits = {str(step.id): policy.limit_seconds(rules[step.id]) for step in steps if step.id in rules}
    place = fleet.Place(cluster, node=node)
    if rung.mode is trust.Mode.ACT and steps[0].kind in repairs.BY_PERSON:
        rung = ModeDecision(trust.Mode.ASK, f"{rung.why}, but the plan begins with a look by a person")
    faults = _faults(incident, cause)
    return RepairProposal(incident.id, incident.reopened, place, pool, cause, rung, tuple(steps), limits, faults)


def _faults(incident: incidents.Incident, cause: str) -> tuple[incidents.Member, ...]:
    """The cause itself, or hardware as grave; a job that still waits, or a machine under our hands, is neither."""
    least = causes.lookup(cause).severity.rank

    def is_fault(member: incidents.Member) -> bool:
        is_as_grave = causes.lookup(member.cause).is_hardware and member.severity.rank >= least
        return member.until is None and not member.by_repair and (member.cause == cause or is_as_grave)

    return tuple(member for member in incident.members if is_fault(member))


def workloads_of(steps: Iterable[actions.Action]) -> frozenset[str]:
    """The pods and jobs that actions name."""
    told = (step.arguments.get(sort, "") for step in steps for sort in ("pods", "jobs"))
    return frozenset(name for names in told for name in names.split(",") if name)


def is_for_machine(step: actions.Action) -> bool:
    """A restart, or the return, of nobody knows what is for the owner."""
    if step.kind in ON_WORKLOAD and not {"pods", "jobs"} & set(step.arguments):
        return False
    return step.kind not in repairs.BY_PERSON | repairs.BY_OTHERS


def number_actions(want: RepairProposal, attempt: int) -> tuple[tuple[actions.Action, ...], Mapping[str, float]]:
    """The actions of an attempt: from the second on their ids say so, or a driver would take them for the first."""
    if attempt == 1:
        return want.actions, want.limit_seconds
    renamed = tuple(replace(step, id=actions.ActionId(f"{attempt}.{step.id}")) for step in want.actions)
    return renamed, {f"{attempt}.{id}": limit for id, limit in want.limit_seconds.items()}
