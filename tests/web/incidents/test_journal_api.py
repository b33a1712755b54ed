"""The audit log over a real socket: filters, pages, the verdict on the chain, and the export."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.web.kept_services import START
from tests.web.running import Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.config import settings
from watchkeeper.store.journal import journal


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with closing(journal.Journal(tmp_path / "journal.sqlite")) as kept:
        for at in range(12):
            kept.record("note", f"INC-{at % 2}", at=START, actor="ann", body={"text": f"note {at}"})
        hub = SmallHub(settings=replace(settings.Settings(), hub=replace(settings.HubSettings(), data=str(tmp_path))))
        hub.repairs = object()
        with serving(hub) as running:
            yield running


def test_entries_come_newest_first_with_a_count_for_each_kind(site: Site) -> None:
    answer = site.ask("/api/journal?limit=3").json
    assert [entry["text"] for entry in answer["entries"]] == ["note 11", "note 10", "note 9"]
    assert (answer["last"], answer["looked_back_to"], answer["kinds"]) == (12, 10, {"note": 12})
    older = site.ask("/api/journal?limit=3&before=10").json["entries"]
    assert [entry["seq"] for entry in older] == [9, 8, 7]


def test_filters_narrow_and_bad_ones_are_refused(site: Site) -> None:
    assert len(site.ask("/api/journal?subject=INC-1&q=note").json["entries"]) == 6
    later = (START + timedelta(hours=1)).timestamp()
    assert site.ask(f"/api/journal?from={later}").json["entries"] == []
    for path in ("limit=0", "limit=5000", "before=x", "from=yesterday", f"q={'a' * 200}"):
        assert site.ask(f"/api/journal?{path}").status == 400, path


def test_the_chain_is_verified_and_a_broken_one_names_its_entry(site: Site, tmp_path: Path) -> None:
    assert site.ask("/api/journal/verify").json["is_intact"]
    with sqlite3.connect(tmp_path / "journal.sqlite") as forger:
        forger.execute("UPDATE entry SET body = '{}' WHERE seq = 4")
    forger.close()
    assert site.ask("/api/journal/verify").json["is_intact"], "the verdict is kept for some minutes"
    again = site.ask("/api/journal/verify?again=1").json
    assert (again["is_intact"], again["first_broken"], again["entries"]) == (False, 4, 12)


def test_the_export_has_every_matching_entry_with_its_hashes(site: Site) -> None:
    reply = site.ask("/api/journal.jsonl?subject=INC-0")
    assert "attachment" in reply.headers["content-disposition"]
    lines = [json.loads(line) for line in reply.body.splitlines()]
    assert [line["seq"] for line in lines] == [11, 9, 7, 5, 3, 1]
    assert len(lines[0]["hash"]) == len(lines[0]["prev"]) == 64


def test_a_recording_has_no_journal() -> None:
    with serving(SmallHub()) as running:
        reply = running.ask("/api/journal")
    assert (reply.status, reply.json["error"]) == (404, "a replayed recording has no journal")
