"""`watchkeeper store`: copies of a hub's data directory, made while it runs, put back, and checked.

Imports happen inside the commands: the store needs the hub's packages, which a node does not have.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from watchkeeper.cli import groups, options

NOTHING_THERE = 3
FOLDER = click.Path(path_type=Path, file_okay=False)


def with_holdings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --config and --data, and hand the command the places they mean as `kept`."""

    @click.option(
        "--config", "config_file", type=click.Path(path_type=Path), metavar="FILE", help="The hub's settings."
    )
    @click.option("--data", metavar="DIR", help="Data directory, instead of [hub] data.")
    @functools.wraps(command)
    def wrapper(*args: Any, config_file: Path | None, data: str | None, **kwargs: Any) -> Any:
        from watchkeeper.config import loading
        from watchkeeper.store import backup

        configured = loading.load(config_file, {"hub.data": data})
        url_file = configured.journal.url_file
        journal = configured.journal_path if url_file is None else None
        kept = backup.StoreLocations(Path(configured.hub.data), configured.samples_path, journal, url_file)
        return command(*args, kept=kept, **kwargs)

    return wrapper


@click.group("store", cls=groups.FullHelpGroup)
def command() -> None:
    """Back up, restore and verify what a hub keeps."""


@command.command("backup")
@click.argument("directory", type=FOLDER)
@with_holdings
def backup_command(directory: Path, kept: Any) -> None:
    """Copy samples and journal into a new DIRECTORY; the hub may run meanwhile.

    Blocks are hard links where the disk is the same, and then take no room of their own. A journal in PostgreSQL is not
    copied: pg_dump does that.
    """
    from watchkeeper.store import backup

    copied = backup.back_up(kept, directory)
    click.echo(
        f"{directory}: {copied.blocks} blocks ({copied.linked_bytes / 2**20:.1f} MiB linked),"
        f" {copied.copied_bytes / 2**20:.1f} MiB copied"
    )


@command.command("restore")
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@with_holdings
def restore_command(directory: Path, kept: Any) -> None:
    """Put the backup in DIRECTORY into an empty or new data directory; exit 1 if a part of it is damaged."""
    from watchkeeper.store import backup

    found = backup.restore_backup(directory, kept)
    click.echo(f"{kept.data}: restored from {directory}")
    _say(found)


@command.command("verify")
@with_holdings
def verify_command(kept: Any) -> None:
    """Read every byte of samples and journal, name what is damaged, and exit 1 if anything is; 3 without data."""
    from watchkeeper.store import backup

    if kept.url_file is None and not kept.samples.is_dir() and not kept.journal.exists():
        click.echo(f"watchkeeper: {kept.data}: no hub has kept anything here. Name its data with --data", err=True)
        raise SystemExit(NOTHING_THERE)
    _say(list(backup.find_corruptions(kept)))


@command.command("export")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--since", default="1d", metavar="DURATION", help="How far back from the newest block.")
@options.force
@with_holdings
def export_command(file: Path, since: str, force: bool, kept: Any) -> None:
    """Write samples from blocks into a Parquet FILE, one row each; needs pyarrow.

    The newest minutes are in no block yet; `watchkeeper query` has those.
    """
    from watchkeeper.kit import durations
    from watchkeeper.store import export

    options.refuse_to_replace(file, force=force)
    try:
        back_ms = durations.parse_ms(since)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--since") from error
    newest_ms = max((int(path.stem.split("-")[1]) for path in kept.samples.glob("blocks/*.block")), default=0)
    done = export.write_parquet(kept.samples, file, start_ms=newest_ms - back_ms, end_ms=newest_ms)
    native = f", {done.histograms} of them native histograms" if done.histograms else ""
    click.echo(f"{file}: {done.samples} samples{native}")


def _say(found: list[Any]) -> None:
    for damage in found:
        click.echo(str(damage))
    if found:
        raise SystemExit(1)
    click.echo("no damage found")
