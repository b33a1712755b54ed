"""Searching the journal while it is written: filters, pages, search limits, and a changed chain."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from watchkeeper.errors import StoreError
from watchkeeper.store.journal import journal, journal_search
from watchkeeper.store.journal.journal_search import EntryFilter, JournalLocation

START = datetime(2026, 2, 12, 2, 14, tzinfo=UTC)


@pytest.fixture
def written(tmp_path: Path) -> Iterator[tuple[journal.Journal, JournalLocation]]:
    """Thirty entries, one a minute: notes of ann and ben about two incidents in turn."""
    kept = journal.Journal(tmp_path / "journal.sqlite")
    for at in range(30):
        actor, subject = ("ann", "ben")[at % 2], f"INC-{at % 3}"
        body = {"text": f"note {at}: 100% of_it"}
        kept.record("note", subject, at=START + timedelta(minutes=at), actor=actor, body=body)
    kept.record("plan", "INC-1", at=START + timedelta(hours=1), actor="hub", body={"text": "reboot"})
    yield kept, JournalLocation(tmp_path / "journal.sqlite")
    kept.close()


def test_without_filters_the_newest_come_first(written: tuple[journal.Journal, JournalLocation]) -> None:
    page = journal_search.search(written[1], EntryFilter(limit=5))
    assert [entry.seq for entry in page.entries] == [31, 30, 29, 28, 27]
    assert (page.first, page.last, page.looked_back_to) == (1, 31, 27)
    assert page.kinds == {"note": 30, "plan": 1}


def test_pages_join_without_a_gap_or_a_repeat(written: tuple[journal.Journal, JournalLocation]) -> None:
    seqs, before = [], None
    while before is None or before > 1:
        page = journal_search.search(written[1], EntryFilter(limit=7, before=before))
        seqs += [entry.seq for entry in page.entries]
        before = page.looked_back_to
    assert seqs == list(range(31, 0, -1))


@pytest.mark.parametrize(
    ("entry_filter", "count"),
    [
        (EntryFilter(kinds=("plan",)), 1),
        (EntryFilter(kinds=("plan", "note"), actor="ann"), 15),
        (EntryFilter(subject="INC-2"), 10),
        (EntryFilter(words=("NOTE 7",)), 1),
        (EntryFilter(words=("note", "ben")), 15),
        (EntryFilter(words=("0% of_i",)), 30),
        (EntryFilter(words=("100_",)), 0),
        (EntryFilter(since=START + timedelta(minutes=28)), 3),
        (EntryFilter(until=START), 1),
    ],
)
def test_filters_keep_what_fits(
    written: tuple[journal.Journal, JournalLocation], entry_filter: EntryFilter, count: int
) -> None:
    assert len(journal_search.search(written[1], entry_filter).entries) == count


def test_a_search_reads_a_limited_part_and_reports_how_far(
    written: tuple[journal.Journal, JournalLocation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_search, "MAX_SEARCHED_ENTRIES", 10)
    page = journal_search.search(written[1], EntryFilter(words=("note 3:",)))
    assert (page.entries, page.looked_back_to) == ((), 22)


def test_verification_names_the_changed_entry(written: tuple[journal.Journal, JournalLocation]) -> None:
    kept, where = written
    assert journal_search.first_invalid_entry(where) == (None, 31)
    with sqlite3.connect(kept.path) as forger:
        forger.execute("UPDATE entry SET actor = 'eve' WHERE seq = 12")
    forger.close()
    assert journal_search.first_invalid_entry(where) == (12, 31)


def test_a_missing_journal_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no journal found"):
        journal_search.search(JournalLocation(tmp_path / "none.sqlite"), EntryFilter())
