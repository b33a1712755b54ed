"""The map of the agent: this machine's kernel log, a spool, and the way to the hub.

    /dev/kmsg → follow → KernelEvents → Spool → push → POST {hub}/api/events

The follower and the pusher only meet in the spool, so a hub that is away never stops the reading. The
agent accepts no commands and listens on nothing; its own metrics go into a file, for node_exporter's
textfile collector. It imports the standard library only, because it runs on every GPU node.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path

from watchkeeper.collect import gpu_addresses, kernel_follow, push, spool
from watchkeeper.errors import CollectError
from watchkeeper.kit import clock, files, logs, own_metrics

log = logging.getLogger(__name__)

METRICS_INTERVAL_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What the agent needs to know. `node` must be the name under which the hub knows this machine."""

    hub_url: str
    spool_directory: Path
    cluster: str = "main"
    node: str = os.uname().nodename
    token: str | None = None
    kmsg: Path = Path("/dev/kmsg")
    # Instead of this machine, a simulated fleet at this address: the kernel logs of all its nodes.
    simulator_url: str | None = None
    proc: Path = Path("/proc")
    metrics_file: Path | None = None
    spool_max_bytes: int = spool.MAX_BYTES


@dataclass(frozen=True, slots=True)
class AgentMetrics:
    """What the agent says about itself."""

    registry: own_metrics.Registry
    read: own_metrics.Metric
    held_back: own_metrics.Metric
    pushed: own_metrics.Metric
    lost: own_metrics.Metric
    spooled: own_metrics.Metric

    @classmethod
    def declare(cls, registry: own_metrics.Registry) -> AgentMetrics:
        prefix = "watchkeeper_agent"
        return cls(
            registry,
            registry.counter(f"{prefix}_events_total", "Events read from the kernel log."),
            registry.counter(f"{prefix}_events_held_back_total", "Events left out because too many were alike."),
            registry.counter(f"{prefix}_events_pushed_total", "Events the hub has confirmed."),
            registry.counter(f"{prefix}_events_lost_total", "Events that could not be kept or delivered."),
            registry.gauge(f"{prefix}_spool_bytes", "Size of the events that wait for the hub."),
        )


class Cursor:
    """Up to where the kernel log has been spooled, so that a restarted agent does not send it all again."""

    def __init__(self, path: Path, boot: str) -> None:
        self._path = path
        self._boot = boot

    def load(self) -> int:
        """The last spooled sequence number of this boot; -1 if there is none."""
        try:
            kept = json.loads(self._path.read_bytes())
            return int(kept["sequence"]) if kept["boot"] == self._boot else -1
        except (OSError, ValueError, KeyError, TypeError):
            return -1

    def save(self, sequence: int) -> None:
        content = json.dumps({"boot": self._boot, "sequence": sequence}).encode()
        # A cursor that cannot be written costs a repeated push, which the hub recognises by its ids.
        with suppress(OSError):
            files.write_whole(self._path, content)


async def run(
    settings: AgentSettings, time: clock.Clock, stop: asyncio.Event, *, registry: own_metrics.Registry | None = None
) -> None:
    """Follow and push until `stop` is set; CollectError or StartRefused if that cannot even begin."""
    metrics = AgentMetrics.declare(registry or own_metrics.Registry())
    queue = spool.Spool(settings.spool_directory, lost=metrics.lost, max_bytes=settings.spool_max_bytes)
    hub = push.Hub(settings.hub_url, settings.token)
    log.info("Agent started", extra=logs.fields(node=settings.node, cluster=settings.cluster, hub=settings.hub_url))
    work = [
        asyncio.create_task(_follow(settings, time, queue=queue, metrics=metrics)),
        asyncio.create_task(push.push_forever(queue, hub, time=time, pushed=metrics.pushed)),
        asyncio.create_task(_write_metrics(settings.metrics_file, time, queue=queue, metrics=metrics)),
    ]
    stopped = asyncio.create_task(stop.wait())
    try:
        finished, _ = await asyncio.wait([*work, stopped], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (*work, stopped):
            task.cancel()
        await asyncio.gather(*work, stopped, return_exceptions=True)
        queue.close()
    for task in finished - {stopped}:
        task.result()
    log.info("Agent stopped", extra=logs.fields(spooled_bytes=queue.used_bytes))


async def _follow(settings: AgentSettings, time: clock.Clock, *, queue: spool.Spool, metrics: AgentMetrics) -> None:
    """Make events of every kernel record and spool them; a restart goes on where the spool ends."""
    if settings.simulator_url is not None:
        # A simulated fleet starts anew with each run, so its whole log is read; the hub knows repeated ids.
        cursor = None
        addresses = gpu_addresses.GpuAddresses(gpu_addresses.ask_simulator(settings.simulator_url))
        lines = kernel_follow.follow_stream(f"{settings.simulator_url}/kmsg", time=time)
    else:
        boot = _boot_id(settings.proc)
        cursor = Cursor(settings.spool_directory / "kmsg.cursor", boot)
        addresses = gpu_addresses.GpuAddresses(gpu_addresses.ask_proc(settings.proc))
        source = kernel_follow.KmsgSource(settings.kmsg, settings.node, boot, after=cursor.load())
        lines = kernel_follow.follow_kmsg(source, time=time)
    reading = kernel_follow.KernelEvents(settings.cluster, addresses)
    async with aclosing(lines) as records:
        async for record in records:
            event = await reading.read(record)
            metrics.held_back.set(reading.held_back)
            if event is not None:
                queue.append(event)
                metrics.read.add(kind=event.kind)
                if cursor is not None:
                    cursor.save(record.seq)


async def _write_metrics(path: Path | None, time: clock.Clock, *, queue: spool.Spool, metrics: AgentMetrics) -> None:
    while True:
        metrics.spooled.set(queue.used_bytes)
        if path is not None:
            try:
                files.write_whole(path, metrics.registry.render().encode())
            except OSError as error:
                log.warning("Metrics not written", extra=logs.fields(path=str(path), error=error.strerror))
        await time.sleep(METRICS_INTERVAL_SECONDS)


def _boot_id(proc: Path) -> str:
    path = proc / "sys/kernel/random/boot_id"
    try:
        return path.read_text().strip()
    except OSError as error:
        raise CollectError(f"cannot be read: {error.strerror}", where=str(path)) from error
