"""What the fleet should be and what of it has been seen.

Discovery says which nodes are expected; scraped labels teach which GPUs exist, where, and at which PCI
address. What disappears is kept with the time it was last seen, because "gone since 09:14" is the most
useful thing one can say about it. The hub, the pages and the event followers ask here for names.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from watchkeeper.kit import logs
from watchkeeper.model import fleet, labels, samples

log = logging.getLogger(__name__)

# GPUs and nodes that left are remembered up to this many; then the one gone longest is forgotten.
MAX_GONE = 10_000
# GPUs that are known by name before their first page; of more, the last told.
MAX_ANNOUNCED_GPUS = 10_000
# Nodes that nobody expects but whose GPUs report; more than this is a Hostname label gone wrong.
MAX_LEARNED_NODES = 20_000
# Twice the longest usual scrape interval, a minute: after more than that nobody knows what was between.
MAX_SILENCE_MS = 120_000
# Pages of one node that are remembered: exporters come and go under new addresses.
MAX_PAGES = 16
NODE_INFO = "watchkeeper_node_info"
NODE_EXPECTED_GPUS = "watchkeeper_node_expected_gpus"
GPUS_MOVED = "watchkeeper_fleet_moved_gpus_total"
MAX_MOVES = 100

NodeKey = tuple[str, str]


class InventoryGpu(NamedTuple):
    """A GPU and where it was last reported; a tuple, because each scrape makes one for each of its GPUs.

    `gone_since_ms` is None while the node's last readable page has it; a node that does not answer says
    nothing about its GPUs, only `last_seen_ms` stands still then. From `steady_since_ms` to `last_seen_ms` every
    page had it, without a long silence between them.
    """

    gpu: fleet.Gpu
    node: str
    cluster: str
    first_seen_ms: int
    last_seen_ms: int
    gone_since_ms: int | None = None
    steady_since_ms: int = 0

    @property
    def place(self) -> fleet.Place:
        return fleet.Place(self.cluster, node=self.node, gpu=self.gpu.uuid)


@dataclass(frozen=True, slots=True)
class GpuMove:
    """A GPU that turned up on another node: it was carried there, or two nodes claim it."""

    uuid: str
    before: str
    after: str
    at_ms: int


class ScrapedInventory:
    """Expected nodes and seen GPUs, by every name people and machines use for them."""

    def __init__(self) -> None:
        self._nodes: dict[NodeKey, fleet.Node] = {}
        self._learned: set[NodeKey] = set()
        self._gone_nodes_since_ms: dict[NodeKey, int] = {}
        self._key_of_name: dict[str, NodeKey] = {}
        self._gpus: dict[str, InventoryGpu] = {}
        self._gone_gpus: dict[str, None] = {}
        self._told_indexes: dict[str, int] = {}
        # By node: what each page had and when it was last read, the longest ago first.
        self._reported: dict[NodeKey, dict[str, tuple[int, frozenset[str]]]] = {}
        self._uuids: dict[NodeKey, set[str]] = {}
        # Made when somebody asks, and again after the inventory changed.
        self._nodes_in: dict[fleet.Place, list[fleet.Place]] | None = None
        self._holders: dict[str, tuple[labels.Labels, ...]] = {}
        # How often the inventory has changed: whoever drew it up may keep it for as long as this number stays.
        self.revision = 0
        # How often a GPU turned up on another node, by cluster, and the last of such moves.
        self.move_counts: Counter[str] = Counter()
        self.recent_moves: deque[GpuMove] = deque(maxlen=MAX_MOVES)

    def set_expected_nodes(self, nodes: Iterable[fleet.Node], now_ms: int) -> None:
        """Take over what discovery says; a node it no longer names stays known as gone since now."""
        before = self.nodes()
        named = {(node.cluster, node.name): node for node in nodes}
        self._learned -= named.keys()
        for key in self._nodes.keys() - named.keys() - self._learned:
            self._gone_nodes_since_ms.setdefault(key, now_ms)
        for key in named:
            self._gone_nodes_since_ms.pop(key, None)
        while len(self._gone_nodes_since_ms) > MAX_GONE:
            oldest = next(iter(self._gone_nodes_since_ms))
            del self._gone_nodes_since_ms[oldest], self._nodes[oldest]
        self._nodes |= named
        self.revision += self.nodes() != before
        self._index_names()

    def record_page(self, node: fleet.Node, gpus: Mapping[str, fleet.Gpu], *, at_ms: int, source: str) -> None:
        """A page (`source`) of a node was read and reports exactly these GPUs, by UUID."""
        key = (node.cluster, node.name)
        if not self._learn(key, node):
            return
        reported, now = self._reported.setdefault(key, {}), frozenset(gpus)
        before = reported.pop(source, (0, frozenset()))[1]
        reported[source] = (at_ms, now)
        if len(reported) > MAX_PAGES:
            del reported[next(iter(reported))]
        for uuid in before - now:
            # Only of pages that are still read: an exporter that was started anew may have another address.
            if not any(uuid in theirs and at_ms - told_ms <= MAX_SILENCE_MS for told_ms, theirs in reported.values()):
                self._lose(uuid, key)
        for uuid, gpu in gpus.items():
            known = self._gpus.get(uuid)
            if known is not None and known.gpu is gpu and _goes_on(known, key, at_ms):
                # Half of what `_replace` takes, and as many are made in a second as a fleet has GPUs.
                self._gpus[uuid] = InventoryGpu(
                    gpu, node.name, node.cluster, known.first_seen_ms, at_ms, None, known.steady_since_ms
                )
                continue
            if known is not None and (known.cluster, known.node) != key:
                self._note_move(GpuMove(uuid, known.node, node.name, at_ms), node.cluster)
            self.revision += 1
            first = at_ms if known is None else known.first_seen_ms
            steady = known.steady_since_ms if known is not None and _goes_on(known, key, at_ms) else at_ms
            self._gpus[uuid] = InventoryGpu(gpu, node.name, node.cluster, first, at_ms, steady_since_ms=steady)
            self._gone_gpus.pop(uuid, None)
        if before != now:
            self._uuids.setdefault(key, set()).update(gpus)

    def node(self, name: str, cluster: str | None = None) -> fleet.Node | None:
        """A node by name or alias; without a cluster the name alone decides."""
        if cluster is not None and (cluster, name) in self._nodes:
            return self._nodes[cluster, name]
        key = self._key_of_name.get(name)
        return self._nodes[key] if key is not None and cluster in (None, key[0]) else None

    def nodes(self) -> list[fleet.Node]:
        """The nodes discovery names at present, and those that report without being named."""
        return [node for key, node in self._nodes.items() if key not in self._gone_nodes_since_ms]

    def failure_domains(self, place: fleet.Place) -> tuple[fleet.Place, ...]:
        """The racks, leaf switches and the like that a node lies in."""
        node = self.node(place.node, place.cluster) if place.node is not None else None
        return () if node is None else node.failure_domains()

    def pool_of(self, place: fleet.Place) -> str:
        """The pool of a node; empty where nobody says."""
        node = self.node(place.node, place.cluster) if place.node is not None else None
        return "" if node is None else node.pool

    def nodes_in_domain(self, domain: fleet.Place) -> list[fleet.Place]:
        """The nodes of a failure domain."""
        if self._nodes_in is None:
            found: dict[fleet.Place, list[fleet.Place]] = {}
            for node in self.nodes():
                for outer in node.failure_domains():
                    found.setdefault(outer, []).append(node.place)
            self._nodes_in = found
        return self._nodes_in.get(domain, [])

    def expected_gpu_count(self, place: fleet.Place) -> int:
        """How many GPUs a place has, as far as they are known; gone ones count."""
        if place.gpu is not None:
            return 1
        nodes = [place] if place.node is not None else self.nodes_in_domain(place)
        known = (self.node(one.node or "", one.cluster) for one in nodes)
        return sum(max(node.expected_gpus or 0, len(self.gpus_of(node))) for node in known if node is not None)

    def gone_nodes(self) -> list[tuple[fleet.Node, int]]:
        """Nodes discovery no longer names, with the time since when."""
        return [(self._nodes[key], since) for key, since in self._gone_nodes_since_ms.items()]

    def gpu(self, uuid: str) -> InventoryGpu | None:
        return self._gpus.get(uuid)

    def gpus(self) -> list[InventoryGpu]:
        return list(self._gpus.values())

    def gpus_of(self, node: fleet.Node) -> list[InventoryGpu]:
        """The node's GPUs, present and gone, in the order of their index."""
        key = (node.cluster, node.name)
        known = [self._gpus[uuid] for uuid in self._uuids.get(key, ()) if uuid in self._gpus]
        own = [seen for seen in known if (seen.cluster, seen.node) == key]
        return sorted(own, key=lambda seen: (seen.gpu.index is None, seen.gpu.index or 0, seen.gpu.uuid))

    def place_name(self, place: fleet.Place) -> str:
        """A place as people say it: `GPU 3 on gpu-r07-12`."""
        if place.gpu is not None:
            seen = self._gpus.get(place.gpu)
            index = seen.gpu.index if seen is not None else self._told_indexes.get(place.gpu)
            called = f"GPU {index}" if index is not None else place.gpu
            part = f"{called} slice {place.slice}" if place.slice is not None else called
            return f"{part} on {place.node}"
        if place.port is not None:
            return f"port {place.port} on {place.node}"
        if place.domain is not None:
            return place.domain.replace("=", " ", 1)
        return place.node or f"cluster {place.cluster}"

    def record_gpu_index(self, uuid: str, index: str) -> None:
        """What its node or an event calls a GPU: one that breaks before its first page has no other name."""
        # No machine has as many GPUs, and Python refuses to read a number of thousands of digits.
        if uuid in self._gpus or not index.isdecimal() or len(index) > 5:
            return
        self._told_indexes[uuid] = int(index)
        if len(self._told_indexes) > MAX_ANNOUNCED_GPUS:
            del self._told_indexes[next(iter(self._told_indexes))]

    def set_workloads(self, source: str, holders: Iterable[labels.Labels]) -> None:
        """Take over who holds the GPUs of a page (`source`); nobody is known any more for a page without holders."""
        self._holders.pop(source, None)
        if found := tuple(holders):
            self._holders[source] = found

    def workload_labels(self) -> list[labels.Labels]:
        """Holders as agents tell them: the labels of their information series."""
        return [each for found in self._holders.values() for each in found]

    def _note_move(self, move: GpuMove, cluster: str) -> None:
        """Count a move; two nodes that both claim a GPU make many, of which one is said."""
        self.move_counts[cluster] += 1
        if not any(
            known.uuid == move.uuid and {known.before, known.after} == {move.before, move.after}
            for known in self.recent_moves
        ):
            log.warning("GPU on another node", extra=logs.fields(gpu=move.uuid, was_on=move.before, is_on=move.after))
            self.recent_moves.append(move)

    def _index_names(self) -> None:
        self._nodes_in = None
        aliases = {alias: key for key, node in self._nodes.items() for alias in node.aliases}
        self._key_of_name = aliases | {name: (cluster, name) for cluster, name in self._nodes}

    def _learn(self, key: NodeKey, node: fleet.Node) -> bool:
        """Make sure a reporting node is known; False if there is no room for another unexpected one."""
        if key in self._nodes:
            return True
        if len(self._learned) >= MAX_LEARNED_NODES:
            return False
        self._nodes[key] = node
        self.revision += 1
        self._learned.add(key)
        self._key_of_name.setdefault(node.name, key)
        self._nodes_in = None
        return True

    def _lose(self, uuid: str, key: NodeKey) -> None:
        """Mark a GPU as gone, unless another node reports it: then it has only moved."""
        seen = self._gpus.get(uuid)
        if seen is None or (seen.cluster, seen.node) != key:
            return
        self._gpus[uuid] = seen._replace(gone_since_ms=seen.last_seen_ms)
        self.revision += 1
        self._gone_gpus[uuid] = None
        if len(self._gone_gpus) > MAX_GONE:
            oldest = next(iter(self._gone_gpus))
            del self._gone_gpus[oldest]
            forgotten = self._gpus.pop(oldest)
            where = (forgotten.cluster, forgotten.node)
            self._uuids[where].discard(oldest)


