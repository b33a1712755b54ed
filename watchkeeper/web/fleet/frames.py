"""One picture of the fleet: a number and a state per GPU, and the figures of the tiles.

`live` asks for the readings once per tick and packs them for all viewers. Colour carries the number;
the state is what must be seen first, so it is decided here, from worst to best, in one function. A
GPU without a reading is silent, never zero.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import orjson

from watchkeeper.kit import recency_cache
from watchkeeper.model import clock_reasons, fleet, incidents
from watchkeeper.model.labels import Labels
from watchkeeper.query import engine
from watchkeeper.web.fleet.fleet_layout import FleetLayout


class GpuMapState(IntEnum):
    """What the heat map draws as a glyph; the console has the same numbers."""

    OK = 0
    DOWN = 1
    EVENT = 2
    THROTTLED = 3
    SILENT = 4
    HELD_IDLE = 5
    UNKNOWN = 6


@dataclass(frozen=True, slots=True)
class MapColour:
    """A metric that can colour the heat map; `low` and `high` are the ends of its scale, None where readings say."""

    title: str
    unit: str
    low: float | None
    high: float | None
    expr: str
    metric: str = ""


def _share(title: str, metric: str) -> MapColour:
    return MapColour(title, "%", 0, 100, f"100 * {metric}", metric)


def _plain(title: str, unit: str, metric: str, *, low: float | None = 0, high: float | None = None) -> MapColour:
    return MapColour(title, unit, low, high, metric, metric)


COLOURS: Mapping[str, MapColour] = {
    "sm_active": _share("SM active", "DCGM_FI_PROF_SM_ACTIVE"),
    "gpu_util": _plain("GPU_UTIL", "%", "DCGM_FI_DEV_GPU_UTIL", high=100),
    "tensor": _share("Tensor active", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"),
    "dram": _share("Memory bandwidth", "DCGM_FI_PROF_DRAM_ACTIVE"),
    "power": _plain("Power", "W", "DCGM_FI_DEV_POWER_USAGE", high=700),
    "temperature": _plain("Temperature", "°C", "DCGM_FI_DEV_GPU_TEMP", low=30, high=90),
    "hbm_temperature": _plain("Memory temperature", "°C", "DCGM_FI_DEV_MEMORY_TEMP", low=30, high=95),
    "memory": MapColour(
        "Memory used",
        "%",
        0,
        100,
        "100 * DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)",
        "DCGM_FI_DEV_FB_USED",
    ),
    "clock": _plain("SM clock", "MHz", "DCGM_FI_DEV_SM_CLOCK", low=None),
    "nvlink": MapColour(
        "NVLink, both ways",
        "B/s",
        0,
        None,
        "DCGM_FI_PROF_NVLINK_TX_BYTES + DCGM_FI_PROF_NVLINK_RX_BYTES",
        "DCGM_FI_PROF_NVLINK_TX_BYTES",
    ),
    "pcie": MapColour(
        "PCIe, both ways",
        "B/s",
        0,
        None,
        "DCGM_FI_PROF_PCIE_TX_BYTES + DCGM_FI_PROF_PCIE_RX_BYTES",
        "DCGM_FI_PROF_PCIE_TX_BYTES",
    ),
    "pcie_replays": _plain("PCIe replays", "", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"),
    "ecc_corrected": _plain("Corrected memory errors", "", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"),
}
# Any other metric by its name, with the scale its readings have: `node_load1` is one, an expression is none.
METRIC_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_:]{2,119}", re.ASCII)
DEFAULT_COLOUR = "sm_active"
# SM active of a held GPU over five minutes below 5 %: nothing but housekeeping runs there.
IDLE_BELOW = 0.05
WORK_EXPR = "avg_over_time(DCGM_FI_PROF_SM_ACTIVE[5m]) or on (UUID) avg_over_time(DCGM_FI_DEV_GPU_UTIL[5m]) / 100"
THROTTLE_EXPR = "DCGM_FI_DEV_CLOCKS_EVENT_REASONS or DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"
# The power cap is normal load.
THROTTLE_BITS = clock_reasons.HW_SLOWDOWN | clock_reasons.THERMAL | clock_reasons.POWER_BRAKE
LOST_FAMILY = "gpu_lost"
HEAT_FAMILIES = frozenset({"cooling", "power"})
IDLE_CAUSE = "gpu_idle_waste"
Values = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class FrameReadings:
    """Answers of the engine for one tick; None where it could not answer."""

    colour: engine.QueryResult | None = None
    work: engine.QueryResult | None = None
    gpu_util: engine.QueryResult | None = None
    power: engine.QueryResult | None = None
    throttle: engine.QueryResult | None = None
    # Of GPUs that are divided, whose labels say who holds a slice.
    slices: engine.QueryResult | None = None
    # Holders that agents tell in a series of their own, where an exporter's labels do not.
    holders: Sequence[Labels] = ()


@dataclass(frozen=True, slots=True)
class FramePicture:
    """A frame before it is packed."""

    values: Values
    states: npt.NDArray[np.uint8]
    summary: Mapping[str, float | int | None] = field(default_factory=dict)


def find_colour(name: str) -> MapColour | None:
    """The colour that a viewer asked for: one of ours, or any metric by its name; None for what is no name."""
    if name in COLOURS:
        return COLOURS[name]
    return MapColour(name, "", None, None, name, name) if METRIC_NAME.fullmatch(name) else None


def colour_scale(colour: MapColour, values: Values) -> tuple[float, float]:
    """The ends of the scale: the colour's own, or what the readings reach, rounded outwards to two digits."""
    present = values[np.isfinite(values)]
    low = colour.low if colour.low is not None else _rounded(float(present.min()), up=False) if len(present) else 0.0
    high = colour.high if colour.high is not None else _rounded(float(present.max()), up=True) if len(present) else 1.0
    return low, high if high > low else low + 1


