"""Which incident does a signal belong to? One per place and family of causes, while it is open.

Pure: `correlate` looks at the incidents near the signal and answers with a Decision, which holds the
incident as it is to be kept. `core.Incidents` finds the near ones and writes the answer down.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from watchkeeper.catalogue import causes, effects, xid
from watchkeeper.incidents import job_effects
from watchkeeper.incidents.footprint import OF_WHOLE_JOBS, holders_of, is_workload, workload_name
from watchkeeper.incidents.signals import Signal, anchor_place
from watchkeeper.kit import durations
from watchkeeper.model import fleet
from watchkeeper.model.incidents import Incident, IncidentId, IncidentState, Member, MemberKind, move

# An incident is read by a person: nobody reads more signals than this, and each change rewrites them all.
MOST_MEMBERS = 200
MOST_WORKLOADS = 50
# A fault that returns within this time is the same one: flapping must not page twice.
FLAP_SECONDS = 600.0
# These say that something is gone or slow, not why; any other cause of their family is the better answer.
SYMPTOMS = frozenset({"gpu_missing", "node_down", "training_stalled", "training_slow"})
# What was seen so long before its cause may still be its effect: exporters and rules are slower than kernel logs.
EFFECT_FIRST = timedelta(minutes=5)
# What a machine that we reboot or reset looks like from outside; what else is seen of it meanwhile is news.
OF_A_REPAIR = frozenset({"node_down", "monitoring"})


class IncidentStep(StrEnum):
    """What a signal did; the same word is the kind of the journal's entry."""

    OPENED = "opened"
    JOINED = "joined"
    REOPENED = "reopened"
    ENDED = "ended"
    ABSORBED = "absorbed"
    EXPLAINED = "explained"
    RENAMED = "renamed"
    RESOLVED = "resolved"
    ACKNOWLEDGED = "acknowledged"
    ASSIGNED = "assigned"
    NOTED = "noted"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class CorrelationContext:
    """What the inventory knows and a signal does not: names for people, workloads at a place, the next free id.

    `domains` are the racks and leaf switches that a node lies in; `reaches` says whether a job runs at a place.
    """

    names: Callable[[fleet.Place], str]
    workloads_at: Callable[[fleet.Place], Sequence[str]]
    next_id: Callable[[], IncidentId]
    domains_of: Callable[[fleet.Place], Sequence[fleet.Place]] = lambda _: ()
    # The incidents of which a repair of ours is at work on the machine, past what can be undone.
    under_repair: Callable[[fleet.Place], Collection[str]] = lambda _: ()
    job_runs_at: Callable[[fleet.Place, fleet.Place], bool] = lambda place, job: place == job
    # Whether a GPU, or all that a pod has, belongs to a job.
    job_holds: Callable[[fleet.Place, fleet.Place], bool] = lambda job, place: job == place
    pool_of: Callable[[fleet.Place], str] = lambda _: ""

    def encloses(self, outer: fleet.Place, inner: fleet.Place) -> bool:
        """Like `Place.encloses`, and a rack encloses its nodes and what is in them."""
        if outer.domain is None or inner.node is None:
            return outer.encloses(inner)
        return outer in self.domains_of(inner.whole_node)


@dataclass(frozen=True, slots=True)
class Decision:
    """`incident` as it is after the step, None for NOTHING; `absorbed` are now a part of it."""

    step: IncidentStep
    incident: Incident | None = None
    text: str = ""
    absorbed: tuple[Incident, ...] = ()


NOTHING = Decision(IncidentStep.NOTHING)


