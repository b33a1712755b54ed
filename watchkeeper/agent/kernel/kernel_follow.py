"""Following kernel logs as they are written, and making events of what they say.

All sources give the same `NodeRecord`: `follow_stream` reads the records of a whole fleet from one HTTP
stream, `follow_kmsg` reads this machine's /dev/kmsg; `agent.kernel.kernel_sources` knows the others. `KernelEvents`
turns a record into an event with a stable id and the GPU's UUID. The hub feeds its journal with the events, the
agent its spool.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from time import monotonic

from watchkeeper.agent.kernel.gpu_addresses import GpuAddresses
from watchkeeper.errors import CollectError, WireError, quote
from watchkeeper.kit import backoff, clock, logs, wire
from watchkeeper.model import events, fleet
from watchkeeper.net import http
from watchkeeper.readers.logs import kernel_log

log = logging.getLogger(__name__)

SOURCE = "kmsg"
# The stream sends an empty line every 5 s; three missing ones mean that nobody is there.
QUIET_SECONDS = 15.0
PAUSES = backoff.Backoff(1.0, 30.0)
# The kernel's own limit for one record of /dev/kmsg (CONSOLE_EXT_LOG_MAX); a smaller buffer fails with EINVAL.
RECORD_BYTES = 8192
# A regular file cannot be waited for; this is how often it is looked at.
POLL_SECONDS = 0.5
# A link that flaps logs thousands of AER lines a second; this many of one kind and place tell the story.
REPEATS_PER_MINUTE = 20
MAX_GATES = 10_000
KINDS_OF_A_GPU = frozenset(
    {events.EventKind.XID, events.EventKind.GPU_LOST, events.EventKind.GSP_ERROR, events.EventKind.NVLINK_ERROR}
)


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One kernel record of one node; `at` is wall time. `seq` counts within the stream it came from."""

    node: str
    boot: str
    record: str
    at: datetime
    seq: int = 0
    # Which kind of log it came from, and that log's own word for the place behind it.
    source: str = SOURCE
    mark: str = ""


class FloodGate:
    """Lets a limited number of alike events pass each minute and counts what it holds back."""

    def __init__(self, per_minute: int = REPEATS_PER_MINUTE) -> None:
        self._per_minute = per_minute
        self._minutes: dict[object, tuple[datetime, int]] = {}

    def admit(self, key: object, at: datetime) -> int | None:
        """How many alike were held back before this one, or None if this one is held back too."""
        since, count = self._minutes.get(key, (at, 0))
        held_back = max(0, count - self._per_minute)
        if abs(at - since) >= timedelta(minutes=1):
            # Over, or a clock that was set back: it must not hold back what comes until it is there again.
            since, count = at, 0
        elif count >= self._per_minute:
            self._minutes[key] = (since, count + 1)
            return None
        if len(self._minutes) >= MAX_GATES:
            del self._minutes[next(iter(self._minutes))]
        self._minutes[key] = (since, count + 1)
        return held_back

    def reset(self, key: object) -> None:
        """Let the next one pass, however many alike came before."""
        self._minutes.pop(key, None)


class KernelEvents:
    """Makes events of kernel records; remembers which GPU sits where, and what repeats too often."""

    def __init__(self, cluster: str, addresses: GpuAddresses, *, gate: FloodGate | None = None) -> None:
        self._cluster = cluster
        self._addresses = addresses
        self._gate = gate or FloodGate()
        self.held_back = 0

    async def read(self, line: KernelRecord) -> events.Event | None:
        """The event a record tells of; None for chatter, for floods, and for lines user space wrote."""
        record = kernel_log.read_record(line.record)
        fact = kernel_log.read_message(record) if record is not None else None
        if record is None or fact is None:
            return None
        if isinstance(fact, kernel_log.GpuIdentity):
            self._addresses.learn(line.node, line.boot, pci=fact.pci, uuid=fact.uuid)
            return None
        about = (line.node, fact.kind, fact.code, fact.pci, fact.fields.get(events.SERVER))
        left_out = self._gate.admit(about, line.at)
        if left_out is None:
            self.held_back += 1
            return None
        if fact.kind is events.EventKind.STORAGE_LOST:
            # Its return would be missed for a day.
            self._gate.reset((line.node, events.EventKind.STORAGE_BACK, *about[2:]))
        uuid, named = await self._locate(line, fact)
        if left_out:
            named["alike_left_out"] = str(left_out)
        source = events.EventSource(self._cluster, line.node, line.boot, line.source)
        process = events.Process(fact.pid, fact.process) if fact.pid is not None or fact.process else None
        return events.Event(
            source.event_id(record.sequence),
            fact.kind,
            fact.code,
            fleet.Place(self._cluster, node=line.node, gpu=uuid),
            line.at,
            fact.text,
            process=process,
            fields=named,
        )

    async def _locate(self, line: KernelRecord, fact: kernel_log.KernelFact) -> tuple[str | None, dict[str, str]]:
        """The GPU's UUID, and the fact's fields with the address and, if need be, why the GPU is unknown."""
        named = dict(fact.fields)
        if fact.pci is not None:
            named["pci"] = fact.pci
            gpu, why = await self._addresses.find(line.node, line.boot, pci=fact.pci, now=line.at)
        else:
            gpu, why = None, "the kernel line names no PCI address"
        if gpu is not None and gpu.index is not None:
            named["gpu"] = str(gpu.index)
        # A switch or a bridge has an address too, and is no GPU.
        if gpu is None and fact.kind in KINDS_OF_A_GPU:
            named["gpu_unknown_because"] = why
        return None if gpu is None else gpu.uuid, named


