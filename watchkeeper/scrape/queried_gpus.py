"""Read GPUs from samples on a Prometheus server, for a fleet that the hub does not scrape.

With `[fleet] scrape = false` Prometheus or vmagent scrapes the exporters, and the hub queries the engine for the GPUs.
A node without samples reports nothing about its GPUs, like a page that cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterable

from watchkeeper.model import fleet, labels
from watchkeeper.scrape.fleet import ScrapedInventory, gpu_of

# Every GPU has a temperature; the labels are dcgm-exporter's.
GPU_QUERY = "group by (cluster, Hostname, UUID, gpu, pci_bus_id, modelName) (DCGM_FI_DEV_GPU_TEMP)"
SOURCE = "samples on the Prometheus server"


def record_gpus(inventory: ScrapedInventory, label_sets: Iterable[labels.Labels], cluster: str, *, at_ms: int) -> None:
    """Record the GPUs of each node from the result of `GPU_QUERY`; `cluster` applies to series without that label."""
    for (node_cluster, name), gpus in _by_node(label_sets, cluster).items():
        node = inventory.node(name, node_cluster) or fleet.Node(node_cluster, name, source=SOURCE)
        inventory.record_page(node, gpus, at_ms=at_ms, source=SOURCE)


def _by_node(label_sets: Iterable[labels.Labels], cluster: str) -> dict[tuple[str, str], dict[str, fleet.Gpu]]:
    gpus_by_node: dict[tuple[str, str], dict[str, fleet.Gpu]] = {}
    for label_set in label_sets:
        gpu, hostname = gpu_of(label_set), label_set.get("Hostname", "")
        if gpu is not None and hostname:
            gpus_by_node.setdefault((label_set.get("cluster") or cluster, hostname), {})[gpu.uuid] = gpu
    return gpus_by_node