def correlate(near: Sequence[Incident], signal: Signal, *, now: datetime, around: CorrelationContext) -> Decision:
    """Decide about one signal; `near` are the open and just resolved incidents of its node, oldest first."""
    known = _knowing(near, signal)
    if known is not None and known.is_open and not _has_left(known, signal, around):
        return _again(known, signal, now=now, around=around)
    repaired = _under_repair(near, signal, around)
    if repaired is not None:
        ours = replace(signal, member=replace(signal.member, by_repair=True))
        return _join(repaired, ours, now=now, around=around)
    hosts = [incident for incident in near if incident.is_open and _hosts(incident, signal, around)]
    taken = [incident for incident in near if incident.is_open and _gives_way_to(incident, signal, around)]
    if hosts or taken:
        target, *others = [*job_effects.best_first(hosts, signal), *taken]
        return _join(target, signal, now=now, around=around, others=others, taken=taken)
    if signal.has_ended or (known is not None and not _is_news(known, signal)):
        return NOTHING
    if known is not None and job_effects.is_guest(signal.member, known):
        known = None
    for before in [*([known] if known else []), *reversed(near)]:
        if (before is known or _returns(before, signal, around)) and _is_soon(before, signal):
            return _reopen(before, signal, now=now, around=around, text=f"Back: {signal.member.text}")
    return _open(signal, now=now, around=around)


def correlate_lasting(
    near: Sequence[Incident], signal: Signal, *, now: datetime, around: CorrelationContext
) -> Decision:
    """A signal that lasts although its incident was resolved: into what is open there, or that incident again.

    A job that still stands when what had stopped it is over has an incident of its own from then on.
    """
    hosts = [incident for incident in near if incident.is_open and _hosts(incident, signal, around)]
    if hosts:
        return _join(job_effects.best_first(hosts, signal)[0], signal, now=now, around=around)
    known = _knowing(near, signal)
    if known is None:
        return correlate(near, signal, now=now, around=around)
    if known.resolved_at is None:
        return NOTHING
    is_guest = job_effects.is_guest(signal.member, known)
    if is_guest or known.part_of is not None:
        text = f"Goes on although {known.id if is_guest else known.part_of} is over: {signal.member.text}"
    else:
        since = durations.format_seconds(round((now - known.resolved_at).total_seconds()))
        text = f"Still firing {since} after it was resolved: {signal.member.text}"
    own = next((one for one in reversed(near) if _returns(one, signal, around)), None) if is_guest else known
    if own is not None:
        return _reopen(own, signal, now=now, around=around, text=text)
    return replace(_open(signal, now=now, around=around), text=text)


def explain(near: Sequence[Incident], incident: Incident, *, cause: str, around: CorrelationContext) -> Decision:
    """An incident that another fault brought about: a part of that fault's incident, or renamed after it."""
    row = causes.lookup(cause)
    hosts = (one for one in near if one.is_open and one.family == row.family and one.place.encloses(incident.place))
    host = next(hosts, None)
    if host is not None:
        kept = _fitting((*host.members, *incident.members))
        joined = _next_version(_refresh(host, kept, around=around), host)
        return Decision(
            IncidentStep.JOINED, joined, f"{incident.id} is its consequence: {incident.title}", absorbed=(incident,)
        )
    named = replace(
        incident,
        cause=row.cause,
        family=row.family,
        title=make_title(row.cause, incident.place, names=around.names, members=incident.members),
        severity=max(incident.severity, row.severity, key=lambda severity: severity.rank),
    )
    return Decision(
        IncidentStep.EXPLAINED, _next_version(named, incident), f"Explained by another fault: {named.title}"
    )


def rename(incident: Incident, names: Callable[[fleet.Place], str]) -> Incident:
    """One that is called by the UUID of its GPU, under the name that the inventory has learned; else unchanged."""
    if not incident.place.is_named_in(incident.title):
        return incident
    called = make_title(incident.cause, incident.place, names=names, members=incident.members)
    return incident if called == incident.title else _next_version(replace(incident, title=called), incident)


def end_member(incident: Incident, ref: str, *, until: datetime) -> Incident:
    """The incident with one signal over; unchanged when it has no such live signal."""
    if not any(member.ref == ref and member.until is None for member in incident.members):
        return incident
    members = tuple(
        replace(member, until=until) if member.ref == ref and member.until is None else member
        for member in incident.members
    )
    return replace(incident, members=members, version=incident.version + 1)


