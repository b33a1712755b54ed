"""Gather the facts of an incident once, for all checks.

The hub calls `gather_facts` with the journal's events, the firing alerts and an engine; `explain.diagnose` passes the
facts to every check. Data that could not be read is a fact too: missing is never healthy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as default
from datetime import datetime, timedelta

from watchkeeper.catalogue import causes, xid
from watchkeeper.diagnose import place_context
from watchkeeper.kit import clock
from watchkeeper.model import diagnosis, fleet, incidents
from watchkeeper.model.alerts import Alert
from watchkeeper.model.events import Event, EventKind
from watchkeeper.query import engine as engines

# The cause of an incident happens shortly before it, its consequences shortly after.
EVENT_WINDOW = timedelta(minutes=10)
# Series are queried this far back; the journal keeps the first evidence of older incidents.
MAX_WINDOW = timedelta(hours=1)
# If the clocks of nodes differ by more than this, the order of their events is uncertain.
MAX_CLOCK_SKEW = timedelta(seconds=5)
# Without these fields, a GPU that waits in a kernel looks like one that computes.
PROFILING = ("DCGM_FI_PROF_SM_ACTIVE",)


@dataclass(frozen=True, slots=True)
class GpuField:
    """A metric of a GPU, with its name and unit for texts."""

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
    """The facts of one incident.

    `readings` are the last values by metric and GPU; `reporting` are the GPUs that report now, None if unknown.
    """

    incident: incidents.Incident
    at: datetime
    names: Callable[[fleet.Place], str]
    events: tuple[Event, ...] = ()
    alerts: tuple[Alert, ...] = ()
    readings: Mapping[str, Mapping[str, float]] | None = None
    reporting: frozenset[str] | None = None
    expected_gpus: int | None = None
    # Series of the rack, of the job's ranks and GPUs or of the pod, and recent changes.
    context: place_context.PlaceContext = default(default_factory=place_context.PlaceContext)
    missing_data: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    @property
    def place(self) -> fleet.Place:
        return self.incident.place

    @property
    def node(self) -> fleet.Place:
        return self.place.whole_node

    @property
    def node_name(self) -> str:
        return self.names(self.node)

    def gpu(self, uuid: str) -> fleet.Place:
        return fleet.Place(self.place.cluster, node=self.place.node, gpu=uuid)

    def readings_by_gpu(self, field: GpuField) -> Mapping[str, float]:
        """The last value by GPU UUID, without GPUs that have none."""
        return (self.readings or {}).get(field.metric, {})

    def reading(self, field: GpuField, gpu: str | None = None) -> float | None:
        """The last value of a GPU; of the incident's GPU by default."""
        return self.readings_by_gpu(field).get(gpu or self.place.gpu or "")

    def reading_evidence(self, field: GpuField, gpu: str | None = None) -> diagnosis.Evidence | None:
        """A reading as evidence; None without a reading."""
        uuid, value = gpu or self.place.gpu, self.reading(field, gpu)
        if uuid is None or value is None:
            return None
        text = f"{self.names(self.gpu(uuid))}: {field.label} {value * field.scale:g}{field.unit}"
        return diagnosis.Evidence(field.metric, text, at=self.at, place=self.gpu(uuid))

    def events_with_cause(self, *cause_ids: str, place: fleet.Place | None = None) -> list[Event]:
        """Events with one of these causes at or inside the place; the incident's place by default."""
        outer = place or self.place
        return [event for event in self.events if cause_of(event) in cause_ids and outer.encloses(event.place)]

    def members_with_cause(self, *cause_ids: str) -> list[incidents.Member]:
        return [member for member in self.incident.members if member.cause in cause_ids]


def cause_of(event: Event) -> str | None:
    """The cause of an event from the catalogue or from the event itself; None for kinds that are no fault."""
    if event.kind is EventKind.XID and event.code is not None:
        return xid.lookup(event.code).cause
    cause_id = event.fields.get("cause", "")
    if cause_id:
        return causes.lookup(cause_id).cause
    kind_cause = causes.cause_of(event.kind)
    return None if kind_cause == diagnosis.UNKNOWN_CAUSE else kind_cause


def is_hardware_fault(event: Event) -> bool:
    """A hardware fault that an application did not cause."""
    return causes.lookup(cause_of(event) or diagnosis.UNKNOWN_CAUSE).explains_others


def event_evidence(event: Event) -> diagnosis.Evidence:
    return diagnosis.Evidence(f"kernel log of {event.place.node}", event.text, at=event.at, place=event.place)


