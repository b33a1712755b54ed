"""A backup during writes is complete, and the restored store answers like the original."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.store.durables import MINUTE, Rig, named, read
from watchkeeper import errors
from watchkeeper.kit import files
from watchkeeper.store import backup
from watchkeeper.store.journal import journal

SERIES = [named("temp", gpu=str(gpu)) for gpu in range(3)]
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def holdings(folder: Path) -> backup.StoreLocations:
    return backup.StoreLocations(folder, folder / "samples", folder / "journal.sqlite")


@pytest.fixture
def kept(tmp_path: Path) -> backup.StoreLocations:
    """A data directory with a journal, of a hub that is about to write samples."""
    corruptions = holdings(tmp_path / "data")
    directory = files.DataDirectory(corruptions.data)
    directory.claim()
    directory.release()
    written = journal.Journal(corruptions.journal)
    written.record("note", "INC-1", at=NOW, actor="ada", body={"text": "hello"})
    written.close()
    return corruptions


def filled(kept: backup.StoreLocations, minutes: int) -> Rig:
    rig = Rig(kept.samples)
    for minute in range(minutes):
        rig.scrape("node", SERIES, minute * MINUTE, [minute + 0.5, 1.0, minute // 7])
    rig.store.metadata.record("temp", "gauge")
    rig.store.maintain(rig.now_ms)
    return rig


def test_a_restored_backup_answers_like_the_original(kept: backup.StoreLocations, tmp_path: Path) -> None:
    rig = filled(kept, 130)
    copied = rig.store.back_up(tmp_path / "copy", data=kept.data, journal=kept.journal)
    assert copied.blocks == len(rig.blocks()) > 0
    assert backup.restore_backup(tmp_path / "copy", holdings(tmp_path / "new")) == []
    again = Rig(tmp_path / "new" / "samples", now_ms=rig.now_ms)
    assert read(again.store) == read(rig.store)
    assert again.store.metadata.descriptions() == {"temp": ("gauge", "", "")}
    entries = journal.Journal(tmp_path / "new" / "journal.sqlite")
    assert [entry.body["text"] for entry in entries.timeline("INC-1")] == ["hello"]
    assert files.DataDirectory(tmp_path / "new").claim() is None
    for store in (entries, again.store, rig.store):
        store.close()


class Writer(threading.Thread):
    """A hub that scrapes, syncs, cuts and merges as fast as it can."""

    def __init__(self, rig: Rig) -> None:
        super().__init__()
        self.rig, self.synced, self.stop = rig, -1, threading.Event()

    def run(self) -> None:
        for minute in range(100_000):
            self.rig.scrape("node", SERIES, minute * MINUTE, [float(minute)] * 3)
            self.rig.store.sync()
            self.synced = minute
            if minute % 10 == 0:
                self.rig.store.maintain(self.rig.now_ms)
            if self.stop.is_set():
                return


def test_backups_made_while_the_hub_writes_and_merges_hold_what_was_synced_before(
    kept: backup.StoreLocations, tmp_path: Path
) -> None:
    writer = Writer(Rig(kept.samples))
    writer.start()
    try:
        for turn in range(8):
            before = writer.synced
            backup.back_up(kept, tmp_path / f"copy-{turn}")
            copy = Rig(tmp_path / f"copy-{turn}" / "samples", now_ms=10**12)
            numbers = [value for _, value in read(copy.store).get(SERIES[0], [])]
            copy.store.close()
            assert numbers == [float(minute) for minute in range(len(numbers))]
            assert len(numbers) > before
    finally:
        writer.stop.set()
        writer.join()
        writer.rig.store.close()


def test_damage_is_reported_by_file_and_offset(kept: backup.StoreLocations) -> None:
    rig = filled(kept, 130)
    rig.store.close()
    assert list(backup.find_corruptions(kept)) == []
    for path in (rig.blocks()[0], rig.segments()[0]):
        content = bytearray(path.read_bytes())
        content[40] ^= 1
        path.write_bytes(content)
    corruptions = list(backup.find_corruptions(kept))
    assert {damage.path for damage in corruptions} == {rig.blocks()[0], rig.segments()[0]}


def test_a_changed_journal_is_reported(kept: backup.StoreLocations) -> None:
    content = kept.journal.read_bytes()
    kept.journal.write_bytes(content.replace(b"hello", b"hullo"))
    Path(f"{kept.journal}-wal").unlink(missing_ok=True)
    assert "entry 1 of the journal" in str(next(backup.find_corruptions(kept)))


def test_nothing_is_overwritten(kept: backup.StoreLocations, tmp_path: Path) -> None:
    rig = filled(kept, 5)
    rig.store.back_up(tmp_path / "copy", data=kept.data, journal=kept.journal)
    with pytest.raises(errors.StoreError, match="the directory is not empty"):
        backup.back_up(kept, tmp_path / "copy")
    with pytest.raises(errors.StoreError, match="the directory is not empty"):
        backup.restore_backup(tmp_path / "copy", kept)
    with pytest.raises(errors.StoreError, match="this is not a complete backup"):
        backup.restore_backup(kept.samples, holdings(tmp_path / "new"))
    rig.store.close()
