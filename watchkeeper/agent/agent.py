"""Runs the agent of one GPU node: reads its GPUs, host and kernel log, serves /metrics, and pushes events to the hub.

    NVML reader → Sampler ──────────────┬→ /metrics (agent_server)
    /proc, /sys, units → NodeReader ────┘
    /dev/kmsg → KernelEvents ─┐
    faults, NVML events ──────┼→ Spool → push → POST {hub}/api/events
    policies ─────────────────┘          register → POST {hub}/api/nodes
    work orders ← GET {hub}/api/orders          pause of profiling ← a file (control)

The sources run independently: an unreadable kernel log does not stop the metrics, an unreachable hub stops neither. The
agent imports the standard library only, because it runs on every GPU node; the reader process loads pynvml, h2 is
loaded if there is a kubelet, and modules that only some nodes need (orders, Slurm) when they are first used.
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
from functools import partial
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
    spool,
)
from watchkeeper.agent.attribution import node_holders
from watchkeeper.agent.gpus import dcgm_profile, driver_events, policies, policy_limits, reader_watch, sampler
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
# Older values of the host are not shown, because reading them fails.
HOST_STALE_SECONDS = 4 * HOST_INTERVAL_SECONDS
REPORT_INTERVAL_SECONDS = 0.5
# A kernel log that cannot be opened may become readable later, when a volume is mounted.
KERNEL_RETRY_SECONDS = 60.0
# Push and registration retry by themselves; this is the delay after an unexpected error.
HUB_RETRY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Settings of the agent; `node` must be the node's name in the hub's inventory."""

    # None: events are only logged, and the agent only serves its page.
    hub_url: str | None
    spool_directory: Path
    cluster: str = "main"
    node: str = os.uname().nodename
    token: str | None = None
    # The CA of the hub, and the agent's client certificate if the hub requires one.
    hub_access: access.Access = access.NO_ACCESS
    kmsg: Path = Path("/dev/kmsg")
    chassis: chassis.ChassisSettings = field(default_factory=chassis.ChassisSettings)
    # `kmsg`, `journald`, or the path of a file that syslog writes.
    kernel_log: str = kernel_sources.KMSG
    # Follow the kernel logs of the simulated fleet at this URL instead of this node.
    simulator_url: str | None = None
    roots: node_facts.Roots = field(default_factory=node_facts.Roots)
    metrics_file: Path | None = None
    spool_max_bytes: int = spool.MAX_BYTES
    # None: no page is served.
    listen: agent_server.ListenSettings | None = None
    reads_gpus: bool = True
    interval_seconds: float = 1.0
    # A counters file of dcgm-exporter; None: the default set.
    counters: Path | None = None
    expected_gpus: int | None = None
    holder_settings: node_holders.HolderSettings = field(default_factory=node_holders.HolderSettings)
    # For the reader process; None: the agent's environment.
    environment: Mapping[str, str] | None = None
    control: control.ControlSettings = field(default_factory=control.ControlSettings)


class AgentMetrics:
    def __init__(self, registry: own_metrics.Registry) -> None:
        prefix = "watchkeeper_agent"
        counter, gauge = registry.counter, registry.gauge
        self.registry = registry
        self.events_read = counter(f"{prefix}_events_total", "Events detected on this node, by kind.")
        self.events_rate_limited = counter(f"{prefix}_events_rate_limited_total", "Events that the rate limit dropped.")
        self.events_pushed = counter(f"{prefix}_events_pushed_total", "Events that the hub has confirmed.")
        self.events_dropped = counter(f"{prefix}_events_lost_total", "Events that could not be stored or delivered.")
        self.spool_bytes = gauge(f"{prefix}_spool_bytes", "Size of the events that wait for the hub.")
        self.kernel_log_readable = gauge(f"{prefix}_kernel_log_readable", "1 while the kernel log is followed, else 0.")
        self.driver_events = counter(f"{prefix}_driver_events_total", "Events that NVML delivered, by NVML's kind.")


