"""Decide which incident a signal belongs to: one per place and family of causes while it is open.

Pure: `correlate` reads the incidents near the signal and returns a Decision with the new version of the incident.
`IncidentTracker` finds the near incidents and stores the decision.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from watchkeeper.catalogue import causes, xid
from watchkeeper.incidents import job_effects
from watchkeeper.incidents.domains import Domains
from watchkeeper.incidents.footprint import WHOLE_JOB_FAMILIES, holders_of, is_workload, workload_name
from watchkeeper.incidents.signals import Signal, anchor_place, family_of, one_line
from watchkeeper.kit import durations
from watchkeeper.model import fleet
from watchkeeper.model.diagnosis import UNKNOWN_CAUSE
from watchkeeper.model.incidents import Incident, IncidentId, IncidentState, Member, MemberKind, move

# No person reads more signals of an incident than this, and each change writes them all.
MAX_MEMBERS = 200
MAX_WORKLOADS = 50
MAX_TITLE_LENGTH = 300
# A fault that returns within this time is the same incident: flapping must not page twice.
FLAP_TIME = timedelta(minutes=10)
# These causes describe that something is missing or slow, not why: any other cause of their family takes precedence.
SYMPTOMS = frozenset({"gpu_missing", "node_down", "training_stalled", "training_slow"})
# An effect may be detected this long before its cause: exporters and rules are slower than kernel logs.
MAX_EFFECT_LEAD = timedelta(minutes=5)
# Families of alerts that a reboot or reset by a repair causes; other signals during a repair are new faults.
REPAIR_FAMILIES = frozenset({"node_down", "monitoring"})


PlaceNames = Callable[[fleet.Place], str]


class IncidentStep(StrEnum):
    """How an incident changed; also the kind of the journal entry."""

    OPENED = "opened"
    JOINED = "joined"
    REOPENED = "reopened"
    ENDED = "ended"
    ABSORBED = "absorbed"
    EXPLAINED = "explained"
    RENAMED = "renamed"
    # All signals ended, but a repair still has the node.
    RECOVERING = "recovering"
    LINKED = "linked"
    RESOLVED = "resolved"
    ACKNOWLEDGED = "acknowledged"
    ASSIGNED = "assigned"
    NOTED = "noted"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class CorrelationContext:
    """Lookups that a decision needs: display names, workloads at a place, the next incident id, failure domains."""

    names: PlaceNames
    workloads_at: Callable[[fleet.Place], Sequence[str]]
    next_id: Callable[[], IncidentId]
    domains: Domains
    # The ids of incidents whose repair is running on the node and has started a step that cannot be undone.
    under_repair: Callable[[fleet.Place], Collection[str]]
    # The lowest priority in full incidents, by incident, with its version: 10,000 signals may ask for it.
    lowest: dict[IncidentId, tuple[int, tuple[object, ...]]] = field(default_factory=dict)

    def encloses(self, outer: fleet.Place, inner: fleet.Place) -> bool:
        """Like `Place.encloses`; a rack also encloses its nodes and their GPUs."""
        if outer.domain is None or inner.node is None:
            return outer.encloses(inner)
        return outer in self.domains.domains_of(inner.whole_node)


@dataclass(frozen=True, slots=True)
class Decision:
    """`incident` is its version after the step, None for NOTHING; `absorbed` incidents are now part of it."""

    step: IncidentStep
    incident: Incident | None = None
    text: str = ""
    absorbed: tuple[Incident, ...] = ()


NOTHING = Decision(IncidentStep.NOTHING)


def correlate(near: Sequence[Incident], signal: Signal, *, now: datetime, context: CorrelationContext) -> Decision:
    """Decide about one signal; `near` are the open and recently resolved incidents of its node, oldest first."""
    current = _incident_of_signal(near, signal)
    absorbable = [incident for incident in near if incident.is_open and _is_early_effect(incident, signal, context)]
    if current is not None and current.is_open and not _has_separate_fault(current, signal, context):
        others = [incident for incident in absorbable if incident is not current]
        return _apply_known_signal(current, signal, now=now, context=context, absorbable=others)
    repair_incident = _under_repair(near, signal, context)
    if repair_incident is not None:
        marked = replace(signal, member=replace(signal.member, by_repair=True))
        return _join(repair_incident, marked, now=now, context=context)
    hosts = [incident for incident in near if incident.is_open and _may_host(incident, signal, context)]
    if hosts or absorbable:
        target, *others = [*job_effects.order_hosts(hosts, signal), *absorbable]
        return _join(target, signal, now=now, context=context, others=others, absorbable=absorbable)
    if signal.has_ended or (current is not None and not _is_new_occurrence(current, signal)):
        return NOTHING
    if current is not None and job_effects.is_job_member(signal.member, current):
        current = None
    for previous in [*([current] if current else []), *reversed(near)]:
        is_flapping = previous.resolved_at is not None and signal.at - previous.resolved_at <= FLAP_TIME
        if is_flapping and (previous is current or _may_reopen(previous, signal, context)):
            return _reopen(previous, signal, now=now, context=context, text=f"Returned: {signal.member.text}")
    return _open(signal, now=now, context=context)


def correlate_lasting(
    near: Sequence[Incident], signal: Signal, *, now: datetime, context: CorrelationContext
) -> Decision:
    """Decide about a signal that is still true after its incident resolved; a stalled job gets its own incident."""
    hosts = [incident for incident in near if incident.is_open and _may_host(incident, signal, context)]
    if hosts:
        return _join(job_effects.order_hosts(hosts, signal)[0], signal, now=now, context=context)
    current = _incident_of_signal(near, signal)
    if current is None:
        return correlate(near, signal, now=now, context=context)
    if current.resolved_at is None:
        return NOTHING
    is_job_member = job_effects.is_job_member(signal.member, current)
    if is_job_member or current.part_of is not None:
        text = f"Continues after {current.id if is_job_member else current.part_of} was resolved: {signal.member.text}"
    else:
        since = durations.format_seconds(round((now - current.resolved_at).total_seconds()))
        text = f"Still firing {since} after it was resolved: {signal.member.text}"
    candidates = [incident for incident in reversed(near) if _may_reopen(incident, signal, context)]
    previous = next(iter(candidates), None) if is_job_member else current
    if previous is not None:
        return _reopen(previous, signal, now=now, context=context, text=text)
    return replace(_open(signal, now=now, context=context), text=text)


def explain(near: Sequence[Incident], incident: Incident, *, cause: str, context: CorrelationContext) -> Decision:
    """Merge an incident into the incident of the fault that caused it, or give it that cause."""
    row = causes.lookup(cause)
    for host in near:
        if host.is_open and host.family == row.family and host.place.encloses(incident.place):
            members = _limit_members((*host.members, *incident.members))
            joined = _next_version(_refresh(host, members, context=context), host)
            text = f"Caused {incident.id}: {incident.title}"
            return Decision(IncidentStep.JOINED, joined, text, absorbed=(incident,))
    explained = replace(
        incident,
        cause=row.cause,
        family=row.family,
        title=make_title(row.cause, incident.place, names=context.names, members=incident.members),
        severity=max(incident.severity, row.severity, key=lambda severity: severity.rank),
    )
    text = f"Caused by another fault: {explained.title}"
    return Decision(IncidentStep.EXPLAINED, _next_version(explained, incident), text)


def update_title(incident: Incident, names: PlaceNames) -> Incident:
    """Replace the UUID of a GPU in the title if the inventory has its index by now; otherwise unchanged."""
    if not incident.place.is_named_in(incident.title):
        return incident
    title = make_title(incident.cause, incident.place, names=names, members=incident.members)
    return incident if title == incident.title else _next_version(replace(incident, title=title), incident)


def end_member(incident: Incident, ref: str, *, until: datetime) -> Incident:
    """End one signal of the incident; unchanged if it has no such open signal."""
    is_open = [member.ref == ref and member.until is None for member in incident.members]
    if not any(is_open):
        return incident
    pairs = zip(incident.members, is_open, strict=True)
    members = tuple(replace(member, until=until) if ends else member for member, ends in pairs)
    runs_on = incident.runs_on if is_workload(incident.place) or job_effects.workloads_of(members) else ()
    return _next_version(replace(incident, members=members, runs_on=runs_on), incident)


def link_root(incident: Incident, root: IncidentId | None) -> tuple[Incident, str]:
    """The incident with the one that stops the job at its place, and the text for its timeline."""
    text = f"{root} stops a job that runs here" if root else f"{incident.root} no longer stops a job here"
    return _next_version(replace(incident, root=root), incident), text


def absorb(incident: Incident, into: IncidentId, *, at: datetime) -> tuple[Incident, str]:
    """Resolve an incident that became part of another; returns the text for its timeline too."""
    members = tuple(replace(member, until=member.until or at) for member in incident.members)
    return replace(move(incident, IncidentState.RESOLVED, at=at), members=members, part_of=into), f"Part of {into}"


def _incident_of_signal(near: Sequence[Incident], signal: Signal) -> Incident | None:
    refs = {signal.member.ref, signal.replaces}
    matching = [incident for incident in near if any(member.ref in refs for member in incident.members)]
    open_incidents = [incident for incident in matching if incident.is_open]
    # The signal of a job may have ended in the incident of an earlier fault and be open in the job's own incident.
    for incident in open_incidents:
        if any(member.ref in refs and member.until is None for member in incident.members):
            return incident
    return next(iter(open_incidents), matching[-1] if matching else None)


def _under_repair(near: Sequence[Incident], signal: Signal, context: CorrelationContext) -> Incident | None:
    place = signal.place
    may_be_of_repair = signal.member.kind is MemberKind.ALERT and signal.family in REPAIR_FAMILIES
    if not may_be_of_repair or signal.has_ended or place.node is None:
        return None
    repaired_ids = context.under_repair(place.whole_node)
    return next((incident for incident in near if incident.is_open and incident.id in repaired_ids), None)


def _is_new_occurrence(incident: Incident, signal: Signal) -> bool:
    """False if the signal repeats an open member, or is older than the end of its member."""
    return all(
        member.until is not None and signal.at > member.until
        for member in incident.members
        if member.ref == signal.member.ref
    )


def _apply_known_signal(
    incident: Incident,
    signal: Signal,
    *,
    now: datetime,
    context: CorrelationContext,
    absorbable: Sequence[Incident],
) -> Decision:
    """Apply a signal that is already a member of the open incident: it ends, returns, or nothing changes."""
    if signal.member.until is not None and signal.replaces is None:
        ended = end_member(incident, signal.member.ref, until=signal.member.until)
        return NOTHING if ended is incident else Decision(IncidentStep.ENDED, ended, f"Resolved: {signal.member.text}")
    if signal.member.kind is MemberKind.DOMAIN and signal.member not in incident.members:
        return _join(incident, signal, now=now, context=context)
    if not _is_new_occurrence(incident, signal):
        return NOTHING
    return _join(incident, signal, now=now, context=context, others=absorbable, absorbable=absorbable)


def _may_host(incident: Incident, signal: Signal, context: CorrelationContext) -> bool:
    """Whether the signal belongs to the incident: the same family at this place, or an effect of its cause here."""
    if incident.family == signal.family:
        return _shares_place(incident, signal, context)
    if signal.family in causes.affected_families(incident.cause):
        place = anchor_place(signal.place, signal.cause)
        return context.encloses(incident.place, place) or context.domains.job_holds(incident.place, place)
    if job_effects.explains_job_effect(incident, signal, context.domains.job_runs_at):
        return True
    if job_effects.is_caused_by_job(incident, signal, context.domains.job_holds):
        return True
    is_secondary = causes.lookup(signal.cause).is_secondary and causes.lookup(incident.cause).explains_others
    return is_secondary and incident.place == signal.place and signal.place.parent is not None


def _has_separate_fault(incident: Incident, signal: Signal, context: CorrelationContext) -> bool:
    """Whether a job recovered from this incident and now has another problem."""
    if signal.has_ended or not job_effects.is_job_member(signal.member, incident):
        return False
    is_explained = job_effects.explains_job_effect(incident, signal, context.domains.job_runs_at)
    return _is_new_occurrence(incident, signal) and not is_explained


def _shares_place(incident: Incident, signal: Signal, context: CorrelationContext) -> bool:
    place = anchor_place(signal.place, signal.cause)
    if signal.member.own_family:
        # One rule, one incident: of all hardware of a pool, or of one workload.
        first = incident.members[0].place
        pools = {context.domains.pool_of(first.whole_node), context.domains.pool_of(place.whole_node)}
        return first == place or (first.node is not None and place.node is not None and len(pools) == 1)
    is_of_workloads = is_workload(incident.place) or is_workload(place)
    if incident.place.domain and place.domain and incident.place != place and not is_of_workloads:
        # An incident of a leaf switch belongs to its rack if the rack contains all failed nodes.
        nodes = [member.place for member in incident.members if member.place.node is not None and member.until is None]
        return bool(nodes) and all(context.encloses(place, node) for node in nodes)
    if context.encloses(incident.place, place) or context.encloses(place, incident.place):
        return True
    # GPUs of one job in two pools can have different owners.
    pools = {context.domains.pool_of(incident.place.whole_node), context.domains.pool_of(signal.place.whole_node)}
    is_one_pool = len(pools) == 1 or not (incident.place.node and signal.place.node)
    return signal.job in holders_of(incident) and is_one_pool


def _is_early_effect(incident: Incident, signal: Signal, context: CorrelationContext) -> bool:
    """Whether the incident is an effect that was detected shortly before its cause, which is the signal."""
    if incident.family in causes.affected_families(signal.cause):
        place = anchor_place(signal.place, signal.cause)
        if context.domains.job_holds(place, incident.place):
            # A stall is detected late: the idle GPUs of the job may have been detected before.
            return True
        is_recent = all(signal.at - member.since <= MAX_EFFECT_LEAD for member in incident.members)
        return is_recent and context.encloses(place, incident.place)
    if job_effects.is_early_effect(incident, signal, context.domains.job_runs_at):
        return True
    is_secondary = causes.lookup(incident.cause).is_secondary and causes.lookup(signal.cause).explains_others
    if not is_secondary or incident.place != signal.place or signal.place.parent is None:
        return False
    leads = ((member.cause, signal.at - member.since) for member in incident.members)
    return all(lead <= timedelta(seconds=xid.settle_seconds(cause)) for cause, lead in leads)


def _may_reopen(incident: Incident, signal: Signal, context: CorrelationContext) -> bool:
    return not incident.is_open and incident.family == signal.family and _shares_place(incident, signal, context)


def _join(
    target: Incident,
    signal: Signal,
    *,
    now: datetime,
    context: CorrelationContext,
    others: Sequence[Incident] = (),
    absorbable: Sequence[Incident] = (),
) -> Decision:
    """Add the signal to the target; if the signal leads it, the other incidents become part of it."""
    refusal = f"{target.id} has {MAX_MEMBERS} signals, the limit, all at least as severe"
    if not others and _is_full(target, signal, context):
        return Decision(IncidentStep.NOTHING, text=refusal)
    signal = _with_previous_time(target.members, signal)
    members = _with_member(target.members, signal)
    is_leading = leading_member(members) is signal.member
    absorbed = tuple(other for other in others if is_leading or other in absorbable)
    members += tuple(member for other in absorbed for member in other.members if member.kind is not MemberKind.DOMAIN)
    retained = _limit_members(members)
    if signal.member not in retained:
        return Decision(IncidentStep.NOTHING, text=refusal)
    text = signal.member.text
    if len(retained) < len(members):
        text += f" ({len(members) - len(retained)} less severe signals dropped; an incident keeps {MAX_MEMBERS})"
    workloads = dict.fromkeys([*target.workloads, *(name for other in absorbed for name in other.workloads)])
    # The assignee of a part becomes the assignee of the whole.
    assignee = next((part.assignee for part in (target, *absorbed) if part.assignee), None)
    joined = _refresh(replace(target, workloads=tuple(workloads), assignee=assignee), retained, context=context)
    if target.state is IncidentState.ACKNOWLEDGED and joined.severity.rank > target.severity.rank:
        joined = move(joined, IncidentState.OPEN, at=now)
    return Decision(IncidentStep.JOINED, _next_version(joined, target), text, absorbed=absorbed)


def _reopen(previous: Incident, signal: Signal, *, now: datetime, context: CorrelationContext, text: str) -> Decision:
    signal, reopened = _with_previous_time(previous.members, signal), move(previous, IncidentState.OPEN, at=now)
    members = _limit_members(_with_member(previous.members, signal))
    return Decision(IncidentStep.REOPENED, _next_version(_refresh(reopened, members, context=context), previous), text)


def _open(signal: Signal, *, now: datetime, context: CorrelationContext) -> Decision:
    blank = Incident(
        id=context.next_id(),
        place=signal.place,
        title="",
        severity=signal.severity,
        state=IncidentState.OPEN,
        opened_at=now,
        cause=signal.cause,
        family=signal.family,
        members=(),
    )
    return Decision(IncidentStep.OPENED, _refresh(blank, (signal.member,), context=context), signal.member.text)


def _with_previous_time(members: Sequence[Member], signal: Signal) -> Signal:
    """The signal; if it returns, with the time for which it was true before."""
    for member in members:
        if member.ref == signal.member.ref and member.until is not None:
            seconds = member.previous_seconds + max(0.0, (member.until - member.since).total_seconds())
            return replace(signal, member=replace(signal.member, previous_seconds=seconds))
    return signal


def _with_member(members: tuple[Member, ...], signal: Signal) -> tuple[Member, ...]:
    replaced = {signal.member.ref, signal.replaces}
    if signal.member.kind is MemberKind.DOMAIN:
        replaced |= {member.ref for member in members if member.kind is MemberKind.DOMAIN}
    return (*(member for member in members if member.ref not in replaced), signal.member)


def _is_full(target: Incident, signal: Signal, context: CorrelationContext) -> bool:
    """Whether an incident at its limit has only signals of at least this priority."""
    is_new = all(member.ref not in (signal.member.ref, signal.replaces) for member in target.members)
    if len(target.members) < MAX_MEMBERS or signal.family != target.family or not is_new:
        return False
    version, lowest = context.lowest.get(target.id, (0, ()))
    if version != target.version:
        lowest = min(map(_priority, target.members))
        context.lowest[target.id] = target.version, lowest
    return _priority(signal.member) <= lowest


def _priority(member: Member) -> tuple[object, ...]:
    return (member.until is None, member.severity.rank, _weight(member))


def _limit_members(members: tuple[Member, ...]) -> tuple[Member, ...]:
    """At most MAX_MEMBERS members: drops ended and less severe ones first, never the leading or most severe one."""
    protected = (leading_member(members), max(members, key=lambda member: member.severity.rank))

    def priority(index: int) -> tuple[object, ...]:
        member = members[index]
        # Of equal members the newest is dropped, so that a full incident does not change with each repetition.
        return (member in protected, *_priority(member), -index)

    indexes = sorted(range(len(members)), key=priority, reverse=True)[:MAX_MEMBERS]
    return tuple(members[at] for at in sorted(indexes))


def _next_version(incident: Incident, previous: Incident) -> Incident:
    return replace(incident, version=previous.version + 1)


def leading_member(members: Sequence[Member]) -> Member:
    """The member that best describes the fault and its place, never an effect of another member's cause."""
    members = _without_repair_effects(members)
    causes_present = {member.cause for member in members}
    explained = frozenset().union(*(causes.affected_families(cause) for cause in causes_present))
    job_effect_ids = {effect for cause in causes_present for effect in causes.job_effects(cause)}
    root_members = [
        member for member in members if member.cause not in job_effect_ids and family_of(member) not in explained
    ]
    return max(root_members or members, key=_weight)


