"""Reads the counters of InfiniBand ports as totals that only grow, with a timeout.

A 32-bit counter wraps, and PromQL's `rate` treats that as a reset and loses up to 2³². Wraps are corrected here, where
two readings are seconds apart; a counter of the specification's PortCounters stops at its maximum instead, which is
reported.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Generic, TypeVar

from watchkeeper.catalogue import tables
from watchkeeper.readers.fabric import infiniband_sysfs

T = TypeVar("T")

WRAP_AT = 1 << 32
# Limit of counters; sixteen ports have about a thousand.
MAX_COUNTERS = 50_000
# Readings may be late and link rates are nominal: no link carries twice its rate.
RATE_SLACK = 2.0
LINK_WORD_BYTES = 4


@dataclass(slots=True)
class CounterTotal:
    raw: int
    total: int
    at: float
    wraps: int = 0
    resets: int = 0
    # Consecutive readings with the same value.
    unchanged: int = 0


@dataclass(slots=True)
class CounterTotals:
    _totals: dict[Hashable, CounterTotal] = field(default_factory=dict)

    def add_reading(self, key: Hashable, raw: int, *, at: float, max_per_second: float | None = None) -> CounterTotal:
        """Add a reading; `max_per_second` is how fast the counter can grow, if that is known."""
        counter = self._totals.get(key)
        if counter is None:
            if len(self._totals) >= MAX_COUNTERS:
                self._totals.pop(next(iter(self._totals)))
            self._totals[key] = CounterTotal(raw, raw, at)
            return self._totals[key]
        if raw >= counter.raw:
            added = raw - counter.raw
        else:
            added = raw - counter.raw + WRAP_AT
            max_increase = None if max_per_second is None else max_per_second * max(at - counter.at, 1.0) * RATE_SLACK
            # A 64-bit counter that was cleared looks the same, but a wrap would mean impossible growth.
            if counter.raw >= WRAP_AT or (counter.raw < WRAP_AT // 2 if max_increase is None else added > max_increase):
                added = raw
                counter.resets += 1
            else:
                counter.wraps += 1
        counter.unchanged = counter.unchanged + 1 if raw == counter.raw else 0
        counter.raw, counter.at, counter.total = raw, at, counter.total + added
        return counter

    def count_wraps_and_resets(self) -> tuple[int, int]:
        counters = self._totals.values()
        return sum(counter.wraps for counter in counters), sum(counter.resets for counter in counters)


@dataclass(frozen=True, slots=True)
class PortReading:
    """A port, its counters in the units of their metrics, and the files of counters at their maximum."""

    port: infiniband_sysfs.SysfsPort
    values: dict[str, int]
    at_maximum: tuple[str, ...] = ()


@dataclass(slots=True)
class DeadlineReader(Generic[T]):
    """Reads several sources in parallel with one timeout; a source that hangs is skipped until it returns."""

    timeout_seconds: float
    _stuck_threads: dict[str, threading.Thread] = field(default_factory=dict)

    def read(self, names: Iterable[str], read_one: Callable[[str], T]) -> tuple[dict[str, T], tuple[str, ...]]:
        """The results of the sources that answered, and the names of those that hang."""
        self._stuck_threads = {name: thread for name, thread in self._stuck_threads.items() if thread.is_alive()}
        results: dict[str, T] = {}

        def read_into_results(name: str) -> None:
            results[name] = read_one(name)

        # Daemon threads: a thread that waits in the kernel must not stop the agent from exiting.
        threads = {
            name: threading.Thread(target=read_into_results, args=(name,), daemon=True, name=f"read {name}")
            for name in names
            if name not in self._stuck_threads
        }
        for thread in threads.values():
            thread.start()
        deadline = monotonic() + self.timeout_seconds
        for name, thread in threads.items():
            thread.join(max(deadline - monotonic(), 0.0))
            if thread.is_alive():
                self._stuck_threads[name] = thread
        return {name: results[name] for name in threads if name in results}, tuple(sorted(self._stuck_threads))


class PortCounters:
    def __init__(self, sysfs: Path, timeout_seconds: float = 2.0) -> None:
        self.sysfs, self.totals = sysfs, CounterTotals()
        self._reader: DeadlineReader[list[infiniband_sysfs.SysfsPort]] = DeadlineReader(timeout_seconds)

    def read(self, now: float) -> tuple[list[PortReading], tuple[str, ...]]:
        """Every port that answers, and the adapters that hang; `now` is monotonic time."""
        ports_by_adapter, stalled = self._reader.read(
            infiniband_sysfs.list_devices(self.sysfs), lambda name: infiniband_sysfs.read_ports(self.sysfs, name)
        )
        ports = [port for name in sorted(ports_by_adapter) for port in ports_by_adapter[name]]
        return [self._build_reading(port, now) for port in ports], stalled

    def _build_reading(self, port: infiniband_sysfs.SysfsPort, now: float) -> PortReading:
        values: dict[str, int] = {}
        at_maximum = []
        for (folder, file), raw in port.counters.items():
            family = tables.counter_families().get((folder, file))
            if family is None:
                continue
            is_traffic = family.scale == LINK_WORD_BYTES and port.bytes_per_second
            max_per_second = (port.bytes_per_second or 0.0) / LINK_WORD_BYTES if is_traffic else None
            key = (port.device, port.number, file)
            counter = self.totals.add_reading(key, raw, at=now, max_per_second=max_per_second)
            values[family.name] = counter.total * family.scale
            # A wider counter can pass this value; a counter that stays there has stopped.
            if raw and raw == family.basic_maximum and counter.unchanged:
                at_maximum.append(file)
        return PortReading(port, values, tuple(at_maximum))
