"""Working on an incident in a real browser: take it, hand it over, silence it, read who was told, take the report."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.web import stories
from tests.web.kept_services import START, KeptJournal
from tests.web.running import Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.model import alerts
from watchkeeper.model.incidents import Incident
from watchkeeper.model.notices import Notice, NoticeState, Occasion

pytestmark = pytest.mark.servers


class TellingJournal(KeptJournal):
    """Of a hub whose on-call person was told, and whose ticket system was not."""

    def notices(self, id: str) -> list[Notice]:
        return [self._notice(id, "oncall", NoticeState.SENT), self._notice(id, "tickets")]

    def _notice(self, id: str, receiver: str, state: NoticeState = NoticeState.WAITING) -> Notice:
        is_sent = state is NoticeState.SENT
        return Notice(
            id=f"{id}/{receiver}/opened/1",
            incident=id,
            receiver=receiver,
            occasion=Occasion.OPENED,
            severity=alerts.Severity.CRITICAL,
            state=state,
            made_at=START,
            due_at=START,
            tries=1 if is_sent else 4,
            answer="answered 200" if is_sent else "tickets: answered 503",
            sent_at=START + timedelta(seconds=10) if is_sent else None,
        )


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(SmallHub(racks=2, per_rack=4, journal_type=TellingJournal)) as running:
        running.call(stories.lose_gpu, running.hub)
        yield running


def kept(site: Site) -> Incident:
    return site.hub.journal.kept["INC-1"]


def test_an_incident_is_taken_handed_over_silenced_and_reported(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/incidents/INC-1")
    work = page.get_by_test_id("work-panel")
    work.get_by_test_id("acknowledge").click()
    expect(work).to_contain_text("Assigned to local")
    work.get_by_test_id("assign").click()
    page.get_by_test_id("assign-to").fill("ada")
    page.keyboard.press("Enter")
    expect(work).to_contain_text(re.compile("[Aa]ssigned to ada"))
    work.get_by_test_id("silence").click()
    page.get_by_test_id("silence-for").select_option("4h")
    page.get_by_test_id("silence-reason").fill("waiting for the part")
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("silenced")).to_contain_text("waiting for the part")
    assert site.hub.silences.silenced[0].ends_at - site.hub.silences.silenced[0].starts_at == timedelta(hours=4)
    assert kept(site).assignee == "ada"
    with page.expect_download() as download:
        work.get_by_test_id("export").click()
    assert Path(download.value.path()).read_text().startswith("# INC-1: GPU 3 on gpu-r01-02 fell off the bus")
    page.get_by_test_id("unsilence").click()
    expect(page.get_by_test_id("silenced")).to_have_count(0)


def test_whom_it_hits_and_who_was_told_stand_beside_it(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/incidents/INC-1")
    blast = page.get_by_test_id("blast-panel")
    expect(blast.get_by_test_id("hit")).to_contain_text("research/llm-70b-worker-3")
    expect(blast).to_contain_text("GPU-hours so far")
    expect(blast).to_contain_text("/ h")
    told = page.get_by_test_id("notice-row")
    expect(told.nth(0)).to_contain_text("oncall sent: opened")
    expect(told.nth(1)).to_contain_text("4 attempts, tickets: answered 503")


def test_a_note_appears_and_what_was_known_stays(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/incidents/INC-1")
    page.get_by_test_id("note").fill("the part is ordered")
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("notes-panel")).to_contain_text("the part is ordered")
    expect(page.get_by_test_id("blast-panel")).to_contain_text("GPU-hours")


def test_the_list_is_filtered_by_what_stands_in_the_address(page: Page, site: Site) -> None:
    site.call(lambda: stories.lose_gpu(site.hub, id="INC-2", node="gpu-r02-01", index=1))
    page.goto(f"{site.url}/incidents?text=r02&severity=critical")
    rows = page.get_by_test_id("incident-row")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("gpu-r02-01")
    expect(page.get_by_test_id("incidents-panel")).to_contain_text("1 of 2")
    page.get_by_test_id("filter-text").fill("nothing like this")
    expect(page.get_by_test_id("empty")).to_contain_text("No incident matches the filter")
    page.get_by_test_id("filter-text").fill("")
    expect(rows).to_have_count(2)
    page.get_by_test_id("filter-severity").select_option("info")
    expect(page).to_have_url(f"{site.url}/incidents?severity=info")
    page.get_by_test_id("filter-state").get_by_text("resolved").click()
    expect(page).to_have_url(f"{site.url}/incidents?severity=info&state=resolved")


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_both_themes_show_the_same_work(page: Page, site: Site, theme: str, tmp_path: Path) -> None:
    page.emulate_media(color_scheme="light" if theme == "light" else "dark")
    page.goto(f"{site.url}/incidents/INC-1")
    page.get_by_test_id("silence").click()
    expect(page.get_by_test_id("timeline")).to_have_attribute("data-ready", "yes")
    assert len(page.screenshot(path=tmp_path / f"incident-{theme}.png", full_page=True)) > 20_000


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_the_list_says_who_has_it_and_that_it_is_silenced(
    page: Page,
    site: Site,
    theme: str,
    tmp_path: Path,
) -> None:
    site.ask("/api/incidents/INC-1/assign", method="POST", body={"to": "ada"})
    site.ask("/api/incidents/INC-1/silence", method="POST", body={"for": "4h", "reason": "new riser"})
    page.emulate_media(color_scheme="light" if theme == "light" else "dark")
    page.goto(f"{site.url}/incidents?state=all")
    expect(page.get_by_test_id("incident-row")).to_contain_text(re.compile("[Aa]ssigned to ada"))
    expect(page.get_by_test_id("incident-row")).to_contain_text("silenced 4 h")
    assert len(page.screenshot(path=tmp_path / f"list-{theme}.png")) > 20_000