def _rounded(number: float, *, up: bool) -> float:
    if number == 0:
        return 0.0
    step = 10.0 ** (math.floor(math.log10(abs(number))) - 1)
    return (math.ceil if up else math.floor)(number / step) * step


def draw_picture(
    stock: FleetLayout, readings: FrameReadings, open_incidents: Sequence[incidents.Incident]
) -> FramePicture:
    """Decide the number and the state of every slot, and the figures of the tiles."""
    identity.start_generation()
    values = values_by_slot(stock, readings.colour)
    work = values_by_slot(stock, readings.work)
    power, gpu_util = values_by_slot(stock, readings.power), values_by_slot(stock, readings.gpu_util)
    # Who holds a GPU now; an average still has the labels of a job that has left.
    named = [*_labels(readings.gpu_util), *_labels(readings.slices)]
    held = holders_by_slot(stock, [*named, *readings.holders])
    silent = np.isnan(power) & np.isnan(gpu_util)
    # An average goes on for minutes after the last reading; it counts only where nobody gives a reading of now.
    silent = np.isnan(work) if silent.all() else silent
    work[silent] = np.nan
    states = np.where(silent, GpuMapState.SILENT, GpuMapState.OK).astype(np.uint8)
    if readings.work is None and readings.power is None:
        states[:] = GpuMapState.UNKNOWN
    is_held = np.zeros(len(states), dtype=np.float32)
    is_held[list(held)] = 1
    states[(is_held > 0) & (work < IDLE_BELOW) & (states == GpuMapState.OK)] = GpuMapState.HELD_IDLE
    reasons = np.nan_to_num(values_by_slot(stock, readings.throttle)).astype(np.int64)
    states[(reasons & THROTTLE_BITS != 0) & (states != GpuMapState.SILENT)] = GpuMapState.THROTTLED
    mark_open_incidents(stock, states, open_incidents)
    summary = {
        "gpus": len(states),
        "working_percent": percent(work),
        "gpu_util_percent": mean(gpu_util),
        # Of the GPUs that report, as in the chart: who holds a silent one is not known.
        "allocated_percent": None if readings.gpu_util is None else percent(is_held[~silent]),
        "held": None if readings.gpu_util is None else len(held),
        "teams": len({owner.split("/")[0] for owner in held.values() if "/" in owner}),
        "idle_teams": len(
            {held[at].split("/")[0] for at in np.flatnonzero(states == GpuMapState.HELD_IDLE).tolist() if at in held}
        ),
        "free": None if readings.gpu_util is None else count_free(states, held),
        "power_watts": None if np.isnan(power).all() else float(np.nansum(power)),
        "nodes": len(stock.nodes),
        "nodes_reporting": count_reporting_nodes(stock, work, power),
        **{state.name.lower(): int((states == state).sum()) for state in GpuMapState},
    }
    return FramePicture(values, states, summary)


def count_free(states: npt.NDArray[np.uint8], held: Mapping[int, str]) -> int:
    """How many healthy GPUs nobody holds."""
    able = states == GpuMapState.OK
    able[list(held)] = False
    return int(able.sum())


def values_by_slot(stock: FleetLayout, answer: engine.QueryResult | None) -> Values:
    """An instant answer's values in inventory order; NaN where there is none."""
    values = np.full(len(stock.slots), np.nan, dtype=np.float32)
    if answer is not None and len(answer.frame.times_ms):
        frame = answer.frame
        wanted = (stock.position.get(identity(labels)[0], -1) for labels in frame.labels)
        at = np.fromiter(wanted, dtype=np.int64, count=len(frame.labels))
        kept = (at >= 0) & frame.present[:, -1]
        # Slices of one GPU share its UUID: the busiest one colours the cell. fmax takes a number before NaN.
        np.fmax.at(values, at[kept], frame.values[kept, -1].astype(np.float32))
    return values


