"""The layout of the fleet map: racks, nodes and GPUs in one stable order, shared by frames and /api/fleet.

If a node reports fewer GPUs than expected, the layout has an empty slot for each missing one, so that the map shows it.
`fleet_api` sends the layout once, `live` sends values in its order, and `version` says whether the two match.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from watchkeeper.hub.services import FleetProtocol, GpuView
from watchkeeper.model import fleet

NUMBERS = re.compile(r"(\d+)")
# Sorts nodes without a rack last.
AFTER_ALL_RACKS = "\uffff"

NO_WORKLOADS: Mapping[str, str] = {}
NodeKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class GpuSlot:
    """A place for one GPU; `gpu` is None if one is expected but none was ever reported."""

    node: str
    gpu: fleet.Gpu | None


@dataclass(frozen=True, slots=True)
class FleetLayout:
    version: str
    nodes: tuple[fleet.Node, ...]
    slots: tuple[GpuSlot, ...]
    slot_by_uuid: dict[str, int]
    """GPU UUID → index in `slots`."""
    slots_by_node: dict[NodeKey, tuple[int, ...]]
    """Cluster and name of a node → indexes of its GPUs in `slots`."""

    def slots_of(self, cluster: str, name: str) -> tuple[int, ...]:
        """The slots of a node; if the cluster does not match, of the only node with this name."""
        exact = self.slots_by_node.get((cluster, name))
        if exact is not None:
            return exact
        same_name = [slots for (_, other), slots in self.slots_by_node.items() if other == name]
        return same_name[0] if len(same_name) == 1 else ()

    def to_plain(self, workloads: Mapping[str, str] = NO_WORKLOADS) -> list[dict[str, Any]]:
        """Nodes in the format of /api/fleet; `workloads` maps GPU UUIDs to the workload that holds the GPU."""
        return [self._plain_node(node, workloads) for node in self.nodes]

    def _plain_node(self, node: fleet.Node, workloads: Mapping[str, str]) -> dict[str, Any]:
        slots = [self.slots[at] for at in self.slots_by_node[node.cluster, node.name]]
        return {
            "name": node.name,
            "pool": node.pool,
            "rack": node.domains.get("rack"),
            "domains": dict(node.domains),
            "expected_gpus": node.expected_gpus,
            "gpus": [None if slot.gpu is None else _plain_gpu(slot.gpu, workloads) for slot in slots],
        }


def _plain_gpu(gpu: fleet.Gpu, workloads: Mapping[str, str]) -> dict[str, Any]:
    workload = workloads.get(gpu.uuid)
    return {"uuid": gpu.uuid, "index": gpu.index, "model": gpu.model, "pci": gpu.pci, "workload": workload}


def current_layout(inventory: FleetProtocol) -> FleetLayout:
    """The layout of the current inventory; cached until the inventory changes."""
    revision = inventory.revision
    cached = _layouts.get(inventory)
    if cached is None or cached[0] != revision:
        cached = _layouts[inventory] = (revision, _build_layout(inventory))
    return cached[1]


# Every page and every frame needs the layout: for 10,000 GPUs it takes 50 ms, and it changes a few times a day.
_layouts: WeakKeyDictionary[FleetProtocol, tuple[int, FleetLayout]] = WeakKeyDictionary()


def _build_layout(inventory: FleetProtocol) -> FleetLayout:
    gpus_by_node: dict[NodeKey, list[GpuView]] = defaultdict(list)
    for gpu in inventory.gpus():
        gpus_by_node[gpu.cluster, gpu.node].append(gpu)
    node_by_key = {_node_key(node): node for node in inventory.nodes()}
    nodes = sorted(node_by_key.values(), key=_sort_key)
    slots: list[GpuSlot] = []
    by_node: dict[NodeKey, tuple[int, ...]] = {}
    for key, node in ((_node_key(node), node) for node in nodes):
        gpus = _order_gpus(node, gpus_by_node[key])
        by_node[key] = tuple(range(len(slots), len(slots) + len(gpus)))
        slots += [GpuSlot(node.name, gpu) for gpu in gpus]
    position = {slot.gpu.uuid: at for at, slot in enumerate(slots) if slot.gpu is not None}
    return FleetLayout(_hash_layout(nodes, slots), tuple(nodes), tuple(slots), position, by_node)


def _node_key(node: fleet.Node) -> NodeKey:
    return node.cluster, node.name


def _sort_key(node: fleet.Node) -> tuple[object, ...]:
    return natural_sort_key(node.domains.get("rack", AFTER_ALL_RACKS)), natural_sort_key(node.name), node.cluster


def _order_gpus(node: fleet.Node, node_gpus: list[GpuView]) -> list[fleet.Gpu | None]:
    """Present GPUs, then gone ones as long as the node is short of GPUs, then empty slots.

    A GPU that was replaced is gone but not missing: its replacement has its slot.
    """
    present = [gpu for gpu in node_gpus if gpu.gone_since_ms is None]
    gone = sorted(
        (gpu for gpu in node_gpus if gpu.gone_since_ms is not None), key=lambda gpu: -(gpu.gone_since_ms or 0)
    )
    missing_count = len(gone) if node.expected_gpus is None else max(0, node.expected_gpus - len(present))
    shown = sorted(
        (gpu.gpu for gpu in present + gone[:missing_count]),
        key=lambda gpu: (gpu.index is None, gpu.index or 0, gpu.uuid),
    )
    return [*shown, *[None] * max(0, (node.expected_gpus or 0) - len(shown))]


def _hash_layout(nodes: list[fleet.Node], slots: list[GpuSlot]) -> str:
    rows = [f"{node.name} {node.domains.get('rack')}" for node in nodes]
    rows += [f"{slot.gpu.uuid} {slot.gpu.index}" if slot.gpu else "-" for slot in slots]
    text = "\n".join(rows)
    return hashlib.blake2s(text.encode(), digest_size=6).hexdigest()


@lru_cache(maxsize=65_536)
def natural_sort_key(text: str) -> tuple[tuple[int, str], ...]:
    """A sort key that counts digits as numbers: gpu-r2 before gpu-r10."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in NUMBERS.split(text))
