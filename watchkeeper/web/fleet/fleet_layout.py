"""The fleet in one stable order, which live frames and the heat map share.

Racks, nodes and GPUs are sorted the way people count (r2 before r10). A node that should have more
GPUs than it ever reported gets an empty slot for each: missing is never healthy, so it is drawn.
Two clusters may each have a node of the same name: they are two nodes, one beside the other.
`fleet_api` sends the order once, `live` sends values in it; `version` says whether they still agree.
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
# A node without a rack comes after those with one.
LAST = "\uffff"

NOBODY: Mapping[str, str] = {}

NodeKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class GpuSlot:
    """Room for one GPU; `gpu` is None where one is expected and none ever reported."""

    node: str
    gpu: fleet.Gpu | None


@dataclass(frozen=True, slots=True)
class FleetLayout:
    version: str
    nodes: tuple[fleet.Node, ...]
    slots: tuple[GpuSlot, ...]
    position: dict[str, int]
    """GPU UUID → its place in `slots`."""
    by_node: dict[NodeKey, tuple[int, ...]]
    """Cluster and name of a node → the places of its GPUs in `slots`."""

    def slots_of(self, cluster: str, name: str) -> tuple[int, ...]:
        """The slots of a node; what was said without its cluster means the only node of that name."""
        exact = self.by_node.get((cluster, name))
        if exact is not None:
            return exact
        alike = [slots for (_, other), slots in self.by_node.items() if other == name]
        return alike[0] if len(alike) == 1 else ()

    def to_plain(self, workloads: Mapping[str, str] = NOBODY) -> list[dict[str, Any]]:
        """Nodes in order as /api/fleet tells them; `workloads` says which GPU is held by which."""
        return [self._plain_node(node, workloads) for node in self.nodes]

    def _plain_node(self, node: fleet.Node, workloads: Mapping[str, str]) -> dict[str, Any]:
        slots = [self.slots[at] for at in self.by_node[node.cluster, node.name]]
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


def current_layout(view: FleetProtocol) -> FleetLayout:
    """The inventory as it is known at this moment; drawn up again only after it has changed."""
    changes = view.revision
    known = _taken.get(view)
    if known is None or known[0] != changes:
        known = _taken[view] = (changes, _draw_up(view))
    return known[1]


# Every page and every picture asks: 10,000 GPUs are 50 ms of work, and change a few times a day.
_taken: WeakKeyDictionary[FleetProtocol, tuple[int, FleetLayout]] = WeakKeyDictionary()


def _draw_up(view: FleetProtocol) -> FleetLayout:
    seen: dict[NodeKey, list[GpuView]] = defaultdict(list)
    for gpu in view.gpus():
        seen[gpu.cluster, gpu.node].append(gpu)
    known = {_key(node): node for node in view.nodes()}
    nodes = sorted(known.values(), key=_order)
    slots: list[GpuSlot] = []
    by_node: dict[NodeKey, tuple[int, ...]] = {}
    for key, node in ((_key(node), node) for node in nodes):
        gpus = _gpus_of(node, seen[key])
        by_node[key] = tuple(range(len(slots), len(slots) + len(gpus)))
        slots += [GpuSlot(node.name, gpu) for gpu in gpus]
    position = {slot.gpu.uuid: at for at, slot in enumerate(slots) if slot.gpu is not None}
    return FleetLayout(_version(nodes, slots), tuple(nodes), tuple(slots), position, by_node)


def _key(node: fleet.Node) -> NodeKey:
    return node.cluster, node.name


def _order(node: fleet.Node) -> tuple[object, ...]:
    return natural(node.domains.get("rack", LAST)), natural(node.name), node.cluster


def _gpus_of(node: fleet.Node, seen: list[GpuView]) -> list[fleet.Gpu | None]:
    """Present GPUs, then the ones that went away as far as the node still lacks them, then empty slots.

    A GPU that was exchanged is gone, but nothing is missing: its successor has taken its slot.
    """
    present = [gpu for gpu in seen if gpu.gone_since_ms is None]
    gone = sorted((gpu for gpu in seen if gpu.gone_since_ms is not None), key=lambda gpu: -(gpu.gone_since_ms or 0))
    lacking = len(gone) if node.expected_gpus is None else max(0, node.expected_gpus - len(present))
    shown = sorted(
        (gpu.gpu for gpu in present + gone[:lacking]), key=lambda gpu: (gpu.index is None, gpu.index or 0, gpu.uuid)
    )
    return [*shown, *[None] * max(0, (node.expected_gpus or 0) - len(shown))]


def _version(nodes: list[fleet.Node], slots: list[GpuSlot]) -> str:
    rows = [f"{node.name} {node.domains.get('rack')}" for node in nodes]
    rows += [f"{slot.gpu.uuid} {slot.gpu.index}" if slot.gpu else "-" for slot in slots]
    text = "\n".join(rows)
    return hashlib.blake2s(text.encode(), digest_size=6).hexdigest()


@lru_cache(maxsize=65_536)
def natural(text: str) -> tuple[tuple[int, str], ...]:
    """A sort key that counts digits as numbers: gpu-r2 before gpu-r10."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in NUMBERS.split(text))
