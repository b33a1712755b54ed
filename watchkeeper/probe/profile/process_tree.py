"""Read the host resources of a process and its descendants: cores, busiest thread, disk and network.

Each result covers the time since the previous one. The source is /proc, which users can read for their own processes;
values that cannot be read are absent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

# Larger trees are read partially: reading /proc must stay cheap.
MAX_PROCESSES = 256
MAX_THREADS = 512
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


class ProcessTotals:
    def __init__(self) -> None:
        self.thread_seconds: dict[int, float] = {}
        self.resident_mib = 0.0
        self.waiting_threads = 0
        self.disk_bytes: dict[int, tuple[int, int]] = {}
        self.network_bytes: tuple[int, int] | None = None


class ProcessTree:
    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        self._pid = pid
        self._proc = proc
        self._last: tuple[float, ProcessTotals] | None = None

    def read(self, now: float) -> Mapping[str, float]:
        """Rates since the last call; the first call has none."""
        totals = self._read_totals()
        last, self._last = self._last, (now, totals)
        rates: dict[str, float] = {"rss_mib": round(totals.resident_mib, 1)} if totals.thread_seconds else {}
        if last is None or now <= last[0] or not totals.thread_seconds:
            return rates
        seconds, previous = now - last[0], last[1]
        before = previous.thread_seconds
        cpu_seconds = [total - before.get(thread, 0.0) for thread, total in totals.thread_seconds.items()]
        rates["cpu_cores"] = round(max(0.0, sum(cpu_seconds)) / seconds, 3)
        rates["busiest_thread"] = round(100 * max(0.0, *cpu_seconds, 0.0) / seconds, 1)
        rates["disk_wait"] = float(totals.waiting_threads)
        rates |= _disk_rates(totals, previous, seconds)
        if totals.network_bytes is not None and previous.network_bytes is not None:
            received, sent = (b - a for a, b in zip(previous.network_bytes, totals.network_bytes, strict=True))
            rates["net_rx_kbs"] = round(received / 1024 / seconds, 1)
            rates["net_tx_kbs"] = round(sent / 1024 / seconds, 1)
        return rates

    def _read_totals(self) -> ProcessTotals:
        totals = ProcessTotals()
        for pid in self.pids():
            folder = self._proc / str(pid)
            self._add_threads(folder, totals)
            with suppress(OSError, ValueError, IndexError):
                totals.resident_mib += int((folder / "statm").read_text().split()[1]) * PAGE_MIB
            with suppress(OSError, ValueError):
                lines = dict(line.split(": ") for line in (folder / "io").read_text().splitlines())
                totals.disk_bytes[pid] = (int(lines["read_bytes"]), int(lines["write_bytes"]))
        totals.network_bytes = self._read_network()
        return totals

    def pids(self) -> list[int]:
        pids, position = [self._pid], 0
        while position < len(pids) and len(pids) < MAX_PROCESSES:
            with suppress(OSError):
                for task in (self._proc / str(pids[position]) / "task").iterdir():
                    with suppress(OSError):
                        pids += [int(pid) for pid in (task / "children").read_text().split()]
            position += 1
        return pids[:MAX_PROCESSES]

    def _add_threads(self, folder: Path, totals: ProcessTotals) -> None:
        with suppress(OSError):
            for task in (folder / "task").iterdir():
                if len(totals.thread_seconds) >= MAX_THREADS:
                    return
                fields = read_stat(task)
                if fields is not None:
                    totals.thread_seconds[int(task.name)] = (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
                    # D: waits in the kernel, nearly always for a disk or a network file system.
                    totals.waiting_threads += fields[0] == "D"

    def _read_network(self) -> tuple[int, int] | None:
        received = sent = 0
        try:
            lines = (self._proc / str(self._pid) / "net" / "dev").read_text().splitlines()[2:]
        except OSError:
            return None
        for line in lines:
            name, _, numbers = line.partition(":")
            if name.strip() != "lo":
                cells = numbers.split()
                received, sent = received + int(cells[0]), sent + int(cells[8])
        return received, sent


def _disk_rates(totals: ProcessTotals, previous: ProcessTotals, seconds: float) -> dict[str, float]:
    """Disk rates; a new process counts from its start. Empty if no `io` file can be read."""
    if not totals.disk_bytes:
        return {}
    read = written = 0
    for pid, (reads, writes) in totals.disk_bytes.items():
        previous_bytes = previous.disk_bytes.get(pid, (0, 0))
        read, written = read + reads - previous_bytes[0], written + writes - previous_bytes[1]
    return {"read_kbs": round(read / 1024 / seconds, 1), "write_kbs": round(written / 1024 / seconds, 1)}


def read_stat(folder: Path) -> list[str] | None:
    """The fields of `stat` after the name, which may contain spaces and brackets; the first is the state."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
