"""The whole product at rest: CPU share and memory of `watchkeeper up`, including the simulator.

Processes are started as by a user. CPU time and resident memory are those of the kernel; memory is the highest value of
any second. `start_seconds` is the time from the command to the first response of the page. Memory settles after the
first merge of blocks, a quarter of an hour after the start: use `--seconds 1800`.
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
    parser.add_argument("--seconds", type=int, default=60, help="seconds to measure")
    parser.add_argument("--warm", type=int, default=30, help="seconds to wait before measuring")


def measure(options: argparse.Namespace) -> dict[str, float]:
    port = servers.free_port()
    with tempfile.TemporaryDirectory() as folder:
        line = [*WATCHKEEPER, "up", "--gpus", str(options.gpus), "--port", str(port), "--data", f"{folder}/kept"]
        started_at = time.monotonic()
        with servers.running(line, ready_url=f"http://127.0.0.1:{port}/", log=Path(folder) / "log") as server:
            start_seconds = time.monotonic() - started_at
            time.sleep(options.warm)
            pids = [server.pid, *children_of(server.pid)]
            cpu_before, measured_from = sum(cpu_seconds(pid) for pid in pids), time.monotonic()
            memory_samples = list(memory_over(pids, options.seconds))
            cpu_used = sum(cpu_seconds(pid) for pid in pids) - cpu_before
            return {
                "gpus": options.gpus,
                "start_seconds": round(start_seconds, 2),
                "core_share": round(cpu_used / (time.monotonic() - measured_from), 4),
                "memory_mib": round(max(map(sum, memory_samples)), 1),
                "hub_memory_mib": round(max(hub for hub, *_ in memory_samples), 1),
                "memory_at_end_mib": round(sum(memory_samples[-1]), 1),
            }


def memory_over(pids: list[int], seconds: float) -> Iterator[list[float]]:
    """The memory of each process once a second, because writing a block needs more for a short time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(1.0)
        yield [resident_mib(pid) for pid in pids]


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process (proc(5), fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024
