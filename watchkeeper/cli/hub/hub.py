"""`watchkeeper hub`: the fleet's side, from a settings file.

A start waits for two things, the log of samples and the modules of a hub: so the one is read while the others are
imported, and of those the ones that are needed first. Here nothing is imported that settings do not need.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

from watchkeeper.config import loading, settings
from watchkeeper.kit import logs


@click.command("hub")
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Settings as TOML; see docs/reference/settings.md.",
)
@click.option("--host", help="Address to listen on, instead of [hub] host.")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port, instead of [hub] port.")
@click.option("--data", metavar="DIR", help="Data directory, instead of [hub] data.")
@click.option("--log-json", is_flag=True, help="Log as JSON.")
def command(config_file: Path | None, host: str | None, port: int | None, data: str | None, log_json: bool) -> None:
    """The fleet's side: finds targets, scrapes, stores, evaluates rules, opens incidents, says why."""
    logs.configure(as_json=log_json)
    configured = loading.load(config_file, {"hub.host": host, "hub.port": port, "hub.data": data})
    # NumPy's linear algebra, of which a hub has little, would keep a core busy with threads of its own.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from watchkeeper.kit import lazy_imports

    lazy_imports.enable()
    if configured.query.engine is settings.QueryEngine.EMBEDDED:
        from watchkeeper.store.wal import wal_prefetch

        wal_prefetch.start_reading(configured.samples_path)
    import asyncio

    from watchkeeper.cli import processes
    from watchkeeper.cli.hub import serving
    from watchkeeper.kit import memory

    memory.release_eagerly()
    memory.collect_garbage_rarely()
    asyncio.run(processes.run_until_stopped(lambda stop: serving.run(configured, stop)))
