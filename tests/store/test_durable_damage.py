"""Flipped bytes, truncated files and a full disk: reported and counted, without a crash or other loss."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from tests.store.durables import BLOCK, MINUTE, SERIES, SETTINGS, Read, Rig, filled, named, read
from watchkeeper import errors
from watchkeeper.model.samples import Sample
from watchkeeper.store import durable
from watchkeeper.store.blocks.block_writer import UNFINISHED, block_name

DAY = 86_400_000


def is_part_of(part: Read, whole: Read) -> bool:
    return all(set(rows) <= set(whole.get(labels, [])) for labels, rows in part.items())


PLACES = st.floats(0, 1, exclude_max=True)


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Read]:
    """A store with a log only."""
    rig, whole = filled(tmp_path_factory.mktemp("logged"), minutes=20)
    rig.store.close()
    return rig.path, whole


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Read]:
    """A store with a block only."""
    rig, whole = filled(tmp_path_factory.mktemp("cut"), minutes=30)
    rig.now_ms = BLOCK + SETTINGS.late_ms
    rig.store.maintain(rig.now_ms)
    rig.store.close()
    return rig.path, whole


@contextmanager
def flipped(original: Path, pattern: str, place: float, *, bit: int) -> Iterator[Rig]:
    """A copy of a store in which one bit of one file is another, opened a day later."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(original, folder, dirs_exist_ok=True)
        [path] = Path(folder).glob(pattern)
        content = bytearray(path.read_bytes())
        content[int(place * len(content))] ^= 1 << bit
        path.write_bytes(content)
        rig = Rig(Path(folder), now_ms=DAY)
        yield rig
        rig.store.close()


@pytest.mark.slow
@examples(150)
@given(PLACES, st.integers(0, 7))
def test_a_flipped_bit_in_the_wal_is_reported_and_only_dependent_samples_are_missing(
    logged: tuple[Path, Read], place: float, bit: int
) -> None:
    with flipped(logged[0], "wal/*.wal", place, bit=bit) as rig:
        assert is_part_of(read(rig.store), logged[1])
        status = rig.store.status()
        assert status.damages >= 1 or status.torn_bytes > 0
        assert all(damage.path == rig.segments()[0] for damage in rig.store.damages)
        assert rig.scrape("node", SERIES, DAY, [1.0] * 4).kept == 4


@pytest.mark.slow
@examples(150)
@given(PLACES, st.integers(0, 7))
def test_a_flipped_bit_in_a_block_is_reported_and_the_rest_is_read(
    cut: tuple[Path, Read], place: float, bit: int
) -> None:
    with flipped(cut[0], "blocks/*.block", place, bit=bit) as rig:
        assert is_part_of(read(rig.store), cut[1])
        assert rig.store.status().damages >= 1
        assert rig.store.warnings()[0].startswith(f"samples may be missing: {rig.blocks()[0]} at byte")


def test_a_truncated_wal_loses_only_the_last_record(tmp_path: Path) -> None:
    rig, whole = filled(tmp_path, minutes=20)
    rig.store.close()
    segment = rig.segments()[0]
    os.truncate(segment, segment.stat().st_size - 3)
    # As if the last record had been written when the power failed: the inventory is written after it.
    (tmp_path / "inventory.json").unlink()
    store = rig.open()
    assert read(store) == {labels: rows[:19] for labels, rows in whole.items()}
    assert (store.status().damages, store.status().torn_bytes > 0) == (0, True)
    store.close()


def test_damage_in_one_segment_does_not_affect_the_next(tmp_path: Path) -> None:
    rig, whole = filled(tmp_path, minutes=10)
    rig.reopen()
    for minute in range(10, 20):
        rig.scrape("node", SERIES, minute * MINUTE, [1.0, 2.0, 3.0, 4.0])
    rig.store.close()
    rig.segments()[0].write_bytes(b"WKWAL\0\0\1 and then rubbish" * 50)
    store = rig.open()
    assert read(store)[SERIES[3]] == [(minute * MINUTE, 4.0) for minute in range(10, 20)]
    assert any("bytes are not a valid record" in damage.problem for damage in store.damages)
    assert whole
    store.close()


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The system refuses to let any file of this process grow beyond a size, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_loses_nothing_while_the_process_runs(tmp_path: Path) -> None:
    rig, _ = filled(tmp_path, minutes=25)
    with files_of_at_most(20):
        for minute in range(25, 30):
            assert rig.scrape("node", SERIES, minute * MINUTE, [1.0] * 4).kept == 4
            with pytest.raises(errors.StoreError, match="samples cannot be written"):
                rig.store.sync()
        with pytest.raises(errors.StoreError):
            rig.store.maintain(BLOCK + SETTINGS.late_ms)
        assert len(read(rig.store)[SERIES[0]]) == 30
    rig.store.sync()
    assert len(rig.segments()) == 2
    assert len(read(rig.reopen())[SERIES[0]]) == 30
    rig.store.maintain(BLOCK + SETTINGS.late_ms)
    assert len(read(rig.reopen())[SERIES[0]]) == 30
    assert rig.store.status().damages == 0
    rig.store.close()


