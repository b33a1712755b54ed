"""A file of samples that is missing, replaced or cut is damage; a crash and an older version's work are not."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.store.durables import MINUTE, Rig, named
from watchkeeper.store import backup, inventory

SERIES = [named("temp", gpu=str(gpu)) for gpu in range(3)]


def problems(samples: Path) -> list[str]:
    locations = backup.StoreLocations(samples, samples, None)
    return [f"{damage.path.name}: {damage.problem}" for damage in backup.find_corruptions(locations)]


def scrape(rig: Rig, minutes: range) -> None:
    for minute in minutes:
        rig.scrape("node", SERIES, minute * MINUTE, [minute + 0.5, 1.0, minute // 7])
        rig.store.sync()


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Two blocks, and samples in the log."""
    rig = Rig(tmp_path)
    rig.store.metadata.record("temp", "gauge", help="degrees")
    scrape(rig, range(85))
    rig.store.maintain(rig.now_ms)
    scrape(rig, range(85, 90))
    assert len(rig.blocks()) == 2
    return rig


def remove_block(rig: Rig) -> None:
    rig.blocks()[1].unlink()


def replace_block(rig: Rig) -> None:
    shutil.copyfile(rig.blocks()[0], rig.blocks()[1])


def cut_log(rig: Rig) -> None:
    """At the end of a record: the rest is a valid segment."""
    segment = rig.segments()[-1]
    content = segment.read_bytes()
    os.truncate(segment, content.rindex(b"\xf5WKr"))


def remove_log(rig: Rig) -> None:
    rig.segments()[-1].unlink()


def replace_log(rig: Rig) -> None:
    """By a longer one of another store."""
    other = Rig(rig.path.with_name("other"))
    scrape(other, range(100, 300))
    other.store.close()
    shutil.copyfile(other.segments()[-1], rig.segments()[-1])


def change_metadata(rig: Rig) -> None:
    path = rig.path / "metadata.json"
    path.write_text(path.read_text().replace("degrees", "volts"))


def remove_metadata(rig: Rig) -> None:
    (rig.path / "metadata.json").unlink()


def damage_inventory(rig: Rig) -> None:
    path = rig.path / "inventory.json"
    path.write_text(path.read_text().replace("1", "2"))


DAMAGES: dict[Callable[[Rig], None], str] = {
    remove_block: "1800000-3600000.block: the block is missing",
    replace_block: "1800000-3600000.block: the block is not the one that was written",
    cut_log: "bytes are missing",
    remove_log: "bytes are missing",
    replace_log: "the segment is not the one that was written",
    change_metadata: "metadata.json: the metadata was changed",
    remove_metadata: "metadata.json: the metadata of metrics is missing",
    damage_inventory: "inventory.json: the inventory is damaged",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_reported_by_verify_and_at_the_next_start(rig: Rig, damage: Callable[[Rig], None]) -> None:
    rig.store.close()
    assert problems(rig.path) == []
    damage(rig)
    assert DAMAGES[damage] in problems(rig.path)[0]
    store = rig.open()
    assert DAMAGES[damage] in "; ".join(f"{one.path.name}: {one.problem}" for one in store.damages)
    store.close()


def test_a_lost_block_is_reported_until_it_expires_or_is_accepted(rig: Rig) -> None:
    rig.store.close()
    remove_block(rig)
    for _ in range(2):
        assert [damage.problem for damage in rig.open().damages] == ["the block is missing"]
        rig.store.close()
    copy = rig.path.with_name("copy")
    shutil.copytree(rig.path, copy)
    assert len(inventory.accept_damage(copy)) == 1
    assert (problems(copy), inventory.accept_damage(copy)) == ([], [])
    rig.open()
    rig.now_ms += 16 * 24 * 60 * MINUTE
    rig.store.maintain(rig.now_ms)
    rig.store.maintain(rig.now_ms)
    rig.store.close()
    assert problems(rig.path) == []


def test_a_running_store_that_removes_files_is_intact_at_every_moment(tmp_path: Path) -> None:
    """Each rename and removal is a moment at which the process may be killed."""
    rig, seen = Rig(tmp_path), []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("unlink", "rename", "replace"):
            original = getattr(Path, name)

            def watched(
                path: Path, *arguments: object, original: Callable[..., object] = original, **named: object
            ) -> object:
                result = original(path, *arguments, **named)
                seen.extend(problems(tmp_path))
                return result

            patch.setattr(Path, name, watched)
        for hour in range(9):
            scrape(rig, range(60 * hour, 60 * (hour + 1), 5))
            rig.store.metadata.record("temp", "gauge", help=f"degrees {hour}")
            rig.store.maintain(rig.now_ms)
        rig.now_ms -= 3 * 60 * MINUTE
        rig.store.quarantine_future_samples()
        rig.reopen().close()
    assert seen == []


def test_work_of_a_version_without_an_inventory_is_not_damage(rig: Rig) -> None:
    rig.store.close()
    old = (rig.path / "inventory.json").read_bytes()
    rig.open()
    scrape(rig, range(90, 300, 5))
    rig.store.maintain(rig.now_ms)
    rig.store.close()
    (rig.path / "inventory.json").write_bytes(old)
    assert problems(rig.path) == []


def test_a_torn_write_after_the_inventory_is_not_damage(rig: Rig) -> None:
    rig.store.close()
    with rig.segments()[-1].open("ab") as segment:
        segment.write(b"\xf5WKr" + random.Random(1).randbytes(100))
    assert problems(rig.path) == []
