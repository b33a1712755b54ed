"""A hub behind its door: who may come in, the port, and hub and web application until they are stopped.

`watchkeeper hub` and `watchkeeper up` both run one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
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

FIRST_ANSWERS_SECONDS = 3.0


async def run(configured: settings.Settings, stop: asyncio.Event) -> None:
    with open_listener(configured) as door:
        say = f"Watchkeeper is at {door.url}"
        await serve(configured, door, time=clock.ScaledClock(), stop=stop, say=say, reload_on_hangup=True)


@dataclass(frozen=True, slots=True)
class HubListener:
    """Where the hub listens and who may come in. `local_url` is for processes of this machine."""

    listener: socket.socket
    auth_files: auth_reload.AuthFiles
    certificates: tls.Certificates | None
    url: str
    local_url: str
    agent_token: str | None


@contextlib.contextmanager
def open_listener(configured: settings.Settings) -> Iterator[HubListener]:
    """Check who may come in and take the port, before anything else is touched."""
    entries = auth_reload.from_settings(configured.hub)
    auth.check_listen(configured.hub.host, entries.access)
    certificates = tls.from_settings(configured.hub)
    agent_token = None
    if not entries.access.is_open:
        # The agent that `up` runs beside the hub needs a token of its own; it lives as long as the process.
        agent_token = secrets.token_hex(32)
        own = auth.Token("agent of this machine", auth.Role.AGENT, hashlib.sha256(agent_token.encode()).digest())
        entries.extra_tokens = (own,)
        entries.load()
    listener = server.listen(configured.hub.host, configured.hub.port)
    host, port = configured.hub.host, listener.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    local = shown if addresses.is_loopback(host) else "127.0.0.1"
    with contextlib.closing(listener):
        scheme = "http" if certificates is None else "https"
        yield HubListener(
            listener, entries, certificates, f"{scheme}://{shown}:{port}", f"{scheme}://{local}:{port}", agent_token
        )


async def serve(
    configured: settings.Settings,
    door: HubListener,
    *,
    time: clock.Clock,
    stop: asyncio.Event,
    say: str,
    simulator_url: str | None = None,
    beside: Sequence[Callable[[], Coroutine[Any, Any, None]]] = (),
    reload_on_hangup: bool = False,
) -> None:
    """Run hub and web application, and whatever runs beside them, until `stop` is set or one of them fails."""
    kept = samples.Samples(runtime.Runtime(configured, time))
    build = HubBuilder(kept, simulator_url)
    rest = build_in_steps(build)
    wal_prefetch.run_while_reading(configured.samples_path, rest)
    kept.open()
    door.auth_files.load_session_key(Path(configured.hub.session_key_file or Path(configured.hub.data) / "session.key"))
    try:
        async with asyncio.TaskGroup() as group:
            await serve_while_building(build, door, group, rest=rest, stop=stop)
            if reload_on_hangup:
                processes.on_hangup(build().rules.reload_soon)
            for start in beside:
                group.create_task(start())
            click.echo(say)
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    finally:
        kept.close()


@dataclass(slots=True)
class HubBuilder:
    """Builds a hub over samples once, the first time that it is called."""

    kept: samples.Samples
    simulator_url: str | None = None
    built: hub.Hub | None = None

    def __call__(self) -> hub.Hub:
        if self.built is None:
            self.built = hub.Hub(self.kept, simulator_url=self.simulator_url)
        return self.built


def build_in_steps(build: HubBuilder) -> Iterator[None]:
    """What a hub needs besides its samples, in steps, for when it would wait; wrong settings are told here."""
    yield from lazy_imports.run_pending("watchkeeper.web", "watchkeeper.hub")
    build()
    yield


async def serve_while_building(
    build: HubBuilder, door: HubListener, group: asyncio.TaskGroup, *, rest: Iterator[None], stop: asyncio.Event
) -> None:
    """Answer questions about samples that are read, build the rest, and let the hub begin to watch."""
    first, is_up = (
        startup_app.StartupApp(build.kept.runtime, build.kept.queries, auth_files=door.auth_files),
        asyncio.Event(),
    )
    served = group.create_task(
        server.serve(first, door.listener, stop=stop, certificates=door.certificates, is_serving=is_up)
    )
    await is_up.wait()
    await first.yield_to_requests()
    try:
        for _ in rest:
            await first.yield_to_requests()
        watch = build()
        watch.open()
    except WatchkeeperError:
        first.fail_startup()
        stop.set()
        await served
        raise
    first.set_application(app.create_app(watch.services, door.auth_files))
    group.create_task(watch.run(stop))
    group.create_task(finish_imports(stop))


async def finish_imports(stop: asyncio.Event) -> None:
    """Run modules that nobody asked for yet, when first questions are answered: a fault in one is to be known now."""
    try:
        await asyncio.wait_for(stop.wait(), FIRST_ANSWERS_SECONDS)
    except TimeoutError:
        await asyncio.to_thread(lazy_imports.finish)


def with_discovery(configured: settings.Settings, url: str) -> settings.Settings:
    """The same settings with one more http_sd address."""
    found = replace(configured.fleet, sd_urls=(*configured.fleet.sd_urls, url))
    return replace(configured, fleet=found)
