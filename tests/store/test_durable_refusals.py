"""A disk error for one file: it is reported, the rest is read and written, and the file is not destroyed."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.store.durables import BLOCK, MINUTE, SERIES, SETTINGS, Rig, filled, read
from watchkeeper import errors
from watchkeeper.store import backup
from watchkeeper.store.blocks.block_writer import REPLACED, UNFINISHED, block_name

# Reading its beginning is an input/output error, as of a disk that fails.
UNREADABLE = Path("/proc/self/mem")
# Root may read everything, so another user runs the check.
IS_ROOT, NOBODY_UID = os.geteuid() == 0, 65534


def cut_twice(path: Path) -> Rig:
    """Two blocks, and a log that has half of the second one and what came after."""
    rig, _ = filled(path, minutes=45)
    rig.store.maintain(rig.now_ms)
    for minute in range(45, 75):
        rig.scrape("node", SERIES, minute * MINUTE, [minute + 0.5, 1.0, 2.0, 3.0])
        rig.store.sync()
    rig.store.maintain(rig.now_ms)
    rig.store.close()
    assert len(rig.blocks()) == 2
    return rig


@pytest.mark.parametrize("pattern", ["blocks/0-*.block", "wal/*.wal", "metadata.json"])
def test_an_unreadable_file_is_reported_and_the_store_opens(tmp_path: Path, pattern: str) -> None:
    rig = cut_twice(tmp_path)
    (tmp_path / "metadata.json").write_text("{}")
    [path] = tmp_path.glob(pattern)
    path.unlink()
    path.symlink_to(UNREADABLE)
    rig.open()
    assert {damage.path for damage in rig.store.damages} == {path}
    assert any("Input/output error" in damage.problem for damage in rig.store.damages)
    assert read(rig.store)[SERIES[0]]
    assert rig.scrape("node", SERIES, rig.now_ms + MINUTE, [1.0] * 4).kept == 4
    rig.store.close()
    if path.parent != tmp_path:
        corruptions = backup.find_corruptions(backup.StoreLocations(tmp_path, tmp_path, None))
        assert {damage.path for damage in corruptions} == {path}


@pytest.mark.parametrize("name", ["wal", "blocks"])
def test_an_unreadable_folder_is_refused_and_does_not_count_as_empty(name: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        rig = cut_twice(Path(place) / "samples")
        for path in (Path(place), *Path(place).rglob("*")):
            os.chown(path, NOBODY_UID if IS_ROOT else -1, -1)
        folder = rig.path / name
        folder.chmod(0o300)
        os.seteuid(NOBODY_UID if IS_ROOT else os.geteuid())
        try:
            with pytest.raises(errors.StoreError, match=f"{folder}: samples cannot be stored here: Permission denied"):
                rig.open()
            corruptions = list(backup.find_corruptions(backup.StoreLocations(rig.path, rig.path, None)))
        finally:
            os.seteuid(0 if IS_ROOT else os.geteuid())
            folder.chmod(0o700)
    assert [damage.path for damage in corruptions] == [folder]


def test_a_read_error_in_a_block_loses_only_that_block(tmp_path: Path) -> None:
    rig = cut_twice(tmp_path)
    rig.open()
    block = rig.store._block_list.blocks[0]
    with UNREADABLE.open("rb") as broken:
        os.dup2(broken.fileno(), block._file)
    assert read(rig.store)[SERIES[0]] == [(minute * MINUTE, minute + 0.5) for minute in range(30, 75)]
    assert [damage.path for damage in rig.store.damages] == [block.path]
    rig.store.close()


def test_an_unreadable_block_is_kept_when_the_wal_replaces_it(tmp_path: Path) -> None:
    rig = cut_twice(tmp_path)
    newest = rig.blocks()[-1]
    of_a_later_version = newest.read_bytes()[:-1] + b"\x02"
    newest.write_bytes(of_a_later_version)
    rig.open()
    rig.store.maintain(rig.now_ms)
    expected_values = [*range(30), *range(45, 75)]
    assert read(rig.reopen())[SERIES[0]] == [(minute * MINUTE, minute + 0.5) for minute in expected_values]
    replaced = newest.with_suffix(REPLACED)
    assert [damage.path for damage in rig.store.damages] == [replaced]
    assert replaced.read_bytes() == of_a_later_version
    rig.store.close()
    rig.settings = replace(SETTINGS, retention_ms=2 * BLOCK)
    rig.open()
    rig.store.maintain(rig.now_ms + BLOCK)
    assert replaced.exists()
    rig.store.maintain(rig.now_ms + 2 * BLOCK)
    assert not replaced.exists()
    rig.store.close()


def test_samples_reach_the_wal_when_metadata_cannot_be_written(tmp_path: Path) -> None:
    rig, _ = filled(tmp_path, minutes=5)
    (tmp_path / "metadata.json").mkdir()
    rig.store.metadata.record("temp", "gauge")
    rig.scrape("node", SERIES, 5 * MINUTE, [1.0] * 4)
    with pytest.raises(errors.StoreError, match="the metadata of metrics cannot be written"):
        rig.store.sync()
    # Killed here.
    assert len(read(Rig(tmp_path, now_ms=rig.now_ms).store)[SERIES[0]]) == 6


def test_expired_blocks_are_removed_while_no_block_can_be_written(tmp_path: Path) -> None:
    rig = cut_twice(tmp_path)
    rig.settings = replace(SETTINGS, retention_ms=3 * BLOCK)
    rig.open()
    # The name is taken by a folder: the system refuses the next block, as a full disk would.
    (tmp_path / "blocks" / block_name(2 * BLOCK, 3 * BLOCK)).with_suffix(UNFINISHED).mkdir()
    rig.now_ms = 5 * BLOCK
    with suppress(errors.StoreError):
        rig.store.maintain(rig.now_ms)
    assert rig.blocks() == []
    rig.store.sync()
    assert len(rig.segments()) == 1
    rig.now_ms = 7 * BLOCK
    with suppress(errors.StoreError):
        rig.store.maintain(rig.now_ms)
    assert rig.segments() == []
    rig.store.close()