def absorb(incident: Incident, into: IncidentId, *, at: datetime) -> tuple[Incident, str]:
    """An incident that turned out to be a part of another one, resolved, with the words for its timeline."""
    members = tuple(replace(member, until=member.until or at) for member in incident.members)
    return replace(move(incident, IncidentState.RESOLVED, at=at), members=members, part_of=into), f"Part of {into}"


def _knowing(near: Sequence[Incident], signal: Signal) -> Incident | None:
    refs = {signal.member.ref, signal.replaces}
    matching = [incident for incident in near if any(member.ref in refs for member in incident.members)]
    opened = [incident for incident in matching if incident.is_open]
    # A job that came back for its own reasons is live in its own incident, and over in that of what stopped it before.
    live = (one for one in opened if any(member.ref in refs and member.until is None for member in one.members))
    return next(live, next(iter(opened), matching[-1] if matching else None))


def _under_repair(near: Sequence[Incident], signal: Signal, around: CorrelationContext) -> Incident | None:
    """The incident whose own repair makes the machine look like this."""
    place = signal.place
    is_of_repair = signal.member.kind is MemberKind.ALERT and signal.family in OF_A_REPAIR
    if not is_of_repair or signal.has_ended or place.node is None:
        return None
    working = around.under_repair(place.whole_node)
    return next((incident for incident in near if incident.is_open and incident.id in working), None)


def _is_news(incident: Incident, signal: Signal) -> bool:
    """False for the repetition of what an ended member has already said."""
    return all(
        member.until is not None and signal.at > member.until
        for member in incident.members
        if member.ref == signal.member.ref
    )


def _again(known: Incident, signal: Signal, *, now: datetime, around: CorrelationContext) -> Decision:
    """A signal of which the open incident has a member: it ends, it returns, or nothing is new."""
    if signal.member.until is not None and signal.replaces is None:
        ended = end_member(known, signal.member.ref, until=signal.member.until)
        return NOTHING if ended is known else Decision(IncidentStep.ENDED, ended, f"Over: {signal.member.text}")
    if signal.member.kind is MemberKind.DOMAIN and signal.member not in known.members:
        return _join(known, signal, now=now, around=around)
    return _join(known, signal, now=now, around=around) if _is_news(known, signal) else NOTHING


def _hosts(incident: Incident, signal: Signal, around: CorrelationContext) -> bool:
    """The same family at a place that encloses the other, or a fault that explains this one where it happened."""
    if incident.family == signal.family:
        return _touches(incident, signal, around)
    if signal.family in effects.affected_families(incident.cause):
        place = anchor_place(signal.place, signal.cause)
        return around.encloses(incident.place, place) or around.job_holds(incident.place, place)
    if job_effects.explains(incident, signal, around.job_runs_at) or job_effects.follows(
        incident, signal, around.job_holds
    ):
        return True
    is_consequence = causes.lookup(signal.cause).is_secondary and causes.lookup(incident.cause).explains_others
    return is_consequence and incident.place == signal.place


def _has_left(incident: Incident, signal: Signal, around: CorrelationContext) -> bool:
    """A job that went on without what had stopped it, and is in trouble again for another reason."""
    is_back = not signal.has_ended and job_effects.is_guest(signal.member, incident) and _is_news(incident, signal)
    return is_back and not job_effects.explains(incident, signal, around.job_runs_at)


def _touches(incident: Incident, signal: Signal, around: CorrelationContext) -> bool:
    place = anchor_place(signal.place, signal.cause)
    if incident.place.domain is not None and place.domain is not None and incident.place != place:
        # A leaf switch that seemed to be gone, until all of its rack was.
        nodes = [member.place for member in incident.members if member.place.node is not None and member.until is None]
        return bool(nodes) and all(around.encloses(place, node) for node in nodes)
    is_inside = around.encloses(incident.place, place) or around.encloses(place, incident.place)
    return is_inside or _is_of_one_job(incident, signal, around)


