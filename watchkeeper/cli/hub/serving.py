"""Run a hub: check access settings, take the port, start hub and web application, and stop them.

`watchkeeper hub` and `watchkeeper up` call this.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from watchkeeper.cli import processes
from watchkeeper.config import settings
from watchkeeper.errors import WatchkeeperError
from watchkeeper.hub import hub, runtime, samples
from watchkeeper.kit import clock, lazy_imports
from watchkeeper.net import addresses
from watchkeeper.store.wal import wal_prefetch
from watchkeeper.web import app, server, startup_app
from watchkeeper.web.auth import auth, auth_reload, tls

FINISH_IMPORTS_AFTER_SECONDS = 3.0


async def run(configured: settings.Settings, stop: asyncio.Event) -> None:
    with open_listener(configured) as listener:
        greeting = f"Watchkeeper is running at {listener.url}"
        await serve(configured, listener, time=clock.ScaledClock(), stop=stop, greeting=greeting, reload_on_hangup=True)


@dataclass(frozen=True, slots=True)
class HubListener:
    """The socket of the hub, its access settings and URLs; `local_url` is for processes on this machine."""

    server_socket: socket.socket
    auth_files: auth_reload.AuthFiles
    certificates: tls.Certificates | None
    url: str
    local_url: str
    agent_token: str | None


@contextlib.contextmanager
def open_listener(configured: settings.Settings) -> Iterator[HubListener]:
    """Check access settings and take the port, before anything else starts."""
    auth_files = auth_reload.from_settings(configured.hub)
    auth.check_listen(configured.hub.host, auth_files.access)
    certificates = tls.from_settings(configured.hub)
    agent_token = None
    if not auth_files.access.is_open:
        # A token for the agent that `up` runs; it is valid for the life of the process.
        agent_token = secrets.token_hex(32)
        token = auth.Token("agent of this machine", auth.Role.AGENT, hashlib.sha256(agent_token.encode()).digest())
        auth_files.extra_tokens = (token,)
        auth_files.load()
    server_socket = server.listen(configured.hub.host, configured.hub.port)
    host, port = configured.hub.host, server_socket.getsockname()[1]
    url_host = f"[{host}]" if ":" in host else host
    local_host = url_host if addresses.is_loopback(host) else "127.0.0.1"
    with contextlib.closing(server_socket):
        scheme = "http" if certificates is None else "https"
        url, local_url = (f"{scheme}://{name}:{port}" for name in (url_host, local_host))
        yield HubListener(server_socket, auth_files, certificates, url, local_url, agent_token)


async def serve(
    configured: settings.Settings,
    listener: HubListener,
    *,
    time: clock.Clock,
    stop: asyncio.Event,
    greeting: str,
    simulator_url: str | None = None,
    companions: Sequence[Callable[[], Coroutine[Any, Any, None]]] = (),
    reload_on_hangup: bool = False,
) -> None:
    """Run hub, web application and `companions` until `stop` is set or one of them fails."""
    # Files of the hub are for its user and group only, in any directory.
    os.umask(0o027)
    store = samples.Samples(runtime.Runtime(configured, time))
    build = HubBuilder(store, simulator_url)
    steps = build_in_steps(build)
    wal_prefetch.run_while_reading(configured.samples_path, steps)
    store.open()
    session_key = configured.hub.session_key_file or Path(configured.hub.data) / "session.key"
    listener.auth_files.load_session_key(Path(session_key))
    try:
        async with asyncio.TaskGroup() as group:
            await serve_while_building(build, listener, group, steps=steps, stop=stop)
            if reload_on_hangup:
                processes.on_hangup(build().rules.reload_soon)
            for start_companion in companions:
                group.create_task(start_companion())
            click.echo(greeting)
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    finally:
        store.close()


@dataclass(slots=True)
class HubBuilder:
    """Builds the hub on its store; later calls return the same hub."""

    store: samples.Samples
    simulator_url: str | None = None
    built: hub.Hub | None = None

    def __call__(self) -> hub.Hub:
        if self.built is None:
            self.built = hub.Hub(self.store, simulator_url=self.simulator_url)
        return self.built


def build_in_steps(build: HubBuilder) -> Iterator[None]:
    """Import modules and build the hub in steps, to use the time while the WAL is read; invalid settings raise here."""
    yield from lazy_imports.run_pending("watchkeeper.web", "watchkeeper.hub")
    build()
    yield


async def serve_while_building(
    build: HubBuilder, listener: HubListener, group: asyncio.TaskGroup, *, steps: Iterator[None], stop: asyncio.Event
) -> None:
    """Serve queries on the samples that are read, finish building the hub, then start it."""
    startup = startup_app.StartupApp(build.store.runtime, build.store.queries, auth_files=listener.auth_files)
    is_serving, certificates = asyncio.Event(), listener.certificates
    server_task = group.create_task(
        server.serve(startup, listener.server_socket, stop=stop, certificates=certificates, is_serving=is_serving)
    )
    await is_serving.wait()
    await startup.yield_to_requests()
    try:
        for _ in steps:
            await startup.yield_to_requests()
        started_hub = build()
        started_hub.open()
    except WatchkeeperError:
        startup.fail_startup()
        stop.set()
        await server_task
        raise
    startup.set_application(app.create_app(started_hub.services, listener.auth_files))
    group.create_task(started_hub.run(stop))
    group.create_task(finish_imports(stop))


async def finish_imports(stop: asyncio.Event) -> None:
    """Import the remaining modules after the first requests, so that an import error appears soon after the start."""
    try:
        await asyncio.wait_for(stop.wait(), FINISH_IMPORTS_AFTER_SECONDS)
    except TimeoutError:
        await asyncio.to_thread(lazy_imports.finish)


def add_discovery_url(configured: settings.Settings, url: str) -> settings.Settings:
    fleet = replace(configured.fleet, sd_urls=(*configured.fleet.sd_urls, url))
    return replace(configured, fleet=fleet)
