"""Which GPU sits at a PCI address of a node: the kernel log names addresses, events name UUIDs.

What the driver says in the log itself (`GpuIdentity`) is believed first; otherwise the node's inventory
is asked: the simulator over HTTP, a real machine in /proc. The kernel followers use this.
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
from watchkeeper.readers.node import nvidia_proc

# An inventory that did not know an address is asked again after this time: the GPU may have come up since.
ASK_AGAIN = timedelta(seconds=60)
# Nodes and boots whose addresses are remembered; far above any fleet of one hub.
MAX_BOOTS = 50_000

FetchInventory = Callable[[str], Awaitable[Sequence[fleet.Gpu]]]


class GpuAddresses:
    """The GPU at each PCI address, for each boot of each node."""

    def __init__(self, ask: FetchInventory) -> None:
        self._ask = ask
        self._gpus: dict[tuple[str, str], dict[str, fleet.Gpu]] = {}
        self._asked_at: dict[tuple[str, str], datetime] = {}

    def learn(self, node: str, boot: str, *, pci: str, uuid: str) -> None:
        """What the driver said in the log: it does not tell the number that people call the GPU by."""
        here = self._at(node, boot)
        if pci not in here or here[pci].uuid != uuid:
            here[pci] = fleet.Gpu(uuid, pci=pci)

    async def find(self, node: str, boot: str, *, pci: str, now: datetime) -> tuple[fleet.Gpu | None, str]:
        """The GPU at the address with its number where the inventory tells it, or None and why it is unknown."""
        here, why = self._at(node, boot), ""
        if pci not in here or here[pci].index is None:
            why = await self._take_inventory(node, boot, now)
        found = here.get(pci)
        return found, "" if found else why or f"the inventory of {node} has no GPU at {pci}"

    async def _take_inventory(self, node: str, boot: str, now: datetime) -> str:
        """Ask the inventory, unless that was done just now; returns why it could not be read."""
        asked_at = self._asked_at.get((node, boot))
        if asked_at is not None and now - asked_at < ASK_AGAIN:
            return ""
        self._asked_at[node, boot] = now
        try:
            gpus = await self._ask(node)
        except CollectError as error:
            return f"the inventory could not be read: {error}"
        here = self._at(node, boot)
        for gpu in gpus:
            known = here.get(gpu.pci or "")
            if gpu.pci is not None and (known is None or (known.uuid == gpu.uuid and known.index is None)):
                here[gpu.pci] = gpu
        return ""

    def _at(self, node: str, boot: str) -> dict[str, fleet.Gpu]:
        if (node, boot) not in self._gpus and len(self._gpus) >= MAX_BOOTS:
            oldest = next(iter(self._gpus))
            del self._gpus[oldest]
            self._asked_at.pop(oldest, None)
        return self._gpus.setdefault((node, boot), {})


def simulator_inventory(origin: str) -> FetchInventory:
    """Inventories from `GET /nodes/{node}/inventory` of the simulator at `origin`."""

    async def ask(node: str) -> Sequence[fleet.Gpu]:
        connection = http.Connection(timeout_seconds=2.0)
        url = f"{origin}/nodes/{node}/inventory"
        try:
            response = await connection.send(http.Request(url))
        finally:
            await connection.aclose()
        if response.status != 200:
            raise CollectError(f"answered {response.status}", where=url)
        try:
            plain = json.loads(response.body)["gpus"]
            gpus = wire.from_plain(tuple[fleet.Gpu, ...], plain)
            return [fleet.Gpu(gpu.uuid, gpu.index, fleet.normalise_pci(gpu.pci), gpu.model) for gpu in gpus if gpu.pci]
        except (ValueError, KeyError, TypeError, WireError) as error:
            raise CollectError(f"is not an inventory: {error}", where=url) from error

    return ask


def proc_inventory(proc: Path) -> FetchInventory:
    """The inventory of this machine, from the pages of the NVIDIA driver under `proc`."""

    async def ask(_node: str) -> Sequence[fleet.Gpu]:
        gpus = []
        try:
            for page in sorted((proc / "driver/nvidia/gpus").glob("*/information")):
                gpu = nvidia_proc.read_information(page.read_text(errors="replace"))
                if gpu is not None:
                    gpus.append(gpu)
        except OSError as error:
            raise CollectError(f"cannot be read: {error.strerror}", where=str(proc / "driver/nvidia/gpus")) from error
        return gpus

    return ask
