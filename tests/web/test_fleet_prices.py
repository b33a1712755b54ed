"""Prices of incidents, jobs and tiles are those of the price book, by GPU model."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from tests.web import stories
from tests.web.small_hub import SmallHub
from watchkeeper.config.settings import CostSettings, Settings
from watchkeeper.hub.fleet_prices import FleetPrices, MeanPrice
from watchkeeper.web.incidents.incident_reports import IncidentReports

BOOK = """currency = "EUR"
[[price]]
model = "H200"
kind = "on_demand"
per_gpu_hour = 2.0
source = "contract"
checked = 2026-11-01
"""


def mean_price(hub: SmallHub) -> MeanPrice:
    return asyncio.run(FleetPrices(hub.services).mean_price())


def hub_with(tmp_path: Path, book: str | None) -> SmallHub:
    path = tmp_path / "prices.toml"
    if book is not None:
        path.write_text(book)
    return SmallHub(settings=replace(Settings(), cost=CostSettings(prices=None if book is None else str(path))))


def test_the_mean_price_is_that_of_the_models_that_report(tmp_path: Path) -> None:
    assert mean_price(hub_with(tmp_path, BOOK)) == MeanPrice(2.0, "EUR")


def test_without_a_book_of_its_own_a_fleet_has_the_prices_of_the_shipped_one(tmp_path: Path) -> None:
    shipped = mean_price(hub_with(tmp_path, None))
    assert shipped.currency == "USD"
    assert shipped.per_gpu_hour not in (None, CostSettings().dollars_per_gpu_hour)


def test_a_model_without_a_price_or_an_invalid_book_is_an_unknown_price(tmp_path: Path) -> None:
    assert mean_price(hub_with(tmp_path, BOOK.replace("H200", "B200"))) == MeanPrice(None, "EUR")
    assert mean_price(hub_with(tmp_path, "[[price]")) == MeanPrice(None, "")


def test_an_incident_costs_what_the_cost_page_charges_for_its_gpus(tmp_path: Path) -> None:
    hub = hub_with(tmp_path, BOOK)
    incident = stories.lose_gpu(hub)
    reports = IncidentReports(hub.services, FleetPrices(hub.services))
    blast = asyncio.run(reports.load_blast_radius(incident))
    assert blast is not None
    assert (blast.dollars_per_hour, blast.currency) == (2.0 * blast.gpus, "EUR")
