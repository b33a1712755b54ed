"""Jobs in a real browser: the list with those in trouble first, and one job with its ranks side by side."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import PATIENCE_SECONDS
from tests.support.running_product import Product, await_that

pytestmark = [pytest.mark.servers, pytest.mark.timeout(240)]


def largest(demo: Product) -> str:
    def found() -> str:
        jobs = sorted(demo.get("/api/jobs")["jobs"], key=lambda job: -job["gpus"])
        return str(jobs[0]["id"]) if jobs and jobs[0]["gpus"] >= 8 else ""

    return str(await_that(found, within_seconds=PATIENCE_SECONDS))


def test_the_list_leads_to_one_job_by_keyboard(page: Page, demo: Product) -> None:
    largest(demo)
    page.goto(f"{demo.url}/jobs")
    expect(page.get_by_test_id("job-row").first).to_be_visible()
    expect(page.get_by_test_id("tile-held")).to_contain_text("by")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("job-page")).to_be_visible()
    expect(page.get_by_test_id("efficiency-panel")).to_contain_text("Bottleneck")


def test_one_job_has_its_time_its_ranks_and_its_clock(page: Page, demo: Product) -> None:
    page.goto(f"{demo.url}/jobs/{quote(largest(demo), safe='')}")
    expect(page.get_by_test_id("goodput-bar")).to_be_visible()
    expect(page.get_by_test_id("rank-row").first).to_contain_text("GPU")
    expect(page.get_by_test_id("rank-bars").get_by_role("link").first).to_be_visible()
    expect(page.get_by_test_id("job-strips")).to_have_attribute("data-ready", "yes")
    with page.expect_download() as saved:
        page.get_by_test_id("ranks-csv").click()
    assert Path(saved.value.path()).read_text().startswith("Rank,GPU,Activity")


def test_the_first_line_says_what_is_wrong_since_when_and_because_of_what(page: Page, demo: Product) -> None:
    name = largest(demo)
    healthy = demo.get(f"/api/jobs/{quote(name, safe='')}")["verdict"]
    assert healthy["status"] in ("fine", "unknown")
    hung = {
        "status": "wrong", "text": "No rank has finished a step", "since": "2026-02-12T02:14:07Z",
        "because": "GPU 3 on gpu-r01-02 fell off the bus", "cause": "gpu_fell_off_bus", "incident": "INC-1",
    }  # fmt: skip

    def with_a_fault(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json=answer.json() | {"verdict": hung})

    page.route(f"**/api/jobs/{quote(name, safe='')}", with_a_fault)
    page.goto(f"{demo.url}/jobs/{quote(name, safe='')}")
    first = page.get_by_test_id("job-verdict")
    expect(first).to_contain_text("No rank has finished a step since")
    expect(first).to_contain_text("02:14:07: GPU 3 on gpu-r01-02 fell off the bus")
    expect(first.get_by_role("link", name="INC-1")).to_have_attribute("href", "/incidents/INC-1")


def test_a_filter_is_in_the_address_and_a_wrong_name_is_said(page: Page, demo: Product) -> None:
    largest(demo)
    page.goto(f"{demo.url}/jobs")
    expect(page.get_by_test_id("job-row").first).to_be_visible()
    page.get_by_test_id("jobs-filter").fill("no-such-job")
    expect(page).to_have_url(f"{demo.url}/jobs?q=no-such-job")
    expect(page.get_by_test_id("empty")).to_contain_text("No job matches")
    page.goto(f"{demo.url}/jobs/no-such-job")
    expect(page.get_by_test_id("empty")).to_contain_text("Job no-such-job not found")


def test_a_loss_that_went_wrong_names_the_gpus_that_something_happened_to(page: Page, demo: Product) -> None:
    name = largest(demo)
    found = {"at": "2026-02-12T02:14:07Z", "place": "GPU 3 on gpu-r01-02", "kind": "xid", "code": "94", "cause": None}
    loss = {"at": found["at"], "what": "nan loss", "value": None, "hardware": [found | {"text": "Xid 94", "rank": 3}]}

    def with_a_loss(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json=answer.json() | {"losses": [loss]})

    page.route(f"**/api/jobs/{quote(name, safe='')}", with_a_loss)
    page.goto(f"{demo.url}/jobs/{quote(name, safe='')}")
    expect(page.get_by_test_id("job-events")).to_contain_text("at that time: rank 3 · GPU 3 on gpu-r01-02: Xid 94")


def test_a_list_does_not_say_that_a_hung_job_has_no_straggler(page: Page, demo: Product) -> None:
    largest(demo)

    def hung(route: Route) -> None:
        answer = route.fetch()
        jobs = [job | {"straggler": None, "state": "hung"} for job in answer.json()["jobs"]]
        route.fulfill(response=answer, json=answer.json() | {"jobs": jobs})

    page.route("**/api/jobs?*", hung)
    page.goto(f"{demo.url}/jobs")
    expect(page.get_by_test_id("job-row").first).to_contain_text("hung")
    expect(page.get_by_test_id("job-row").first).not_to_contain_text("none")
    expect(page.get_by_test_id("tile-stragglers")).to_contain_text("in running jobs")


def test_a_rank_that_all_others_stand_still_for_is_not_some_percent_behind(page: Page, demo: Product) -> None:
    largest(demo)
    slow = {"rank": 3, "node": "n1", "gpu": "3", "uuid": "GPU-3", "score": None, "why": "stopped exporting metrics"}

    def hung(route: Route) -> None:
        answer = route.fetch()
        jobs = [job | {"straggler": slow, "state": "hung"} for job in answer.json()["jobs"]]
        route.fulfill(response=answer, json=answer.json() | {"jobs": jobs})

    page.route("**/api/jobs?*", hung)
    page.goto(f"{demo.url}/jobs")
    expect(page.get_by_test_id("job-row").first).to_contain_text("rank 3other ranks wait for it")
    expect(page.get_by_test_id("tile-stragglers")).to_contain_text("other ranks wait for it")
