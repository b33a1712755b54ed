"""The fleet that does not exist: which nodes, racks, leaf switches and GPUs there are.

`build` turns a size and a seed into a `Layout` once; everything after it works with the positions in
that layout: GPU `g` is row `g` of every array, node `n` owns a run of such rows. Identities (UUID,
serial number) come from the seed, so the same seed is the same fleet for ever.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from watchkeeper.catalogue import pack
from watchkeeper.errors import SettingsError, WatchkeeperError

GPUS_PER_NODE = 8
NODES_PER_RACK = 8
RACKS_PER_LEAF = 2


class UnknownName(WatchkeeperError):
    """Somebody named a node, GPU, scenario or fault that this simulator does not have."""


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One row of packs/gpu_models.csv; None means that the model has no such part."""

    name: str
    memory_mib: int
    tdp_watts: float
    idle_watts: float
    max_sm_mhz: int
    idle_sm_mhz: int
    memory_mhz: int
    max_operating_celsius: int
    slowdown_celsius: int
    shutdown_celsius: int
    memory_max_celsius: int | None
    nvlink_gb_per_second: float | None
    pcie_gb_per_second: float
    pcie_generation: int


@dataclass(frozen=True, slots=True)
class SimPool:
    """A part of the fleet with one GPU model and one scheduler."""

    name: str
    model: str
    share: float
    scheduler: str
    driver: str
    buses: tuple[str, ...]


# Bus numbers as `nvidia-smi` shows them on common 8-GPU chassis of each model.
POOLS = (
    SimPool(
        "h200", "NVIDIA H200", 0.40, "kubernetes", "580.95.05", ("1b", "2a", "3a", "5d", "9a", "ab", "ba", "db")
    ),
    SimPool(
        "h100", "NVIDIA H100 80GB HBM3", 0.30, "kubernetes", "570.195.03",
        ("1b", "43", "52", "61", "9d", "c3", "d1", "df"),
    ),
    SimPool(
        "a100", "NVIDIA A100-SXM4-80GB", 0.20, "slurm", "570.195.03", ("07", "0f", "47", "4e", "87", "90", "b7", "bd")
    ),
    SimPool("l40s", "NVIDIA L40S", 0.10, "kubernetes", "580.95.05", ("0d", "1c", "3d", "4f", "8a", "9c", "b4", "c6")),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SimGpu:
    """One GPU; `row` is its position in every array."""

    row: int
    index: int
    uuid: str
    serial: str
    bus: str

    @property
    def kernel_pci(self) -> str:
        """As the driver writes it into the kernel log: 0000:5d:00."""
        return f"0000:{self.bus}:00"

    @property
    def exporter_pci(self) -> str:
        """As dcgm-exporter labels it: 00000000:5D:00.0."""
        return f"00000000:{self.bus.upper()}:00.0"


@dataclass(frozen=True, slots=True)
class SimNode:
    """One machine; `row` is its position in node arrays, `first` the row of its first GPU."""

    row: int
    name: str
    rack: str
    leaf: str
    pool: SimPool
    model: GpuModel
    first: int
    gpus: tuple[SimGpu, ...]

    @property
    def rows(self) -> slice:
        return slice(self.first, self.first + len(self.gpus))


@dataclass(frozen=True, slots=True)
class FleetLayout:
    """The whole fleet, with the two arrays that connect GPUs, nodes and racks."""

    nodes: tuple[SimNode, ...]
    by_name: Mapping[str, SimNode]
    node_of_gpu: NDArray[np.intp]
    rack_of_node: NDArray[np.intp]

    @property
    def gpu_count(self) -> int:
        return len(self.node_of_gpu)

    def node(self, name: str) -> SimNode:
        try:
            return self.by_name[name]
        except KeyError:
            raise UnknownName(
                f"there is no node `{name[:80]}` in this fleet",
                now=f"It has {len(self.nodes)} nodes, {self.nodes[0].name} to {self.nodes[-1].name}",
            ) from None

    def gpu(self, node: SimNode, uuid: str) -> SimGpu:
        for gpu in node.gpus:
            if gpu.uuid == uuid:
                return gpu
        raise UnknownName(f"node {node.name} has no GPU `{uuid[:80]}`", now=f"It has {len(node.gpus)} GPUs")


def build(*, gpus: int, seed: int) -> FleetLayout:
    """Lay out `gpus` GPUs in full nodes; the last node takes what is left over."""
    if gpus < 1:
        raise SettingsError(f"a fleet needs at least 1 GPU, asked for {gpus}")
    count = -(-gpus // GPUS_PER_NODE)
    pools = _pool_of_each_node(count)
    nodes = tuple(
        _node(row, pools[row], min(GPUS_PER_NODE, gpus - row * GPUS_PER_NODE), seed=seed) for row in range(count)
    )
    return FleetLayout(
        nodes=nodes,
        by_name={node.name: node for node in nodes},
        node_of_gpu=np.repeat(np.arange(count), [len(node.gpus) for node in nodes]),
        rack_of_node=np.arange(count) // NODES_PER_RACK,
    )


@cache
def models() -> dict[str, GpuModel]:
    return {model.name: model for model in pack.load("gpu_models.csv", _read_model)}


def _read_model(cells: Mapping[str, str]) -> GpuModel:
    return GpuModel(
        name=pack.required(cells["model"]),
        memory_mib=int(cells["memory_mib"]),
        tdp_watts=float(cells["tdp_watts"]),
        idle_watts=float(cells["idle_watts"]),
        max_sm_mhz=int(cells["max_sm_mhz"]),
        idle_sm_mhz=int(cells["idle_sm_mhz"]),
        memory_mhz=int(cells["memory_mhz"]),
        max_operating_celsius=int(cells["max_operating_celsius"]),
        slowdown_celsius=int(cells["slowdown_celsius"]),
        shutdown_celsius=int(cells["shutdown_celsius"]),
        memory_max_celsius=int(cells["memory_max_celsius"]) if cells["memory_max_celsius"] else None,
        nvlink_gb_per_second=float(cells["nvlink_gb_per_second"]) if cells["nvlink_gb_per_second"] else None,
        pcie_gb_per_second=float(cells["pcie_gb_per_second"]),
        pcie_generation=int(cells["pcie_generation"]),
    )


def _pool_of_each_node(count: int) -> list[SimPool]:
    """Pools one after another, by share; the smallest fleet is one node of the first pool."""
    ends, total = [], 0.0
    for pool in POOLS:
        total += pool.share
        ends.append((max(1, round(total * count)), pool))
    return [next(pool for end, pool in ends if row < end) for row in range(count)]


def _node(row: int, pool: SimPool, gpus: int, *, seed: int) -> SimNode:
    rack = row // NODES_PER_RACK + 1
    name = f"gpu-r{rack:02d}-{row % NODES_PER_RACK + 1:02d}"
    first = row * GPUS_PER_NODE
    # Identities need their own stream: they must not change when physics draws one number more.
    draw = random.Random(f"{seed}/{name}")
    return SimNode(
        row=row,
        name=name,
        rack=f"r{rack:02d}",
        leaf=f"leaf-{(rack - 1) // RACKS_PER_LEAF + 1:02d}",
        pool=pool,
        model=models()[pool.model],
        first=first,
        gpus=tuple(
            SimGpu(
                row=first + index,
                index=index,
                uuid=f"GPU-{UUID(int=draw.getrandbits(128), version=4)}",
                serial=f"16{draw.randrange(10**11):011d}",
                bus=pool.buses[index],
            )
            for index in range(gpus)
        ),
    )