def member_evidence(member: incidents.Member) -> diagnosis.Evidence:
    source = "kernel log" if member.kind is incidents.MemberKind.EVENT else f"alert {member.ref}"
    return diagnosis.Evidence(source, member.text, at=member.since, place=member.place)


def gather_facts(
    incident: incidents.Incident,
    now: datetime,
    *,
    engine: engines.InstantEngine,
    events_at: Callable[[fleet.Place, datetime, datetime], Sequence[Event]],
    firing: Iterable[Alert] = (),
    names: Callable[[fleet.Place], str] = str,
) -> IncidentFacts:
    """Gather all facts once, with at most 20 queries to the engine and one to the journal."""
    first = min((member.since for member in incident.members), default=incident.opened_at)
    since, until = first - EVENT_WINDOW, min(now, first + EVENT_WINDOW)
    node = incident.place.whole_node
    node_events = tuple(events_at(node, since, until)) if since <= until else ()
    refs = {member.ref for member in incident.members}
    sources = [f"kernel log of {names(node)}, {since:%H:%M} to {until:%H:%M} UTC: {len(node_events)} events"]
    window = min(max(now - first, timedelta(0)) + EVENT_WINDOW, MAX_WINDOW)
    queries = place_context.PlaceQueries(engine, incident.place, clock.to_ms(now), window=window)
    context = place_context.gather_context(queries)
    missing_data = _clock_skew(node_events)
    if incident.place.node is None:
        nodes = {name for row, _ in context.rows(UTILISATION.metric) if (name := row.get("Hostname"))}
        # Node by node: in a storm the cluster has tens of thousands of events, most of them on other nodes.
        places = [fleet.Place(incident.place.cluster, node=name) for name in sorted(nodes)]
        place_events = [event for place in places for event in events_at(place, since, until)]
        node_events = tuple(sorted(place_events, key=lambda event: event.at)) or node_events
        missing_data += queries.failures
        if not context.series_count:
            missing_data.append(f"no series for {names(incident.place)}")
        sources.append(f"{context.series_count} series about {names(incident.place)}, {queries.query_count} queries")
        return IncidentFacts(
            incident, now, names, node_events, context=context, sources=tuple(sources), missing_data=tuple(missing_data)
        )  # fmt: skip
    readings = queries.readings_by_gpu([field.metric for field in FIELDS])
    reporting, expected = queries.reporting_gpus(TEMPERATURE.metric), queries.expected_gpus(EXPECTED_GPUS)
    missing_data += [*queries.failures, *_missing_series(incident.place, readings, names=names)]
    if context.peer_temperatures is None:
        missing_data.append(f"no rack or leaf for {names(node)}, so no neighbours to compare with")
    if expected is None:
        missing_data.append(f"no {EXPECTED_GPUS} for {names(node)}: the expected number of GPUs is unknown")
    sources.append(f"{sum(bool(values) for values in readings.values())} of {len(FIELDS)} series of {names(node)}")
    return IncidentFacts(
        incident=incident,
        at=now,
        names=names,
        events=node_events,
        alerts=tuple(alert for alert in firing if str(alert.labels) in refs),
        readings=readings,
        reporting=reporting,
        expected_gpus=expected,
        context=context,
        missing_data=tuple(missing_data),
        sources=tuple(sources),
    )


def _missing_series(
    place: fleet.Place, readings: Mapping[str, Mapping[str, float]], *, names: Callable[[fleet.Place], str]
) -> list[str]:
    """A text for each missing series of this GPU or node; a single text if all are missing."""
    is_present = {metric: place.gpu in values if place.gpu else bool(values) for metric, values in readings.items()}
    if not any(is_present.values()):
        return [f"none of the {len(is_present)} series of {names(place)}"]
    gaps = [f"no {metric} for {names(place)}" for metric, has_samples in is_present.items() if not has_samples]
    if any(not is_present[metric] for metric in PROFILING):
        gaps.append("no profiling fields (DCGM_FI_PROF_*): 100 % utilisation may be work or a wait in a kernel")
    return gaps


def _clock_skew(events: Sequence[Event]) -> list[str]:
    """A text for each node whose clock is ahead of the hub's, because events arrived before their time."""
    ahead: dict[str, timedelta] = {}
    for event in events:
        if event.received_at is not None and event.place.node and event.at - event.received_at > MAX_CLOCK_SKEW:
            ahead[event.place.node] = max(ahead.get(event.place.node, MAX_CLOCK_SKEW), event.at - event.received_at)
    return [
        f"the clock of {node} is {lead.total_seconds():.0f} s ahead of the hub's: the order of events is uncertain"
        for node, lead in ahead.items()
    ]
