"""A signal is one event or one alert, read as "this cause, at this place, since then".

`core.Incidents` makes one from everything it is given; `correlate` decides with it which
incident it belongs to. What a code means comes from the catalogue, never from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from watchkeeper.catalogue import causes, event_causes, xid
from watchkeeper.model import alerts, diagnosis, events, fleet, incidents, jobs

# These name their own cause in `fields`, because the agent that sent them knows it.
NAMED_KINDS = frozenset(
    {events.EventKind.DRIVER_FAULT, events.EventKind.DRIVER_EVENT, events.EventKind.POLICY_VIOLATION}
)
# The agent repeats these every few minutes for as long as they hold, so quiet means that they are over.
REPEATED_KINDS = frozenset({events.EventKind.DRIVER_FAULT, events.EventKind.POLICY_VIOLATION})
# A link that is down comes back by itself when somebody plugs it in; a port that stays down has its own rule.
PASSING_KINDS = REPEATED_KINDS | {events.EventKind.LINK_DOWN}
CLEARING_KINDS = frozenset(
    {
        events.EventKind.GPU_RESET,
        events.EventKind.NODE_BOOT,
        events.EventKind.FABRIC_UP,
        events.EventKind.STORAGE_BACK,
    }
)
# A reboot mends no cable, and a sweep that tells of one dark link tells of its return as well. That a file server
# answers says nothing of a GPU, and a GPU that was reset nothing of a file server.
CLEARED_BY = {
    events.EventKind.FABRIC_DOWN: frozenset({events.EventKind.FABRIC_UP}),
    events.EventKind.STORAGE_LOST: frozenset({events.EventKind.STORAGE_BACK, events.EventKind.NODE_BOOT}),
}
USUALLY_CLEARED_BY = CLEARING_KINDS - {events.EventKind.STORAGE_BACK}
# A program that failed and was restarted shows itself again within minutes, if it does at all.
QUIET_SECONDS = 600.0
# The kernel tells when a file server that it waits for answers again, unless whoever waited was killed meanwhile.
RETURN_SECONDS = 86_400.0
# dcgm-exporter writes `Hostname` up to 4.8 and `hostname` after it; `node` comes from relabelling.
NODE_LABELS = ("Hostname", "hostname", "node")
DOMAIN_LABELS = ("rack", "leaf", "power")
UNNAMED_CLUSTER = "default"
# The annotation that says what an alert of somebody else's rule means in our words.
CAUSE = "watchkeeper_cause"
# What a line of an incident shows; each change rewrites the lines of all signals.
LONGEST_TEXT = 1000
# A workload is a place too when no machine is named: what it is called, and the labels that name it.
WORKLOAD_LABELS = (
    ("pod", ("namespace", "pod")),
    ("job", ("job_name",)),
    ("model", ("model_name",)),
    ("hpc_job", ("hpc_job",)),
    ("namespace", ("namespace",)),
    ("team", ("team",)),
)


@dataclass(frozen=True, slots=True)
class Signal:
    """`member` is what the incident keeps of it; `replaces` is the ref of an ended member that came back.

    `job` is whose GPU it is about, if it says so.
    """

    member: incidents.Member
    family: str
    replaces: str | None = None
    job: str = ""

    @property
    def place(self) -> fleet.Place:
        return self.member.place

    @property
    def cause(self) -> str:
        return self.member.cause

    @property
    def severity(self) -> alerts.Severity:
        return self.member.severity

    @property
    def at(self) -> datetime:
        return self.member.since

    @property
    def has_ended(self) -> bool:
        return self.member.until is not None


def from_event(event: events.Event) -> Signal | None:
    """None for an event that is good news, such as a reset or a boot, or that is part of a healthy machine's day."""
    if event.kind in CLEARING_KINDS or _is_routine(event):
        return None
    if event.kind is events.EventKind.XID and event.code is not None:
        row = xid.lookup(event.code)
        cause, severity = row.cause, row.severity
    else:
        named = event.fields.get("cause", "") if event.kind in NAMED_KINDS else event_causes.cause_of(event.kind) or ""
        known = causes.lookup(named)
        cause, severity = known.cause, known.severity
    member = incidents.Member(
        incidents.MemberKind.EVENT, event.id, event.place, cause, event.at, event.text, severity=severity
    )
    return Signal(member, causes.lookup(cause).family)