def _is_of_one_job(incident: Incident, signal: Signal, around: CorrelationContext) -> bool:
    """GPUs of one job; not of two pools, whose owners may want different things done about it."""
    is_one = signal.job in holders_of(incident)
    return is_one and around.pool_of(incident.place.whole_node) == around.pool_of(signal.place.whole_node)


def _gives_way_to(incident: Incident, signal: Signal, around: CorrelationContext) -> bool:
    """An effect that was seen moments before its cause, as an application fault before a hardware fault of its GPU."""
    if incident.family in effects.affected_families(signal.cause):
        place = anchor_place(signal.place, signal.cause)
        if around.job_holds(place, incident.place):
            # A job is called stalled when it has long been so, and its GPUs may have been seen to be idle before.
            return True
        is_fresh = all(signal.at - member.since <= EFFECT_FIRST for member in incident.members)
        return is_fresh and around.encloses(place, incident.place)
    if job_effects.was_first(incident, signal, around.job_runs_at):
        return True
    is_consequence = causes.lookup(incident.cause).is_secondary and causes.lookup(signal.cause).explains_others
    if not is_consequence or incident.place != signal.place:
        return False
    return all(
        signal.at - member.since <= timedelta(seconds=xid.settle_seconds(member.cause)) for member in incident.members
    )


def _returns(incident: Incident, signal: Signal, around: CorrelationContext) -> bool:
    return not incident.is_open and incident.family == signal.family and _touches(incident, signal, around)


def _is_soon(incident: Incident, signal: Signal) -> bool:
    resolved = incident.resolved_at
    return resolved is not None and signal.at - resolved <= timedelta(seconds=FLAP_SECONDS)


def _join(
    target: Incident,
    signal: Signal,
    *,
    now: datetime,
    around: CorrelationContext,
    others: Sequence[Incident] = (),
    taken: Sequence[Incident] = (),
) -> Decision:
    """Add the signal; when it widens the incident, the others inside it become a part of it."""
    members = _with_member(target.members, signal)
    leads = leading_member(members) is signal.member
    absorbed = tuple(other for other in others if leads or other in taken)
    members += tuple(member for other in absorbed for member in other.members if member.kind is not MemberKind.DOMAIN)
    kept = _fitting(members)
    if signal.member not in kept:
        return Decision(IncidentStep.NOTHING, text=f"{target.id} has {MOST_MEMBERS} signals that weigh as much or more")
    text = signal.member.text
    if len(kept) < len(members):
        text += f" ({len(members) - len(kept)} lighter signals left out; an incident keeps {MOST_MEMBERS})"
    hit = dict.fromkeys([*target.workloads, *(name for other in absorbed for name in other.workloads)])
    # Who works on a part of it works on it.
    owner = next((one.assignee for one in (target, *absorbed) if one.assignee), None)
    joined = _refresh(replace(target, workloads=tuple(hit), assignee=owner), kept, around=around)
    if target.state is IncidentState.ACKNOWLEDGED and joined.severity.rank > target.severity.rank:
        joined = move(joined, IncidentState.OPEN, at=now)
    return Decision(IncidentStep.JOINED, _next_version(joined, target), text, absorbed=absorbed)


def _reopen(before: Incident, signal: Signal, *, now: datetime, around: CorrelationContext, text: str) -> Decision:
    opened = move(before, IncidentState.OPEN, at=now)
    members = _fitting(_with_member(before.members, signal))
    return Decision(IncidentStep.REOPENED, _next_version(_refresh(opened, members, around=around), before), text)


def _open(signal: Signal, *, now: datetime, around: CorrelationContext) -> Decision:
    blank = Incident(
        id=around.next_id(),
        place=signal.place,
        title="",
        severity=signal.severity,
        state=IncidentState.OPEN,
        opened_at=now,
        cause=signal.cause,
        family=signal.family,
        members=(),
    )
    return Decision(IncidentStep.OPENED, _refresh(blank, (signal.member,), around=around), signal.member.text)


