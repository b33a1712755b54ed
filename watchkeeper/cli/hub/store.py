"""`watchkeeper store`: back up, restore, verify and export a hub's data directory.

The commands import their modules themselves: they need the hub's packages, which an agent-only install lacks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from watchkeeper.cli import options

FOLDER = click.Path(path_type=Path, file_okay=False)


def _store_locations(config_file: Path | None, data: str | None) -> Any:
    from watchkeeper.config import loading
    from watchkeeper.store import backup

    configured = loading.load(config_file, {"hub.data": data})
    url_file = configured.journal.url_file
    journal = configured.journal_path if url_file is None else None
    return backup.StoreLocations(Path(configured.hub.data), configured.samples_path, journal, url_file)


with_locations = options.combined(
    "locations",
    _store_locations,
    options.hub_config,
    click.option("--data", metavar="DIR", help="Data directory of the hub; overrides [hub] data."),
)


@click.group("store", cls=options.FullHelpGroup)
def command() -> None:
    """Back up, restore, verify or export the data of a hub."""


@command.command("backup")
@click.argument("directory", type=FOLDER)
@with_locations
def backup_command(directory: Path, locations: Any) -> None:
    """Copy samples and journal into a new DIRECTORY; the hub may keep running.

    On the same file system, blocks are hard links and need no extra space. A journal in PostgreSQL is not copied: use
    pg_dump.
    """
    from watchkeeper.store import backup

    result = backup.back_up(locations, directory)
    linked, copied = (f"{size / 2**20:.1f} MiB" for size in (result.linked_bytes, result.copied_bytes))
    click.echo(f"{directory}: {result.blocks} blocks ({linked} linked), {copied} copied")


@command.command("restore")
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@with_locations
def restore_command(directory: Path, locations: Any) -> None:
    """Restore the backup in DIRECTORY into an empty or new data directory; exit code 1 if it is damaged."""
    from watchkeeper.store import backup

    corruptions = backup.restore_backup(directory, locations)
    click.echo(f"{locations.data}: restored from {directory}")
    _report_corruptions(corruptions)


@command.command("verify")
@with_locations
def verify_command(locations: Any) -> None:
    """Read all samples and the journal and report damage; exit code 1 if anything is damaged, 3 without data."""
    from watchkeeper.store import backup

    if locations.url_file is None and not locations.samples.is_dir() and not locations.journal.exists():
        click.echo(f"watchkeeper: {locations.data}: no data of a hub. Set its data directory with --data", err=True)
        raise SystemExit(options.EXIT_UNKNOWN)
    _report_corruptions(list(backup.find_corruptions(locations)))


@command.command("accept-loss")
@with_locations
def accept_loss_command(locations: Any) -> None:
    """Accept that entries of the journal or files of samples are lost, so that they are reported no more.

    Stop the hub first. For the journal, the acceptance itself is an entry, with your user name.
    """
    import getpass
    from contextlib import closing
    from datetime import UTC, datetime

    from watchkeeper.kit import files
    from watchkeeper.store import inventory
    from watchkeeper.store.journal.journal import Journal

    directory = files.DataDirectory(locations.data)
    directory.claim()
    accepted: list[object] = []
    try:
        if locations.journal is not None and locations.journal.exists():
            with closing(Journal(locations.journal)) as journal:
                accepted += journal.accept_losses(at=datetime.now(UTC), actor=getpass.getuser())
        accepted += inventory.accept_damage(locations.samples)
    finally:
        directory.release()
    for loss in accepted:
        click.echo(f"accepted: {loss}")
    if not accepted:
        click.echo("nothing to accept: no entry of the journal and no file of samples is missing")


@command.command("export")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--since", default="1d", metavar="DURATION", help="Export this much time before the end of the newest block."
)
@options.force
@with_locations
def export_command(file: Path, since: str, force: bool, locations: Any) -> None:
    """Export samples of blocks to a Parquet FILE, one row per sample; needs pyarrow.

    The newest minutes are not in a block yet; use `watchkeeper query` for them.
    """
    from watchkeeper.kit import durations
    from watchkeeper.store import export

    options.refuse_to_replace(file, force=force)
    try:
        window_ms = durations.parse_ms(since)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--since") from error
    newest_ms = max((int(path.stem.split("-")[1]) for path in locations.samples.glob("blocks/*.block")), default=0)
    written = export.write_parquet(locations.samples, file, start_ms=newest_ms - window_ms, end_ms=newest_ms)
    native = f", {written.histograms} of them native histograms" if written.histograms else ""
    click.echo(f"{file}: {written.samples} samples{native}")


def _report_corruptions(corruptions: list[Any]) -> None:
    for corruption in corruptions:
        click.echo(str(corruption))
    if corruptions:
        raise SystemExit(1)
    click.echo("no damage found")
