"""The map of the agent: what one GPU node says about itself, shown on a page and told to the hub.

    NVML reader → Sampler ──────────────┬→ /metrics (agent_server)
    /proc, /sys, units → NodeReader ────┘
    /dev/kmsg → KernelEvents ─┐
    faults, NVML events ──────┼→ Spool → push → POST {hub}/api/events
    policies ─────────────────┘          register → POST {hub}/api/nodes
    work orders ← GET {hub}/api/orders          pause of profiling ← a file (control)

Each source runs by itself and survives the others: a kernel log that may not be read costs no number, a hung
driver costs no kernel event, a hub that is away costs neither. The agent accepts no commands. It imports the
standard library only, because it runs on every GPU node; pynvml is loaded by the reader child, h2 where there is a
kubelet, and what only some nodes need (orders, Slurm) when it is first needed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time as system_time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from watchkeeper import __version__
from watchkeeper.agent import (
    agent_server,
    chassis,
    control,
    diag_page,
    fabric_page,
    host_page,
    node_facts,
    push,
    registration,
    spool,
)
from watchkeeper.agent.attribution import node_holders
from watchkeeper.agent.gpus import dcgm_profile, driver_events, policies, reader_watch, sampler
from watchkeeper.agent.kernel import gpu_addresses, kernel_follow, kernel_position, kernel_sources
from watchkeeper.errors import CollectError, SettingsError
from watchkeeper.kit import clock, files, logs, memory, own_metrics
from watchkeeper.model import events, fleet
from watchkeeper.net import access
from watchkeeper.net.addresses import is_loopback
from watchkeeper.readers import counters_csv
from watchkeeper.readers.node import host, node
from watchkeeper.readers.nvml import choice

log = logging.getLogger(__name__)

METRICS_INTERVAL_SECONDS = 15.0
HOST_INTERVAL_SECONDS = 30.0
# Older numbers of the host are not shown: whatever answered them has stopped answering.
HOST_KEPT_SECONDS = 4 * HOST_INTERVAL_SECONDS
REPORT_INTERVAL_SECONDS = 0.5
# A kernel log that cannot be opened may be handed to us later, when a volume is mounted.
KERNEL_RETRY_SECONDS = 60.0
# Both know how to wait for a hub; this is for what nobody has foreseen.
HUB_RETRY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What the agent needs to know. `node` must be the name under which the hub knows this machine."""

    # None: nobody is told; the page alone is served.
    hub_url: str | None
    spool_directory: Path
    cluster: str = "main"
    node: str = os.uname().nodename
    token: str | None = None
    # Who vouches for the hub, and our own certificate where it asks for one.
    hub_access: access.Access = access.NO_ACCESS
    kmsg: Path = Path("/dev/kmsg")
    chassis: chassis.ChassisSettings = field(default_factory=chassis.ChassisSettings)
    # `kmsg`, `journald`, or the path of a file that syslog writes.
    kernel_log: str = kernel_sources.KMSG
    # Instead of this machine, a simulated fleet at this address: the kernel logs of all its nodes.
    simulator_url: str | None = None
    roots: node_facts.Roots = field(default_factory=node_facts.Roots)
    metrics_file: Path | None = None
    spool_max_bytes: int = spool.MAX_BYTES
    # None: no page is served.
    listen: agent_server.ListenSettings | None = None
    reads_gpus: bool = True
    interval_seconds: float = 1.0
    # A counters file of dcgm-exporter; None is our own set.
    counters: Path | None = None
    expected_gpus: int | None = None
    holders: node_holders.HolderSettings = field(default_factory=node_holders.HolderSettings)
    # For the reader child; None is the agent's own.
    environment: Mapping[str, str] | None = None
    control: control.ControlSettings = field(default_factory=control.ControlSettings)


