"""Back up, restore and verify a data directory.

A backup works while the hub runs, without its help: blocks never change, the WAL only grows, and a record that was
copied partly is handled like one that a crash cut off. The order matters: the WAL first, then the blocks, so that
samples that move from the WAL into a block meanwhile are in the copy at least once.
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
from watchkeeper.store import inventory
from watchkeeper.store.blocks.block import Block, ChunkCache
from watchkeeper.store.blocks.block_writer import SUFFIX
from watchkeeper.store.corruption import Corruption
from watchkeeper.store.journal import chain, journal_head
from watchkeeper.store.journal import connection as journal_connection
from watchkeeper.store.journal.journal import Journal
from watchkeeper.store.wal import wal, wal_records

# Compaction may replace blocks while they are copied: they are listed again, at most this often.
MAX_LISTINGS = 20
INVALID_ENTRY = "entry {} of the journal or one of its rows was changed or is missing: the hash does not match"
SAMPLES, JOURNAL = "samples", "journal.sqlite"


@dataclass(frozen=True, slots=True)
class StoreLocations:
    """Where a hub stores its data. If `journal` is None, the journal is in PostgreSQL, at the URL in `url_file`.

    A journal in PostgreSQL is verified here, but it is backed up with PostgreSQL's own tools.
    """

    data: Path
    samples: Path
    journal: Path | None
    url_file: str | None = None


@dataclass(frozen=True, slots=True)
class BackupSummary:
    """The size of a backup; linked bytes need no additional disk space."""

    blocks: int
    linked_bytes: int
    copied_bytes: int


def back_up(source: StoreLocations, target: Path) -> BackupSummary:
    """Copy everything into a new directory; StoreError if that fails."""
    _refuse_non_empty(target, remedy="Name a new directory for each backup")
    try:
        for folder in ("blocks", "wal"):
            (target / SAMPLES / folder).mkdir(parents=True)
        wal_files = sorted(source.samples.glob(f"wal/*{wal.SUFFIX}"))
        copied_bytes = sum(_copy(path, target / SAMPLES / "wal") for path in wal_files)
        copied_bytes += sum(_copy(path, target / SAMPLES) for path in source.samples.glob("metadata.json"))
        linked_bytes, copied_block_bytes = _link_blocks(source.samples / "blocks", target / SAMPLES / "blocks")
        copied_bytes += copied_block_bytes
        copied_bytes += 0 if source.journal is None else _copy_journal(source.journal, target / JOURNAL)
        # Last, so that a directory with the mark is a complete backup.
        files.write_atomically(target / files.OWNER_MARK, (source.data / files.OWNER_MARK).read_bytes())
        files.sync_folder(target)
    except OSError as error:
        raise errors.StoreError(
            f"the backup failed: {error.strerror}",
            where=str(error.filename or target),
            now=f"{target} is incomplete",
            remedy="Remove it and retry",
        ) from error
    return BackupSummary(len(list((target / SAMPLES / "blocks").iterdir())), linked_bytes, copied_bytes)


def restore_backup(source: Path, target: StoreLocations) -> list[Corruption]:
    """Restore a backup into an empty or new data directory, and return the damage that it has."""
    if not (source / files.OWNER_MARK).exists():
        raise errors.StoreError(
            "this is not a complete backup",
            where=str(source),
            now="Nothing was restored",
            remedy="Choose another backup",
        )
    _refuse_non_empty(target.data, remedy="Stop the hub and move its data directory first")
    _refuse_non_empty(target.samples, remedy="Move its files first")
    corruptions = list(find_corruptions(StoreLocations(source, source / SAMPLES, source / JOURNAL)))
    try:
        target.data.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source / SAMPLES, target.samples, dirs_exist_ok=True)
        if (source / JOURNAL).exists() and target.journal is not None:
            target.journal.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / JOURNAL, target.journal)
            # The head of an earlier journal at this path says nothing about this one.
            journal_head.HeadFile(target.journal).path.unlink(missing_ok=True)
        files.write_atomically(target.data / files.OWNER_MARK, (source / files.OWNER_MARK).read_bytes())
        os.sync()
    except OSError as error:
        raise errors.StoreError(
            f"the backup could not be restored: {error.strerror}", where=str(error.filename or target.data)
        ) from error
    return corruptions


def find_corruptions(locations: StoreLocations) -> Iterator[Corruption]:
    """Read everything and yield each damaged place; an incomplete record at the end of the WAL is not damage."""
    yield from _unreadable_folders(locations.samples)
    yield from inventory.find_damage(locations.samples)
    for path in sorted(locations.samples.glob(f"wal/*{wal.SUFFIX}")):
        yield from (record for record in wal_records.records(path) if isinstance(record, Corruption) and record.problem)
    for path in sorted(locations.samples.glob(f"blocks/*{SUFFIX}")):
        try:
            block = Block(path, cache=ChunkCache(), report=lambda _: None)
        except errors.StoreError as error:
            yield Corruption(path, 0, error.problem)
            continue
        yield from block.check()
        block.close()
    if locations.journal is not None:
        yield from _journal_corruptions(locations.journal)
    if locations.url_file is not None:
        connection = journal_connection.open_read_only(locations.url_file)
        with closing(Journal(connection)) as journal:
            invalid_seq = journal.verify()
        if invalid_seq is not None:
            yield Corruption(Path(str(connection.where)), 0, INVALID_ENTRY.format(invalid_seq))


def _unreadable_folders(samples: Path) -> Iterator[Corruption]:
    for folder in (samples, samples / "wal", samples / "blocks"):
        try:
            os.listdir(folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield Corruption(folder, 0, f"the folder cannot be read: {error.strerror}")


def _journal_corruptions(path: Path) -> Iterator[Corruption]:
    head_file = journal_head.HeadFile(path)
    if not path.exists():
        if head_file.path.exists():
            yield Corruption(path, 0, f"the journal is missing, but {head_file.path} exists")
        return
    try:
        opened = sqlite3.connect(f"file:{path}?mode=ro", uri=True, factory=journal_connection.FileConnection)
        with closing(opened) as connection:
            if (loss := journal_head.find_loss(head_file, connection)) is not None:
                yield Corruption(path, 0, loss.problem)
            with connection.snapshot():
                invalid_seq = chain.first_invalid_entry(connection)
    except sqlite3.Error as error:
        yield Corruption(path, 0, f"the journal cannot be read: {error}")
        return
    if invalid_seq is not None:
        yield Corruption(path, 0, INVALID_ENTRY.format(invalid_seq))


def _refuse_non_empty(folder: Path, *, remedy: str) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise errors.StoreError(
            "the directory is not empty", where=str(folder), now="Nothing was changed", remedy=remedy
        )


def _link_blocks(source: Path, target: Path) -> tuple[int, int]:
    """Hard-link every block, or copy it if the target is on another disk; list again if compaction removed one."""
    linked_bytes = copied_bytes = 0
    for _ in range(MAX_LISTINGS):
        pending = [path for path in sorted(source.glob(f"*{SUFFIX}")) if not (target / path.name).exists()]
        if not pending:
            break
        for path in pending:
            try:
                os.link(path, target / path.name)
                linked_bytes += (target / path.name).stat().st_size
            except FileNotFoundError:
                break
            except OSError:
                copied_bytes += _copy(path, target)
    files.sync_folder(target)
    return linked_bytes, copied_bytes


def _copy(path: Path, folder: Path) -> int:
    """Copy a file to disk; a file that was removed meanwhile is skipped, because its samples are in a block."""
    try:
        with path.open("rb") as original, (folder / path.name).open("xb") as copy:
            shutil.copyfileobj(original, copy, 1 << 20)
            copy.flush()
            os.fsync(copy.fileno())
            return copy.tell()
    except FileNotFoundError:
        return 0


def _copy_journal(source: Path, target: Path) -> int:
    """Copy the journal with SQLite's backup function, which copies only complete transactions."""
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
