"""Which GPU sits at a PCI address of a node: the kernel log names addresses, events name UUIDs.

What the driver says in the log itself (`GpuIdentity`) is believed first; otherwise the node's inventory
is asked: the simulator over HTTP, a real machine in /proc. The kernel followers use this.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from watchkeeper.collect import http
from watchkeeper.errors import CollectError, WireError
from watchkeeper.kit import wire
from watchkeeper.model import fleet
from watchkeeper.readers import nvidia_proc

# An inventory that did not know an address is asked again after this time: the GPU may have come up since.
ASK_AGAIN = timedelta(seconds=60)
# Nodes and boots whose addresses are remembered; far above any fleet of one hub.
# As many GPUs as the simulator has at most; a node has 16.
MAX_INDEXES = 100_000
MAX_BOOTS = 50_000

AskInventory = Callable[[str], Awaitable[Sequence[fleet.Gpu]]]


class GpuAddresses:
    """PCI address to UUID, for each boot of each node."""

    def __init__(self, ask: AskInventory) -> None:
        self._ask = ask
        self._uuids: dict[tuple[str, str], dict[str, str]] = {}
        self._asked_at: dict[tuple[str, str], datetime] = {}
        self._indexes: dict[str, int] = {}

    def index_of(self, uuid: str) -> int | None:
        """The number that people call the GPU by, where the inventory told it."""
        return self._indexes.get(uuid)

    def learn(self, node: str, boot: str, *, pci: str, uuid: str) -> None:
        if (node, boot) not in self._uuids and len(self._uuids) >= MAX_BOOTS:
            oldest = next(iter(self._uuids))
            del self._uuids[oldest]
            self._asked_at.pop(oldest, None)
        self._uuids.setdefault((node, boot), {})[pci] = uuid

    async def find(self, node: str, boot: str, *, pci: str, now: datetime) -> tuple[str | None, str]:
        """The UUID at the address, or None and why it is unknown."""
        key = (node, boot)
        known = self._uuids.get(key, {})
        if pci in known:
            return known[pci], ""
        asked_at = self._asked_at.get(key)
        if asked_at is None or now - asked_at >= ASK_AGAIN:
            if len(self._asked_at) >= MAX_BOOTS:
                self._asked_at.clear()
            self._asked_at[key] = now
            try:
                gpus = await self._ask(node)
            except CollectError as error:
                return None, f"the inventory could not be read: {error}"
            for gpu in gpus:
                if gpu.pci is not None:
                    self.learn(node, boot, pci=gpu.pci, uuid=gpu.uuid)
            self._learn_indexes(gpus)
        found = self._uuids.get(key, {}).get(pci)
        return found, "" if found else f"the inventory of {node} has no GPU at {pci}"

    def _learn_indexes(self, gpus: Sequence[fleet.Gpu]) -> None:
        if len(self._indexes) + len(gpus) > MAX_INDEXES:
            self._indexes.clear()
        self._indexes.update((gpu.uuid, gpu.index) for gpu in gpus if gpu.index is not None)


def ask_simulator(origin: str) -> AskInventory:
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
            return [fleet.Gpu(gpu.uuid, gpu.index, fleet.same_pci(gpu.pci), gpu.model) for gpu in gpus if gpu.pci]
        except (ValueError, KeyError, TypeError, WireError) as error:
            raise CollectError(f"is not an inventory: {error}", where=url) from error

    return ask


def ask_proc(proc: Path) -> AskInventory:
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
