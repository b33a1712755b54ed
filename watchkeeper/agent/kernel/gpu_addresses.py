"""Finds the GPU at a PCI address of a node: the kernel log has addresses, events have UUIDs.

The driver's own log lines (`GpuIdentity`) take precedence; otherwise the node's GPU list is read, over HTTP from the
simulator and from /proc on a real node.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from watchkeeper.errors import CollectError, WireError
from watchkeeper.kit import wire
from watchkeeper.model import fleet
from watchkeeper.net import http
from watchkeeper.readers.node import host

# The GPU list is read again after this time if an address is missing: the GPU may have appeared.
REFRESH_INTERVAL = timedelta(seconds=60)
# Limit of nodes and boots whose addresses are stored; far above the fleet of one hub.
MAX_BOOTS = 50_000

FetchInventory = Callable[[str], Awaitable[Sequence[fleet.Gpu]]]


class GpuAddresses:
    def __init__(self, fetch_inventory: FetchInventory) -> None:
        self._fetch_inventory = fetch_inventory
        self._gpus: dict[tuple[str, str], dict[str, fleet.Gpu]] = {}
        self._fetched_at: dict[tuple[str, str], datetime] = {}

    def record_identity(self, node: str, boot: str, *, pci: str, uuid: str) -> None:
        """Record the UUID at an address from a driver log line, which does not contain the GPU's index."""
        gpus_by_pci = self._gpus_of_boot(node, boot)
        if pci not in gpus_by_pci or gpus_by_pci[pci].uuid != uuid:
            gpus_by_pci[pci] = fleet.Gpu(uuid, pci=pci)

    async def find(self, node: str, boot: str, *, pci: str, now: datetime) -> tuple[fleet.Gpu | None, str]:
        """The GPU at the address, with its index if it is in the list; or None and the reason."""
        gpus_by_pci, reason = self._gpus_of_boot(node, boot), ""
        if pci not in gpus_by_pci or gpus_by_pci[pci].index is None:
            reason = await self._refresh_inventory(node, boot, now)
        gpu = gpus_by_pci.get(pci)
        return gpu, "" if gpu else reason or f"the inventory of {node} has no GPU at {pci}"

    async def _refresh_inventory(self, node: str, boot: str, now: datetime) -> str:
        """Read the GPU list, unless that was done recently; returns the problem if it could not be read."""
        fetched_at = self._fetched_at.get((node, boot))
        if fetched_at is not None and now - fetched_at < REFRESH_INTERVAL:
            return ""
        self._fetched_at[node, boot] = now
        try:
            gpus = await self._fetch_inventory(node)
        except CollectError as error:
            return f"the inventory could not be read: {error}"
        gpus_by_pci = self._gpus_of_boot(node, boot)
        for gpu in gpus:
            current = gpus_by_pci.get(gpu.pci or "")
            if gpu.pci is not None and (current is None or (current.uuid == gpu.uuid and current.index is None)):
                gpus_by_pci[gpu.pci] = gpu
        return ""

    def _gpus_of_boot(self, node: str, boot: str) -> dict[str, fleet.Gpu]:
        if (node, boot) not in self._gpus and len(self._gpus) >= MAX_BOOTS:
            oldest = next(iter(self._gpus))
            del self._gpus[oldest]
            self._fetched_at.pop(oldest, None)
        return self._gpus.setdefault((node, boot), {})


async def read_simulator_inventory(origin: str, node: str) -> Sequence[fleet.Gpu]:
    """The GPU list of a node from `GET /nodes/{node}/inventory` of the simulator at `origin`."""
    connection = http.Connection(timeout_seconds=2.0)
    url = f"{origin}/nodes/{node}/inventory"
    try:
        response = await connection.send(http.HttpRequest(url))
    finally:
        await connection.aclose()
    if response.status != 200:
        raise CollectError(f"answered {response.status}", where=url)
    try:
        gpus = wire.from_plain(tuple[fleet.Gpu, ...], json.loads(response.body)["gpus"])
        return [fleet.Gpu(gpu.uuid, gpu.index, fleet.normalise_pci(gpu.pci), gpu.model) for gpu in gpus if gpu.pci]
    except (ValueError, KeyError, TypeError, WireError) as error:
        raise CollectError(f"is not an inventory: {error}", where=url) from error


def read_proc_inventory(proc: Path) -> list[fleet.Gpu]:
    """The GPU list of this node, from the NVIDIA driver's files under `proc`."""
    folder = proc / "driver/nvidia/gpus"
    try:
        texts = [page.read_text(errors="replace") for page in sorted(folder.glob("*/information"))]
    except OSError as error:
        raise CollectError(f"cannot be read: {error.strerror}", where=str(folder)) from error
    return [gpu for text in texts if (gpu := host.read_gpu_information(text)) is not None]
