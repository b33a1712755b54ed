"""`watchkeeper play`: a recording in the console, without the fleet it came from.

Imports happen inside the command: playing needs the hub's packages, which a node does not have.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from watchkeeper.cli import options, processes
from watchkeeper.cli.progress import Progress
from watchkeeper.kit import clock, wire

if TYPE_CHECKING:
    from watchkeeper.hub.services import Services

HOST = "127.0.0.1"


@click.command("play")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--port", type=click.IntRange(0, 65_535), default=9490, help="Port of the console; 0 takes a free one.")
@click.option(
    "--speed", type=click.FloatRange(0.1, 1000), help="Run through it at this speed; without it, stand at its end."
)
@options.as_json
def command(file: Path, port: int, speed: float | None, as_json: bool) -> None:
    """Show a recording in the console and answer queries about it, on this machine only.

    With --json it says what the file holds, and ends. Stop it with Ctrl-C.

    \b
    watchkeeper play outage.wkrec
    watchkeeper query 'max(DCGM_FI_DEV_GPU_TEMP)' --from -30m --hub http://127.0.0.1:9490
    """
    from watchkeeper.config import settings
    from watchkeeper.store import recording
    from watchkeeper.web import replay_hub

    progress = Progress()
    tape = recording.read(file, progress=lambda lines: progress.update(f"Reading: {lines:,} lines"))
    if as_json:
        progress.clear()
        span = {"from": wire.format_time(clock.from_ms(tape.header.from_ms))}
        span["to"] = wire.format_time(clock.from_ms(tape.header.to_ms))
        about = {"cluster": tape.header.cluster, "hub_version": tape.header.hub_version}
        options.print_json({"file": str(file), **span, **about, **tape.counts()})
        return
    on = replay_hub.load_engine(tape, progress=lambda part: progress.update(f"Loading: {part:.0%}"))
    progress.clear()
    chosen = settings.Settings(hub=settings.HubSettings(host=HOST, port=port))
    chosen = replace(chosen, fleet=replace(chosen.fleet, cluster=tape.header.cluster))
    offered = replay_hub.recorded_services(tape, on, settings=chosen, speed=speed)
    asyncio.run(processes.run_until_stopped(lambda stop: serve(offered, port, stop=stop)))


async def serve(offered: Services, port: int, *, stop: asyncio.Event) -> None:
    from watchkeeper.web import app, server
    from watchkeeper.web.auth import auth

    with contextlib.closing(server.listen(HOST, port)) as listener:
        click.echo(f"The recording is at http://{HOST}:{listener.getsockname()[1]}. Stop with Ctrl-C.")
        await server.serve(app.create_app(offered, auth.Auth()), listener, stop=stop)
