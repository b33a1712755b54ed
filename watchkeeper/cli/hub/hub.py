"""`watchkeeper hub`: run a hub from a settings file.

A fast start reads the WAL while it imports the modules of the hub, the most urgent modules first. So this module
imports only what settings need.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

from watchkeeper.config import loading, settings
from watchkeeper.kit import logs

CONFIG_HELP = "Settings file (TOML); see docs/reference/settings.md."


@click.command("hub")
@click.option("--config", "config_file", type=click.Path(path_type=Path), metavar="FILE", help=CONFIG_HELP)
@click.option("--host", help="Address to listen on; overrides [hub] host.")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port to listen on; overrides [hub] port.")
@click.option("--data", metavar="DIR", help="Data directory; overrides [hub] data.")
@click.option("--log-json", is_flag=True, help="Write the log as JSON.")
def command(config_file: Path | None, host: str | None, port: int | None, data: str | None, log_json: bool) -> None:
    """Run the hub: discover and scrape targets, store samples, evaluate rules, open and diagnose incidents."""
    logs.configure(as_json=log_json)
    configured = loading.load(config_file, {"hub.host": host, "hub.port": port, "hub.data": data})
    # The threads of NumPy's linear algebra would keep a core busy; a hub hardly uses it.
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
