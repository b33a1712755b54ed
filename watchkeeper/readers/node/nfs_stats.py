"""Read NFS client counters from /proc/self/mountstats, which never waits for a server.

    device nas:/data mounted on /mnt/data with fstype nfs4 statvers=1.1
            per-op statistics
                    READ: 1234 1240 2 271480 9876543 15 4821 4850 0

The numbers of an operation are: requests, transmissions, major timeouts, bytes sent and received, and milliseconds in
the queue, until the response, and in total. `agent.node_facts` adds them to the agent's metrics.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from watchkeeper.readers.node import host

DEVICE = re.compile(r"device \S+ mounted on (?P<path>.+) with fstype (?P<kind>nfs4?)\b")
OPERATION = re.compile(r"\s+[A-Z_]+: (\d+) (\d+) (\d+) \d+ \d+ \d+ \d+ (\d+)")
# A node with more has a runaway automounter.
MAX_MOUNTS = 100


@dataclass(frozen=True, slots=True)
class NfsMount:
    """The counters of one mount since it was mounted, summed over all operations."""

    path: str
    operations: int
    retransmissions: int
    timeouts: int
    milliseconds: int


def read(proc: Path) -> list[NfsMount]:
    sums: dict[str, list[int]] = {}
    current: list[int] | None = None
    for line in host.read_host_file(proc, "mountstats")[0].splitlines():
        if line.startswith("device "):
            match = DEVICE.match(line)
            current = None if match is None or len(sums) >= MAX_MOUNTS else sums.setdefault(match["path"], [0] * 4)
        elif current is not None and (numbers := OPERATION.match(line)) is not None:
            current[:] = [total + int(number) for total, number in zip(current, numbers.groups(), strict=True)]
    # A queued operation is requested and not sent yet, so `sent` can be smaller.
    return [
        NfsMount(path, requested, max(0, sent - requested), timeouts, milliseconds)
        for path, (requested, sent, timeouts, milliseconds) in sums.items()
    ]