def _without_repair_effects(members: Sequence[Member]) -> Sequence[Member]:
    """Members that the incident's own repair did not cause: title and severity do not change during a repair."""
    return [member for member in members if not member.by_repair] or members


def _weight(member: Member) -> tuple[bool, bool, int, bool, bool, int]:
    row = causes.lookup(member.cause)
    return (
        member.kind is MemberKind.DOMAIN,
        not row.is_secondary,
        row.severity.rank,
        member.cause not in SYMPTOMS,
        member.kind is MemberKind.EVENT,
        sum(part is not None for part in (member.place.node, member.place.gpu, member.place.slice, member.place.port)),
    )


def _refresh(incident: Incident, members: tuple[Member, ...], *, context: CorrelationContext) -> Incident:
    """Derive place, cause, title and severity from the members, after each change."""
    leader = leading_member(members)
    family = family_of(leader)
    place = _spanned_place(members, family) if leader.own_family else anchor_place(leader.place, leader.cause)
    # Workloads are known by node or GPU, not by rack: for a rack or a whole job, add those of the newest member.
    is_wide = place.domain is not None or family in WHOLE_JOB_FAMILIES
    workloads_place = members[-1].place if is_wide and members[-1].place.node else place
    job_names = (workload_name(member.place) for member in members if is_workload(member.place))
    # A rule that names no cause says nothing about the workloads of the place.
    affected = () if leader.own_family else context.workloads_at(workloads_place)
    workloads = dict.fromkeys([*job_names, *incident.workloads, *affected])
    return replace(
        incident,
        place=place,
        title=make_title(leader.cause, place, names=context.names, members=members),
        severity=max(_without_repair_effects(members), key=lambda member: member.severity.rank).severity,
        cause=leader.cause,
        family=family,
        members=members,
        workloads=tuple(workloads)[:MAX_WORKLOADS],
        runs_on=job_effects.places_of_jobs(incident, members, context.domains.footprint_of),
        advice=leader.advice,
    )


