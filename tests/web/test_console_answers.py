"""The first requests of the console: the fleet, a metric as colour, and the history of a GPU."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from datetime import datetime, timedelta

import numpy as np
import pytest

from tests.web.canned_engine import answer
from tests.web.running import Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.hub import fleet_layout
from watchkeeper.model import events, fleet
from watchkeeper.model.labels import Labels
from watchkeeper.web import pages
from watchkeeper.web.fleet import frames

NODE, UUID = "gpu-r01-02", "GPU-r01-02-3"


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(SmallHub(), interval_seconds=30) as running:
        yield running


def test_the_fleet_is_compressed_and_not_sent_twice(site: Site) -> None:
    first = site.ask("/api/fleet", headers={"Accept-Encoding": "gzip"})
    content = json.loads(gzip.decompress(first.body))
    assert len(content["nodes"]) == 4
    assert set(content["teams"].values()) <= {"research", "vision", "speech"}
    again = site.ask("/api/fleet", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    assert site.ask("/api/fleet").json == content


def test_a_changed_fleet_is_never_served_from_the_cache(site: Site) -> None:
    before = site.ask("/api/fleet").json["version"]
    site.call(site.hub.fleet.fleet_gpus.pop)
    assert site.ask("/api/fleet").json["version"] != before


def test_any_metric_name_is_a_colour_but_no_expression() -> None:
    free = frames.find_colour("node_load1")
    assert free is not None
    assert (free.expr, free.low, free.high) == ("node_load1", None, None)
    assert frames.find_colour("sum(up)") is None
    assert frames.find_colour("x" * 121) is None
    assert frames.colour_scale(free, np.array([0.31, 7.83, np.nan], dtype=np.float32)) == pytest.approx(
        (0.31, 7.9), abs=0.011
    )
    assert frames.colour_scale(free, np.array([np.nan], dtype=np.float32)) == (0.0, 1.0)


def test_a_reading_of_a_node_colours_all_its_gpus() -> None:
    stock = fleet_layout.current_layout(SmallHub(racks=1, per_rack=2).fleet)
    result = answer([Labels({"instance": "gpu-r01-02:9100"})], [0], np.array([[4.0]]))
    values = frames.values_by_slot_or_node(stock, result)
    assert np.isnan(values[:8]).all()
    assert values[8:].tolist() == [4.0] * 8


def test_the_history_of_a_gpu_counts_and_describes_its_xids(site: Site) -> None:
    place = fleet.Place("main", node=NODE, gpu=UUID)
    for code, days in ((79, 11), (31, 40), (31, 41), (48, 200)):
        at = site.hub.clock.now() - timedelta(days=days)
        site.hub.journal.taken.append(
            events.Event(f"e{code}-{days}", events.EventKind.XID, code, place, at, f"Xid {code}")
        )
    history = site.ask(f"/api/history?node={NODE}&gpu={UUID}").json
    assert [(row["code"], row["events"]) for row in history["counts"]] == [(31, 2), (79, 1)]
    assert history["events"][0]["meaning"] == "GPU fell off the bus"
    assert site.ask(f"/api/history?node={NODE}&days=365").json["total"] == 4
    assert site.ask(f"/api/history?node={NODE}&gpu=GPU-other").json["total"] == 0


def test_a_history_shows_since_when_the_hub_has_events(site: Site) -> None:
    now = site.hub.clock.now()
    cases = (
        (None, now),
        (timedelta(minutes=10), now - timedelta(minutes=10)),
        (timedelta(days=400), now - timedelta(days=7)),
    )
    for age, since in cases:
        site.hub.journal.first_entry = None if age is None else now - age
        history = site.ask(f"/api/history?node={NODE}&days=7").json
        assert abs(datetime.fromisoformat(history["since"]) - since) < timedelta(minutes=1), age


def test_a_history_without_a_node_or_with_invalid_days_is_refused(site: Site) -> None:
    assert site.ask("/api/history").status == 400
    assert "from 1 to 366" in site.ask(f"/api/history?node={NODE}&days=0").json["error"]


@pytest.mark.parametrize("path", pages.CONSOLE_PATHS)
def test_every_address_of_the_console_is_its_page(site: Site, path: str) -> None:
    filled = (
        path.replace("{id:path}", "research/llm").replace("{id}", "x").replace("{uuid}", "x").replace("{name}", "x")
    )
    assert site.ask(filled).status in (200, 503)
