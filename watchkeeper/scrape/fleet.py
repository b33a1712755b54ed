"""The inventory of expected nodes and scraped GPUs.

Discovery lists the expected nodes; scraped labels show which GPUs exist, on which node and at which PCI address. GPUs
and nodes that disappear are kept with the time of their last sample.
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

# GPUs and nodes that are gone are kept up to this many; then the one gone longest is deleted.
MAX_GONE = 10_000
# GPUs that have an index before their first page; of more, the newest are kept.
MAX_ANNOUNCED_GPUS = 10_000
# Nodes that no list expects but whose GPUs report; more than this means a broken Hostname label.
MAX_LEARNED_NODES = 20_000
# Twice the longest usual scrape interval, one minute: after a longer gap the GPU may have been away.
MAX_GAP_MS = 120_000
# Pages kept for one node: exporters come and go under new addresses.
MAX_PAGES = 16
NODE_INFO = "watchkeeper_node_info"
NODE_EXPECTED_GPUS = "watchkeeper_node_expected_gpus"
GPUS_MOVED = "watchkeeper_fleet_moved_gpus_total"
MAX_MOVES = 100
# Every GPU has a temperature; the labels are dcgm-exporter's.
GPU_QUERY = "group by (cluster, Hostname, UUID, gpu, pci_bus_id, modelName) (DCGM_FI_DEV_GPU_TEMP)"
# A node may be down for some time before a restart of the hub.
RECENT_GPU_QUERY = GPU_QUERY.replace("DCGM_FI_DEV_GPU_TEMP", "last_over_time(DCGM_FI_DEV_GPU_TEMP[1h])")
QUERY_SOURCE = "samples on the Prometheus server"

NodeKey = tuple[str, str]


class InventoryGpu(NamedTuple):
    """A GPU and where it was last reported; a tuple, because each scrape creates one for each of its GPUs.

    `gone_since_ms` is None while the node's last readable page includes it. A node that does not answer reports
    nothing about its GPUs: then only `last_seen_ms` does not advance. From `steady_since_ms` to `last_seen_ms` every
    page included it, without a gap longer than `MAX_GAP_MS`.
    """

    gpu: fleet.Gpu
    node: str
    cluster: str
    last_seen_ms: int
    gone_since_ms: int | None = None
    steady_since_ms: int = 0

    @property
    def place(self) -> fleet.Place:
        return fleet.Place(self.cluster, node=self.node, gpu=self.gpu.uuid)

    @property
    def labels(self) -> dict[str, str]:
        """The labels of its series, as dcgm-exporter writes them."""
        index = "" if self.gpu.index is None else str(self.gpu.index)
        return {"cluster": self.cluster, "Hostname": self.node, "UUID": self.gpu.uuid, "gpu": index}


@dataclass(frozen=True, slots=True)
class GpuMove:
    """A GPU that appeared on another node: it was moved, or two nodes claim it."""

    uuid: str
    before: str
    after: str
    at_ms: int


class ScrapedInventory:
    """Expected nodes and scraped GPUs, by all their names."""

    def __init__(self) -> None:
        self._nodes: dict[NodeKey, fleet.Node] = {}
        self._learned: set[NodeKey] = set()
        self._gone_nodes_since_ms: dict[NodeKey, int] = {}
        self._key_of_name: dict[str, NodeKey] = {}
        self._gpus: dict[str, InventoryGpu] = {}
        self._gone_gpus: dict[str, None] = {}
        self._announced_indexes: dict[str, int] = {}
        # By node: the GPUs of each page and when it was last scraped, the oldest first.
        self._reported: dict[NodeKey, dict[str, tuple[int, frozenset[str]]]] = {}
        self._uuids: dict[NodeKey, set[str]] = {}
        # Built at the first use after the inventory changed.
        self._nodes_in: dict[fleet.Place, list[fleet.Place]] | None = None
        self._holders: dict[str, tuple[labels.Labels, ...]] = {}
        # Increases when the inventory changes: data derived from it is valid while this number stays the same.
        self.revision = 0
        # How often a GPU appeared on another node, by cluster, and the last of these moves.
        self.move_counts: Counter[str] = Counter()
        self.recent_moves: deque[GpuMove] = deque(maxlen=MAX_MOVES)

    def set_expected_nodes(self, nodes: Iterable[fleet.Node], now_ms: int) -> None:
        """Replace the expected nodes; a node that discovery no longer lists is kept as gone since now."""
        before = self.nodes()
        listed = {(node.cluster, node.name): node for node in nodes}
        self._learned -= listed.keys()
        for key in self._nodes.keys() - listed.keys() - self._learned:
            self._gone_nodes_since_ms.setdefault(key, now_ms)
        for key in listed:
            self._gone_nodes_since_ms.pop(key, None)
        while len(self._gone_nodes_since_ms) > MAX_GONE:
            oldest = next(iter(self._gone_nodes_since_ms))
            del self._gone_nodes_since_ms[oldest], self._nodes[oldest]
        self._nodes |= listed
        self.revision += self.nodes() != before
        self._index_names()

    def record_page(self, node: fleet.Node, gpus: Mapping[str, fleet.Gpu], *, at_ms: int, source: str) -> None:
        """Record that a page (`source`) of a node was scraped and reports exactly these GPUs, by UUID."""
        key = (node.cluster, node.name)
        if not self._add_reporting_node(key, node):
            return
        reported, reported_uuids = self._reported.setdefault(key, {}), frozenset(gpus)
        previous_uuids = reported.pop(source, (0, frozenset()))[1]
        reported[source] = (at_ms, reported_uuids)
        if len(reported) > MAX_PAGES:
            del reported[next(iter(reported))]
        for uuid in previous_uuids - reported_uuids:
            # Only pages that are still scraped count: an exporter that restarted may have another address.
            if not any(
                uuid in uuids and at_ms - scraped_at_ms <= MAX_GAP_MS for scraped_at_ms, uuids in reported.values()
            ):
                self._mark_gone(uuid, key)
        for uuid, gpu in gpus.items():
            previous = self._gpus.get(uuid)
            is_continuous = previous is not None and _is_continuous(previous, key, at_ms)
            if previous is not None and is_continuous and previous.gpu is gpu:
                # Half the time of `_replace`; each second this creates as many tuples as the fleet has GPUs.
                self._gpus[uuid] = InventoryGpu(gpu, node.name, node.cluster, at_ms, None, previous.steady_since_ms)
                continue
            if previous is not None and (previous.cluster, previous.node) != key:
                self._record_move(GpuMove(uuid, previous.node, node.name, at_ms), node.cluster)
            self.revision += 1
            steady = previous.steady_since_ms if previous is not None and is_continuous else at_ms
            self._gpus[uuid] = InventoryGpu(gpu, node.name, node.cluster, at_ms, steady_since_ms=steady)
            self._gone_gpus.pop(uuid, None)
        if previous_uuids != reported_uuids:
            self._uuids.setdefault(key, set()).update(gpus)

    def node(self, name: str, cluster: str | None = None) -> fleet.Node | None:
        """A node by name or alias; without a cluster, by name alone."""
        if cluster is not None and (cluster, name) in self._nodes:
            return self._nodes[cluster, name]
        key = self._key_of_name.get(name)
        return self._nodes[key] if key is not None and cluster in (None, key[0]) else None

    def nodes(self) -> list[fleet.Node]:
        """The nodes that discovery lists now, and unlisted nodes that report."""
        return [node for key, node in self._nodes.items() if key not in self._gone_nodes_since_ms]

    def failure_domains(self, place: fleet.Place) -> tuple[fleet.Place, ...]:
        node = self.node(place.node or "", place.cluster)
        return () if node is None else node.failure_domains()

    def pool_of(self, place: fleet.Place) -> str:
        node = self.node(place.node or "", place.cluster)
        return "" if node is None else node.pool

    def nodes_in_domain(self, domain: fleet.Place) -> list[fleet.Place]:
        if self._nodes_in is None:
            nodes_in: dict[fleet.Place, list[fleet.Place]] = {}
            for node in self.nodes():
                for outer in node.failure_domains():
                    nodes_in.setdefault(outer, []).append(node.place)
            self._nodes_in = nodes_in
        return self._nodes_in.get(domain, [])

    def gpu_ids_at(self, place: fleet.Place) -> list[str]:
        """The GPUs of a place, also gone ones; `n1/7` is one that is expected and has never reported."""
        if place.gpu is not None:
            return [place.gpu]
        places = [place] if place.node is not None else self.nodes_in_domain(place)
        ids: list[str] = []
        for node in filter(None, (self.node(each.node or "", each.cluster) for each in places)):
            uuids = [gpu.gpu.uuid for gpu in self.gpus_of(node)]
            ids += [*uuids, *(f"{node.name}/{index}" for index in range(len(uuids), node.expected_gpus or 0))]
        return ids

    def gone_nodes(self) -> list[tuple[fleet.Node, int]]:
        """Nodes that discovery no longer lists, with the time since when."""
        return [(self._nodes[key], since) for key, since in self._gone_nodes_since_ms.items()]

    def gpu(self, uuid: str) -> InventoryGpu | None:
        return self._gpus.get(uuid)

    def gpus(self) -> list[InventoryGpu]:
        return list(self._gpus.values())

    def gpus_of(self, node: fleet.Node) -> list[InventoryGpu]:
        """The node's GPUs, present and gone, ordered by index."""
        key = (node.cluster, node.name)
        gpus = [self._gpus[uuid] for uuid in self._uuids.get(key, ()) if uuid in self._gpus]
        present = [gpu for gpu in gpus if (gpu.cluster, gpu.node) == key]
        return sorted(present, key=lambda gpu: (gpu.gpu.index is None, gpu.gpu.index or 0, gpu.gpu.uuid))

    def present_gpus(self, name: str, cluster: str) -> list[InventoryGpu]:
        node = self.node(name, cluster)
        return [] if node is None else [gpu for gpu in self.gpus_of(node) if gpu.gone_since_ms is None]

    def place_name(self, place: fleet.Place) -> str:
        """The display name of a place: `GPU 3 on gpu-r07-12`."""
        if place.gpu is not None:
            known_gpu = self._gpus.get(place.gpu)
            index = known_gpu.gpu.index if known_gpu is not None else self._announced_indexes.get(place.gpu)
            gpu_name = f"GPU {index}" if index is not None else place.gpu
            gpu_or_slice = f"{gpu_name} slice {place.slice}" if place.slice is not None else gpu_name
            return f"{gpu_or_slice} on {place.node}"
        if place.port is not None:
            return f"port {place.port} on {place.node}"
        if place.domain is not None:
            return place.domain.replace("=", " ", 1)
        return place.node or f"cluster {place.cluster}"

    def record_gpu_index(self, uuid: str, index: str) -> None:
        """Set the index of a GPU that has no page yet, as reported by its node or an event."""
        # No node has that many GPUs, and Python refuses to parse a number of thousands of digits.
        if uuid in self._gpus or not index.isdecimal() or len(index) > 5:
            return
        self._announced_indexes[uuid] = int(index)
        if len(self._announced_indexes) > MAX_ANNOUNCED_GPUS:
            del self._announced_indexes[next(iter(self._announced_indexes))]

    def set_workloads(self, source: str, holders: Iterable[labels.Labels]) -> None:
        """Replace the workloads that hold the GPUs of a page (`source`); a page without holders removes them."""
        self._holders.pop(source, None)
        if holder_labels := tuple(holders):
            self._holders[source] = holder_labels

    def workload_labels(self) -> list[labels.Labels]:
        """The labels of the agents' workload information series."""
        return [holder for page_holders in self._holders.values() for holder in page_holders]

    def _record_move(self, move: GpuMove, cluster: str) -> None:
        """Count a move; two nodes that claim the same GPU cause many moves, and only one is logged."""
        self.move_counts[cluster] += 1
        known_moves = [(earlier.uuid, {earlier.before, earlier.after}) for earlier in self.recent_moves]
        if (move.uuid, {move.before, move.after}) not in known_moves:
            log.warning("GPU moved", extra=logs.fields(gpu=move.uuid, from_node=move.before, to_node=move.after))
            self.recent_moves.append(move)

    def _index_names(self) -> None:
        self._nodes_in = None
        aliases = {alias: key for key, node in self._nodes.items() for alias in node.aliases}
        self._key_of_name = aliases | {name: (cluster, name) for cluster, name in self._nodes}

    def _add_reporting_node(self, key: NodeKey, node: fleet.Node) -> bool:
        """Add a reporting node if it is new; False if the limit of unexpected nodes is reached."""
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

    def _mark_gone(self, uuid: str, key: NodeKey) -> None:
        """Mark a GPU as gone, unless another node reports it."""
        gpu = self._gpus.get(uuid)
        if gpu is None or (gpu.cluster, gpu.node) != key:
            return
        self._gpus[uuid] = gpu._replace(gone_since_ms=gpu.last_seen_ms)
        self.revision += 1
        self._gone_gpus[uuid] = None
        if len(self._gone_gpus) > MAX_GONE:
            oldest = next(iter(self._gone_gpus))
            del self._gone_gpus[oldest]
            dropped = self._gpus.pop(oldest)
            self._uuids[dropped.cluster, dropped.node].discard(oldest)