async def follow_stream(url: str, *, time: clock.Clock) -> AsyncGenerator[KernelRecord, None]:
    """Every record of the stream at `url`, for ever; a lost connection is taken up again.

    The last record is asked for once more when reconnecting: a stream that does not begin with it is
    another log (the server has restarted), which is read from its start.
    """
    last: KernelRecord | None = None
    failures = 0
    while True:
        connection = http.Connection()
        try:
            start = 0 if last is None else last.seq - 1
            lines = connection.stream_lines(http.Request(f"{url}?after={start}"), idle_seconds=QUIET_SECONDS)
            async with aclosing(lines):
                async for record in _resume(lines, last):
                    failures, last = 0, record
                    yield record
            problem = "the stream ended"
        except LogReplaced:
            log.warning("Kernel log stream starts anew", extra=logs.fields(url=url, after=last.seq if last else 0))
            last = None
            continue
        except CollectError as error:
            problem = str(error)
        finally:
            await connection.aclose()
        failures += 1
        pause = PAUSES.delay_seconds(failures)
        log.warning("Kernel log stream lost", extra=logs.fields(url=url, error=problem, retry_seconds=pause))
        await time.sleep(pause)


class LogReplaced(Exception):
    """The stream does not continue the one read before."""


async def _resume(lines: AsyncIterator[bytes], last: KernelRecord | None) -> AsyncIterator[KernelRecord]:
    """The records behind `last`, which must come first again."""
    empty_lines = 0
    async for line in lines:
        if not line.strip():
            empty_lines += 1
            # One empty line is a greeting, the next a sign of life: the record asked for is not there.
            if last is not None and empty_lines > 1:
                raise LogReplaced
            continue
        record = _read_stream_line(line)
        if last is not None:
            if record != last:
                raise LogReplaced
            last = None
        elif record is not None:
            yield record


def _read_stream_line(line: bytes) -> KernelRecord | None:
    """One JSON line of the stream; a line of another shape is logged and left out."""
    try:
        plain = json.loads(line)
        return wire.from_plain(KernelRecord, {name: plain[name] for name in ("node", "boot", "record", "at", "seq")})
    except (ValueError, KeyError, TypeError, WireError) as error:
        log.warning("Kernel log line not understood", extra=logs.fields(line=quote(line), error=str(error)))
        return None


@dataclass(frozen=True, slots=True)
class KmsgSource:
    """This machine's kernel log. `after` is the sequence number up to which it is known already."""

    path: Path
    node: str
    boot: str
    after: int = -1
    # Where another kind of log was followed before: up to this time it is known as well.
    after_us: int = -1
    # Blocks with none of these are passed over unread; nothing given means that every record is wanted.
    needles: tuple[bytes, ...] = ()
    monotonic: Callable[[], float] = monotonic


async def follow_kmsg(source: KmsgSource, *, time: clock.Clock) -> AsyncGenerator[KernelRecord, None]:
    """Every record of /dev/kmsg (or of a FIFO or file with such records) as it is written, for ever."""
    try:
        mode = stat.S_IFMT(source.path.stat().st_mode)
        # A FIFO opened for reading alone ends with each writer; opened for both it stays.
        way = os.O_RDWR if mode == stat.S_IFIFO else os.O_RDONLY
        descriptor = os.open(source.path, way | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise CollectError(
            f"the kernel log cannot be opened: {error.strerror}",
            where=str(source.path),
            remedy="Run as root, give the service CAP_SYSLOG, or use --kernel-log journald",
        ) from error
    try:
        pending = b""
        while True:
            block = _read_some(descriptor)
            if not block:
                if mode == stat.S_IFREG:
                    await time.sleep(POLL_SECONDS)
                else:
                    await wait_readable(descriptor)
                continue
            block = pending + block
            *whole, pending = lines_of_interest(block, source.needles)
            for line in whole:
                record = _read_kmsg_line(line, source, now=time.now())
                if record is not None:
                    yield record
            pending = pending[-RECORD_BYTES:]
            # A burst is always readable: without this nothing else would get its turn.
            await asyncio.sleep(0)
    finally:
        os.close(descriptor)


def lines_of_interest(block: bytes, needles: tuple[bytes, ...]) -> list[bytes]:
    """The lines of a block, the last of them unfinished; only that one if the block says nothing of interest."""
    if needles and not any(needle in block for needle in needles):
        return [block[block.rfind(b"\n") + 1 :]]
    return block.split(b"\n")


def _read_some(descriptor: int) -> bytes:
    """What can be read at once, or nothing."""
    while True:
        try:
            return os.read(descriptor, RECORD_BYTES)
        except BlockingIOError:
            return b""
        except BrokenPipeError:
            # The ring has overwritten the record we were at; the next read goes on behind the gap.
            log.warning("Kernel records were overwritten before they could be read")


async def wait_readable(descriptor: int, seconds: float | None = None) -> bool:
    """Wait until something can be read; False if the time is over before."""
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


def _read_kmsg_line(line: bytes, source: KmsgSource, *, now: datetime) -> KernelRecord | None:
    # Continuation lines (` SUBSYSTEM=pci`) belong to the record before them and start with a space.
    record = kernel_log.read_record(line.decode("utf-8", "replace"))
    if record is None or record.sequence <= source.after:
        return None
    if source.after < 0 and record.since_boot_us <= source.after_us:
        return None
    age_seconds = max(0.0, source.monotonic() - record.since_boot_us / 1e6)
    at = now - timedelta(seconds=age_seconds)
    return KernelRecord(source.node, source.boot, line.decode("utf-8", "replace"), at, seq=record.sequence)
