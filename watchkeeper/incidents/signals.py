"""Turn an event or alert into a signal: a cause at a place since a time.

`IncidentTracker` turns every event and alert into a signal, and `correlate` decides which incident it belongs to.
The meaning of codes comes from the catalogue, never from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from watchkeeper.catalogue import causes, xid
from watchkeeper.model import alerts, diagnosis, events, fleet, incidents, jobs

# The agent repeats these every few minutes while they are true, so without a repetition they have ended.
REPEATED_KINDS = frozenset({events.EventKind.DRIVER_FAULT, events.EventKind.POLICY_VIOLATION})
# The agent writes the cause of these events into `fields`.
NAMED_KINDS = REPEATED_KINDS | {events.EventKind.DRIVER_EVENT}
# A link that is down comes up when its cable is plugged in; a port that stays down has its own alert rule.
SELF_CLEARING_KINDS = REPEATED_KINDS | {events.EventKind.LINK_DOWN}
CLEARING_KINDS = frozenset(
    {events.EventKind.GPU_RESET, events.EventKind.NODE_BOOT, events.EventKind.FABRIC_UP, events.EventKind.STORAGE_BACK}
)
# A reboot does not fix a cable, and the fabric sweep that reports a link down also reports it up. A file server that
# answers does not clear a GPU fault, and a GPU reset does not clear a lost file server.
CLEARED_BY = {
    events.EventKind.FABRIC_DOWN: frozenset({events.EventKind.FABRIC_UP}),
    events.EventKind.STORAGE_LOST: frozenset({events.EventKind.STORAGE_BACK, events.EventKind.NODE_BOOT}),
}
USUALLY_CLEARED_BY = CLEARING_KINDS - {events.EventKind.STORAGE_BACK}
# A program that fails again after a restart does so within minutes.
QUIET_SECONDS = 600.0
# The kernel logs when a file server answers again, unless the process that waited for it was killed.
RETURN_SECONDS = 86_400.0
# dcgm-exporter writes `Hostname` up to 4.8 and `hostname` after it; `node` comes from relabelling.
NODE_LABELS = ("Hostname", "hostname", "node")
DOMAIN_LABELS = ("rack", "leaf", "power")
UNNAMED_CLUSTER = "default"
# The annotation with the cause of an external alert, as an id of packs/causes.csv.
CAUSE_ANNOTATION = "watchkeeper_cause"
# Alerts of rules that name no cause belong together by the name of their alert.
ALERT_FAMILY = "alert:"
MAX_ADVICE_LENGTH = 300
# The text of a signal; each change of an incident writes the texts of all its signals.
MAX_TEXT_LENGTH = 1000
# Without a node label a workload is the place: its kind, and the labels with its name.
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
    """`member` is the part that the incident stores; `replaces` is the ref of an ended member that returned.

    `job` is the job that holds the GPU, or that the pod belongs to, if the labels name them.
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
    """The signal of an event; None for clearing events such as a reset or a boot, and for routine events."""
    if event.kind in CLEARING_KINDS or _is_routine(event):
        return None
    if event.kind is events.EventKind.XID and event.code is not None:
        row = xid.lookup(event.code)
        cause, severity = row.cause, row.severity
    else:
        cause_id = event.fields.get("cause", "") if event.kind in NAMED_KINDS else causes.cause_of(event.kind) or ""
        cause_row = causes.lookup(cause_id)
        cause, severity = cause_row.cause, cause_row.severity
    kind = incidents.MemberKind.EVENT
    member = incidents.Member(kind, event.id, event.place, cause, event.at, event.text, severity=severity)
    return Signal(member, causes.lookup(cause).family)


def _is_routine(event: events.Event) -> bool:
    """Whether the hardware corrected the error and there are not many of them."""
    if event.kind is events.EventKind.PCIE_ERROR:
        is_corrected = event.fields.get("severity", "").startswith("Correct")
    elif event.kind is events.EventKind.MACHINE_CHECK:
        is_corrected = event.fields.get("severity") != "uncorrected"
    else:
        return False
    return is_corrected and "alike_left_out" not in event.fields