def _is_continuous(previous: InventoryGpu, key: NodeKey, at_ms: int) -> bool:
    """Whether a GPU is still on the same node, without a long gap."""
    is_same_node = previous.gone_since_ms is None and (previous.cluster, previous.node) == key
    return is_same_node and at_ms - previous.last_seen_ms <= MAX_GAP_MS


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
    """The join series of every expected node; a node without an expected GPU count has no count series."""

    def sample(name: str, value: float, **pairs: str) -> samples.Sample:
        return samples.Sample(labels.Labels({labels.METRIC_NAME: name, **pairs}), now_ms, float(value))

    built = []
    for node in inventory.nodes():
        node_labels = {"cluster": node.cluster, "Hostname": node.name}
        rack, leaf, nvlink = (node.domains.get(kind, "") for kind in ("rack", "leaf", "nvlink"))
        built.append(sample(NODE_INFO, 1, **node_labels, pool=node.pool, rack=rack, leaf=leaf, nvlink_domain=nvlink))
        if node.expected_gpus is not None:
            built.append(sample(NODE_EXPECTED_GPUS, node.expected_gpus, **node_labels))
    counts = inventory.move_counts.items()
    return built + [sample(GPUS_MOVED, count, cluster=cluster) for cluster, count in counts]


def record_queried_gpus(
    inventory: ScrapedInventory, label_sets: Iterable[labels.Labels], cluster: str, *, at_ms: int
) -> None:
    """Record the GPUs of each node from the result of `GPU_QUERY`, for a fleet that the hub does not scrape."""
    # `cluster` applies to series without that label. A node without samples reports nothing about its GPUs, like a page
    # that cannot be read.
    gpus_by_node: dict[NodeKey, dict[str, fleet.Gpu]] = {}
    for label_set in label_sets:
        gpu, hostname = gpu_of(label_set), label_set.get("Hostname", "")
        if gpu is not None and hostname:
            gpus_by_node.setdefault((label_set.get("cluster") or cluster, hostname), {})[gpu.uuid] = gpu
    for (node_cluster, name), gpus in gpus_by_node.items():
        node = inventory.node(name, node_cluster) or fleet.Node(node_cluster, name, source=QUERY_SOURCE)
        inventory.record_page(node, gpus, at_ms=at_ms, source=QUERY_SOURCE)


def restore_gpus(inventory: ScrapedInventory, label_sets: Iterable[labels.Labels], cluster: str, *, at_ms: int) -> None:
    """Record the GPUs of expected nodes from the result of `RECENT_GPU_QUERY`, as gone until a page reports them.

    Without this, a hub that restarts would not know the GPUs of a node that is down.
    """
    expected = {(node.cluster, node.name) for node in inventory.nodes()}
    restored = [names for names in label_sets if (names.get("cluster") or cluster, names.get("Hostname")) in expected]
    record_queried_gpus(inventory, restored, cluster, at_ms=at_ms)
    for node in inventory.nodes():
        inventory.record_page(node, {}, at_ms=at_ms, source=QUERY_SOURCE)
