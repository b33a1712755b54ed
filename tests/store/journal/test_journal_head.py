"""A journal file that lost entries says so: damage of the write-ahead log, a deleted or an older file."""

from __future__ import annotations

import random
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.store.journal.journal_rows import NOON, an_incident, minutes
from watchkeeper.cli.hub import store
from watchkeeper.kit import files
from watchkeeper.store import backup
from watchkeeper.store.journal.journal import Journal

ENTRIES = 20


def write(journal: Journal, count: int = ENTRIES) -> None:
    for number in range(count):
        journal.record("note", f"INC-{number}", at=minutes(number), actor="ada", body={"text": "x" * 500})


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The data directory of a hub that was killed: its entries are in the write-ahead log only."""
    source, target = tmp_path / "running", tmp_path / "killed"
    files.DataDirectory(source).claim()
    with closing(Journal(source / "journal.sqlite")) as journal:
        journal.save_incident(an_incident(journal.next_incident_id()), kind="opened", text="opened", at=NOON)
        write(journal)
        shutil.copytree(source, target)
    return target


def verify(folder: Path) -> list[str]:
    locations = backup.StoreLocations(folder, folder / "samples", folder / "journal.sqlite")
    return [corruption.problem for corruption in backup.find_corruptions(locations)]


def entries_after_start(folder: Path) -> tuple[list[int], tuple[str, ...], int | None]:
    with closing(Journal(folder / "journal.sqlite")) as journal:
        journal.record("note", "hub", at=minutes(99), actor="ada", body={})
        return [entry.seq for entry in journal.entries()], journal.problems, journal.verify()


def test_a_journal_after_a_kill_has_no_problem(killed: Path) -> None:
    assert verify(killed) == []
    seqs, problems, first_invalid = entries_after_start(killed)
    assert (seqs, problems, first_invalid) == (list(range(1, ENTRIES + 3)), (), None)


@pytest.mark.parametrize("seed", range(40))
def test_a_flipped_bit_of_the_log_is_never_silent(killed: Path, seed: int) -> None:
    """What is lost is named before and after the next start, and its numbers are not used again."""
    log = killed / "journal.sqlite-wal"
    content = bytearray(log.read_bytes())
    offset = random.Random(seed).randrange(len(content))
    content[offset] ^= 1 << seed % 8
    log.write_bytes(content)
    assert "missing" in verify(killed)[0]
    seqs, problems, first_invalid = entries_after_start(killed)
    assert first_invalid is not None
    assert first_invalid not in seqs
    assert min(seq for seq in seqs if seq > first_invalid) == ENTRIES + 2
    assert f" {first_invalid} " in problems[0]
    assert "accept-loss" in problems[0]


def test_a_missing_journal_is_reported_and_incident_numbers_are_not_reused(killed: Path) -> None:
    for path in killed.glob("journal.sqlite*"):
        path.unlink()
    assert "is missing, but" in verify(killed)[0]
    with closing(Journal(killed / "journal.sqlite")) as journal:
        assert f"entries 1 to {ENTRIES + 1} are missing" in journal.problems[0]
        assert journal.next_incident_id() == "INC-2"


def test_an_older_file_put_back_is_reported(killed: Path, tmp_path: Path) -> None:
    journal_path, older = killed / "journal.sqlite", tmp_path / "older.sqlite"
    with closing(Journal(journal_path)):
        pass
    shutil.copyfile(journal_path, older)
    with closing(Journal(journal_path)) as journal:
        write(journal, 1)
    shutil.copyfile(older, journal_path)
    assert f"entry {ENTRIES + 2} is missing" in verify(killed)[0]


def test_another_journal_at_the_same_place_is_reported(killed: Path, tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "other.sqlite")) as journal:
        write(journal, ENTRIES + 5)
    for path in killed.glob("journal.sqlite*"):
        path.unlink()
    shutil.copyfile(tmp_path / "other.sqlite", killed / "journal.sqlite")
    assert f"entry {ENTRIES + 1} is not the one" in verify(killed)[0]
    assert "is not the one" in entries_after_start(killed)[1][0]


def test_a_damaged_head_is_unknown_and_not_healthy(killed: Path) -> None:
    (killed / "journal.head").write_bytes(b"\0" * 384)
    assert "cannot be told" in verify(killed)[0]
    seqs, problems, first_invalid = entries_after_start(killed)
    assert (seqs, first_invalid) == (list(range(1, ENTRIES + 4)), None)
    assert "cannot be told" in problems[0]


def test_a_torn_write_of_the_head_loses_one_entry_of_it(killed: Path) -> None:
    head = killed / "journal.head"
    content = bytearray(head.read_bytes())
    newest = (ENTRIES + 1) % 2 * 192
    content[newest : newest + 100] = b"\0" * 100
    head.write_bytes(content)
    assert verify(killed) == []


def test_a_journal_of_a_version_without_a_head_opens(killed: Path) -> None:
    (killed / "journal.head").unlink()
    assert entries_after_start(killed)[1:] == ((), None)
    assert (killed / "journal.head").exists()


def test_a_hub_whose_journal_another_one_opened_is_fenced(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "journal.sqlite")) as first:
        assert first.fenced_reason is None
        with closing(Journal(tmp_path / "journal.sqlite")) as second:
            assert "another hub has opened the journal" in str(first.fenced_reason)
            assert second.fenced_reason is None


def test_a_person_accepts_a_loss(killed: Path) -> None:
    log = killed / "journal.sqlite-wal"
    log.write_bytes(log.read_bytes()[:-9000])
    assert entries_after_start(killed)[1]
    assert len(verify(killed)) == 1
    result = CliRunner().invoke(store.command, ["accept-loss", "--data", str(killed)])
    assert (result.exit_code, result.output.startswith("accepted: entr")) == (0, True), result.output
    assert verify(killed) == []
    assert entries_after_start(killed)[1:] == ((), None)
    assert "nothing to accept" in CliRunner().invoke(store.command, ["accept-loss", "--data", str(killed)]).output
