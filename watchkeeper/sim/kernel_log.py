"""Simulate the kernel log of every node, in the format of /dev/kmsg.

The server streams the records in the order of a fleet-wide sequence number. Each node also has its own sequence number
and time since boot; a reboot resets both and changes the boot id. The oldest records are dropped at a limit.
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
# Syslog levels: the driver logs Xids as warnings, routine lines are informational.
WARNING, INFORMATIONAL = 4, 6
# A healthy node logs about three lines an hour.
ROUTINE_LINES_PER_NODE_SECOND = 3 / 3600
ROUTINE_LINES = (
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
    seq: int
    node: str
    boot: str
    record: str
    at: datetime


@dataclass(slots=True)
class NodeBoot:
    id: str
    started_at: datetime
    next_sequence: int = 0
    last_micros: int = 0
    named_gpus: set[str] = field(default_factory=set)


class SimKernelLog:
    def __init__(self, layout: FleetLayout, rng: random.Random, now: datetime) -> None:
        self._rng = rng
        self._records: deque[SimKernelRecord] = deque(maxlen=RING_LIMIT)
        self._next_seq = 1
        self._boots: dict[str, NodeBoot] = {}
        self._nodes = layout.nodes
        self.boot_all(now)

    def boot_all(self, now: datetime) -> None:
        self._records.clear()
        for node in self._nodes:
            self.reboot(node, now)

    @property
    def last_seq(self) -> int:
        return self._next_seq - 1

    def boot_of(self, node: str) -> str:
        return self._boots[node].id

    def records_since(self, seq: int, *, limit: int = RING_LIMIT) -> list[SimKernelRecord]:
        """Records after `seq`, oldest first; dropped records are skipped."""
        if not self._records:
            return []
        start = max(0, seq + 1 - self._records[0].seq)
        stop = min(len(self._records), start + limit)
        return [self._records[position] for position in range(start, stop)]

    def write(self, node: SimNode, text: str, now: datetime, *, priority: int = INFORMATIONAL) -> None:
        boot = self._boots[node.name]
        # Lines of the same simulated second are microseconds apart.
        boot.last_micros = max((now - boot.started_at) // timedelta(microseconds=1), boot.last_micros + 3)
        record = f"{priority},{boot.next_sequence},{boot.last_micros},-;{text}"
        self._records.append(SimKernelRecord(self._next_seq, node.name, boot.id, record, now))
        self._next_seq += 1
        boot.next_sequence += 1

    def write_from_driver(self, node: SimNode, gpu: SimGpu, text: str, *, now: datetime) -> int | None:
        """Write a line of the NVIDIA driver; returns its Xid, if it has one.

        Before the first Xid of a GPU, the driver logs the GPU of that address once.
        """
        match = XID_LINE.search(text)
        named = self._boots[node.name].named_gpus
        if match and gpu.uuid not in named:
            named.add(gpu.uuid)
            self.write(node, f"NVRM: GPU at PCI:{gpu.kernel_pci}: {gpu.uuid}", now, priority=WARNING)
            self.write(node, f"NVRM: GPU Board Serial Number: {gpu.serial}", now, priority=WARNING)
        self.write(node, text, now, priority=WARNING)
        return int(match[1]) if match else None

    def reboot(self, node: SimNode, now: datetime) -> None:
        """Start a new kernel: a new boot id, numbering from zero, and the first lines of a boot."""
        self._boots[node.name] = NodeBoot(str(UUID(int=self._rng.getrandbits(128), version=4)), now)
        self.write(node, "Linux version 6.8.0-79-generic (buildd@lcy02) (x86_64-linux-gnu-gcc 13.3.0)", now, priority=5)
        loading_line = f"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  {node.pool.driver}  Release Build"
        self.write(node, loading_line, now, priority=INFORMATIONAL)

    def write_routine_lines(self, now: datetime, is_up: Callable[[SimNode], bool]) -> None:
        """Write routine lines of healthy nodes; none is a fault."""
        expected = ROUTINE_LINES_PER_NODE_SECOND * len(self._nodes)
        count = int(expected) + (self._rng.random() < expected % 1)
        for _ in range(count):
            node = self._rng.choice(self._nodes)
            text = self._rng.choice(ROUTINE_LINES)
            hex_values = {"hex8": f"{self._rng.getrandbits(32):08x}", "hex3": f"{self._rng.getrandbits(12):03x}"}
            if is_up(node):
                self.write(node, text.format(**hex_values), now)
