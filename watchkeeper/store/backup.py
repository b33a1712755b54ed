"""Copies of a data directory: made while the hub runs, put back when it does not, and checked at any time.

Everything on disk is made for this: blocks never change, the log only grows, and a record that was copied half
is a torn end like any other. So a backup needs no word with the hub. The order matters: the log first, then
the blocks, so that what moves from one to the other meanwhile is in the copy at least once.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from watchkeeper import errors
from watchkeeper.kit import files
from watchkeeper.store.blocks.block import Block, ChunkCache
from watchkeeper.store.blocks.block_writer import SUFFIX
from watchkeeper.store.corruption import Corruption
from watchkeeper.store.index import Patterns
from watchkeeper.store.journal import connection as journal_connection
from watchkeeper.store.journal import journal_check, journal_file
from watchkeeper.store.journal.journal import Journal
from watchkeeper.store.wal import wal, wal_records

# Compaction may rename blocks while they are listed; it is done within a few of these.
MAX_LISTINGS = 20
BROKEN = "entry {} of the journal, or what it wrote, is not as it was written"
SAMPLES, JOURNAL = "samples", "journal.sqlite"


@dataclass(frozen=True, slots=True)
class StoreLocations:
    """Where a hub keeps what it knows. Without `journal` that is in the database whose address `url_file` has.

    A database is verified here, and copied with its own tools.
    """

    data: Path
    samples: Path
    journal: Path | None
    url_file: str | None = None


@dataclass(frozen=True, slots=True)
class BackupSummary:
    """What a backup holds; linked bytes take no room of their own."""

    blocks: int
    linked_bytes: int
    copied_bytes: int


def back_up(source: StoreLocations, target: Path) -> BackupSummary:
    """Copy everything into a new directory; StoreError if that cannot be."""
    _refuse_filled(target, remedy="Name a new directory for each backup")
    try:
        for folder in ("blocks", "wal"):
            (target / SAMPLES / folder).mkdir(parents=True)
        copied = sum(
            _copy(path, target / SAMPLES / "wal") for path in sorted(source.samples.glob(f"wal/*{wal.SUFFIX}"))
        )
        copied += sum(_copy(path, target / SAMPLES) for path in source.samples.glob("metadata.json"))
        linked, more = _link_blocks(source.samples / "blocks", target / SAMPLES / "blocks")
        copied += more + (0 if source.journal is None else _copy_journal(source.journal, target / JOURNAL))
        # Last, so that a directory with the mark is a whole backup.
        files.write_atomically(target / files.OWNER_MARK, (source.data / files.OWNER_MARK).read_bytes())
        files.sync_folder(target)
    except OSError as error:
        raise errors.StoreError(
            f"the backup failed: {error.strerror}",
            where=str(error.filename or target),
            now=f"{target} is not a whole backup",
            remedy="Remove it and try again",
        ) from error
    return BackupSummary(len(list((target / SAMPLES / "blocks").iterdir())), linked, copied)


def restore_backup(source: Path, target: StoreLocations) -> list[Corruption]:
    """Put a backup into a data directory that is empty or new; returns what of it is damaged, and restores the rest."""
    if not (source / files.OWNER_MARK).exists():
        raise errors.StoreError(
            "this is not a whole backup", where=str(source), now="Nothing was restored", remedy="Name another one"
        )
    _refuse_filled(target.data, remedy="Stop the hub and move its data directory away first")
    _refuse_filled(target.samples, remedy="Move what is there away first")
    found = list(find_corruptions(StoreLocations(source, source / SAMPLES, source / JOURNAL)))
    try:
        target.data.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source / SAMPLES, target.samples, dirs_exist_ok=True)
        if (source / JOURNAL).exists() and target.journal is not None:
            target.journal.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / JOURNAL, target.journal)
        files.write_atomically(target.data / files.OWNER_MARK, (source / files.OWNER_MARK).read_bytes())
        os.sync()
    except OSError as error:
        raise errors.StoreError(
            f"the backup could not be restored: {error.strerror}", where=str(error.filename or target.data)
        ) from error
    return found


def find_corruptions(kept: StoreLocations) -> Iterator[Corruption]:
    """Read everything, and say what is not as it was written; a torn end of the log is not damage."""
    yield from _closed_folders(kept.samples)
    for path in sorted(kept.samples.glob(f"wal/*{wal.SUFFIX}")):
        yield from (found for found in wal_records.records(path) if isinstance(found, Corruption) and found.problem)
    for path in sorted(kept.samples.glob(f"blocks/*{SUFFIX}")):
        try:
            block = Block(path, cache=ChunkCache(), patterns=Patterns(), report=lambda _: None)
        except errors.StoreError as error:
            yield Corruption(path, 0, error.problem)
            continue
        yield from block.check()
        block.close()
    if kept.journal is not None and kept.journal.exists():
        yield from _journal_damages(kept.journal)
    if kept.url_file is not None:
        yield from _server_damages(kept.url_file)


def _closed_folders(samples: Path) -> Iterator[Corruption]:
    for folder in (samples, samples / "wal", samples / "blocks"):
        try:
            os.listdir(folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield Corruption(folder, 0, f"the folder cannot be read: {error.strerror}")


def _server_damages(url_file: str) -> Iterator[Corruption]:
    opened = journal_connection.open_read_only(url_file)
    with closing(Journal(opened)) as journal:
        broken = journal.verify()
    if broken is not None:
        yield Corruption(Path(str(opened.where)), 0, BROKEN.format(broken))


def _journal_damages(path: Path) -> Iterator[Corruption]:
    try:
        opened = sqlite3.connect(f"file:{path}?mode=ro", uri=True, factory=journal_file.FileConnection)
        with closing(opened) as connection, connection.snapshot():
            broken = journal_check.first_invalid_entry(connection)
    except sqlite3.Error as error:
        yield Corruption(path, 0, f"the journal cannot be read: {error}")
        return
    if broken is not None:
        yield Corruption(path, 0, BROKEN.format(broken))


def _refuse_filled(folder: Path, *, remedy: str) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise errors.StoreError(
            "there is something here already", where=str(folder), now="Nothing was changed", remedy=remedy
        )


def _link_blocks(source: Path, target: Path) -> tuple[int, int]:
    """Link every block, or copy it to another disk; list them anew when one was merged away meanwhile."""
    linked = copied = 0
    for _ in range(MAX_LISTINGS):
        missing = [path for path in sorted(source.glob(f"*{SUFFIX}")) if not (target / path.name).exists()]
        if not missing:
            break
        for path in missing:
            try:
                os.link(path, target / path.name)
                linked += (target / path.name).stat().st_size
            except FileNotFoundError:
                break
            except OSError:
                copied += _copy(path, target)
    files.sync_folder(target)
    return linked, copied


def _copy(path: Path, folder: Path) -> int:
    """Copy a file and make sure that it is on the disk; one that is gone meanwhile is in a block by now."""
    try:
        with path.open("rb") as original, (folder / path.name).open("xb") as copy:
            shutil.copyfileobj(original, copy, 1 << 20)
            copy.flush()
            os.fsync(copy.fileno())
            return copy.tell()
    except FileNotFoundError:
        return 0


def _copy_journal(source: Path, target: Path) -> int:
    """SQLite's own way: a whole transaction is in the copy, or not."""
    if not source.exists():
        return 0
    try:
        with (
            closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as original,
            closing(sqlite3.connect(target)) as copy,
        ):
            original.backup(copy)
    except sqlite3.Error as error:
        raise errors.StoreError(f"the journal cannot be copied: {error}", where=str(source)) from error
    return target.stat().st_size
