"""The kernel log of every node, as /dev/kmsg would give it.

faults.py, cluster.py and the ordinary chatter of a machine write lines; the server streams the records
in the order of one fleet-wide number. Each node counts its own records and microseconds since its own
boot, and a reboot starts both again under a new boot id. The ring forgets the oldest records.
"""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from watchkeeper.sim.fleet import FleetLayout, SimGpu, SimNode

RING_LIMIT = 20_000
# Syslog levels: the driver logs Xids as warnings, chatter is informational.
WARNING, INFORMATIONAL = 4, 6
# A quiet machine still says something about three times an hour.
CHATTER_PER_NODE_SECOND = 3 / 3600
CHATTER = (
    "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
    "IPv6: ADDRCONF(NETDEV_CHANGE): cali{hex8}{hex3}: link becomes ready",
    "nvidia-nvswitch0: open (major=510)",
    "perf: interrupt took too long (2521 > 2500), lowering kernel.perf_event_max_sample_rate to 79000",
    "TCP: request_sock_TCP: Possible SYN flooding on port 29500. Sending cookies.",
    "systemd-journald[812]: Time jumped backwards, rotating.",
)
# NVRM: Xid (PCI:0000:5d:00): 79, GPU has fallen off the bus.
XID_LINE = re.compile(r"NVRM: Xid \(PCI:[^)]*\): (\d+),")


@dataclass(frozen=True, slots=True)
class SimKernelRecord:
    """One line as it goes over the wire; `seq` counts over the whole fleet."""

    seq: int
    node: str
    boot: str
    record: str
    at: datetime


@dataclass(slots=True)
class NodeBoot:
    """One run of one node's kernel."""

    id: str
    since: datetime
    sequence: int
    last_micros: int = 0
    named_gpus: set[str] = field(default_factory=set)


class SimKernelLog:
    """Records of all nodes, newest last."""

    def __init__(self, layout: FleetLayout, draw: random.Random, now: datetime) -> None:
        self._draw = draw
        self._records: deque[SimKernelRecord] = deque(maxlen=RING_LIMIT)
        self._next_seq = 1
        self._boots: dict[str, NodeBoot] = {}
        self._nodes = layout.nodes
        self.start(now)

    def start(self, now: datetime) -> None:
        """All machines boot: what was known about an earlier fleet of the same names is over."""
        self._records.clear()
        for node in self._nodes:
            self.reboot(node, now)

    @property
    def last_seq(self) -> int:
        return self._next_seq - 1

    def boot_of(self, node: str) -> str:
        return self._boots[node].id

    def since(self, seq: int, *, limit: int = RING_LIMIT) -> list[SimKernelRecord]:
        """Records after `seq`, oldest first; what the ring has forgotten is skipped."""
        if not self._records:
            return []
        start = max(0, seq + 1 - self._records[0].seq)
        stop = min(len(self._records), start + limit)
        return [self._records[position] for position in range(start, stop)]

    def write(self, node: SimNode, text: str, now: datetime, *, priority: int = INFORMATIONAL) -> None:
        boot = self._boots[node.name]
        # Two lines of one simulated second are microseconds apart.
        boot.last_micros = max((now - boot.since) // timedelta(microseconds=1), boot.last_micros + 3)
        record = f"{priority},{boot.sequence},{boot.last_micros},-;{text}"
        self._records.append(SimKernelRecord(self._next_seq, node.name, boot.id, record, now))
        self._next_seq += 1
        boot.sequence += 1

    def write_from_driver(self, node: SimNode, gpu: SimGpu, text: str, *, now: datetime) -> int | None:
        """A line of the NVIDIA driver; returns the Xid code in it, if it has one.

        Before the first Xid of a GPU the driver says once which GPU sits at that address.
        """
        found = XID_LINE.search(text)
        named = self._boots[node.name].named_gpus
        if found and gpu.uuid not in named:
            named.add(gpu.uuid)
            self.write(node, f"NVRM: GPU at PCI:{gpu.kernel_pci}: {gpu.uuid}", now, priority=WARNING)
            self.write(node, f"NVRM: GPU Board Serial Number: {gpu.serial}", now, priority=WARNING)
        self.write(node, text, now, priority=WARNING)
        return int(found[1]) if found else None

    def reboot(self, node: SimNode, now: datetime) -> None:
        """A new kernel starts: new boot id, numbering from zero, the lines of a machine coming up."""
        self._boots[node.name] = self._new_boot(now, 0)
        self.write(node, "Linux version 6.8.0-79-generic (buildd@lcy02) (x86_64-linux-gnu-gcc 13.3.0)", now, priority=5)
        loading = f"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  {node.pool.driver}  Release Build"
        self.write(node, loading, now, priority=INFORMATIONAL)

    def chatter(self, now: datetime, is_up: Callable[[SimNode], bool]) -> None:
        """What healthy machines say now and then; nothing in it is a fault."""
        expected = CHATTER_PER_NODE_SECOND * len(self._nodes)
        count = int(expected) + (self._draw.random() < expected % 1)
        for _ in range(count):
            node = self._draw.choice(self._nodes)
            text = self._draw.choice(CHATTER)
            letters = {"hex8": f"{self._draw.getrandbits(32):08x}", "hex3": f"{self._draw.getrandbits(12):03x}"}
            if is_up(node):
                self.write(node, text.format(**letters), now)

    def _new_boot(self, now: datetime, sequence: int) -> NodeBoot:
        return NodeBoot(str(UUID(int=self._draw.getrandbits(128), version=4)), now, sequence)
