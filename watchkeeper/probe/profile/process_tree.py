"""What a program and all that it has started take of the host: cores, its busiest thread, disk and network.

`recorder_child` asks twice a second; each answer covers the time since the one before. Everything comes from /proc,
which any user may read of their own programs. What cannot be read is absent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

# A tree of more programs than this is judged by its first ones: reading /proc must stay cheap.
MOST_PROGRAMS = 256
MOST_THREADS = 512
TICKS = os.sysconf("SC_CLK_TCK")
PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


class ProcessTotals:
    """Counters of a tree at one moment."""

    def __init__(self) -> None:
        self.threads: dict[int, float] = {}
        self.resident_mib = 0.0
        self.waiting = 0
        self.disk: dict[int, tuple[int, int]] = {}
        self.network: tuple[int, int] | None = None


class ProcessTree:
    """The tree under one pid."""

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        self._pid = pid
        self._proc = proc
        self._last: tuple[float, ProcessTotals] | None = None

    def is_alive(self) -> bool:
        fields = _stat(self._proc / str(self._pid))
        return fields is not None and fields[0] != "Z"

    def read(self, now: float) -> Mapping[str, float]:
        """Rates since the last call; the first has none, because a rate needs two readings."""
        totals = self._totals()
        last, self._last = self._last, (now, totals)
        found: dict[str, float] = {"rss_mib": round(totals.resident_mib, 1)} if totals.threads else {}
        if last is None or now <= last[0] or not totals.threads:
            return found
        seconds, before = now - last[0], last[1]
        spent = [used - before.threads.get(thread, 0.0) for thread, used in totals.threads.items()]
        found["cpu_cores"] = round(max(0.0, sum(spent)) / seconds, 3)
        found["busiest_thread"] = round(100 * max(0.0, *spent, 0.0) / seconds, 1)
        found["disk_wait"] = float(totals.waiting)
        found |= _disk_rates(totals, before, seconds)
        if totals.network is not None and before.network is not None:
            received, sent = (b - a for a, b in zip(before.network, totals.network, strict=True))
            found["net_rx_kbs"] = round(received / 1024 / seconds, 1)
            found["net_tx_kbs"] = round(sent / 1024 / seconds, 1)
        return found

    def _totals(self) -> ProcessTotals:
        totals = ProcessTotals()
        for pid in self.pids():
            folder = self._proc / str(pid)
            self._add_threads(folder, totals)
            with suppress(OSError, ValueError, IndexError):
                totals.resident_mib += int((folder / "statm").read_text().split()[1]) * PAGE_MIB
            with suppress(OSError, ValueError):
                lines = dict(line.split(": ") for line in (folder / "io").read_text().splitlines())
                totals.disk[pid] = (int(lines["read_bytes"]), int(lines["write_bytes"]))
        totals.network = self._network()
        return totals

    def pids(self) -> list[int]:
        """The program and all its descendants, breadth first."""
        found, at = [self._pid], 0
        while at < len(found) and len(found) < MOST_PROGRAMS:
            with suppress(OSError):
                for task in (self._proc / str(found[at]) / "task").iterdir():
                    with suppress(OSError):
                        found += [int(word) for word in (task / "children").read_text().split()]
            at += 1
        return found[:MOST_PROGRAMS]

    def _add_threads(self, folder: Path, totals: ProcessTotals) -> None:
        with suppress(OSError):
            for task in (folder / "task").iterdir():
                if len(totals.threads) >= MOST_THREADS:
                    return
                fields = _stat(task)
                if fields is not None:
                    totals.threads[int(task.name)] = (int(fields[11]) + int(fields[12])) / TICKS
                    # D: the thread waits in the kernel, nearly always for a disk or a network file system.
                    totals.waiting += fields[0] == "D"

    def _network(self) -> tuple[int, int] | None:
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


def _disk_rates(totals: ProcessTotals, before: ProcessTotals, seconds: float) -> dict[str, float]:
    """A program that has started meanwhile counts from its beginning; without any `io` file nothing is known."""
    if not totals.disk:
        return {}
    read = written = 0
    for pid, (reads, writes) in totals.disk.items():
        old = before.disk.get(pid, (0, 0))
        read, written = read + reads - old[0], written + writes - old[1]
    return {"read_kbs": round(read / 1024 / seconds, 1), "write_kbs": round(written / 1024 / seconds, 1)}


def _stat(folder: Path) -> list[str] | None:
    """Fields after the name, which may hold spaces and brackets; the first is the state."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