def _is_routine(event: events.Event) -> bool:
    """Errors that the hardware corrected itself, unless there is a flood of them, and the bare notice of one."""
    if event.kind is events.EventKind.PCIE_ERROR:
        is_corrected = event.fields.get("severity", "").startswith("Correct")
    elif event.kind is events.EventKind.MACHINE_CHECK:
        is_corrected = event.fields.get("severity") != "uncorrected"
    else:
        return False
    return is_corrected and "alike_left_out" not in event.fields


def from_alert(alert: alerts.Alert) -> Signal | None:
    """None for an alert that is only pending."""
    if alert.state is alerts.AlertState.PENDING:
        return None
    named = alert.annotations.get(CAUSE) or alert.labels.get("cause") or diagnosis.UNKNOWN_CAUSE
    cause = causes.lookup(named).cause
    member = incidents.Member(
        kind=incidents.MemberKind.ALERT,
        ref=str(alert.labels),
        place=place_of(alert.labels),
        cause=cause,
        since=alert.fired_at or alert.active_at,
        text=(alert.annotations.get("summary") or alert.name)[:LONGEST_TEXT],
        severity=alert.severity,
        until=alert.resolved_at if alert.state is alerts.AlertState.RESOLVED else None,
    )
    holder = fleet.holder_from_labels(alert.labels) if member.place.gpu is not None else None
    return Signal(member, causes.lookup(cause).family, job=jobs.job_of_holder(holder) if holder else "")


def place_of(labels: Mapping[str, str]) -> fleet.Place:
    """The smallest place that a label set names; a GPU needs its UUID, because an index moves."""
    cluster = labels.get("cluster") or UNNAMED_CLUSTER
    node = next((labels[name] for name in NODE_LABELS if labels.get(name)), None)
    domain = next((f"{name}={labels[name]}" for name in DOMAIN_LABELS if labels.get(name)), None) or _workload(labels)
    if node is None and domain is not None:
        return fleet.Place(cluster, domain=domain)
    if node is None and labels.get("instance"):
        node = labels["instance"].rsplit(":", 1)[0]
    if node is None or not labels.get("UUID"):
        return fleet.Place(cluster, node=node)
    return fleet.Place(cluster, node=node, gpu=labels["UUID"], slice=labels.get("GPU_I_ID") or None)


def _workload(labels: Mapping[str, str]) -> str | None:
    """`pod=research/notebook-1`, `job=llm-70b-3f`: the first kind of which every label is there."""
    named = ((kind, [labels.get(name) for name in names]) for kind, names in WORKLOAD_LABELS)
    return next((f"{kind}={'/'.join(map(str, parts))}" for kind, parts in named if all(parts)), None)


def anchor_place(place: fleet.Place, cause: str) -> fleet.Place:
    """Where an incident of this cause belongs: a fan fails for the whole node, whichever GPU got hot first."""
    return place.whole_node if causes.lookup(cause).scope == "node" else place


def clear_rule(cause: str, event: events.Event) -> events.ClearRule:
    """When an event is over: hardware by a reset or boot, a dark link or a server by its return, the rest by quiet."""
    stays = causes.lookup(cause).is_hardware and event.kind not in PASSING_KINDS
    quiet = RETURN_SECONDS if events.REPORTS_RECOVERY in event.fields else QUIET_SECONDS
    return events.ClearRule(None if stays else quiet, cleared_by=CLEARED_BY.get(event.kind, USUALLY_CLEARED_BY))
