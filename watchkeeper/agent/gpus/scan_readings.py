"""One look at this node: its GPUs twice, a moment apart, its host, and what the kernel log holds.

`watchkeeper scan` and `watchkeeper dmon` use it; both end after it, so a sampler lives only as long as the look.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from watchkeeper.agent.gpus.gpu_samples import GpuSample, Snapshot
from watchkeeper.agent.gpus.reader_watch import ReaderLimits
from watchkeeper.agent.gpus.sampler import DriverFault, Sampler, SamplerSettings
from watchkeeper.agent.kernel.kernel_follow import RECORD_BYTES
from watchkeeper.errors import CollectError
from watchkeeper.kit import clock
from watchkeeper.model import fleet
from watchkeeper.readers.logs import kernel_log
from watchkeeper.readers.nvml import choice

# A driver without persistence mode initialises its GPUs first, which takes seconds for each.
FIRST_ROUND_SECONDS = 60.0
LOOK_SECONDS = 0.02
SHORTEST_INTERVAL_SECONDS = 0.5
# The kernel's own log has at most 32 MiB with the largest setting; a file may be anything.
MAX_LOG_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """What to read, and how a test bends it; `environment` is for the reader child."""

    choice: choice.Choice
    interval_seconds: float = 1.0
    environment: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class GpuReadings:
    """The first and the last complete snapshot, and what was wrong with reading."""

    first: Snapshot
    last: Snapshot
    faults: tuple[DriverFault, ...]
    seconds: float

    def grown(self, uuid: str) -> dict[str, float]:
        """By how much each number of a GPU has risen between the two; parts are added up."""
        before = next((gpu for gpu in self.first.gpus if gpu.identity["uuid"] == uuid), None)
        after = next((gpu for gpu in self.last.gpus if gpu.identity["uuid"] == uuid), None)
        if before is None or after is None:
            return {}
        names = before.values.keys() & after.values.keys()
        return {name: max(0.0, _total(after, name) - _total(before, name)) for name in names}


@contextmanager
def running_sampler(look: ReadingOptions, wall: clock.Clock) -> Iterator[Sampler]:
    """A sampler that has read every GPU once, or has said what is wrong."""
    # An answer must come in half an interval: a busy machine needs some time even for a healthy driver.
    interval = max(SHORTEST_INTERVAL_SECONDS, look.interval_seconds)
    limits = ReaderLimits(interval=interval, slow=interval, rare=3600.0)
    node = os.uname().nodename
    place = fleet.Place("local", node=node)
    settings = SamplerSettings(
        place, node, limits=limits, choice=look.choice, events=False, environment=look.environment
    )
    sampler = Sampler(settings, wall)
    sampler.start()
    try:
        _wait(lambda: bool(sampler.snapshot().gpus or sampler.snapshot().faults), FIRST_ROUND_SECONDS)
        yield sampler
    finally:
        sampler.stop()


def watch_gpus(look: ReadingOptions, seconds: float, wall: clock.Clock) -> GpuReadings:
    """Watch the GPUs for some seconds, so that it can be said which counters rise."""
    with running_sampler(look, wall) as sampler:
        first, started = sampler.snapshot(), time.monotonic()
        if first.gpus:
            time.sleep(seconds)
        return GpuReadings(first, sampler.snapshot(), tuple(sampler.faults()), time.monotonic() - started)


def read_kernel_log(path: Path, *, since_seconds: float) -> list[kernel_log.KernelFact]:
    """What the kernel log holds about hardware, not older than this; CollectError if it may not be read."""
    oldest_us = (time.monotonic() - since_seconds) * 1e6
    found = []
    for line in _records(path):
        record = kernel_log.read_record(line)
        if record is None or record.since_boot_us < oldest_us:
            continue
        fact = kernel_log.read_message(record)
        if isinstance(fact, kernel_log.KernelFact):
            found.append(fact)
    return found


def _records(path: Path) -> Iterator[str]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise CollectError(f"{path}: {error.strerror}", remedy="Run as root, or with CAP_SYSLOG") from error
    pending, total = b"", 0
    try:
        while total < MAX_LOG_BYTES:
            try:
                block = os.read(descriptor, RECORD_BYTES)
            except BrokenPipeError:
                # The ring has overwritten the record we were at.
                continue
            except OSError:
                break
            if not block:
                break
            total += len(block)
            *whole, pending = (pending + block).split(b"\n")
            yield from (line.decode("utf-8", "replace") for line in whole)
    finally:
        os.close(descriptor)


def _total(gpu: GpuSample, name: str) -> float:
    value = gpu.values[name]
    return sum(value.values()) if isinstance(value, Mapping) else value


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
