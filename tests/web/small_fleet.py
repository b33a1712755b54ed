"""A small fleet of racks, nodes and GPUs that a test can change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from watchkeeper.model import fleet
from watchkeeper.model.labels import Labels


@dataclass(frozen=True, slots=True)
class FleetGpu:
    node: str
    gpu: fleet.Gpu
    gone_since_ms: int | None = None
    cluster: str = "main"
    last_seen_ms: int = 0


class SmallFleet:
    def __init__(self, racks: int, per_rack: int) -> None:
        self._nodes = [
            fleet.Node("main", f"gpu-r{rack:02}-{row:02}", "h200", expected_gpus=8, domains={"rack": f"r{rack:02}"})
            for rack in range(1, racks + 1)
            for row in range(1, per_rack + 1)
        ]
        self.fleet_gpus = [
            FleetGpu(node.name, fleet.Gpu(f"GPU-{node.name[4:]}-{index}", index, f"0000:{index:02x}:00", "NVIDIA H200"))
            for node in self._nodes
            for index in range(8)
        ]

    @property
    def revision(self) -> int:
        return hash((tuple((node.cluster, node.name) for node in self._nodes), tuple(self.fleet_gpus)))

    def nodes(self) -> list[fleet.Node]:
        return list(self._nodes)

    def gpus(self) -> Sequence[FleetGpu]:
        return self.fleet_gpus

    def gone_nodes(self) -> list[tuple[fleet.Node, int]]:
        return []

    def workload_labels(self) -> list[Labels]:
        return []

    def gpu_ids_at(self, place: fleet.Place) -> list[str]:
        return [
            gpu.gpu.uuid
            for gpu in self.fleet_gpus
            if place.gpu == gpu.gpu.uuid or (place.node == gpu.node and not place.gpu)
        ]

    def place_name(self, place: fleet.Place) -> str:
        index = next((fleet_gpu.gpu.index for fleet_gpu in self.fleet_gpus if fleet_gpu.gpu.uuid == place.gpu), None)
        return place.node or place.cluster if index is None else f"GPU {index} on {place.node}"