def values_by_slot_or_node(stock: FleetLayout, answer: engine.QueryResult | None) -> Values:
    """As `place`, and a reading that belongs to a node and to no GPU colours all GPUs of the node."""
    values = values_by_slot(stock, answer)
    if answer is not None and len(answer.frame.times_ms):
        for at, labels in enumerate(answer.frame.labels):
            name = labels.get("Hostname") or labels.get("node") or labels.get("instance", "").partition(":")[0]
            if not labels.get("UUID") and name and answer.frame.present[at, -1]:
                slots = list(stock.slots_of(labels.get("cluster", ""), name))
                values[slots] = np.fmax(values[slots], np.float32(answer.frame.values[at, -1]))
    return values


def _labels(answer: engine.QueryResult | None) -> Sequence[Labels]:
    return () if answer is None else answer.frame.labels


def holders_by_slot(stock: FleetLayout, told: Iterable[Labels]) -> dict[int, str]:
    """Which slots are held by a workload, and by which: by the labels of samples, and as agents have told."""
    held = {}
    for labels in told:
        uuid, holder = identity(labels)
        if holder is not None and uuid in stock.position:
            held[stock.position[uuid]] = holder
    return held


def _identity(labels: Labels) -> tuple[str, str | None]:
    """The GPU a series belongs to, and the workload that holds it."""
    return labels.get("UUID", ""), fleet.holder_from_labels(labels)


# A label set stays the same object from tick to tick, and 10,000 of them are looked at for every picture.
identity = recency_cache.RecencyCache(_identity)


def mark_open_incidents(
    stock: FleetLayout, states: npt.NDArray[np.uint8], open_incidents: Iterable[incidents.Incident]
) -> None:
    """Draw open incidents over the readings; the gravest one of a GPU is applied last."""
    for incident in sorted(open_incidents, key=lambda incident: incident_state(incident) == GpuMapState.DOWN):
        state = incident_state(incident)
        for at in _slots(stock, incident):
            if state is not None and not (state == GpuMapState.THROTTLED and states[at] == GpuMapState.SILENT):
                states[at] = state


def incident_state(incident: incidents.Incident) -> GpuMapState | None:
    """How an incident looks on the map; None leaves the readings to speak."""
    if incident.cause == IDLE_CAUSE:
        return GpuMapState.HELD_IDLE
    if incident.family == LOST_FAMILY:
        return GpuMapState.DOWN
    if incident.family in HEAT_FAMILIES:
        return GpuMapState.THROTTLED
    has_event = any(member.kind is incidents.MemberKind.EVENT for member in incident.members)
    return GpuMapState.EVENT if has_event else None


def _slots(stock: FleetLayout, incident: incidents.Incident) -> Iterable[int]:
    if incident.place.gpu is not None:
        # GPUs of one job that do nothing are one incident, and some of them may be at work again.
        idle = {one.place.gpu for one in incident.members if one.until is None} if incident.cause == IDLE_CAUSE else ()
        return [stock.position[gpu] for gpu in idle or (incident.place.gpu,) if gpu in stock.position]
    # A lost GPU that nobody can name is one of its node's: only the slots that are silent already.
    if incident.place.node is None or incident.family == LOST_FAMILY:
        return ()
    return stock.slots_of(incident.place.cluster, incident.place.node)


def count_reporting_nodes(stock: FleetLayout, *readings: Values) -> int:
    """How many nodes have at least one GPU with a reading."""
    seen = np.zeros(len(stock.slots), dtype=np.bool_)
    for values in readings:
        seen |= ~np.isnan(values)
    return sum(bool(seen[list(places)].any()) for places in stock.by_node.values() if places)


def mean(values: Values) -> float | None:
    present = values[~np.isnan(values)]
    return float(present.mean()) if len(present) else None


def percent(ratios: Values) -> float | None:
    average = mean(ratios)
    return None if average is None else 100 * average


def pack_frame(picture: FramePicture, header: Mapping[str, object]) -> bytes:
    """A binary frame: length of the JSON header, header, padding to 4 bytes, Float32 values, Uint8 states."""
    summary = {
        name: None if isinstance(number, float) and math.isnan(number) else number
        for name, number in picture.summary.items()
    }
    text = orjson.dumps({**header, "count": len(picture.values), "summary": summary})
    text += b" " * (-len(text) % 4)
    little = picture.values.astype("<f4").tobytes()
    return struct.pack("<I", len(text)) + text + little + picture.states.tobytes()
