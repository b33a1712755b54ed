"""The layout of a simulated fleet: nodes, racks, leaf switches and GPUs.

`build_layout` creates a FleetLayout from a size and a seed. GPU `g` is row `g` of every array, and each node has a
range of rows. Identities (UUID, serial number) come from the seed, so that the same seed always gives the same fleet.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from watchkeeper.catalogue.gpu_models import GpuModel, gpu_models
from watchkeeper.errors import SettingsError, WatchkeeperError

GPUS_PER_NODE = 8
NODES_PER_RACK = 8
RACKS_PER_LEAF = 2


class UnknownName(WatchkeeperError):
    """A node, GPU, scenario or fault that this simulator does not have."""


@dataclass(frozen=True, slots=True)
class SimPool:
    name: str
    model: str
    share: float
    scheduler: str
    driver: str
    buses: tuple[str, ...]


# PCI bus numbers as on common 8-GPU chassis of each model.
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
    """One GPU; `row` is its index in every array."""

    row: int
    index: int
    uuid: str
    serial: str
    bus: str

    @property
    def kernel_pci(self) -> str:
        """The address as in the kernel log: 0000:5d:00."""
        return f"0000:{self.bus}:00"

    @property
    def exporter_pci(self) -> str:
        """The address as in labels of dcgm-exporter: 00000000:5D:00.0."""
        return f"00000000:{self.bus.upper()}:00.0"


@dataclass(frozen=True, slots=True)
class SimNode:
    """One node; `row` is its index in node arrays, `first_row` the row of its first GPU."""

    row: int
    name: str
    rack: str
    leaf: str
    pool: SimPool
    model: GpuModel
    first_row: int
    gpus: tuple[SimGpu, ...]

    @property
    def rows(self) -> slice:
        return slice(self.first_row, self.first_row + len(self.gpus))


@dataclass(frozen=True, slots=True)
class FleetLayout:
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
                f"no node `{name[:80]}` in this fleet",
                now=f"It has {len(self.nodes)} nodes, {self.nodes[0].name} to {self.nodes[-1].name}",
            ) from None

    def gpu(self, node: SimNode, uuid: str) -> SimGpu:
        if gpu := next((gpu for gpu in node.gpus if gpu.uuid == uuid), None):
            return gpu
        raise UnknownName(f"node {node.name} has no GPU `{uuid[:80]}`", now=f"It has {len(node.gpus)} GPUs")


def build_layout(*, gpus: int, seed: int) -> FleetLayout:
    """Create a layout of full nodes; the last node has the remaining GPUs."""
    if gpus < 1:
        raise SettingsError(f"a fleet needs at least 1 GPU, not {gpus}")
    count = -(-gpus // GPUS_PER_NODE)
    ends, total = [], 0.0
    for pool in POOLS:
        total += pool.share
        ends.append((max(1, round(total * count)), pool))
    pools = [next(pool for end, pool in ends if row < end) for row in range(count)]
    sizes = [min(GPUS_PER_NODE, gpus - row * GPUS_PER_NODE) for row in range(count)]
    nodes = tuple(_build_node(row, pools[row], sizes[row], seed=seed) for row in range(count))
    rows = np.arange(count)
    return FleetLayout(nodes, {node.name: node for node in nodes}, np.repeat(rows, sizes), rows // NODES_PER_RACK)


def _build_node(row: int, pool: SimPool, gpu_count: int, *, seed: int) -> SimNode:
    rack = row // NODES_PER_RACK + 1
    name = f"gpu-r{rack:02d}-{row % NODES_PER_RACK + 1:02d}"
    first_row = row * GPUS_PER_NODE
    # A separate random stream: identities must not depend on other random numbers.
    rng = random.Random(f"{seed}/{name}")
    return SimNode(
        row=row,
        name=name,
        rack=f"r{rack:02d}",
        leaf=f"leaf-{(rack - 1) // RACKS_PER_LEAF + 1:02d}",
        pool=pool,
        model=gpu_models()[pool.model],
        first_row=first_row,
        gpus=tuple(
            SimGpu(
                row=first_row + index,
                index=index,
                uuid=f"GPU-{UUID(int=rng.getrandbits(128), version=4)}",
                serial=f"16{rng.randrange(10**11):011d}",
                bus=pool.buses[index],
            )
            for index in range(gpu_count)
        ),
    )
