"""Draw a frame of the fleet map: a value and a state for each GPU, and the figures of the summary tiles.

`live` runs the queries once per interval and packs the frame for all viewers. Colours show the values. The state, which
people must notice first, is decided here in one function. A GPU without a reading is silent, never zero.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from watchkeeper.hub.fleet_gpus import LOST_FAMILY, FleetGpuStates
from watchkeeper.hub.fleet_layout import FleetLayout
from watchkeeper.kit import wire
from watchkeeper.model import clock_reasons, fleet, incidents
from watchkeeper.model.gpu_states import GpuState
from watchkeeper.model.node_list import NodeService, ServiceState
from watchkeeper.query import engine


class GpuMapState(IntEnum):
    """The state that the fleet map draws as a symbol; the console uses the same numbers."""

    OK = 0
    DOWN = 1
    EVENT = 2
    THROTTLED = 3
    SILENT = 4
    HELD_IDLE = 5
    UNKNOWN = 6
    # A GPU without a problem on a node that is out of service.
    CORDONED = 7


@dataclass(frozen=True, slots=True)
class MapColour:
    """A metric that can colour the fleet map; `low` and `high` are the ends of its scale, None: from the readings."""

    title: str
    unit: str
    low: float | None
    high: float | None
    expr: str
    metric: str = ""


def _ratio_colour(title: str, metric: str) -> MapColour:
    return MapColour(title, "%", 0, 100, f"100 * {metric}", metric)


def _colour(title: str, unit: str, metric: str, *, low: float | None = 0, high: float | None = None) -> MapColour:
    return MapColour(title, unit, low, high, metric, metric)


def _traffic_colour(title: str, sent: str, received: str) -> MapColour:
    return MapColour(title, "B/s", 0, None, f"{sent} + {received}", sent)


MEMORY_USED_EXPR = "100 * DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)"
COLOURS: Mapping[str, MapColour] = {
    "sm_active": _ratio_colour("SM active", "DCGM_FI_PROF_SM_ACTIVE"),
    "gpu_util": _colour("GPU_UTIL", "%", "DCGM_FI_DEV_GPU_UTIL", high=100),
    "tensor": _ratio_colour("Tensor active", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"),
    "dram": _ratio_colour("Memory bandwidth", "DCGM_FI_PROF_DRAM_ACTIVE"),
    "power": _colour("Power", "W", "DCGM_FI_DEV_POWER_USAGE", high=700),
    "temperature": _colour("Temperature", "°C", "DCGM_FI_DEV_GPU_TEMP", low=30, high=90),
    "hbm_temperature": _colour("Memory temperature", "°C", "DCGM_FI_DEV_MEMORY_TEMP", low=30, high=95),
    "memory": MapColour("Memory used", "%", 0, 100, MEMORY_USED_EXPR, "DCGM_FI_DEV_FB_USED"),
    "clock": _colour("SM clock", "MHz", "DCGM_FI_DEV_SM_CLOCK", low=None),
    "nvlink": _traffic_colour("NVLink, both ways", "DCGM_FI_PROF_NVLINK_TX_BYTES", "DCGM_FI_PROF_NVLINK_RX_BYTES"),
    "pcie": _traffic_colour("PCIe, both ways", "DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_PROF_PCIE_RX_BYTES"),
    "pcie_replays": _colour("PCIe replays", "", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"),
    "ecc_corrected": _colour("Corrected memory errors", "", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"),
}
# Any other metric name is allowed too, with a scale from its readings: `node_load1`, but no expression.
METRIC_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_:]{2,119}", re.ASCII)
DEFAULT_COLOUR = "sm_active"
# An allocated GPU with SM active below 5% over five minutes is idle: only housekeeping runs there.
IDLE_BELOW = 0.05
WORK_EXPR = "avg_over_time(DCGM_FI_PROF_SM_ACTIVE[5m]) or on (UUID) avg_over_time(DCGM_FI_DEV_GPU_UTIL[5m]) / 100"
# What each GPU does now. The chart of the fleet page draws the mean of it, and the tile beside shows the newest value.
ACTIVITY_EXPR = (
    "avg by (cluster, Hostname, UUID) (DCGM_FI_PROF_SM_ACTIVE)"
    " or avg by (cluster, Hostname, UUID) (DCGM_FI_DEV_GPU_UTIL) / 100"
)
THROTTLE_EXPR = "DCGM_FI_DEV_CLOCKS_EVENT_REASONS or DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"
# Deliberately without the power cap, which is normal under load.
THROTTLE_BITS = clock_reasons.HW_SLOWDOWN | clock_reasons.THERMAL | clock_reasons.POWER_BRAKE
HEAT_FAMILIES = frozenset({"cooling", "power"})
IDLE_CAUSE = "gpu_idle_waste"
NO_SERVICES: Mapping[fleet.Place, NodeService] = {}
Values = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class FrameReadings:
    """Query results for one frame; None if a query failed."""

    colour: engine.QueryResult | None = None
    work: engine.QueryResult | None = None
    activity: engine.QueryResult | None = None
    gpu_util: engine.QueryResult | None = None
    power: engine.QueryResult | None = None
    throttle: engine.QueryResult | None = None


@dataclass(frozen=True, slots=True)
class FrameContent:
    """A frame before it is packed."""

    values: Values
    states: npt.NDArray[np.uint8]
    summary: Mapping[str, Any] = field(default_factory=dict)
    # Why nodes are out of service, by their index in the layout: `cordoned · repair INC-1`.
    out_of_service: Mapping[str, str] = field(default_factory=dict)


def find_colour(name: str) -> MapColour | None:
    """The colour with this name, or a colour for any metric with this name; None if it is not a metric name."""
    if name in COLOURS:
        return COLOURS[name]
    return MapColour(name, "", None, None, name, name) if METRIC_NAME.fullmatch(name) else None


def colour_scale(colour: MapColour, values: Values) -> tuple[float, float]:
    """The ends of the scale: those of the colour, or the range of the values, rounded outwards to two digits."""
    present = values[np.isfinite(values)]
    low = colour.low if colour.low is not None else _rounded(float(present.min()), up=False) if len(present) else 0.0
    high = colour.high if colour.high is not None else _rounded(float(present.max()), up=True) if len(present) else 1.0
    return low, high if high > low else low + 1


def _rounded(number: float, *, up: bool) -> float:
    if number == 0:
        return 0.0
    step = 10.0 ** (math.floor(math.log10(abs(number))) - 1)
    return (math.ceil if up else math.floor)(number / step) * step


def draw_frame(
    gpus: FleetGpuStates,
    readings: FrameReadings,
    open_incidents: Sequence[incidents.Incident],
    services: Mapping[fleet.Place, NodeService] = NO_SERVICES,
) -> FrameContent:
    """Decide the value and state of each slot, and the figures of the summary tiles."""
    layout, counts = gpus.layout, gpus.count()
    values, work = values_by_slot(layout, readings.colour), values_by_slot(layout, readings.work)
    power, gpu_util = values_by_slot(layout, readings.power), values_by_slot(layout, readings.gpu_util)
    silent = np.fromiter(map(gpus.is_missing, range(len(layout.slots))), dtype=np.bool_, count=len(layout.slots))
    # An average continues for minutes after the last reading.
    work[silent] = np.nan
    states = np.where(silent, GpuMapState.SILENT, GpuMapState.OK).astype(np.uint8)
    if readings.work is None and readings.power is None:
        states[:] = GpuMapState.UNKNOWN
    owners = owners_by_slot(gpus)
    is_held = np.zeros(len(states), dtype=np.bool_)
    is_held[list(owners)] = True
    states[is_held & (work < IDLE_BELOW) & (states == GpuMapState.OK)] = GpuMapState.HELD_IDLE
    reasons = np.nan_to_num(values_by_slot(layout, readings.throttle)).astype(np.int64)
    states[(reasons & THROTTLE_BITS != 0) & (states != GpuMapState.SILENT)] = GpuMapState.THROTTLED
    mark_open_incidents(layout, states, open_incidents)
    out_of_service = mark_out_of_service(layout, states, services)
    idle_slots = np.flatnonzero(states == GpuMapState.HELD_IDLE).tolist()
    share, has_holders = counts.allocated_share, gpus.gpu_holders.problem is None
    summary = {
        "gpus": counts.gpus,
        "gpu_states": wire.to_plain(counts),
        "working_percent": percent(values_by_slot(layout, readings.activity)),
        "gpu_util_percent": mean(gpu_util),
        "allocated_percent": None if share is None else 100 * share,
        "held": counts.allocated if has_holders else None,
        "teams": len({owner for owner in owners.values() if owner}),
        "idle_teams": len({owners[slot] for slot in idle_slots if owners.get(slot)}),
        "free": counts.free if has_holders else None,
        "power_watts": None if np.isnan(power).all() else float(np.nansum(power)),
        "nodes": len(layout.nodes),
        "nodes_reporting": sum(bool(gpus.count_node(key).reporting) for key in layout.slots_by_node),
        **{state.name.lower(): int((states == state).sum()) for state in GpuMapState},
    }
    return FrameContent(values, states, summary, out_of_service)


def owners_by_slot(gpus: FleetGpuStates) -> dict[int, str]:
    """The team or namespace of each allocated GPU, empty if it is unknown."""
    owners = {}
    for slot, state in enumerate(gpus.states):
        gpu = gpus.layout.slots[slot].gpu
        if state is GpuState.ALLOCATED:
            held = () if gpu is None else gpus.gpu_holders.by_gpu.get(gpu.uuid, ())
            owners[slot] = (held[0].team or held[0].namespace) if held else ""
    return owners


def values_by_slot(layout: FleetLayout, answer: engine.QueryResult | None) -> Values:
    """The values of an instant query in the order of the slots; NaN without a value."""
    values = np.full(len(layout.slots), np.nan, dtype=np.float32)
    if answer is not None and len(answer.frame.times_ms):
        frame = answer.frame
        slots = (layout.slot_by_uuid.get(labels.get("UUID", ""), -1) for labels in frame.labels)
        slot_numbers = np.fromiter(slots, dtype=np.int64, count=len(frame.labels))
        is_usable = (slot_numbers >= 0) & frame.present[:, -1]
        # MIG instances share the UUID of their GPU: the busiest one sets the value. fmax prefers a number to NaN.
        np.fmax.at(values, slot_numbers[is_usable], frame.values[is_usable, -1].astype(np.float32))
    return values


def values_by_slot_or_node(layout: FleetLayout, answer: engine.QueryResult | None) -> Values:
    """As `values_by_slot`, but a value of a node without a GPU applies to all GPUs of the node."""
    values = values_by_slot(layout, answer)
    if answer is not None and len(answer.frame.times_ms):
        for row, labels in enumerate(answer.frame.labels):
            name = labels.get("Hostname") or labels.get("node") or labels.get("instance", "").partition(":")[0]
            if not labels.get("UUID") and name and answer.frame.present[row, -1]:
                slots = list(layout.slots_of(labels.get("cluster", ""), name))
                values[slots] = np.fmax(values[slots], np.float32(answer.frame.values[row, -1]))
    return values


def mark_open_incidents(
    layout: FleetLayout, states: npt.NDArray[np.uint8], open_incidents: Iterable[incidents.Incident]
) -> None:
    """Set the states of slots with open incidents; the most severe incident of a GPU is applied last.

    The fault of a recovering incident has ended: its GPUs show their readings.
    """
    faulty = (incident for incident in open_incidents if incident.recovering_since is None)
    for incident in sorted(faulty, key=lambda incident: incident_state(incident) == GpuMapState.DOWN):
        state = incident_state(incident)
        for slot in _incident_slots(layout, incident):
            # Only a lost GPU is more than silent: what does not report is not throttled, idle or active.
            if state is not None and (state == GpuMapState.DOWN or states[slot] != GpuMapState.SILENT):
                states[slot] = state


def mark_out_of_service(
    layout: FleetLayout, states: npt.NDArray[np.uint8], services: Mapping[fleet.Place, NodeService]
) -> Mapping[str, str]:
    """Set the states of GPUs without a problem whose nodes start no workloads; return the reasons by node."""
    reasons = {}
    for index, node in enumerate(layout.nodes):
        service = services.get(node.place)
        if service is None or not service.text:
            continue
        reasons[str(index)] = service.text
        if service.state not in (ServiceState.IN_SERVICE, ServiceState.UNKNOWN):
            slots = list(layout.slots_by_node[node.cluster, node.name])
            states[slots] = np.where(states[slots] == GpuMapState.OK, GpuMapState.CORDONED, states[slots])
    return reasons


def incident_state(incident: incidents.Incident) -> GpuMapState | None:
    """The state that an incident shows on the map, or None to keep the state from the readings."""
    if incident.cause == IDLE_CAUSE:
        return GpuMapState.HELD_IDLE
    if incident.family == LOST_FAMILY:
        return GpuMapState.DOWN
    if incident.family in HEAT_FAMILIES:
        return GpuMapState.THROTTLED
    has_event = any(member.kind is incidents.MemberKind.EVENT for member in incident.members)
    return GpuMapState.EVENT if has_event else None


def _incident_slots(layout: FleetLayout, incident: incidents.Incident) -> Iterable[int]:
    if incident.place.gpu is not None:
        # Idle GPUs of one job are one incident, and some of them may be active again.
        is_idle = incident.cause == IDLE_CAUSE
        idle = {member.place.gpu for member in incident.members if is_idle and member.until is None}
        return [layout.slot_by_uuid[gpu] for gpu in idle or (incident.place.gpu,) if gpu in layout.slot_by_uuid]
    # A lost GPU without a UUID is one of the silent slots of its node, which are shown already.
    if incident.place.node is None or incident.family == LOST_FAMILY:
        return ()
    return layout.slots_of(incident.place.cluster, incident.place.node)


def mean(values: Values) -> float | None:
    present = values[~np.isnan(values)]
    return float(present.mean()) if len(present) else None


def percent(ratios: Values) -> float | None:
    average = mean(ratios)
    return None if average is None else 100 * average


def pack_frame(content: FrameContent, header: Mapping[str, object]) -> bytes:
    """Pack a binary frame: header length, JSON header, padding to 4 bytes, Float32 values, Uint8 states."""
    summary = {
        name: None if isinstance(number, float) and math.isnan(number) else number
        for name, number in content.summary.items()
    }
    counts = {"count": len(content.values), "summary": summary, "out_of_service": content.out_of_service}
    text = orjson.dumps({**header, **counts})
    text += b" " * (-len(text) % 4)
    value_bytes = content.values.astype("<f4").tobytes()
    return struct.pack("<I", len(text)) + text + value_bytes + content.states.tobytes()