@pytest.mark.slow
def test_samples_that_memory_dropped_before_their_block_come_from_the_wal(tmp_path: Path) -> None:
    rig, taken = Rig(tmp_path), (tmp_path / "blocks" / block_name(0, BLOCK)).with_suffix(UNFINISHED)
    # The name is taken by a folder, so the system refuses the first block, and with it all that come after.
    taken.mkdir(parents=True, exist_ok=True)
    expected = []
    for minute in range(0, 10 * 60, 2):
        rig.scrape("node", SERIES, minute * MINUTE, [minute + 0.5, 1.0, 2.0, 3.0])
        rig.store.sync()
        expected.append((minute * MINUTE, minute + 0.5))
        if minute % 60 == 58:
            with contextlib.suppress(errors.StoreError):
                rig.store.maintain(rig.now_ms)
    assert rig.blocks() == []
    assert len(read(rig.store)[SERIES[0]]) < len(expected)
    taken.rmdir()
    rig.store.maintain(rig.now_ms)
    assert read(rig.store)[SERIES[0]] == expected
    assert read(rig.reopen())[SERIES[0]] == expected
    rig.store.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_really_full_disk_is_an_error_and_survived(tmp_path: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", os.fsencode(tmp_path), b"tmpfs", 0, b"size=64k"):
        pytest.skip(f"mounting is not allowed here: {os.strerror(ctypes.get_errno())}")
    try:
        rig, whole = filled(tmp_path, minutes=5)
        (tmp_path / "filler").write_bytes(b"x" * (os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_bsize))
        for minute in range(5, 300):
            rig.scrape("node", SERIES, minute * MINUTE, [minute / 3, minute / 7, minute / 11, minute / 13])
        with pytest.raises(errors.StoreError, match="No space left on device"):
            rig.store.sync()
        (tmp_path / "filler").unlink()
        rig.store.sync()
        assert len(read(rig.reopen())[SERIES[0]]) == 300
        assert is_part_of(whole, read(rig.store))
        rig.store.close()
    finally:
        libc.umount(os.fsencode(tmp_path))


def test_samples_that_wait_for_the_disk_are_limited_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("watchkeeper.store.wal.wal.MAX_PENDING_SAMPLES", 40)
    rig = Rig(tmp_path)
    for minute in range(100):
        rig.scrape("node", SERIES, minute * MINUTE, [1.0] * 4)
    assert rig.store.status().unlogged_samples >= 360
    assert len(read(rig.store)[SERIES[0]]) == 100
    rig.store.close()


def test_a_series_whose_first_samples_were_not_logged_is_defined_in_the_wal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("watchkeeper.store.wal.wal.MAX_PENDING_SAMPLES", 40)
    rig, pushed = Rig(tmp_path), named("pushed")
    rig.now_ms = 50 * MINUTE
    rig.store.append([Sample(pushed, minute * MINUTE, 1.0) for minute in range(41)])
    assert rig.store.status().unlogged_samples == 41
    rig.store.sync()
    rig.store.append([Sample(pushed, 41 * MINUTE, 2.0)])
    assert read(rig.reopen()) == {pushed: [(41 * MINUTE, 2.0)]}
    assert rig.store.status().lost_samples == 0
    rig.store.close()


def test_a_wal_of_a_later_version_is_reported_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "wal").mkdir()
    later = tmp_path / "wal" / "0000000007.wal"
    later.write_bytes(b"WKWAL\x00\x00\x02 something that comes later")
    store = durable.open_store(tmp_path, SETTINGS, clock_ms=lambda: DAY)
    assert "not a WAL segment, or from a later version" in store.damages[0].problem
    store.append([Sample(SERIES[0], DAY, 1.0)])
    store.maintain(3 * DAY)
    store.close()
    assert later.read_bytes().endswith(b"something that comes later")


def test_a_block_of_a_later_version_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "blocks").mkdir()
    (tmp_path / "blocks" / "0-1800000.block").write_bytes(b"WKBLOCK\x02 something that comes later")
    store = durable.open_store(tmp_path, SETTINGS, clock_ms=lambda: DAY)
    assert "it is not a block, or it is truncated" in store.damages[0].problem
    assert (tmp_path / "blocks" / "0-1800000.block").exists()
    store.close()
