"""`watchkeeper play`: show a recording in the console, without the fleet.

The command imports its modules itself: it needs the hub's packages, which an agent-only install lacks.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from watchkeeper.cli import options, processes
from watchkeeper.cli.terminal import Progress
from watchkeeper.kit import clock, wire

if TYPE_CHECKING:
    from watchkeeper.hub.services import Services

HOST = "127.0.0.1"
SPEED_HELP = "Play at this multiple of real time.  [default: show the end of the recording]"


@click.command("play")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=9490, help="Port of the console; 0 selects a free port."
)
@click.option("--speed", type=click.FloatRange(0.1, 1000), help=SPEED_HELP)
@options.as_json
def command(file: Path, port: int, speed: float | None, as_json: bool) -> None:
    """Show a recording in the console and answer queries about it, on the loopback address only.

    With --json, print what the file contains and exit. Stop with Ctrl-C.

    \b
    watchkeeper play outage.wkrec
    watchkeeper query 'max(DCGM_FI_DEV_GPU_TEMP)' --from -30m --hub http://127.0.0.1:9490
    """
    from watchkeeper.config import settings
    from watchkeeper.store import recording
    from watchkeeper.web import replay_hub

    progress = Progress()
    recorded = recording.read(file, progress=lambda lines: progress.update(f"Reading: {lines:,} lines"))
    if as_json:
        progress.clear()
        header = recorded.header
        span = {"from": clock.from_ms(header.from_ms), "to": clock.from_ms(header.to_ms)}
        source = {"cluster": header.cluster, "hub_version": header.hub_version}
        options.print_json({"file": str(file), **wire.to_plain(span), **source, **recorded.counts()})
        return
    engine = replay_hub.load_engine(recorded, progress=lambda part: progress.update(f"Loading: {part:.0%}"))
    progress.clear()
    hub_settings = settings.Settings(hub=settings.HubSettings(host=HOST, port=port))
    hub_settings = replace(hub_settings, fleet=replace(hub_settings.fleet, cluster=recorded.header.cluster))
    services = replay_hub.recorded_services(recorded, engine, settings=hub_settings, speed=speed)
    asyncio.run(processes.run_until_stopped(lambda stop: serve(services, port, stop=stop)))


async def serve(services: Services, port: int, *, stop: asyncio.Event) -> None:
    from watchkeeper.web import app, server
    from watchkeeper.web.auth import auth

    with contextlib.closing(server.listen(HOST, port)) as listener:
        click.echo(f"Showing the recording at http://{HOST}:{listener.getsockname()[1]}. Stop with Ctrl-C.")
        await server.serve(app.create_app(services, auth.Auth()), listener, stop=stop)