@dataclass(frozen=True, slots=True)
class AgentMetrics:
    """What the agent says about itself."""

    registry: own_metrics.Registry
    read: own_metrics.Metric
    held_back: own_metrics.Metric
    pushed: own_metrics.Metric
    lost: own_metrics.Metric
    spooled: own_metrics.Metric
    readable: own_metrics.Metric
    driver_events: own_metrics.Metric

    @classmethod
    def declare(cls, registry: own_metrics.Registry) -> AgentMetrics:
        prefix = "watchkeeper_agent"
        return cls(
            registry,
            registry.counter(f"{prefix}_events_total", "Events found on this node, by kind."),
            registry.counter(f"{prefix}_events_rate_limited_total", "Repeated events that the rate limit dropped."),
            registry.counter(f"{prefix}_events_pushed_total", "Events the hub has confirmed."),
            registry.counter(f"{prefix}_events_lost_total", "Events that could not be kept or delivered."),
            registry.gauge(f"{prefix}_spool_bytes", "Size of the events that wait for the hub."),
            registry.gauge(f"{prefix}_kernel_log_readable", "1 while the kernel log is followed, 0 if it cannot be."),
            registry.counter(f"{prefix}_driver_events_total", "Events that NVML delivered, by its own kind."),
        )


async def run(
    settings: AgentSettings, time: clock.Clock, stop: asyncio.Event, *, registry: own_metrics.Registry | None = None
) -> None:
    """Watch until `stop` is set; StartRefused or SettingsError if that cannot even begin."""
    agent = Agent(settings, time, AgentMetrics.declare(registry or own_metrics.Registry()))
    await agent.run(stop)


