"""The journal in a real browser: who did what, filters in the address, the verdict on the chain, and the export."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import PATIENCE_SECONDS
from tests.support.running_product import Product, await_that
from tests.web.running import serving
from tests.web.small_hub import SmallHub

pytestmark = [pytest.mark.servers, pytest.mark.timeout(240)]


def opened(demo: Product) -> str:
    """An incident, so that the journal has something to tell."""
    if not demo.incidents():
        demo.command("sim", "inject", "xid-48", "gpu-r01-03:1")
    return str(await_that(demo.incidents, within_seconds=PATIENCE_SECONDS)[0]["id"])


def test_entries_are_narrowed_opened_and_exported(page: Page, demo: Product) -> None:
    incident = opened(demo)
    page.goto(f"{demo.url}/journal")
    expect(page.get_by_test_id("chain")).to_contain_text("Journal verified (hash chain intact).")
    expect(page.get_by_test_id("entry-row").first).to_be_visible()
    page.get_by_test_id("journal-filter").fill(f"opened {incident}")
    expect(page.get_by_test_id("entry-row")).to_have_count(1)
    expect(page).to_have_url(f"{demo.url}/journal?q=opened+{incident}")
    page.get_by_test_id("entry-row").get_by_text("opened").click()
    expect(page.get_by_test_id("entry-panel")).to_contain_text("hash")
    with page.expect_download() as saved:
        page.get_by_test_id("journal-export").click()
    (line,) = Path(saved.value.path()).read_text().splitlines()
    assert json.loads(line)["subject"] == incident


def test_a_kind_and_an_actor_are_chosen_from_what_there_is(page: Page, demo: Product) -> None:
    opened(demo)
    page.goto(f"{demo.url}/journal")
    page.get_by_test_id("journal-kind").select_option("event")
    expect(page).to_have_url(f"{demo.url}/journal?kind=event")
    page.get_by_test_id("entry-row").first.get_by_role("button", name="hub").click()
    expect(page).to_have_url(f"{demo.url}/journal?kind=event&actor=hub")
    page.get_by_text("Clear filters").click()
    expect(page).to_have_url(f"{demo.url}/journal")


def test_an_open_page_shows_what_is_written_meanwhile(page: Page, demo: Product) -> None:
    incident = opened(demo)
    page.goto(f"{demo.url}/journal?subject={incident}")
    expect(page.get_by_test_id("entry-row").first).to_be_visible()
    demo.command("incidents", "note", incident, "the fan was changed")
    # The hub goes on writing about the incident, so the note may not stay the first row.
    expect(page.get_by_test_id("entry-row").filter(has_text="the fan was changed")).to_have_count(1)


def test_the_chain_is_read_again_when_asked(page: Page, demo: Product) -> None:
    page.goto(f"{demo.url}/journal")
    expect(page.get_by_test_id("chain")).to_be_visible()
    with page.expect_response(lambda answer: "again=1" in answer.url) as reading:
        page.get_by_test_id("verify").click()
    assert reading.value.json()["is_intact"]


def test_a_recording_has_no_journal_and_says_so(page: Page) -> None:
    with serving(SmallHub()) as site:
        page.goto(f"{site.url}/journal")
        expect(page.get_by_test_id("chain-panel")).to_contain_text("a replayed recording has no journal")
        page.goto("about:blank")