def _spanned_place(members: Sequence[Member], family: str) -> fleet.Place:
    """The smallest place with all open members of the family: a GPU, a node, or the cluster."""
    own = [member for member in members if family_of(member) == family]
    places = {member.place for member in own if member.until is None} or {member.place for member in own}
    if len(places) > 1:
        places = {place.whole_node for place in places}
    first = min(places, key=str)
    return first if len(places) == 1 else fleet.Place(first.cluster)


def make_title(cause: str, place: fleet.Place, *, names: PlaceNames, members: Sequence[Member] = ()) -> str:
    row = causes.lookup(cause)
    if members and (leader := leading_member(members)).cause == UNKNOWN_CAUSE and leader.alert:
        text = f"{leader.alert} on {names(leader.place)}" if leader.text == leader.alert else leader.text
        others = len({member.place for member in members if member.alert == leader.alert} - {leader.place})
        at_least = "at least " if len(members) >= MAX_MEMBERS else ""
        return one_line(f"{text} and {at_least}{others} more" if others else text, MAX_TITLE_LENGTH)
    # Of the same kind: GPUs, or pods.
    alike = {member.place for member in members if bool(member.place.gpu) == bool(place.gpu)} - {place}
    more = f" and {len(alike)} more" if alike and row.family in WHOLE_JOB_FAMILIES else ""
    subject, node = _subjects(row, place, names)
    text = row.headline(subject + more, node)
    # The name of a node is not capitalised at the start of a title.
    text = text if place.node is not None and text.startswith(f"{node} ") else text[:1].upper() + text[1:]
    return one_line(text, MAX_TITLE_LENGTH)


def _subjects(row: causes.CauseRow, place: fleet.Place, names: PlaceNames) -> tuple[str, str]:
    """What the title is about, and its node; where a signal names neither GPU nor node: some GPU or node there."""
    name, node = names(place), names(place.whole_node)
    # With an unknown cause the fault may not be in a GPU.
    is_of_gpu = row.scope == "gpu" and row.is_hardware
    if place.parent is None and row.cause != UNKNOWN_CAUSE:
        node = f"a node of {name}"
        return {"gpu": f"a GPU of {name}", "node": node, "workload": f"a workload of {name}"}.get(row.scope, name), node
    is_whole_node = place.node is not None and place.gpu is None and place.port is None
    return (f"a GPU on {node}" if is_of_gpu and is_whole_node else name), node
