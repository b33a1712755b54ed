"""`watchkeeper record`: save samples, events and incidents of a time range in one file."""

from __future__ import annotations

import os
from pathlib import Path

import click

from watchkeeper.cli import options, times
from watchkeeper.cli.terminal import Progress
from watchkeeper.client.hub import Client
from watchkeeper.kit import wire


@click.command("record")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--from", "start", metavar="TIME", default="-1h", help=f"Start of the recording: {times.FORMATS}.")
@click.option("--to", "end", metavar="TIME", default="now", help="End of the recording, in the formats of --from.")
@click.option(
    "--match", "matches", multiple=True, metavar="SELECTOR", help="Record only series of this selector; repeatable."
)
@options.force
@options.with_hub_and_json
def command(
    hub: Client, file: Path, start: str, end: str, matches: tuple[str, ...], force: bool, as_json: bool
) -> None:
    """Save a time range of a hub in one portable FILE: samples, events and incidents.

    Show it with `watchkeeper play`; try rules on it with `watchkeeper rules replay --record`.

    \b
    watchkeeper record outage.wkrec --from -2h
    watchkeeper record temps.wkrec --from -2h --match 'DCGM_FI_DEV_GPU_TEMP{Hostname="gpu-r01-02"}'
    """
    options.refuse_to_replace(file, force=force)
    since, until = times.parse_window(start, end, hub)
    progress, size = Progress(), 0
    partial = file.with_name(f"{file.name}.part")
    try:
        with partial.open("wb") as target:
            for chunk in hub.recording(start=times.seconds(since), end=times.seconds(until), matches=matches):
                target.write(chunk)
                size += len(chunk)
                progress.update(f"{size / 2**20:.1f} MiB")
        os.replace(partial, file)
    except OSError as error:
        raise click.ClickException(f"{file}: cannot be written: {error.strerror}") from error
    finally:
        progress.clear()
        partial.unlink(missing_ok=True)
    span = {"from": wire.format_time(since), "to": wire.format_time(until)}
    line = f"{file}: {size / 2**20:.1f} MiB, {times.utc(since)} to {times.utc(until)}"
    options.print_result({"file": str(file), "bytes": size, **span}, [line], as_json=as_json)
