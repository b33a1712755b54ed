"""Reads this node for one command: the GPUs twice, some seconds apart, and the kernel log.

`watchkeeper scan`, `watchkeeper dmon` and work orders use it; the sampler runs only for as long as the reading takes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
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
POLL_SECONDS = 0.02
MIN_INTERVAL_SECONDS = 0.5
# The kernel's buffer has at most 32 MiB; a file may have any size.
MAX_LOG_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """What to read and how often; `environment` is for the reader process."""

    choice: choice.FamilyChoice
    interval_seconds: float = 1.0
    environment: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class GpuReadings:
    first: Snapshot
    last: Snapshot
    faults: tuple[DriverFault, ...]
    seconds: float

    def measure_increases(self, uuid: str) -> dict[str, float]:
        """How much each value of a GPU increased between the two snapshots; parts are added."""
        before = next((gpu for gpu in self.first.gpus if gpu.identity["uuid"] == uuid), None)
        after = next((gpu for gpu in self.last.gpus if gpu.identity["uuid"] == uuid), None)
        if before is None or after is None:
            return {}
        names = before.values.keys() & after.values.keys()
        return {name: max(0.0, _add_parts(after, name) - _add_parts(before, name)) for name in names}


@contextmanager
def running_sampler(options: ReadingOptions, wall_clock: clock.Clock) -> Iterator[Sampler]:
    """Run a sampler that has read every GPU once or has found a fault."""
    # An answer must come in half an interval: a busy machine needs some time even for a healthy driver.
    interval = max(MIN_INTERVAL_SECONDS, options.interval_seconds)
    limits = ReaderLimits(interval_seconds=interval, slow_seconds=interval, rare_seconds=3600.0)
    node, environment = os.uname().nodename, options.environment
    place = fleet.Place("local", node=node)
    settings = SamplerSettings(place, node, limits, options.choice, events=False, environment=environment)
    sampler = Sampler(settings, wall_clock)
    sampler.start()
    try:
        deadline = time.monotonic() + FIRST_ROUND_SECONDS
        while not (sampler.snapshot().gpus or sampler.snapshot().faults) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        yield sampler
    finally:
        sampler.stop()


def watch_gpus(options: ReadingOptions, seconds: float, wall_clock: clock.Clock) -> GpuReadings:
    with running_sampler(options, wall_clock) as sampler:
        first, started = sampler.snapshot(), time.monotonic()
        if first.gpus:
            time.sleep(seconds)
        return GpuReadings(first, sampler.snapshot(), tuple(sampler.faults()), time.monotonic() - started)


def read_kernel_log(path: Path, *, since_seconds: float) -> list[kernel_log.KernelFact]:
    """Hardware messages of the kernel log, at most `since_seconds` old; CollectError if the log cannot be read."""
    oldest_us = (time.monotonic() - since_seconds) * 1e6
    facts = []
    for line in _read_records(path):
        record = kernel_log.read_record(line)
        if record is None or record.since_boot_us < oldest_us:
            continue
        fact = kernel_log.read_message(record)
        if isinstance(fact, kernel_log.KernelFact):
            facts.append(fact)
    return facts


def _read_records(path: Path) -> Iterator[str]:
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
                # The kernel has overwritten the next record.
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


def _add_parts(gpu: GpuSample, name: str) -> float:
    value = gpu.values[name]
    return sum(value.values()) if isinstance(value, Mapping) else value
