"""Follows kernel logs as they are written and builds events from their records.

All sources yield `KernelRecord`: `follow_stream` reads the records of a fleet from one HTTP stream, `follow_kmsg` reads
this node's /dev/kmsg, and `agent.kernel.kernel_sources` chooses among all sources. `KernelEvents` turns a record into
an event with a stable id and the GPU's UUID.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta

from watchkeeper.agent.kernel.gpu_addresses import GpuAddresses
from watchkeeper.agent.kernel.kernel_position import KernelLogSettings
from watchkeeper.errors import CollectError, WireError, quote
from watchkeeper.kit import backoff, clock, logs, wire
from watchkeeper.model import events, fleet
from watchkeeper.net import http
from watchkeeper.readers.logs import kernel_log

log = logging.getLogger(__name__)

SOURCE = "kmsg"
# The stream sends an empty line every 5 s; after three missing lines the connection is closed.
IDLE_TIMEOUT_SECONDS = 15.0
RETRY_BACKOFF = backoff.Backoff(1.0, 30.0)
# The kernel's own limit for one record of /dev/kmsg (CONSOLE_EXT_LOG_MAX); a smaller buffer fails with EINVAL.
RECORD_BYTES = 8192
# A regular file cannot be polled for new data; this is how often it is read.
POLL_SECONDS = 0.5
# A flapping link logs thousands of AER lines per second; this many events of one kind and place are enough.
REPEATS_PER_MINUTE = 20
MAX_KEYS = 10_000
GPU_KINDS = frozenset(
    {events.EventKind.XID, events.EventKind.GPU_LOST, events.EventKind.GSP_ERROR, events.EventKind.NVLINK_ERROR}
)


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One kernel record of one node; `at` is wall time, `seq` is the number of the record in its source."""

    node: str
    boot: str
    record: str
    at: datetime
    seq: int = 0
    # The source, and the source's own position after this record.
    source: str = SOURCE
    cursor: str = ""


class EventRateLimiter:
    """Passes a limited number of events with the same key per minute and counts the events that it drops."""

    def __init__(self, per_minute: int = REPEATS_PER_MINUTE) -> None:
        self._per_minute = per_minute
        self._counts: dict[object, tuple[datetime, int]] = {}

    def admit(self, key: object, at: datetime) -> int | None:
        """How many events with this key were dropped before this one; None if this one is dropped too."""
        minute_start, count = self._counts.get(key, (at, 0))
        dropped_count = max(0, count - self._per_minute)
        if abs(at - minute_start) >= timedelta(minutes=1):
            # The minute is over, or the clock was set back: do not drop events until the old time is reached again.
            minute_start, count = at, 0
        elif count >= self._per_minute:
            self._counts[key] = (minute_start, count + 1)
            return None
        if len(self._counts) >= MAX_KEYS:
            del self._counts[next(iter(self._counts))]
        self._counts[key] = (minute_start, count + 1)
        return dropped_count

    def reset(self, key: object) -> None:
        """Pass the next event with this key, however many came before."""
        self._counts.pop(key, None)


class KernelEvents:
    """Builds events from kernel records, with the GPU at each PCI address and a rate limit."""

    def __init__(self, cluster: str, addresses: GpuAddresses, *, rate_limiter: EventRateLimiter | None = None) -> None:
        self._cluster = cluster
        self._addresses = addresses
        self._rate_limiter = rate_limiter or EventRateLimiter()
        self.dropped_count = 0

    async def build_event(self, kernel_record: KernelRecord) -> events.Event | None:
        """The event of a record; None if it has no event, exceeds the rate limit, or was written by user space."""
        record = kernel_log.read_record(kernel_record.record)
        fact = kernel_log.read_message(record) if record is not None else None
        if record is None or fact is None:
            return None
        if isinstance(fact, kernel_log.GpuIdentity):
            self._addresses.record_identity(kernel_record.node, kernel_record.boot, pci=fact.pci, uuid=fact.uuid)
            return None
        key = (kernel_record.node, fact.kind, fact.code, fact.pci, fact.fields.get(events.SERVER))
        dropped_alike = self._rate_limiter.admit(key, kernel_record.at)
        if dropped_alike is None:
            self.dropped_count += 1
            return None
        if fact.kind is events.EventKind.STORAGE_LOST:
            # Otherwise the event of its return could be dropped.
            self._rate_limiter.reset((kernel_record.node, events.EventKind.STORAGE_BACK, *key[2:]))
        uuid, fields = await self._find_gpu(kernel_record, fact)
        if dropped_alike:
            fields["alike_left_out"] = str(dropped_alike)
        source = events.EventSource(self._cluster, kernel_record.node, kernel_record.boot, kernel_record.source)
        id, place = source.event_id(record.sequence), fleet.Place(self._cluster, node=kernel_record.node, gpu=uuid)
        process = events.Process(fact.pid, fact.process) if fact.pid is not None or fact.process else None
        return events.Event(
            id, fact.kind, fact.code, place, kernel_record.at, fact.text, process=process, fields=fields
        )

    async def _find_gpu(
        self, kernel_record: KernelRecord, fact: kernel_log.KernelFact
    ) -> tuple[str | None, dict[str, str]]:
        """The GPU's UUID, and the fields with the PCI address and, if the GPU is unknown, the reason."""
        fields = dict(fact.fields)
        if fact.pci is not None:
            fields["pci"] = fact.pci
            gpu, reason = await self._addresses.find(
                kernel_record.node, kernel_record.boot, pci=fact.pci, now=kernel_record.at
            )
        else:
            gpu, reason = None, "the kernel line names no PCI address"
        if gpu is not None and gpu.index is not None:
            fields["gpu"] = str(gpu.index)
        # NVSwitches and bridges have PCI addresses too.
        if gpu is None and fact.kind in GPU_KINDS:
            fields["gpu_unknown_because"] = reason
        return None if gpu is None else gpu.uuid, fields


