"""Counters of InfiniBand ports as numbers that only grow, read under a deadline.

A 32-bit counter wraps, and PromQL's `rate` takes that for a restart and loses up to 2³² of it; so wraps are undone
here, where two readings are seconds apart, and the page shows sums that only an agent's restart sets back. A counter of
the specification's PortCounters does not wrap: it stops at its maximum, and that is said. A file that hangs costs its
adapter's numbers, not the others'. `fabric_page` shows what this reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Generic, TypeVar

from watchkeeper.catalogue import infiniband
from watchkeeper.readers.fabric import infiniband_sysfs

T = TypeVar("T")

WRAP = 1 << 32
# Counters that are remembered: sixteen ports have about a thousand.
MAX_COUNTERS = 50_000
# Readings are late and rates are nominal: twice what a link can carry is more than it carried.
SLACK = 2.0
WORD_BYTES = 4


@dataclass(slots=True)
class CounterTotal:
    """One counter's way: its last raw value and the sum so far."""

    raw: int
    total: int
    at: float
    wraps: int = 0
    resets: int = 0
    # Readings in a row with the same value.
    unchanged: int = 0


@dataclass(slots=True)
class CounterTotals:
    """Raw counters by key, as sums."""

    _known: dict[Hashable, CounterTotal] = field(default_factory=dict)

    def add_reading(self, key: Hashable, raw: int, *, at: float, most_per_second: float | None = None) -> CounterTotal:
        """Put a reading behind the others; `most_per_second` is what the counter can grow at most, if that is known."""
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MAX_COUNTERS:
                self._known.pop(next(iter(self._known)))
            known = self._known[key] = CounterTotal(raw, raw, at)
            return known
        if raw >= known.raw:
            added = raw - known.raw
        else:
            added = raw - known.raw + WRAP
            most = None if most_per_second is None else most_per_second * max(at - known.at, 1.0) * SLACK
            # A counter with 64 bits that was cleared looks alike, but it would have grown impossibly fast.
            if known.raw >= WRAP or (known.raw < WRAP // 2 if most is None else added > most):
                added = raw
                known.resets += 1
            else:
                known.wraps += 1
        known.unchanged = known.unchanged + 1 if raw == known.raw else 0
        known.raw, known.at, known.total = raw, at, known.total + added
        return known

    @property
    def wraps(self) -> int:
        return sum(one.wraps for one in self._known.values())

    @property
    def resets(self) -> int:
        return sum(one.resets for one in self._known.values())


@dataclass(frozen=True, slots=True)
class PortNumbers:
    """A port, its counters in the units of their metrics, and the files of those that stand at their maximum."""

    port: infiniband_sysfs.SysfsPort
    values: dict[str, int]
    at_maximum: tuple[str, ...] = ()


@dataclass(slots=True)
class DeadlineReader(Generic[T]):
    """Reads several things side by side, for some seconds at most; what hangs is not asked again until it is over."""

    seconds: float
    _stuck: dict[str, threading.Thread] = field(default_factory=dict)

    def read(self, names: Iterable[str], read_one: Callable[[str], T]) -> tuple[dict[str, T], tuple[str, ...]]:
        """What answered, and the names of what did not."""
        self._stuck = {name: thread for name, thread in self._stuck.items() if thread.is_alive()}
        found: dict[str, T] = {}

        def work(name: str) -> None:
            found[name] = read_one(name)

        # Daemons: a thread that sits in the kernel must not keep the agent from stopping.
        started = {
            name: threading.Thread(target=work, args=(name,), daemon=True, name=f"read {name}")
            for name in names
            if name not in self._stuck
        }
        for thread in started.values():
            thread.start()
        until = monotonic() + self.seconds
        for name, thread in started.items():
            thread.join(max(until - monotonic(), 0.0))
            if thread.is_alive():
                self._stuck[name] = thread
        return {name: found[name] for name in started if name in found}, tuple(sorted(self._stuck))


@dataclass(slots=True)
class PortCounters:
    """All ports of this machine, again and again."""

    sysfs: Path
    seconds: float = 2.0
    growing: CounterTotals = field(default_factory=CounterTotals)
    _within: DeadlineReader[list[infiniband_sysfs.SysfsPort]] = field(init=False)

    def __post_init__(self) -> None:
        self._within = DeadlineReader(self.seconds)

    def read(self, now: float) -> tuple[list[PortNumbers], tuple[str, ...]]:
        """Every port that answers, and the adapters that hang; `now` is a clock that never goes back."""
        found, hanging = self._within.read(
            infiniband_sysfs.device_names(self.sysfs), lambda name: infiniband_sysfs.read_ports(self.sysfs, name)
        )
        ports = [port for name in sorted(found) for port in found[name]]
        return [self._number(port, now) for port in ports], hanging

    def _number(self, port: infiniband_sysfs.SysfsPort, now: float) -> PortNumbers:
        values: dict[str, int] = {}
        at_maximum = []
        for (folder, file), raw in port.counters.items():
            family = infiniband.counter_families().get((folder, file))
            if family is None:
                continue
            is_traffic = family.scale == WORD_BYTES and port.bytes_per_second
            most = (port.bytes_per_second or 0.0) / WORD_BYTES if is_traffic else None
            grown = self.growing.add_reading((port.device, port.number, file), raw, at=now, most_per_second=most)
            values[family.name] = grown.total * family.scale
            # One look could meet a wide counter on its way; one that stays there has stopped.
            if raw and raw == family.basic_maximum and grown.unchanged:
                at_maximum.append(file)
        return PortNumbers(port, values, tuple(at_maximum))
