"""Facts: everything about an incident that a check may look at, gathered once.

The hub calls `gather` with the journal's events, the alerts that fire and an Engine; `explain.diagnose`
hands the Facts to every check. What could not be seen is kept as a fact too: missing is never healthy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as default
from datetime import datetime, timedelta

from watchkeeper.catalogue import causes, event_causes, xid
from watchkeeper.diagnose import place_context
from watchkeeper.kit import clock
from watchkeeper.model import diagnosis, fleet, incidents
from watchkeeper.model.alerts import Alert
from watchkeeper.model.events import Event, EventKind
from watchkeeper.query import engine as engines

# A cause shows itself shortly before its incident, its consequences shortly after.
AROUND = timedelta(minutes=10)
# An incident that is older keeps its first evidence in the journal; series are asked about this far back.
LONGEST_WINDOW = timedelta(hours=1)
# Logs of machines whose clocks differ by more than this cannot be put in order.
MOST_SKEW = timedelta(seconds=5)
# Without these fields a GPU that waits in a kernel cannot be told from one that computes.
PROFILING = ("DCGM_FI_PROF_SM_ACTIVE",)


@dataclass(frozen=True, slots=True)
class GpuField:
    """One series that is asked about, and how to write its number for a person."""

    metric: str
    label: str
    unit: str = ""
    scale: float = 1.0


TEMPERATURE = GpuField("DCGM_FI_DEV_GPU_TEMP", "GPU temperature", " °C")
MAX_TEMPERATURE = GpuField("DCGM_FI_DEV_GPU_MAX_OP_TEMP", "maximum operating temperature", " °C")
MEMORY_TEMPERATURE = GpuField("DCGM_FI_DEV_MEMORY_TEMP", "memory temperature", " °C")
POWER = GpuField("DCGM_FI_DEV_POWER_USAGE", "power", " W")
SM_ACTIVE = GpuField("DCGM_FI_PROF_SM_ACTIVE", "SM activity", " %", 100.0)
UTILISATION = GpuField("DCGM_FI_DEV_GPU_UTIL", "utilisation", " %")
SM_CLOCK = GpuField("DCGM_FI_DEV_SM_CLOCK", "SM clock", " MHz")
CLOCK_REASONS = GpuField("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "clocks event reasons")
DOUBLE_BIT = GpuField("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "uncorrectable errors since the last reset")
SINGLE_BIT = GpuField("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "corrected errors since the last reset")
REMAP_PENDING = GpuField("DCGM_FI_DEV_ROW_REMAP_PENDING", "row remap pending")
REMAP_FAILURE = GpuField("DCGM_FI_DEV_ROW_REMAP_FAILURE", "row remap failure")
LAST_XID = GpuField("DCGM_FI_DEV_XID_ERRORS", "the exporter's last Xid")
PCIE_REPLAYS = GpuField("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "PCIe replays")
MEMORY_USED = GpuField("DCGM_FI_DEV_FB_USED", "memory used", " MiB")
FIELDS = (
    TEMPERATURE, MAX_TEMPERATURE, MEMORY_TEMPERATURE, POWER, SM_ACTIVE, UTILISATION, SM_CLOCK, CLOCK_REASONS,
    DOUBLE_BIT, SINGLE_BIT, REMAP_PENDING, REMAP_FAILURE, LAST_XID, PCIE_REPLAYS, MEMORY_USED,
)  # fmt: skip
EXPECTED_GPUS = "watchkeeper_node_expected_gpus"


@dataclass(frozen=True, slots=True)
class IncidentFacts:
    """`readings` are the last values by metric and GPU; `reporting` are the GPUs that report now, None if unknown."""

    incident: incidents.Incident
    at: datetime
    names: Callable[[fleet.Place], str]
    events: tuple[Event, ...] = ()
    alerts: tuple[Alert, ...] = ()
    readings: Mapping[str, Mapping[str, float]] | None = None
    reporting: frozenset[str] | None = None
    expected_gpus: int | None = None
    # Series of what lies around the place: its rack, its job's ranks and GPUs, its pod, what changed.
    context: place_context.PlaceContext = default(default_factory=place_context.PlaceContext)
    missing_data: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    @property
    def place(self) -> fleet.Place:
        return self.incident.place

    @property
    def node(self) -> fleet.Place:
        return fleet.Place(self.place.cluster, node=self.place.node, domain=self.place.domain)

    @property
    def node_name(self) -> str:
        return self.names(self.node)

    def gpu(self, uuid: str) -> fleet.Place:
        return fleet.Place(self.place.cluster, node=self.place.node, gpu=uuid)

    def readings_by_gpu(self, field: GpuField) -> Mapping[str, float]:
        """The last value of each GPU of the node that has one."""
        return (self.readings or {}).get(field.metric, {})

    def reading(self, field: GpuField, gpu: str | None = None) -> float | None:
        """The last value of a GPU, the incident's own if none is named."""
        return self.readings_by_gpu(field).get(gpu or self.place.gpu or "")

    def events_with_cause(self, *named: str, place: fleet.Place | None = None) -> list[Event]:
        """Events whose cause is one of these, at or inside the place (the incident's own if none is named)."""
        inside = place or self.place
        return [event for event in self.events if cause_of(event) in named and inside.encloses(event.place)]

    def members_with_cause(self, *named: str) -> list[incidents.Member]:
        return [member for member in self.incident.members if member.cause in named]


def cause_of(event: Event) -> str | None:
    """What the catalogue, or the event itself, says that it means; None for kinds that name no fault."""
    if event.kind is EventKind.XID and event.code is not None:
        return xid.lookup(event.code).cause
    named = event.fields.get("cause", "")
    if named:
        return causes.lookup(named).cause
    said = event_causes.cause_of(event.kind)
    return None if said == diagnosis.UNKNOWN_CAUSE else said


