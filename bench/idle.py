"""The whole product at rest: CPU share and memory of `watchkeeper up`, simulator included.

Both processes are started as a user starts them; CPU time and resident memory are the kernel's own
figures, and memory is the most that was held in any second of the look. `start_seconds` is from the command to the
first answer of the page. Memory settles when the first blocks have been merged, a quarter of an hour after the
start: `--seconds 1800` sees it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests import servers
from tests.support.running_product import WATCHKEEPER

TICKS = os.sysconf("SC_CLK_TCK")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=int, default=512, help="size of the fleet")
    parser.add_argument("--seconds", type=int, default=60, help="how long to look")
    parser.add_argument("--warm", type=int, default=30, help="seconds to wait before looking")


def measure(options: argparse.Namespace) -> dict[str, float]:
    port = servers.free_port()
    with tempfile.TemporaryDirectory() as folder:
        line = [*WATCHKEEPER, "up", "--gpus", str(options.gpus), "--port", str(port), "--data", f"{folder}/kept"]
        began = time.monotonic()
        with servers.running(line, ready_url=f"http://127.0.0.1:{port}/", log=Path(folder) / "log") as server:
            started = time.monotonic() - began
            time.sleep(options.warm)
            family = [server.pid, *children_of(server.pid)]
            before, at = sum(cpu_seconds(pid) for pid in family), time.monotonic()
            held = list(memory_over(family, options.seconds))
            used = sum(cpu_seconds(pid) for pid in family) - before
            return {
                "gpus": options.gpus,
                "start_seconds": round(started, 2),
                "core_share": round(used / (time.monotonic() - at), 4),
                "memory_mib": round(max(map(sum, held)), 1),
                "hub_memory_mib": round(max(hub for hub, *_ in held), 1),
                "memory_at_end_mib": round(sum(held[-1]), 1),
            }


def memory_over(family: list[int], seconds: float) -> Iterator[list[float]]:
    """What each process holds, once a second: a block that is written may need more than the moments around it."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(1.0)
        yield [resident_mib(pid) for pid in family]


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, all threads; proc(5), fields 14 and 15."""
    columns = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(columns[11]) + int(columns[12])) / TICKS


def resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024