def _goes_on(known: InventoryGpu, key: NodeKey, at_ms: int) -> bool:
    """False for a GPU that was gone, elsewhere or long unheard of."""
    is_here = known.gone_since_ms is None and (known.cluster, known.node) == key
    return is_here and at_ms - known.last_seen_ms <= MAX_SILENCE_MS


def gpu_of(label_set: Mapping[str, str]) -> fleet.Gpu | None:
    """The GPU that dcgm-exporter's labels describe, or None for a series of something else."""
    uuid = label_set.get("UUID")
    if not uuid:
        return None
    index, address = label_set.get("gpu", ""), label_set.get("pci_bus_id", "")
    try:
        pci = fleet.normalise_pci(address) if address else None
    except ValueError:
        pci = None
    number = int(index) if index.isascii() and index.isdigit() and len(index) < 6 else None
    return fleet.Gpu(uuid, index=number, pci=pci, model=label_set.get("modelName") or None)


def inventory_samples(inventory: ScrapedInventory, now_ms: int) -> list[samples.Sample]:
    """The join series of every expected node; a node whose expectation is unknown has no expected count."""
    made = []
    for node in inventory.nodes():
        where = {"cluster": node.cluster, "Hostname": node.name}
        about = {"pool": node.pool, "rack": node.domains.get("rack", ""), "leaf": node.domains.get("leaf", "")}
        about["nvlink_domain"] = node.domains.get("nvlink", "")
        named = labels.Labels({labels.METRIC_NAME: NODE_INFO} | where | about)
        made.append(samples.Sample(named, now_ms, 1.0))
        if node.expected_gpus is not None:
            counted = labels.Labels({labels.METRIC_NAME: NODE_EXPECTED_GPUS} | where)
            made.append(samples.Sample(counted, now_ms, float(node.expected_gpus)))
    for cluster, count in inventory.move_counts.items():
        moved = labels.Labels({labels.METRIC_NAME: GPUS_MOVED, "cluster": cluster})
        made.append(samples.Sample(moved, now_ms, float(count)))
    return made
