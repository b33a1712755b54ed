"""Frames of the fleet map: order, values, and states from worst to best."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tests.web import stories
from tests.web.canned_engine import answer
from tests.web.small_fleet import FleetGpu
from tests.web.small_hub import SmallHub
from watchkeeper.hub import fleet_gpus, fleet_layout, holders
from watchkeeper.model import fleet
from watchkeeper.model.labels import Labels
from watchkeeper.model.node_list import NodeService, ServiceState
from watchkeeper.web.fleet import frames
from watchkeeper.web.fleet.frames import FrameReadings, GpuMapState


def reading(hub: SmallHub, value: float, *, held: bool = False, but: str = "") -> object:
    owner = {"namespace": "ml", "pod": "train"} if held else {}
    labels = [
        Labels({"UUID": fleet_gpu.gpu.uuid} | owner) for fleet_gpu in hub.fleet.fleet_gpus if fleet_gpu.gpu.uuid != but
    ]
    return answer(labels, [0], np.full((len(labels), 1), value))


def draw(
    hub: SmallHub, services: Mapping[fleet.Place, NodeService] = frames.NO_SERVICES, **readings: object
) -> frames.FrameContent:
    steady: dict[str, Any] = {"work": reading(hub, 0.7), "power": reading(hub, 500.0)} | readings
    current = [steady[name] for name in ("power", "gpu_util") if steady.get(name) is not None]
    labels = [labels for answer in current for labels in answer.frame.labels]
    held = [holder for one in labels if (holder := holders.holder_from_labels(one)) is not None]
    sources = fleet_gpus.FleetGpuSources(
        fleet_layout.current_layout(hub.fleet),
        frozenset(one["UUID"] for one in labels),
        holders.GpuHolders({holder.uuid: (holder,) for holder in held}),
        open_incidents=hub.journal.incidents(),
        services=services,
    )
    states = fleet_gpus.decide_states(sources)
    return frames.draw_frame(states, FrameReadings(**steady), hub.journal.incidents(), services)


def test_racks_and_nodes_are_sorted_naturally() -> None:
    hub = SmallHub(racks=0)
    hub.fleet._nodes = [fleet.Node("main", f"n{n}", domains={"rack": f"r{n}"}) for n in (10, 2, 1)]
    assert [node.name for node in fleet_layout.current_layout(hub.fleet).nodes] == ["n1", "n2", "n10"]


def test_an_expected_gpu_that_never_reported_is_drawn_silent() -> None:
    hub = SmallHub(racks=1, per_rack=1)
    del hub.fleet.fleet_gpus[5]
    stock = fleet_layout.current_layout(hub.fleet)
    assert [slot.gpu is None for slot in stock.slots] == [False] * 7 + [True]
    picture = draw(hub, colour=reading(hub, 70.0))
    assert picture.states.tolist() == [GpuMapState.OK] * 7 + [GpuMapState.SILENT]
    assert np.isnan(picture.values[7])


def test_nodes_with_one_name_in_two_clusters_are_separate() -> None:
    hub = SmallHub(racks=1, per_rack=1)
    name = hub.fleet._nodes[0].name
    hub.fleet._nodes.append(fleet.Node("west", name, expected_gpus=2))
    stock = fleet_layout.current_layout(hub.fleet)
    assert [len(node["gpus"]) for node in stock.to_plain()] == [8, 2]
    assert (stock.slots_of("main", name), stock.slots_of("west", name)) == (tuple(range(8)), (8, 9))
    assert stock.slots_of("default", name) == (), "the name is ambiguous without a cluster"


def test_a_replaced_gpu_leaves_its_slot_to_its_replacement() -> None:
    hub = SmallHub(racks=1, per_rack=1)
    old = hub.fleet.fleet_gpus[0]
    hub.fleet.fleet_gpus[0] = replace(old, gone_since_ms=1000)
    assert old.gpu.uuid in fleet_layout.current_layout(hub.fleet).slot_by_uuid
    hub.fleet.fleet_gpus.append(FleetGpu(old.node, fleet.Gpu("GPU-new", 0)))
    stock = fleet_layout.current_layout(hub.fleet)
    assert (old.gpu.uuid in stock.slot_by_uuid, "GPU-new" in stock.slot_by_uuid, len(stock.slots)) == (False, True, 8)


def test_zero_is_a_reading_and_missing_is_not() -> None:
    hub = SmallHub(racks=1, per_rack=1)
    gone = hub.fleet.fleet_gpus[2].gpu.uuid
    picture = draw(
        hub, colour=reading(hub, 0.0, but=gone), work=reading(hub, 0.0, but=gone), power=reading(hub, 70.0, but=gone)
    )
    assert picture.values[1] == 0.0
    assert np.isnan(picture.values[2])
    assert picture.states[1:3].tolist() == [GpuMapState.OK, GpuMapState.SILENT]
    assert picture.summary["silent"] == 1


def test_an_allocated_gpu_without_activity_is_held_idle() -> None:
    hub = SmallHub(racks=1, per_rack=1)
    assert set(draw(hub, work=reading(hub, 0.01), gpu_util=reading(hub, 0, held=True)).states) == {
        GpuMapState.HELD_IDLE
    }
    assert set(draw(hub, work=reading(hub, 0.01)).states) == {GpuMapState.OK}
    assert set(draw(hub, work=reading(hub, 0.9), gpu_util=reading(hub, 90, held=True)).states) == {GpuMapState.OK}


def test_the_allocated_share_is_of_the_gpus_that_report() -> None:
    hub = SmallHub(racks=1, per_rack=1)
    uuids = [fleet_gpu.gpu.uuid for fleet_gpu in hub.fleet.fleet_gpus]
    power = reading(hub, 70.0, but=uuids[2])
    all_held = draw(hub, power=power, gpu_util=reading(hub, 90.0, held=True, but=uuids[2]))
    assert (all_held.summary["allocated_percent"], all_held.summary["held"], all_held.summary["free"]) == (100.0, 7, 0)
    assert draw(hub, power=power).summary["allocated_percent"] == 0.0


def test_only_thermal_and_power_brake_reasons_count_as_throttled() -> None:
    hub = SmallHub(racks=1, per_rack=1)
    assert set(draw(hub, throttle=reading(hub, 0x4)).states) == {GpuMapState.OK}
    assert set(draw(hub, throttle=reading(hub, 0x40)).states) == {GpuMapState.THROTTLED}


def test_an_open_incident_is_drawn_over_the_readings() -> None:
    hub = SmallHub()
    lost, hot = stories.lose_gpu(hub), stories.heat_up(hub)
    picture, stock = draw(hub), fleet_layout.current_layout(hub.fleet)
    assert picture.states[stock.slot_by_uuid[lost.place.gpu or ""]] == GpuMapState.DOWN
    assert set(picture.states[list(stock.slots_of(hot.place.cluster, hot.place.node or ""))]) == {GpuMapState.THROTTLED}
    assert (picture.summary["down"], picture.summary["throttled"]) == (1, 8)


def test_without_query_results_everything_is_unknown() -> None:
    hub = SmallHub(racks=1, per_rack=1)
    picture = draw(hub, work=None, power=None)
    assert set(picture.states) == {GpuMapState.UNKNOWN}
    assert picture.summary["working_percent"] is None
    assert picture.summary["power_watts"] is None


def test_a_packed_frame_has_header_values_and_states() -> None:
    picture = frames.FrameContent(
        np.array([1.5, np.nan], dtype=np.float32), np.array([0, 4], dtype=np.uint8), {"gpus": 2}
    )
    packed = frames.pack_frame(picture, {"kind": "frame", "odd": "x"})
    (length,) = struct.unpack_from("<I", packed)
    assert length % 4 == 0
    assert json.loads(packed[4 : 4 + length])["count"] == 2
    values = np.frombuffer(packed, "<f4", 2, 4 + length)
    assert values[0] == 1.5
    assert np.isnan(values[1])
    assert packed[-2:] == b"\x00\x04"


def test_an_average_without_current_readings_does_not_make_a_gpu_healthy() -> None:
    hub = SmallHub(racks=1, per_rack=1)
    gone = hub.fleet.fleet_gpus[2].gpu.uuid
    picture = draw(hub, power=reading(hub, 500.0, but=gone), gpu_util=reading(hub, 90.0, but=gone))
    assert (picture.states[2], picture.summary["ok"], picture.summary["silent"]) == (GpuMapState.SILENT, 7, 1)


def test_a_node_out_of_service_is_marked_and_none_of_its_gpus_is_free() -> None:
    hub = SmallHub(racks=1, per_rack=2)
    stories.lose_gpu(hub, node="gpu-r01-02", index=3)
    place = next(node.place for node in hub.fleet.nodes() if node.name == "gpu-r01-02")
    service = NodeService(ServiceState.CORDONED, "cordoned · repair INC-1", "INC-1")
    picture = draw(hub, {place: service}, gpu_util=reading(hub, 70.0))
    other = [GpuMapState.OK] * 8
    assert (
        picture.states.tolist() == other + [GpuMapState.CORDONED] * 3 + [GpuMapState.DOWN] + [GpuMapState.CORDONED] * 4
    )
    assert (picture.summary["free"], picture.summary["cordoned"], picture.summary["down"]) == (8, 7, 1)
    packed = frames.pack_frame(picture, {"kind": "frame"})
    (size,) = struct.unpack_from("<I", packed)
    assert json.loads(packed[4 : 4 + size])["out_of_service"] == {"1": "cordoned · repair INC-1"}


def test_a_gpu_of_a_recovering_incident_shows_its_readings() -> None:
    hub = SmallHub(racks=1, per_rack=1)
    stories.lose_gpu(hub, node="gpu-r01-01", index=3)
    (incident,) = hub.journal.incidents()
    assert draw(hub).states.tolist().count(GpuMapState.DOWN) == 1
    hub.journal.kept[incident.id] = replace(incident, recovering_since=incident.opened_at)
    assert draw(hub).states.tolist() == [GpuMapState.OK] * 8