def _with_member(members: tuple[Member, ...], signal: Signal) -> tuple[Member, ...]:
    old = {signal.member.ref, signal.replaces}
    if signal.member.kind is MemberKind.DOMAIN:
        old |= {member.ref for member in members if member.kind is MemberKind.DOMAIN}
    return (*(member for member in members if member.ref not in old), signal.member)


def _fitting(members: tuple[Member, ...]) -> tuple[Member, ...]:
    """As many as an incident keeps: ended and light ones go first, never the one that leads or the worst."""
    worst = max(members, key=lambda member: member.severity.rank)
    kept_anyway = (leading_member(members), worst)

    def worth(at: int) -> tuple[object, ...]:
        member = members[at]
        # Of equals the newest goes, so that a full incident is not rewritten with each repetition.
        return (member in kept_anyway, member.until is None, member.severity.rank, _weight(member), -at)

    places = sorted(range(len(members)), key=worth, reverse=True)[:MOST_MEMBERS]
    return tuple(members[at] for at in sorted(places))


def _next_version(incident: Incident, after: Incident) -> Incident:
    return replace(incident, version=after.version + 1)


def leading_member(members: Sequence[Member]) -> Member:
    """The member that says best what is wrong, and where; the first of equals. An effect never leads its cause."""
    members = _not_by_repair(members)
    named = {member.cause for member in members}
    explained = frozenset().union(*(effects.affected_families(cause) for cause in named))
    on_jobs = {effect for cause in named for effect in effects.job_effects(cause)}
    causing = [
        member
        for member in members
        if member.cause not in on_jobs and causes.lookup(member.cause).family not in explained
    ]
    return max(causing or members, key=_weight)


def _not_by_repair(members: Sequence[Member]) -> Sequence[Member]:
    """What was wrong before we began; an incident keeps its name and weight while its own repair is at work."""
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


def _refresh(incident: Incident, members: tuple[Member, ...], *, around: CorrelationContext) -> Incident:
    """Place, cause, title and severity follow from the members, and are worked out again with each change."""
    best = leading_member(members)
    place = anchor_place(best.place, best.cause)
    family = causes.lookup(best.cause).family
    # Nobody knows what runs in a rack but its nodes, and on the GPUs of a job; the newest member's was not asked yet.
    is_wide = place.domain is not None or family in OF_WHOLE_JOBS
    asked = members[-1].place if is_wide and members[-1].place.node else place
    jobs = (workload_name(member.place) for member in members if is_workload(member.place))
    workloads = dict.fromkeys([*jobs, *incident.workloads, *around.workloads_at(asked)])
    return replace(
        incident,
        place=place,
        title=make_title(best.cause, place, names=around.names, members=members),
        severity=max((member.severity for member in _not_by_repair(members)), key=lambda severity: severity.rank),
        cause=best.cause,
        family=family,
        members=members,
        workloads=tuple(workloads)[:MOST_WORKLOADS],
    )


def make_title(
    cause: str, place: fleet.Place, *, names: Callable[[fleet.Place], str], members: Sequence[Member] = ()
) -> str:
    """The catalogue's headline with the place as people call it."""
    row = causes.lookup(cause)
    others = {member.place for member in members if member.place.gpu is not None} - {place}
    more = f" and {len(others)} more" if others and row.family in OF_WHOLE_JOBS else ""
    node = names(place.whole_node)
    # What nobody knows the cause of need not be a GPU's.
    is_of_gpu = row.scope == "gpu" and row.is_hardware
    is_some_gpu = is_of_gpu and place.node is not None and place.gpu is None and place.port is None
    text = row.headline(f"a GPU on {node}" if is_some_gpu else names(place) + more, node)
    # A machine is called as it is called, also where a sentence begins.
    begins_with_node = place.node is not None and text.startswith(f"{node} ")
    return text if begins_with_node else text[:1].upper() + text[1:]
