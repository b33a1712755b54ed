"""What a person on call meets at night: a hub that comes back, a phone, incidents of jobs and models."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from urllib.parse import parse_qs, quote, unquote_plus, urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.browser.fleet_page import open_fleet
from tests.support.running_product import Product, await_that
from tests.web import stories
from tests.web.kept_services import Entry
from tests.web.running import Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.model import alerts, fleet, incidents

pytestmark = [pytest.mark.servers, pytest.mark.timeout(240)]
# The cells of a row that a reader without another swipe does not see whole.
OUTSIDE = """row => [...row.children]
  .filter(cell => cell.offsetParent && cell.getBoundingClientRect().right > innerWidth).map(cell => cell.textContent)"""
CUT = (
    "tile => [...tile.children].filter(part => part.scrollHeight > part.clientHeight + 1).map(part => part.textContent)"
)


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(SmallHub(racks=4, per_rack=4)) as running:
        yield running


def overload(hub: SmallHub, *, id: str = "INC-5") -> incidents.Incident:
    """A model gets too many requests; nobody says on which GPUs it runs."""
    place, at = fleet.Place("main", domain="model=chat"), hub.clock.now() - timedelta(minutes=3)
    told = 'alert{alertname="InferenceQueueDeep", model_name="chat"}'
    member = incidents.Member(
        incidents.MemberKind.ALERT, told, place, "inference_overload", at, "Requests queue", alerts.Severity.CRITICAL
    )
    incident = incidents.Incident(
        incidents.IncidentId(id),
        place,
        "Model chat gets more requests than it can serve",
        alerts.Severity.CRITICAL,
        incidents.IncidentState.OPEN,
        at,
        "inference_overload",
        "serving",
        (member,),
    )
    return hub.journal.keep(incident, Entry(at, "hub", "incident.opened", {"text": "Requests queue"}))


def test_what_could_not_be_asked_is_asked_when_the_hub_is_back(page: Page) -> None:
    hub = SmallHub()
    with serving(hub) as site:
        port = site.port
        site.call(stories.lose_gpu, hub)
        page.goto(f"{site.url}/explore?expr=up")
        expect(page.get_by_test_id("explore-chart")).to_have_attribute("data-ready", "yes")
    expect(page.get_by_test_id("lost")).to_be_visible()
    page.get_by_test_id("run").click()
    expect(page.get_by_test_id("answers")).to_contain_text("The hub does not answer")
    with serving(hub, port=port):
        expect(page.get_by_test_id("explore-chart")).to_have_attribute("data-ready", "yes")
        expect(page.get_by_test_id("explore-page")).not_to_contain_text("The hub does not answer")
        page.goto("about:blank")


def test_a_page_that_was_asked_for_without_a_hub_comes_with_it(page: Page) -> None:
    hub = SmallHub()
    with serving(hub) as site:
        port = site.port
        site.call(stories.lose_gpu, hub)
        open_fleet(page, site)
    expect(page.get_by_test_id("lost")).to_be_visible()
    page.get_by_test_id("nav-incidents").click()
    expect(page.get_by_test_id("empty")).to_contain_text("The hub does not answer")
    with serving(hub, port=port):
        expect(page.get_by_test_id("incident-row")).to_have_count(1)
        page.goto("about:blank")


def test_the_readings_of_a_job_are_those_of_its_own_gpus(page: Page, demo: Product) -> None:
    assert demo.command("sim", "inject", "nccl-dead-rank", "gpu-r01-05").returncode == 0
    of_job = re.compile(r"job=(.+)")

    def found() -> dict[str, str]:
        return next((i for i in demo.incidents() if i["cause"] == "nccl_rank_died"), {})

    incident = await_that(found, within_seconds=200)
    name = of_job.fullmatch(incident["place"]["domain"])
    assert name is not None
    told, world = (
        demo.get("/api/v1/query?query=" + quote(f'{query}{{job_name="{name[1]}"}})'))["data"]["result"]
        for query in ("count(training_rank_info", "max(training_world_size")
    )
    with page.expect_request(lambda request: "query_range" in request.url and "POWER_USAGE" in request.url) as asked:
        page.goto(f"{demo.url}/incidents/{incident['id']}")
    query = re.search(r"avg\((\(DCGM_FI_DEV_POWER_USAGE .+?\))\), \"strip\"", unquote_plus(asked.value.url))
    assert query is not None
    counted = demo.get("/api/v1/query?query=" + quote(f"count({query[1]})"))["data"]["result"]
    # The rank that died no longer tells; the job's share of its GPU does, for as long as a scheduler names it.
    assert int(told[0]["value"][1]) <= int(counted[0]["value"][1]) <= int(world[0]["value"][1])
    expect(page.get_by_test_id("place")).to_have_attribute("href", f"/jobs/{name[1]}")


def test_a_model_that_nobody_places_hits_something_unknown(page: Page, site: Site) -> None:
    site.call(overload, site.hub)
    page.goto(f"{site.url}/incidents/INC-5")
    expect(page.get_by_test_id("blast-panel")).to_contain_text("unknown: not reported")
    expect(page.get_by_test_id("blast-panel")).not_to_contain_text("$ 0")
    expect(page.get_by_test_id("evidence-panel")).to_contain_text("InferenceQueueDeep")
    page.goto(f"{site.url}/incidents")
    expect(page.get_by_test_id("incident-row")).not_to_contain_text("none")


def test_on_a_phone_the_state_of_an_incident_needs_no_swipe(page: Page, site: Site) -> None:
    site.call(stories.lose_gpu, site.hub)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{site.url}/incidents")
    row = page.get_by_test_id("incident-row")
    expect(row).to_contain_text("open 4 min")
    assert row.evaluate(OUTSIDE) == []


def test_on_a_phone_the_journal_shows_what_happened(page: Page, demo: Product) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{demo.url}/journal")
    rows = page.get_by_test_id("entry-row")
    expect(rows.first).to_be_visible()
    assert [row.evaluate(OUTSIDE) for row in rows.all()[:20]] == [[]] * min(20, rows.count())


def test_what_is_wrong_with_gpus_is_said_before_what_is_well(page: Page, site: Site) -> None:
    site.call(stories.lose_gpu, site.hub)
    page.set_viewport_size({"width": 1440, "height": 900})
    open_fleet(page, site)
    tile = page.get_by_test_id("tile-gpus")
    expect(tile).to_contain_text(re.compile(r"^.*128\s*1 down · 127 healthy$"))
    assert tile.evaluate(CUT) == []


def test_a_link_leads_the_keyboard_into_its_page(page: Page, site: Site) -> None:
    site.call(stories.lose_gpu, site.hub)
    page.goto(f"{site.url}/incidents")
    page.get_by_test_id("incident-row").get_by_role("link").first.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("incident-page")).to_be_visible()
    expect(page.locator("#page")).to_be_focused()


def test_the_first_tab_offers_to_skip_to_the_page_which_has_a_heading(page: Page, site: Site) -> None:
    open_fleet(page, site)
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to content")).to_be_focused()
    expect(page.get_by_role("heading", level=1)).to_have_text("Fleet")
    page.goto(f"{site.url}/incidents")
    expect(page.get_by_role("heading", level=1)).to_have_text("Incidents")


def test_the_lines_of_a_chart_stand_in_the_order_of_their_names(page: Page, demo: Product) -> None:
    page.goto(f"{demo.url}/explore?expr={quote('max by (Hostname) (last_over_time(DCGM_FI_DEV_GPU_TEMP[30m]))')}")
    expect(page.get_by_test_id("explore-chart").locator(".label")).to_have_text([f"gpu-r01-0{n}" for n in range(1, 9)])


def test_a_rack_that_says_nothing_is_named_in_the_map(page: Page, site: Site) -> None:
    site.hub.readings.silent.update(row.gpu.uuid for row in site.hub.fleet.fleet_gpus if row.node.startswith("gpu-r02"))
    open_fleet(page, site)
    expect(page.get_by_test_id("heatmap")).to_have_attribute(
        "aria-label", re.compile(r"Problems: r02 32 not reporting\.")
    )
    expect(page.get_by_test_id("tile-working")).to_contain_text("allocated 92 %")  # 88 of the 96 that report


def test_a_card_says_that_nobody_is_told(page: Page, site: Site) -> None:
    site.call(stories.lose_gpu, site.hub)
    answer = site.ask("/api/incidents/INC-1/silence", method="POST", body={"for": "2h", "reason": "waits for the part"})
    assert answer.status == 200, answer.body
    open_fleet(page, site)
    expect(page.get_by_test_id("incident-card")).to_contain_text("silenced")


def test_open_incidents_stand_in_the_order_of_their_gravity(page: Page, site: Site) -> None:
    site.call(stories.keep_waiting, site.hub, pod="ml/large-0")
    site.call(stories.lose_gpu, site.hub)
    page.goto(f"{site.url}/incidents")
    rows = page.get_by_test_id("incident-row")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("fell off the bus")
    # All of them stand as they happened.
    page.goto(f"{site.url}/incidents?state=all")
    expect(rows.nth(0)).to_contain_text("waits for free GPUs")


def test_the_clock_of_an_incident_that_lasts_goes_on_until_now(page: Page, site: Site) -> None:
    site.call(stories.lose_gpu, site.hub)
    now = site.hub.clock.now()
    site.hub.journal.kept["INC-1"] = replace(site.hub.journal.kept["INC-1"], opened_at=now - timedelta(hours=5))
    with page.expect_request(lambda request: "query_range" in request.url and "POWER_USAGE" in request.url) as asked:
        page.goto(f"{site.url}/incidents/INC-1")
    times = parse_qs(urlsplit(asked.value.url).query)
    start, end = (float(times[name][0]) for name in ("start", "end"))
    assert now.timestamp() - 30 <= end <= now.timestamp() + 60
    assert start <= (now - timedelta(hours=5, minutes=10)).timestamp()
    resolved = replace(site.hub.journal.kept["INC-1"], state=incidents.IncidentState.RESOLVED, resolved_at=now)
    site.hub.journal.kept["INC-1"] = resolved
    page.reload()
    expect(page.get_by_test_id("incident-page")).to_contain_text("resolved after 5 h")


def test_on_a_narrow_screen_what_is_wrong_comes_before_the_map(page: Page, site: Site) -> None:
    for n in range(1, 6):
        site.call(stories.lose_gpu, site.hub, id=f"INC-{n}", index=n)
    page.set_viewport_size({"width": 390, "height": 844})
    open_fleet(page, site)
    cards = page.get_by_test_id("incident-card")
    expect(cards.first).to_be_visible()
    first, fleet_map = cards.first.bounding_box(), page.get_by_test_id("fleet-panel").bounding_box()
    assert first is not None
    assert fleet_map is not None
    assert first["y"] < fleet_map["y"]
    assert [card.is_visible() for card in cards.all()] == [True] * 3 + [False] * 2
    page.get_by_role("link", name="All 5 open incidents").click()
    expect(page.get_by_test_id("incident-row")).to_have_count(5)


def test_a_job_is_found_by_its_name_and_its_pods_are_one(page: Page, site: Site) -> None:
    open_fleet(page, site)
    page.get_by_test_id("search").fill("train-7")
    hit = page.get_by_test_id("found").get_by_role("link", name=re.compile(r"train.*job, \d+ GPUs"))
    expect(hit).to_have_count(1)
    page.get_by_test_id("search").fill("Xid 79")
    page.get_by_test_id("found").get_by_text("search the journal").click()
    expect(page).to_have_url(f"{site.url}/journal?q=Xid%2079")


def test_on_paper_a_page_is_dark_on_white_without_what_can_only_be_clicked(page: Page, site: Site) -> None:
    site.call(stories.lose_gpu, site.hub)
    page.goto(f"{site.url}/incidents/INC-1")
    expect(page.get_by_test_id("incident-page")).to_be_visible()
    page.emulate_media(media="print")
    expect(page.locator(".rail")).to_be_hidden()
    expect(page.get_by_test_id("acknowledge")).to_be_hidden()
    expect(page.get_by_test_id("title")).to_be_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


@pytest.mark.parametrize("width", [1440, 390])
def test_names_of_any_length_stay_inside_the_window(page: Page, site: Site, width: int) -> None:
    site.call(stories.lose_gpu, site.hub)
    name = "a-very-long-name-" * 12
    long = replace(site.hub.journal.kept["INC-1"], title=f"GPU 3 on {name} is lost", workloads=(f"research/{name}",))
    site.hub.journal.kept["INC-1"] = long
    page.set_viewport_size({"width": width, "height": 900})
    for path in ("/", "/incidents", "/incidents/INC-1", "/node/gpu-r01-02"):
        page.goto(site.url + path)
        expect(page.locator("main")).to_contain_text(name)
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path


def test_of_a_fleet_that_says_nothing_nobody_knows_what_is_held(page: Page, site: Site) -> None:
    site.hub.readings.silent.update(row.gpu.uuid for row in site.hub.fleet.fleet_gpus)
    open_fleet(page, site)
    expect(page.get_by_test_id("tile-idle")).to_contain_text("unknown")
    expect(page.get_by_test_id("tile-full")).to_contain_text("no GPU is reporting")
    expect(page.get_by_test_id("open-incidents")).to_contain_text("0 of 128 GPUs on 0 of 16 nodes reporting")