async def follow_stream(url: str, *, time: clock.Clock) -> AsyncGenerator[KernelRecord, None]:
    """Every record of the stream at `url`; reconnects when the connection is lost.

    A reconnect requests the last record again: a stream that does not start with it is another log (the server has
    restarted), which is read from its start.
    """
    last_record: KernelRecord | None = None
    failures = 0
    while True:
        connection = http.Connection()
        try:
            after = 0 if last_record is None else last_record.seq - 1
            lines = connection.stream_lines(http.HttpRequest(f"{url}?after={after}"), idle_seconds=IDLE_TIMEOUT_SECONDS)
            async with aclosing(lines):
                async for record in _resume(lines, last_record):
                    failures, last_record = 0, record
                    yield record
            problem = "the stream ended"
        except LogReplaced:
            last_seq = last_record.seq if last_record else 0
            log.warning("kernel log stream restarted", extra=logs.fields(url=url, after=last_seq))
            last_record = None
            continue
        except CollectError as error:
            problem = str(error)
        finally:
            await connection.aclose()
        failures += 1
        pause = RETRY_BACKOFF.delay_seconds(failures)
        log.warning("kernel log stream disconnected", extra=logs.fields(url=url, error=problem, retry_seconds=pause))
        await time.sleep(pause)


class LogReplaced(Exception):
    """The stream does not continue the one that was read before."""


async def _resume(lines: AsyncIterator[bytes], last_record: KernelRecord | None) -> AsyncIterator[KernelRecord]:
    """The records after `last_record`, which must be the first of the stream."""
    empty_lines = 0
    async for line in lines:
        if not line.strip():
            empty_lines += 1
            # The first empty line opens the stream, the next is a keep-alive: the requested record does not exist.
            if last_record is not None and empty_lines > 1:
                raise LogReplaced
            continue
        try:
            plain = json.loads(line)
            fields = {name: plain[name] for name in ("node", "boot", "record", "at", "seq")}
            record: KernelRecord | None = wire.from_plain(KernelRecord, fields)
        except (ValueError, KeyError, TypeError, WireError) as error:
            record = None
            log.warning("invalid kernel log line dropped", extra=logs.fields(line=quote(line), error=str(error)))
        if last_record is not None:
            if record != last_record:
                raise LogReplaced
            last_record = None
        elif record is not None:
            yield record


async def follow_kmsg(settings: KernelLogSettings, *, time: clock.Clock) -> AsyncGenerator[KernelRecord, None]:
    """Every record of /dev/kmsg, or of a FIFO or file in its format, as it is written."""
    try:
        mode = stat.S_IFMT(settings.kmsg.stat().st_mode)
        # A FIFO that is opened only for reading ends when its writer closes it.
        access_mode = os.O_RDWR if mode == stat.S_IFIFO else os.O_RDONLY
        descriptor = os.open(settings.kmsg, access_mode | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        problem = f"the kernel log cannot be opened: {error.strerror}"
        remedy = "Run as root, give the service CAP_SYSLOG, or use --kernel-log journald"
        raise CollectError(problem, where=str(settings.kmsg), remedy=remedy) from error
    try:
        pending = b""
        while True:
            block = _read_available(descriptor)
            if not block:
                if mode == stat.S_IFREG:
                    await time.sleep(POLL_SECONDS)
                else:
                    await wait_readable(descriptor)
                continue
            *whole, pending = select_lines(pending + block, settings.needles)
            for line in whole:
                record = _parse_kmsg_line(line, settings, now=time.now())
                if record is not None:
                    yield record
            pending = pending[-RECORD_BYTES:]
            # During a burst the file is always readable: let other tasks run.
            await asyncio.sleep(0)
    finally:
        os.close(descriptor)


def select_lines(block: bytes, needles: tuple[bytes, ...]) -> list[bytes]:
    """The lines of a block, the last one incomplete; only the last one if the block contains no needle."""
    if needles and not any(needle in block for needle in needles):
        return [block[block.rfind(b"\n") + 1 :]]
    return block.split(b"\n")


def _read_available(descriptor: int) -> bytes:
    """Read what is available without waiting; empty if nothing is."""
    while True:
        try:
            return os.read(descriptor, RECORD_BYTES)
        except BlockingIOError:
            return b""
        except BrokenPipeError:
            # The kernel has overwritten the next record; the next read continues after the gap.
            log.warning("kernel records lost, overwritten before they were read")


async def wait_readable(descriptor: int, seconds: float | None = None) -> bool:
    """Wait until data can be read; False after a timeout."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        async with asyncio.timeout(seconds):
            await ready.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(descriptor)
    return True


def _parse_kmsg_line(line: bytes, settings: KernelLogSettings, *, now: datetime) -> KernelRecord | None:
    # Continuation lines (` SUBSYSTEM=pci`) belong to the record before them and start with a space.
    text, position = line.decode("utf-8", "replace"), settings.position
    record = kernel_log.read_record(text)
    if record is None or record.sequence <= position.sequence:
        return None
    if position.sequence < 0 and record.since_boot_us <= position.since_boot_us:
        return None
    at = now - timedelta(seconds=max(0.0, settings.monotonic() - record.since_boot_us / 1e6))
    return KernelRecord(settings.node, settings.boot, text, at, seq=record.sequence)
