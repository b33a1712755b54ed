"""A log that is read ahead gives what it would have given when it is asked for, whatever becomes of its reader."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.store.durables import BLOCK, MINUTE, Rig, named, read
from watchkeeper.store import wal_ahead, wal_reader

SLOTS = 300


@pytest.fixture(autouse=True)
def even_a_short_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_ahead, "WORTH_BYTES", 1)


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
            rig.store._log.rotate()
    return rig


def begun(path: Path, *, most_bytes: int = wal_ahead.MOST_BYTES) -> wal_ahead._Reader:
    """A reader that has looked at the files of the log."""
    wal_ahead.begin(path, most_bytes=most_bytes)
    reader = wal_ahead._begun[path]
    assert reader._socket.recv(1, socket.MSG_PEEK)
    return reader


def test_what_was_read_ahead_is_all_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = filled(tmp_path)
    held = read(rig.store)
    rig.store.close()
    reader = begun(tmp_path)
    # Nothing is left to be read here.
    monkeypatch.delattr(wal_reader, "read")
    assert read(rig.open()) == held
    assert reader._process.returncode is not None
    rig.store.close()


def test_a_log_that_has_grown_since_is_read_again(tmp_path: Path) -> None:
    rig = filled(tmp_path)
    begun(tmp_path)
    rig.scrape("late", [named("temp", target="late")], SLOTS * 15_000, [1.0])
    held = read(rig.store)
    rig.store.close()
    assert read(rig.open()) == held
    rig.store.close()


def test_a_reader_that_is_killed_loses_nothing_and_gives_nothing_twice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = filled(tmp_path)
    rig.store.close()
    every = list(wal_reader.read(tmp_path / "wal", since_ms=-MINUTE))
    for taken in range(len(every)):
        caplog.clear()
        # It waits for each batch to be taken.
        reader = begun(tmp_path, most_bytes=0)
        found = wal_ahead.read(tmp_path, since_ms=-wal_reader.NEVER_MS)
        parts = [next(found) for _ in range(taken)]
        reader._process.kill()
        parts += found
        assert [spelled(part) for part in parts] == [spelled(part) for part in every]
        assert "What reads the log ahead has ended" in caplog.messages or taken >= len(every) - 1


def spelled(part: wal_reader.Batch | wal_reader.Ended) -> object:
    if isinstance(part, wal_reader.Ended):
        return part
    return part.labels, [(one.series.tolist(), one.times.tolist(), cells(one)) for one in part.parts]


def cells(part: wal_reader.Scrapes | wal_reader.Samples) -> list[list[float]]:
    if isinstance(part, wal_reader.Samples):
        return [part.values.tolist()]
    return [*part.table.narrow.tolist(), *part.table.wide.tolist()]


def test_beside_a_damaged_block_the_log_is_read_from_where_the_good_ones_end(tmp_path: Path) -> None:
    rig = filled(tmp_path)
    rig.store.maintain(rig.now_ms)
    rig.store.close()
    *_, newest = rig.blocks()
    newest.write_bytes(b"no block")
    held = read(rig.open())
    rig.store.close()
    begun(tmp_path)
    assert read(rig.open()) == held
    # Of the half hour of the damaged block the log still has a part.
    assert any(BLOCK <= at_ms < 2 * BLOCK for rows in held.values() for at_ms, _ in rows)
    rig.store.close()


def test_a_short_log_and_one_that_is_not_there_have_no_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wal_ahead.begin(tmp_path)
    assert not wal_ahead._begun
    rig = filled(tmp_path)
    rig.store.close()
    monkeypatch.setattr(wal_ahead, "WORTH_BYTES", 1 << 20)
    wal_ahead.begin(tmp_path)
    assert not wal_ahead._begun
