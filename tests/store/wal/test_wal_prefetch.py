"""A prefetched WAL gives the same batches as reading it directly, even if the reader fails."""

from __future__ import annotations

import os
import select
import signal
import socket
from pathlib import Path

import pytest

from tests.store.durables import BLOCK, MINUTE, Rig, named, read
from watchkeeper.store.wal import wal_prefetch, wal_reader

SLOTS = 300


@pytest.fixture(autouse=True)
def even_a_short_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_prefetch, "MIN_WAL_BYTES", 1)


def filled(folder: Path) -> Rig:
    """Two targets and a series of its own, over several segments."""
    rig = Rig(folder)
    for slot in range(SLOTS):
        for target in "ab":
            series = [named("temp", target=target, gpu=str(gpu)) for gpu in range(3)]
            rig.scrape(target, series, slot * 15_000, [slot / 7, 40.0, float(slot % 50)])
        rig.scrape("alone", [named("up")], slot * 15_000 + 1, [1.0])
        rig.store.sync()
        if slot % 100 == 99:
            rig.store._wal.rotate()
    return rig


def start_reader(path: Path, *, most_bytes: int = wal_prefetch.MAX_PENDING_BYTES) -> wal_prefetch._ReaderProcess:
    """A reader that has looked at the files of the log."""
    wal_prefetch.start_reading(path, max_pending_bytes=most_bytes)
    reader = wal_prefetch._reader_by_path[path]
    assert reader._socket.recv(1, socket.MSG_PEEK)
    return reader


def test_all_prefetched_batches_are_received(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = filled(tmp_path)
    held = read(rig.store)
    rig.store.close()
    ended = os.pidfd_open(start_reader(tmp_path).process)
    # Nothing is left to be read here.
    monkeypatch.delattr(wal_reader, "read")
    assert read(rig.open()) == held
    assert select.select([ended], [], [], 60)[0]
    os.close(ended)
    rig.store.close()


def test_other_steps_run_while_the_wal_is_awaited(tmp_path: Path) -> None:
    rig = filled(tmp_path)
    rig.store.close()
    every = list(wal_reader.read(tmp_path / "wal", since_ms=-MINUTE))
    took: list[int] = []
    wal_prefetch.start_reading(tmp_path)
    # The reader is not there so soon.
    wal_prefetch.run_while_reading(tmp_path, (took.append(step) for step in range(3)))
    batches = list(wal_prefetch.read(tmp_path, since_ms=-wal_reader.NEVER_MS))
    assert took == [0, 1, 2]
    assert [spelled(part) for part in batches] == [spelled(part) for part in every]


def test_received_batches_come_before_other_steps(tmp_path: Path) -> None:
    filled(tmp_path).store.close()
    reader, took = start_reader(tmp_path), list[int]()
    wal_prefetch.run_while_reading(tmp_path, (took.append(step) for step in range(3)))
    assert reader.receive() == (-wal_reader.NEVER_MS, wal_prefetch._file_sizes(tmp_path))
    assert not took
    wal_prefetch._reader_by_path.pop(tmp_path).close()


def test_without_a_reader_other_steps_run_at_once(tmp_path: Path) -> None:
    took: list[int] = []
    wal_prefetch.run_while_reading(tmp_path, (took.append(step) for step in range(3)))
    assert took == [0, 1, 2]


def test_a_log_that_has_grown_since_is_read_again(tmp_path: Path) -> None:
    rig = filled(tmp_path)
    start_reader(tmp_path)
    rig.scrape("late", [named("temp", target="late")], SLOTS * 15_000, [1.0])
    held = read(rig.store)
    rig.store.close()
    assert read(rig.open()) == held
    rig.store.close()


@pytest.mark.slow
def test_a_killed_reader_loses_and_repeats_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rig = filled(tmp_path)
    rig.store.close()
    every = list(wal_reader.read(tmp_path / "wal", since_ms=-MINUTE))
    for taken in range(len(every)):
        caplog.clear()
        # It waits for each batch to be taken.
        reader = start_reader(tmp_path, most_bytes=0)
        batches = wal_prefetch.read(tmp_path, since_ms=-wal_reader.NEVER_MS)
        parts = [next(batches) for _ in range(taken)]
        os.kill(reader.process, signal.SIGKILL)
        parts += batches
        assert [spelled(part) for part in parts] == [spelled(part) for part in every]
        assert "WAL prefetch failed" in caplog.messages or taken >= len(every) - 1


def spelled(part: wal_reader.ReplayBatch | wal_reader.SegmentResult) -> object:
    if isinstance(part, wal_reader.SegmentResult):
        return part
    return part.labels, [
        (part_read.series.tolist(), part_read.times.tolist(), cells(part_read)) for part_read in part.parts
    ]


def cells(part: wal_reader.ReplayScrapes | wal_reader.ReplaySamples) -> list[list[float]]:
    if isinstance(part, wal_reader.ReplaySamples):
        return [part.values.tolist()]
    return [*part.table.narrow.tolist(), *part.table.wide.tolist()]


def test_with_a_damaged_block_the_wal_is_read_from_the_end_of_the_valid_blocks(tmp_path: Path) -> None:
    rig = filled(tmp_path)
    rig.store.maintain(rig.now_ms)
    rig.store.close()
    *_, newest = rig.blocks()
    newest.write_bytes(b"no block")
    held = read(rig.open())
    rig.store.close()
    start_reader(tmp_path)
    assert read(rig.open()) == held
    # Of the half hour of the damaged block the log still has a part.
    assert any(BLOCK <= at_ms < 2 * BLOCK for rows in held.values() for at_ms, _ in rows)
    rig.store.close()


def test_a_short_or_missing_wal_has_no_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wal_prefetch.start_reading(tmp_path)
    assert not wal_prefetch._reader_by_path
    rig = filled(tmp_path)
    rig.store.close()
    monkeypatch.setattr(wal_prefetch, "MIN_WAL_BYTES", 1 << 20)
    wal_prefetch.start_reading(tmp_path)
    assert not wal_prefetch._reader_by_path
