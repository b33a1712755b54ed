"""GPUs that somebody else reads: what the samples on a server teach about a fleet whose pages the hub does not read.

With `[fleet] scrape = false` Prometheus or vmagent reads the exporters, and the hub asks the engine now and then who
is there. A node without samples says nothing about its GPUs, as a page that cannot be read says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from watchkeeper.model import fleet, labels
from watchkeeper.scrape.fleet import ScrapedInventory, gpu_of

# Every GPU has a temperature; the labels are dcgm-exporter's.
GPU_QUERY = "group by (cluster, Hostname, UUID, gpu, pci_bus_id, modelName) (DCGM_FI_DEV_GPU_TEMP)"
SOURCE = "the samples of the server"


def record_gpus(inventory: ScrapedInventory, label_sets: Iterable[labels.Labels], cluster: str, *, at_ms: int) -> None:
    """Take over which GPUs each node has by an answer to `EXPR`; `cluster` is meant where a series names none."""
    for (where, name), gpus in _by_node(label_sets, cluster).items():
        node = inventory.node(name, where) or fleet.Node(where, name, source=SOURCE)
        inventory.record_page(node, gpus, at_ms=at_ms, source=SOURCE)


def _by_node(answer: Iterable[labels.Labels], cluster: str) -> dict[tuple[str, str], dict[str, fleet.Gpu]]:
    found: dict[tuple[str, str], dict[str, fleet.Gpu]] = {}
    for label_set in answer:
        gpu, hostname = gpu_of(label_set), label_set.get("Hostname", "")
        if gpu is not None and hostname:
            found.setdefault((label_set.get("cluster") or cluster, hostname), {})[gpu.uuid] = gpu
    return found