class Agent:
    """One node, watched."""

    def __init__(self, settings: AgentSettings, time: clock.Clock, metrics: AgentMetrics) -> None:
        self._settings = settings
        self._time = time
        self._metrics = metrics
        self._place = fleet.Place(settings.cluster, node=settings.node)
        self._boot = host.boot_id(settings.roots.proc) or "unknown"
        self._queue = self._open_spool()
        self._node_reader = node_facts.NodeReader(settings.roots)
        self._chassis = chassis.Chassis(settings.chassis, settings.roots.root)
        self._facts = node.NodeFacts()
        self._host_text, self._host_at = b"", 0.0
        self._fabric = fabric_page.FabricPage(settings.roots, settings.node)
        self._diag = diag_page.DiagPage(settings.spool_directory, settings.node)
        self._holders = node_holders.NodeHolders(
            settings.holders, settings.node, roots=settings.roots, registry=metrics.registry
        )
        source = events.EventSource(settings.cluster, settings.node, self._boot, driver_events.SOURCE)
        self._driver_events = driver_events.DriverEvents(source, system_time.monotonic)
        self._merge = driver_events.XidMerge()
        self._standing = driver_events.ReportSchedule()
        self._policy_watch = policies.PolicyWatch(policies.load_policies())
        # One gate for both reports about an Xid, so that a flood of them is counted once.
        self._gate = kernel_follow.EventRateLimiter()
        self._sampler: sampler.Sampler | None = None
        self._dcgm: dcgm_profile.DcgmProfile | None = None
        self._control = control.Control(
            settings.control, settings.spool_directory, time=time, registry=metrics.registry
        )
        self._address = ""
        self._kernel_problem = ""

    def _open_spool(self) -> spool.Spool | None:
        settings = self._settings
        if settings.hub_url is None:
            return None
        if not re.match(r"https?://[^/\s]", settings.hub_url):
            raise SettingsError(
                "is not an http or https address such as http://hub:9480", where=f"hub {settings.hub_url}"
            )
        return spool.Spool(settings.spool_directory, lost=self._metrics.lost, max_bytes=settings.spool_max_bytes)

    @property
    def _is_on_a_node(self) -> bool:
        return self._settings.simulator_url is None

    async def run(self, stop: asyncio.Event) -> None:
        settings = self._settings
        async with AsyncExitStack() as open_things:
            if self._queue is not None:
                open_things.callback(self._queue.close)
            if settings.listen is not None:
                self._address = await open_things.enter_async_context(
                    agent_server.serving(settings.listen, self._routes())
                )
            if self._is_on_a_node and settings.reads_gpus:
                self._sampler = self._make_sampler(asyncio.get_running_loop())
                self._sampler.start()
                open_things.push_async_callback(asyncio.to_thread, self._sampler.stop)
            open_things.enter_context(self._control.gpu_context_in_logs(lambda: self._sampler))
            where = {"node": settings.node, "cluster": settings.cluster, "hub": settings.hub_url}
            log.info("Agent started", extra=logs.fields(**where, metrics=self._address or "not served"))
            memory.release_startup_memory()
            await _until(stop, self._loops())
        log.info("Agent stopped", extra=logs.fields(spooled_bytes=self._spooled_bytes()))

    def _loops(self) -> list[Coroutine[Any, Any, None]]:
        settings = self._settings
        loops = [self._repeat(self._follow_kernel, KERNEL_RETRY_SECONDS)]
        loops.append(self._repeat(self._write_metrics, METRICS_INTERVAL_SECONDS))
        if self._is_on_a_node:
            loops.append(self._repeat(self._read_host, HOST_INTERVAL_SECONDS))
            loops.append(self._repeat(self._chassis.read, chassis.INTERVAL_SECONDS))
            loops.append(self._repeat(self._report, REPORT_INTERVAL_SECONDS))
            loops.append(self._repeat(self._fabric.refresh, fabric_page.REFRESH_SECONDS))
            loops.append(self._repeat(self._find_holders, node_holders.REFRESH_SECONDS))
            loops.append(self._repeat(self._look_for_pause, control.LOOK_SECONDS))
            loops.append(self._repeat(self._look_at_dcgm, dcgm_profile.POLL_SECONDS))
        if self._queue is not None and settings.hub_url is not None:
            hub = push.HubEndpoint(settings.hub_url, settings.token, access=settings.hub_access)
            loops.append(self._repeat(lambda: self._push(hub), HUB_RETRY_SECONDS))
            if self._is_on_a_node:
                loops.append(self._repeat(lambda: self._register(hub), HUB_RETRY_SECONDS))
                if self._control.takes_orders:
                    loops.append(self._repeat(lambda: self._follow_orders(hub), control.LOOK_SECONDS))
        return loops

    async def _repeat(self, body: Callable[[], Awaitable[None]], pause_seconds: float) -> None:
        """Run a loop's body for ever; what goes wrong in one is said and costs that turn only."""
        while True:
            try:
                await body()
            except Exception:  # Deliberately everything: one source must not blind the others.
                log.exception("A loop of the agent failed")
            await self._time.sleep(pause_seconds)

    # Events.

    def _keep(self, event: events.Event) -> None:
        """Every event goes through here on its way to the hub."""
        self._metrics.read.add(kind=event.kind)
        if self._queue is None:
            log.warning(
                "Event", extra=logs.fields(kind=event.kind, code=event.code, gpu=event.place.gpu, text=event.text)
            )
        else:
            self._queue.append(event)

    async def _push(self, hub: push.HubEndpoint) -> None:
        assert self._queue is not None
        await push.push_forever(self._queue, hub, time=self._time, pushed=self._metrics.pushed)

    async def _register(self, hub: push.HubEndpoint) -> None:
        await registration.register_forever(hub, self._registration, time=self._time)

    async def _follow_kernel(self) -> None:
        """Follow the kernel log until it cannot be read, which is said once and not at every try."""
        self._metrics.readable.set(1)
        try:
            await self._follow()
        except (CollectError, OSError) as error:
            if str(error) != self._kernel_problem:
                self._kernel_problem = str(error)
                log.error(
                    "The kernel log is not followed; GPU numbers are", extra=logs.fields(error=self._kernel_problem)
                )
        finally:
            self._metrics.readable.set(0)

    async def _follow(self) -> None:
        """Make events of every kernel record and spool them; a restart goes on where the spool ends."""
        settings = self._settings
        if settings.simulator_url is not None:
            # A simulated fleet starts anew with each run, so its whole log is read; the hub knows repeated ids.
            cursor = None
            addresses = gpu_addresses.GpuAddresses(gpu_addresses.simulator_inventory(settings.simulator_url))
            lines = kernel_follow.follow_stream(f"{settings.simulator_url}/kmsg", time=self._time)
        else:
            path = settings.spool_directory / "kmsg.cursor"
            cursor = kernel_position.PositionFile(path, self._boot) if self._queue is not None else None
            addresses = gpu_addresses.GpuAddresses(self._inventory)
            wanted = kernel_sources.KernelLogSettings(
                settings.kernel_log, settings.node, self._boot, kmsg=settings.kmsg, root=settings.roots.root
            )
            start = kernel_position.KernelLogPosition() if cursor is None else cursor.load()
            lines = kernel_sources.follow(replace(wanted, position=start), time=self._time)
        reading = kernel_follow.KernelEvents(settings.cluster, addresses, rate_limiter=self._gate)
        async with aclosing(lines) as records:
            async for record in records:
                event = await reading.build_event(record)
                self._metrics.held_back.set(reading.dropped_count)
                if event is not None:
                    self._keep(self._merged(event))
                    if cursor is not None:
                        cursor.save(kernel_sources.build_position(record))

    async def _inventory(self, node: str) -> Sequence[fleet.Gpu]:
        """What the driver's pages list and what has been read: one of them may be hidden in a pod, or be silent."""
        listed: Sequence[fleet.Gpu] = ()
        try:
            listed = await gpu_addresses.proc_inventory(self._settings.roots.proc)(node)
        except CollectError:
            if not self._gpus():
                raise
        return (*self._gpus(), *listed)

    def _merged(self, event: events.Event) -> events.Event:
        """The kernel's event, with NVML's report about the same Xid folded into it."""
        if event.kind is not events.EventKind.XID:
            return event
        named = {**event.fields, "policy": policies.XID}
        if self._merge.add_kernel_line(event):
            named["also_reported_by"] = driver_events.SOURCE
        return replace(event, fields=named)

    def _hear_driver(self, fact: sampler.NvmlEvent) -> None:
        self._metrics.driver_events.add(kind=fact.kind)
        if fact.kind == "xid":
            self._merge.add_nvml_event(fact, system_time.monotonic())
            return
        event = self._driver_events.build_nvml_event(fact)
        if event is not None and self._gate.admit((fact.uuid, fact.kind), fact.at) is not None:
            self._keep(event)

    async def _report(self) -> None:
        """Tell what lasts: faults of reading, violated policies; and Xids to which no kernel line came."""
        now, wall = system_time.monotonic(), self._time.now()
        for fact in self._merge.take_expired(now):
            pci = next((gpu.pci for gpu in self._gpus() if gpu.uuid == fact.uuid), None)
            key = (self._settings.node, events.EventKind.XID, fact.detail, pci)
            event = self._driver_events.build_nvml_event(fact)
            if event is not None and self._gate.admit(key, fact.at) is not None:
                self._keep(event)
        if self._sampler is None:
            return
        faults = {(fault.cause, fault.place): fault for fault in self._sampler.faults()}
        violations = self._policy_watch.find_violations(self._sampler.snapshot().gpus, now)
        broken = {(violation.policy.name, violation.uuid): violation for violation in violations}
        for key in self._standing.take_due({**faults, **broken}, now):
            if key in faults:
                self._keep(self._driver_events.build_fault_event(replace(faults[key], since=wall)))
            else:
                self._keep(self._driver_events.build_violation_event(broken[key], wall))

    # GPUs and host.

    def _make_sampler(self, loop: asyncio.AbstractEventLoop) -> sampler.Sampler:
        settings = self._settings
        chosen = load_families(settings.counters)
        self._dcgm = dcgm_profile.DcgmProfile(chosen.families, settings.interval_seconds, settings.environment)
        wanted = sampler.SamplerSettings(
            self._place,
            settings.node,
            limits=reader_watch.ReaderLimits(interval_seconds=settings.interval_seconds),
            choice=chosen,
            environment=settings.environment,
            add_profiling=self._dcgm.add_metrics,
        )

        def hear(fact: sampler.NvmlEvent) -> None:
            # The loop may have ended already when the sampler's thread still hears something.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._hear_driver, fact)

        return sampler.Sampler(wanted, self._time, on_event=hear)

    def _gpus(self) -> tuple[fleet.Gpu, ...]:
        return () if self._sampler is None else self._sampler.gpus()

    async def _follow_orders(self, hub: push.HubEndpoint) -> None:
        await self._control.follow_orders(hub, lambda: self._sampler)

    async def _look_for_pause(self) -> None:
        self._control.apply_pause(self._sampler)

    async def _read_host(self) -> None:
        facts = await asyncio.to_thread(self._node_reader.read)
        self._facts = replace(facts, sensors=facts.sensors + self._chassis.sensors())
        self._host_text = host_page.render(self._facts, self._settings.node).encode()
        await asyncio.to_thread(self._diag.refresh, self._time.now())
        self._host_at = system_time.monotonic()

    async def _look_at_dcgm(self) -> None:
        sampler = self._sampler
        if sampler is not None and self._dcgm is not None:
            await self._dcgm.run_if_needed(lambda: sampler.is_profiling_paused)

    async def _find_holders(self) -> None:
        if self._sampler is not None:
            await self._holders.refresh(self._sampler)

    def _registration(self) -> fleet.NodeRegistration:
        settings, facts, gpus = self._settings, self._facts, self._gpus()
        versions = {"agent": __version__, "kernel": facts.kernel, "driver": facts.driver}
        address = urlsplit(self._address)
        listen = settings.listen
        is_readable = listen is not None and listen.socket is None and not listen.credentials.digests
        # A hub elsewhere cannot reach our loopback.
        is_near = is_loopback(urlsplit(settings.hub_url or "").hostname or "")
        is_reachable = is_readable and listen is not None and (is_near or not is_loopback(listen.host))
        return fleet.NodeRegistration(
            settings.cluster,
            settings.node,
            expected_gpus=settings.expected_gpus,
            gpus=gpus[: fleet.MAX_GPUS_OF_A_NODE],
            versions={name: text for name, text in versions.items() if text},
            metrics_port=address.port if is_reachable else None,
            metrics_tls=address.scheme == "https",
        )

    # The page.

    def _routes(self) -> dict[str, agent_server.Route]:
        return {
            "/metrics": agent_server.Route(self._metrics_page),
            "/-/healthy": agent_server.Route(lambda: agent_server.HttpPage(b"ok\n"), needs_credentials=False),
            "/-/ready": agent_server.Route(self._ready_page, needs_credentials=False),
        }

    def _metrics_page(self) -> agent_server.HttpPage:
        self._metrics.spooled.set(self._spooled_bytes())
        gpus = b"" if self._sampler is None else self._sampler.page() + self._holders.page(self._sampler)
        own = self._metrics.registry.render().encode()
        is_host_fresh = system_time.monotonic() - self._host_at < HOST_KEPT_SECONDS
        host_text = self._host_text if is_host_fresh else b""
        around = host_text + self._fabric.page() + self._diag.page()
        return agent_server.HttpPage(gpus + around + own, content_type=agent_server.PAGE)

    def _ready_page(self) -> agent_server.HttpPage:
        if self._is_on_a_node and self._settings.reads_gpus:
            has_spoken = self._sampler is not None and (self._sampler.snapshot().gpus or self._sampler.faults())
            if not has_spoken:
                return agent_server.HttpPage(b"no GPU has been read yet\n", HTTPStatus.SERVICE_UNAVAILABLE)
        return agent_server.HttpPage(b"ready\n")

    def _spooled_bytes(self) -> int:
        return 0 if self._queue is None else self._queue.used_bytes

    async def _write_metrics(self) -> None:
        path = self._settings.metrics_file
        self._metrics.spooled.set(self._spooled_bytes())
        if path is not None:
            try:
                files.write_atomically(path, self._metrics.registry.render().encode(), syncs=False)
            except OSError as error:
                log.warning("Metrics not written", extra=logs.fields(path=str(path), error=error.strerror))


async def _until(stop: asyncio.Event, loops: list[Coroutine[Any, Any, None]]) -> None:
    """Run the loops until `stop` is set, or until one of them ends, which only an error does."""
    tasks = [asyncio.create_task(loop) for loop in loops]
    stopped = asyncio.create_task(stop.wait())
    try:
        finished, _ = await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (*tasks, stopped):
            task.cancel()
        await asyncio.gather(*tasks, stopped, return_exceptions=True)
    for task in finished - {stopped}:
        task.result()


def load_families(counters: Path | None) -> choice.Choice:
    """Our own set, or what a counters file asks for, with a sentence about each line that cannot be used."""
    if counters is None:
        return choice.choose_families()
    try:
        found = counters_csv.read(counters.read_text(encoding="utf-8", errors="replace").splitlines())
    except OSError as error:
        raise SettingsError(f"the counters file cannot be read: {error.strerror}", where=str(counters)) from error
    chosen = choice.choose_families(found.counters)
    return replace(chosen, problems=(*found.problems, *chosen.problems))