def from_alert(alert: alerts.Alert) -> Signal | None:
    """The signal of an alert; None for a pending alert."""
    if alert.state is alerts.AlertState.PENDING:
        return None
    cause_id = alert.annotations.get(CAUSE_ANNOTATION) or alert.labels.get("cause", "")
    cause = causes.lookup(cause_id or diagnosis.UNKNOWN_CAUSE).cause
    is_unknown = cause == diagnosis.UNKNOWN_CAUSE
    member = incidents.Member(
        kind=incidents.MemberKind.ALERT,
        ref=str(alert.labels),
        place=place_of(alert.labels),
        cause=cause,
        since=alert.fired_at or alert.active_at,
        text=one_line(alert.annotations.get("summary") or alert.name, MAX_TEXT_LENGTH),
        severity=alert.severity,
        until=alert.resolved_at if alert.state is alerts.AlertState.RESOLVED else None,
        alert=one_line(alert.name, MAX_TEXT_LENGTH),
        advice=one_line(alert.annotations.get("action", ""), MAX_ADVICE_LENGTH) if is_unknown else "",
        own_family=f"{ALERT_FAMILY}{alert.name}" if is_unknown and cause_id != cause else "",
    )
    is_held = member.place.gpu is not None or member.place.node is None
    holder = fleet.holder_from_labels(alert.labels) if is_held else None
    return Signal(member, family_of(member), job=jobs.job_of_holder(holder) if holder else "")


def one_line(text: str, max_length: int) -> str:
    """Text of others for a line on a screen: without line breaks and characters that are not shown."""
    printable = text if text.isprintable() else "".join(each if each.isprintable() else " " for each in text)
    return printable[:max_length].strip()


def family_of(member: incidents.Member) -> str:
    return member.own_family or causes.lookup(member.cause).family


def places_of_node(node: fleet.Node) -> tuple[fleet.Place, ...]:
    """The places whose incidents a node shows: itself, also of alerts that name no cluster, and its failure domains."""
    return (node.place, fleet.Place(UNNAMED_CLUSTER, node=node.name), *node.failure_domains())


def place_of(labels: Mapping[str, str]) -> fleet.Place:
    """The smallest place that a label set names; a GPU needs its UUID, because its index can change."""
    cluster = labels.get("cluster") or UNNAMED_CLUSTER
    node = next((labels[name] for name in NODE_LABELS if labels.get(name)), None)
    domain = next((f"{name}={labels[name]}" for name in DOMAIN_LABELS if labels.get(name)), None)
    if domain is None:
        # `pod=research/notebook-1`, `job=llm-70b-3f`: the first kind whose labels are all present.
        candidates = ((kind, [labels.get(name) for name in names]) for kind, names in WORKLOAD_LABELS)
        domain = next((f"{kind}={'/'.join(map(str, parts))}" for kind, parts in candidates if all(parts)), None)
    if node is None and domain is not None:
        return fleet.Place(cluster, domain=domain)
    if node is None and labels.get("instance"):
        node = labels["instance"].rsplit(":", 1)[0]
    if node is None or not labels.get("UUID"):
        return fleet.Place(cluster, node=node)
    return fleet.Place(cluster, node=node, gpu=labels["UUID"], slice=labels.get("GPU_I_ID") or None)


def anchor_place(place: fleet.Place, cause: str) -> fleet.Place:
    """The place of an incident of this cause: the whole node for causes with node scope, such as a failed fan."""
    return place.whole_node if causes.lookup(cause).scope == "node" else place


def clear_rule(cause: str, event: events.Event) -> events.ClearRule:
    """When an event ends: hardware faults by a reset or boot, links and servers when they return, the rest by quiet."""
    stays = causes.lookup(cause).is_hardware and event.kind not in SELF_CLEARING_KINDS
    quiet = RETURN_SECONDS if events.REPORTS_RECOVERY in event.fields else QUIET_SECONDS
    return events.ClearRule(None if stays else quiet, cleared_by=CLEARED_BY.get(event.kind, USUALLY_CLEARED_BY))