async def run(
    settings: AgentSettings, time: clock.Clock, stop: asyncio.Event, *, registry: own_metrics.Registry | None = None
) -> None:
    """Run the agent until `stop` is set; StartRefused or SettingsError if it cannot start."""
    await Agent(settings, time, AgentMetrics(registry or own_metrics.Registry())).run(stop)


class Agent:
    def __init__(self, settings: AgentSettings, time: clock.Clock, metrics: AgentMetrics) -> None:
        self._settings = settings
        self._is_real_node = settings.simulator_url is None
        self._time = time
        self._metrics = metrics
        self._place = fleet.Place(settings.cluster, node=settings.node)
        self._boot_id = host.read_boot_id(settings.roots.proc) or "unknown"
        self._spool = self._open_spool()
        self._node_reader = node_facts.NodeReader(settings.roots)
        self._chassis = chassis.Chassis(settings.chassis, settings.roots.root)
        self._facts = node.NodeFacts()
        self._host_text, self._host_read_at = b"", 0.0
        self._fabric = fabric_page.FabricPage(settings.roots, settings.node)
        self._diag = diag_page.DiagPage(settings.spool_directory, settings.node)
        self._holders = node_holders.NodeHolders(
            settings.holder_settings, settings.node, roots=settings.roots, registry=metrics.registry
        )
        source = events.EventSource(settings.cluster, settings.node, self._boot_id, driver_events.SOURCE)
        self._driver_events = driver_events.DriverEvents(source, system_time.monotonic)
        self._xid_merge = driver_events.XidMerge()
        self._report_schedule = driver_events.ReportSchedule()
        self._policy_watch = policies.PolicyWatch(policies.load_policies())
        limits = policy_limits.PolicyLimits(settings.spool_directory)
        self._policy_limits_watch = policy_limits.PolicyLimitsWatch(limits)
        # One limiter for both reports of an Xid, so that a flood is counted once.
        self._rate_limiter = kernel_follow.EventRateLimiter()
        self._sampler: sampler.Sampler | None = None
        self._dcgm: dcgm_profile.DcgmProfile | None = None
        self._control = control.Control(
            settings.control, settings.spool_directory, lambda: self._sampler, time=time, registry=metrics.registry
        )
        self._address = ""
        self._kernel_problem = ""

    def _open_spool(self) -> spool.Spool | None:
        settings = self._settings
        if settings.hub_url is None:
            return None
        if not re.match(r"https?://[^/\s]", settings.hub_url):
            raise SettingsError("is not an http or https URL such as http://hub:9480", where=f"hub {settings.hub_url}")
        dropped = self._metrics.events_dropped
        return spool.Spool(settings.spool_directory, dropped_counter=dropped, max_bytes=settings.spool_max_bytes)

    async def run(self, stop: asyncio.Event) -> None:
        settings = self._settings
        async with AsyncExitStack() as stack:
            if self._spool is not None:
                stack.callback(self._spool.close)
            if settings.listen is not None:
                routes = {
                    "/metrics": agent_server.Route(self._render_metrics),
                    "/-/healthy": agent_server.Route(lambda: agent_server.HttpPage(b"ok\n"), needs_credentials=False),
                    "/-/ready": agent_server.Route(self._render_ready, needs_credentials=False),
                }
                self._address = await stack.enter_async_context(agent_server.serve(settings.listen, routes))
            if self._is_real_node and settings.reads_gpus:
                self._sampler = self._build_sampler(asyncio.get_running_loop())
                self._sampler.start()
                stack.push_async_callback(asyncio.to_thread, self._sampler.stop)
            stack.enter_context(self._control.add_gpu_context_to_logs())
            names = {"node": settings.node, "cluster": settings.cluster, "hub": settings.hub_url}
            log.info("agent started", extra=logs.fields(**names, metrics=self._address or "not served"))
            memory.release_startup_memory()
            await _run_until(stop, self._build_loops())
        log.info("agent stopped", extra=logs.fields(spooled_bytes=self._measure_spool()))

    def _build_loops(self) -> list[Coroutine[Any, Any, None]]:
        settings = self._settings
        loops: list[tuple[Callable[[], Awaitable[None]], float]] = [
            (self._follow_kernel_log, KERNEL_RETRY_SECONDS),
            (self._write_metrics, METRICS_INTERVAL_SECONDS),
        ]
        if self._is_real_node:
            loops += [
                (self._read_host, HOST_INTERVAL_SECONDS),
                (self._chassis.read, chassis.INTERVAL_SECONDS),
                (self._report_conditions, REPORT_INTERVAL_SECONDS),
                (self._fabric.refresh, fabric_page.REFRESH_SECONDS),
                (self._control.apply_pause, control.POLL_SECONDS),
            ]
        if (sampler := self._sampler) is not None and self._dcgm is not None:
            run_dcgm = partial(self._dcgm.run_if_needed, lambda: sampler.is_profiling_paused)
            loops += [
                (partial(self._holders.refresh, sampler), node_holders.REFRESH_SECONDS),
                (run_dcgm, dcgm_profile.POLL_SECONDS),
            ]
        if self._spool is not None and settings.hub_url is not None:
            hub = push.HubEndpoint(settings.hub_url, settings.token, access=settings.hub_access)
            pushed = self._metrics.events_pushed
            push_forever = partial(push.push_forever, self._spool, hub, time=self._time, pushed=pushed)
            loops.append((push_forever, HUB_RETRY_SECONDS))
            if self._is_real_node:
                register = partial(push.register_forever, hub, self._build_registration, time=self._time)
                loops.append((register, HUB_RETRY_SECONDS))
                if self._control.accepts_orders:
                    loops.append((partial(self._control.follow_orders, hub), control.POLL_SECONDS))
        return [self._repeat(body, pause_seconds) for body, pause_seconds in loops]

    async def _repeat(self, body: Callable[[], Awaitable[None]], pause_seconds: float) -> None:
        """Run the body of a loop forever; an error is logged and ends only that run."""
        while True:
            try:
                await body()
            except Exception:  # Deliberately everything: one source must not stop the others.
                log.exception("agent loop failed")
            await self._time.sleep(pause_seconds)

    # Events.

    def _spool_event(self, event: events.Event) -> None:
        self._metrics.events_read.add(kind=event.kind)
        if self._spool is None:
            log_fields = logs.fields(kind=event.kind, code=event.code, gpu=event.place.gpu, text=event.text)
            log.warning("event detected", extra=log_fields)
        else:
            self._spool.append(event)

    async def _follow_kernel_log(self) -> None:
        """Follow the kernel log until it cannot be read; a repeated problem is logged once."""
        self._metrics.kernel_log_readable.set(1)
        try:
            await self._spool_kernel_events()
        except (CollectError, OSError) as error:
            if str(error) != self._kernel_problem:
                self._kernel_problem = str(error)
                log.error("kernel log unreadable", extra=logs.fields(error=self._kernel_problem))
        finally:
            self._metrics.kernel_log_readable.set(0)

    async def _spool_kernel_events(self) -> None:
        """Build events from the kernel records and spool them; a restart continues at the saved position."""
        settings = self._settings
        if settings.simulator_url is not None:
            # A simulated fleet restarts with each run, so its whole log is read; the hub recognises repeated ids.
            cursor = None
            addresses = gpu_addresses.GpuAddresses(
                partial(gpu_addresses.read_simulator_inventory, settings.simulator_url)
            )
            stream = kernel_follow.follow_stream(f"{settings.simulator_url}/kmsg", time=self._time)
        else:
            path = settings.spool_directory / "kmsg.cursor"
            cursor = kernel_position.PositionFile(path, self._boot_id) if self._spool is not None else None
            addresses = gpu_addresses.GpuAddresses(self._list_gpus)
            log_settings = kernel_position.KernelLogSettings(
                settings.kernel_log,
                settings.node,
                self._boot_id,
                kmsg=settings.kmsg,
                root=settings.roots.root,
                position=kernel_position.KernelLogPosition() if cursor is None else cursor.load(),
            )
            stream = kernel_sources.follow(log_settings, time=self._time)
        kernel_events = kernel_follow.KernelEvents(settings.cluster, addresses, rate_limiter=self._rate_limiter)
        async with aclosing(stream) as records:
            async for record in records:
                event = await kernel_events.build_event(record)
                self._metrics.events_rate_limited.set(kernel_events.dropped_count)
                if event is not None:
                    self._spool_event(self._merge_xid_reports(event))
                    if cursor is not None:
                        cursor.save(kernel_sources.build_position(record))

    async def _list_gpus(self, _node: str) -> Sequence[fleet.Gpu]:
        """The GPUs of the sampler and of the driver's files in /proc: in a pod, one of them may be missing."""
        listed: Sequence[fleet.Gpu] = ()
        try:
            listed = gpu_addresses.read_proc_inventory(self._settings.roots.proc)
        except CollectError:
            if not self._gpus():
                raise
        return (*self._gpus(), *listed)

    def _merge_xid_reports(self, event: events.Event) -> events.Event:
        if event.kind is not events.EventKind.XID:
            return event
        fields = {**event.fields, "policy": policies.XID}
        if self._xid_merge.add_kernel_line(event):
            fields["also_reported_by"] = driver_events.SOURCE
        return replace(event, fields=fields)

    def _on_nvml_event(self, nvml_event: sampler.NvmlEvent) -> None:
        self._metrics.driver_events.add(kind=nvml_event.kind)
        if nvml_event.kind == "xid":
            self._xid_merge.add_nvml_event(nvml_event, system_time.monotonic())
            return
        event, key = self._driver_events.build_nvml_event(nvml_event), (nvml_event.uuid, nvml_event.kind)
        if event is not None and self._rate_limiter.admit(key, nvml_event.at) is not None:
            self._spool_event(event)

    async def _report_conditions(self) -> None:
        """Report driver faults and policy violations while they last, and Xids without a kernel log line."""
        now, wall_now = system_time.monotonic(), self._time.now()
        for nvml_event in self._xid_merge.take_expired(now):
            pci = next((gpu.pci for gpu in self._gpus() if gpu.uuid == nvml_event.uuid), None)
            key = (self._settings.node, events.EventKind.XID, nvml_event.detail, pci)
            event = self._driver_events.build_nvml_event(nvml_event)
            if event is not None and self._rate_limiter.admit(key, nvml_event.at) is not None:
                self._spool_event(event)
        if self._sampler is None:
            return
        faults_by_key = {(fault.cause, fault.place): fault for fault in self._sampler.faults()}
        if (changed := self._policy_limits_watch.read_changes()) is not None:
            self._policy_watch.replace_policies(changed)
        violations = self._policy_watch.find_violations(self._sampler.snapshot().gpus, now)
        violations_by_key = {(violation.policy.name, violation.uuid): violation for violation in violations}
        for key in self._report_schedule.take_due({**faults_by_key, **violations_by_key}, now):
            if key in faults_by_key:
                self._spool_event(self._driver_events.build_fault_event(replace(faults_by_key[key], since=wall_now)))
            else:
                self._spool_event(self._driver_events.build_violation_event(violations_by_key[key], wall_now))

    # GPUs and host.

    def _build_sampler(self, loop: asyncio.AbstractEventLoop) -> sampler.Sampler:
        settings = self._settings
        family_choice = load_families(settings.counters)
        self._dcgm = dcgm_profile.DcgmProfile(family_choice.families, settings.interval_seconds, settings.environment)
        sampler_settings = sampler.SamplerSettings(
            self._place,
            settings.node,
            limits=reader_watch.ReaderLimits(interval_seconds=settings.interval_seconds),
            choice=family_choice,
            environment=settings.environment,
            add_profiling=self._dcgm.add_metrics,
        )

        def forward(nvml_event: sampler.NvmlEvent) -> None:
            # The event loop may have stopped before the sampler's thread.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._on_nvml_event, nvml_event)

        return sampler.Sampler(sampler_settings, self._time, on_event=forward)

    def _gpus(self) -> tuple[fleet.Gpu, ...]:
        return () if self._sampler is None else self._sampler.gpus()

    async def _read_host(self) -> None:
        facts = await asyncio.to_thread(self._node_reader.read)
        self._facts = replace(facts, sensors=facts.sensors + self._chassis.sensors())
        self._host_text = host_page.render(self._facts, self._settings.node).encode()
        await asyncio.to_thread(self._diag.refresh, self._time.now())
        self._host_read_at = system_time.monotonic()

    def _build_registration(self) -> fleet.NodeRegistration:
        settings, facts, gpus = self._settings, self._facts, self._gpus()
        versions = {"agent": __version__, "kernel": facts.kernel, "driver": facts.driver}
        address, listen = urlsplit(self._address), settings.listen
        # A remote hub cannot reach a loopback address.
        is_hub_local = is_loopback(urlsplit(settings.hub_url or "").hostname or "")
        is_readable = listen is not None and listen.socket is None and not listen.credentials.digests
        is_reachable = is_readable and listen is not None and (is_hub_local or not is_loopback(listen.host))
        return fleet.NodeRegistration(
            settings.cluster,
            settings.node,
            expected_gpus=settings.expected_gpus,
            gpus=gpus[: fleet.MAX_GPUS_PER_NODE],
            versions={name: text for name, text in versions.items() if text},
            metrics_port=address.port if is_reachable else None,
            metrics_tls=address.scheme == "https",
        )

    # Pages.

    def _render_metrics(self) -> agent_server.HttpPage:
        self._metrics.spool_bytes.set(self._measure_spool())
        gpu_text = b"" if self._sampler is None else self._sampler.page() + self._holders.page(self._sampler)
        agent_text = self._metrics.registry.render().encode()
        is_host_fresh = system_time.monotonic() - self._host_read_at < HOST_STALE_SECONDS
        node_text = (self._host_text if is_host_fresh else b"") + self._fabric.page() + self._diag.page()
        return agent_server.HttpPage(gpu_text + node_text + agent_text, content_type=agent_server.PAGE)

    def _render_ready(self) -> agent_server.HttpPage:
        has_read_gpus = self._sampler is not None and (self._sampler.snapshot().gpus or self._sampler.faults())
        if self._is_real_node and self._settings.reads_gpus and not has_read_gpus:
            return agent_server.HttpPage(b"no GPU has been read yet\n", HTTPStatus.SERVICE_UNAVAILABLE)
        return agent_server.HttpPage(b"ready\n")

    def _measure_spool(self) -> int:
        return 0 if self._spool is None else self._spool.used_bytes

    async def _write_metrics(self) -> None:
        path = self._settings.metrics_file
        self._metrics.spool_bytes.set(self._measure_spool())
        if path is not None:
            try:
                files.write_atomically(path, self._metrics.registry.render().encode(), syncs=False)
            except OSError as error:
                log.warning("metrics file write failed", extra=logs.fields(path=str(path), error=error.strerror))


async def _run_until(stop: asyncio.Event, loops: list[Coroutine[Any, Any, None]]) -> None:
    """Run the loops until `stop` is set or one of them ends, which only an error causes."""
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


def load_families(counters: Path | None) -> choice.FamilyChoice:
    """The default families, or those of a counters file with a problem for each line that cannot be used."""
    if counters is None:
        return choice.choose_families()
    try:
        counters_file = counters_csv.read(counters.read_text(encoding="utf-8", errors="replace").splitlines())
    except OSError as error:
        raise SettingsError(f"the counters file cannot be read: {error.strerror}", where=str(counters)) from error
    family_choice = choice.choose_families(counters_file.counters)
    return replace(family_choice, problems=(*counters_file.problems, *family_choice.problems))