def is_hardware_fault(event: Event) -> bool:
    """A hardware fault that an application did not cause."""
    return causes.lookup(cause_of(event) or diagnosis.UNKNOWN_CAUSE).explains_others


def event_evidence(event: Event) -> diagnosis.Evidence:
    """The kernel's own words."""
    return diagnosis.Evidence(f"kernel log of {event.place.node}", event.text, at=event.at, place=event.place)


def reading_evidence(facts: IncidentFacts, field: GpuField, gpu: str | None = None) -> diagnosis.Evidence | None:
    """A series with its value, as evidence; None when it was not seen."""
    uuid, value = gpu or facts.place.gpu, facts.reading(field, gpu)
    if uuid is None or value is None:
        return None
    text = f"{facts.names(facts.gpu(uuid))}: {field.label} {value * field.scale:g}{field.unit}"
    return diagnosis.Evidence(field.metric, text, at=facts.at, place=facts.gpu(uuid))


def member_evidence(member: incidents.Member) -> diagnosis.Evidence:
    source = "kernel log" if member.kind is incidents.MemberKind.EVENT else f"alert {member.ref}"
    return diagnosis.Evidence(source, member.text, at=member.since, place=member.place)


def without_none(*evidence: diagnosis.Evidence | None) -> tuple[diagnosis.Evidence, ...]:
    return tuple(item for item in evidence if item is not None)


def gather_facts(
    incident: incidents.Incident,
    now: datetime,
    *,
    engine: engines.InstantEngine,
    events_at: Callable[[fleet.Place, datetime, datetime], Sequence[Event]],
    firing: Iterable[Alert] = (),
    names: Callable[[fleet.Place], str] = str,
) -> IncidentFacts:
    """Look at everything once: at most 20 questions to the engine, one to the journal."""
    first = min((member.since for member in incident.members), default=incident.opened_at)
    since, until = first - AROUND, min(now, first + AROUND)
    node = fleet.Place(incident.place.cluster, node=incident.place.node, domain=incident.place.domain)
    found = tuple(events_at(node, since, until)) if since <= until else ()
    refs = {member.ref for member in incident.members}
    looked = [f"kernel log of {names(node)}, {since:%H:%M} to {until:%H:%M} UTC: {len(found)} events"]
    window = min(max(now - first, timedelta(0)) + AROUND, LONGEST_WINDOW)
    questions = place_context.PlaceQueries(engine, incident.place, clock.to_ms(now), window=window)
    around = place_context.gather_context(questions)
    unseen = [*_skew(found)]
    if incident.place.node is None:
        nodes = {name for row, _ in around.rows(UTILISATION.metric) if (name := row.get("Hostname"))}
        # Node by node: in a storm the events of the whole cluster are ten thousands, and most are of others.
        places = [fleet.Place(incident.place.cluster, node=name) for name in sorted(nodes)]
        inside = [event for place in places for event in events_at(place, since, until)]
        found = tuple(sorted(inside, key=lambda event: event.at)) or found
        unseen += questions.failures
        if not around.series_count:
            unseen.append(f"series: {names(incident.place)} is no single node, and nothing tells about it")
        looked.append(f"{around.series_count} series around {names(incident.place)}, {questions.query_count} questions")
        return IncidentFacts(
            incident, now, names, found, context=around, sources=tuple(looked), missing_data=tuple(unseen)
        )  # fmt: skip
    readings = questions.readings_by_gpu([field.metric for field in FIELDS])
    reporting = questions.reporting_gpus(TEMPERATURE.metric)
    expected = questions.expected_gpus(EXPECTED_GPUS)
    unseen += [*questions.failures, *_missing(incident.place, readings, names=names)]
    unseen += (
        []
        if around.peer_temperatures is not None
        else [f"no rack or leaf of {names(node)}: nothing to compare it with"]
    )
    if expected is None:
        unseen.append(f"no {EXPECTED_GPUS} for {names(node)}: nobody said how many GPUs it should have")
    looked.append(f"{sum(bool(values) for values in readings.values())} of {len(FIELDS)} series of {names(node)}")
    return IncidentFacts(
        incident=incident,
        at=now,
        names=names,
        events=found,
        alerts=tuple(alert for alert in firing if str(alert.labels) in refs),
        readings=readings,
        reporting=reporting,
        expected_gpus=expected,
        context=around,
        missing_data=tuple(unseen),
        sources=tuple(looked),
    )


def _missing(
    place: fleet.Place, readings: Mapping[str, Mapping[str, float]], *, names: Callable[[fleet.Place], str]
) -> list[str]:
    """One line for each series that this GPU, or the whole node, does not have; one in all if it has none."""
    is_there = {metric: place.gpu in values if place.gpu else bool(values) for metric, values in readings.items()}
    if not any(is_there.values()):
        return [f"not one of the {len(is_there)} series of {names(place)}"]
    gaps = [f"no {metric} for {names(place)}" for metric, there in is_there.items() if not there]
    if any(not is_there[metric] for metric in PROFILING):
        gaps.append("no profiling fields (DCGM_FI_PROF_*): 100 % utilisation may be work or waiting")
    return gaps


def _skew(events: Sequence[Event]) -> list[str]:
    """A line for each node whose clock is not ours: an event cannot be received before it happened."""
    ahead: dict[str, timedelta] = {}
    for event in events:
        if event.received_at is not None and event.place.node and event.at - event.received_at > MOST_SKEW:
            ahead[event.place.node] = max(ahead.get(event.place.node, MOST_SKEW), event.at - event.received_at)
    return [
        f"the clock of {node} is {by.total_seconds():.0f} s ahead of ours: the order of events is uncertain"
        for node, by in ahead.items()
    ]
