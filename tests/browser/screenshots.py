"""The README's pictures, taken anew: `python -m tests.browser.screenshots` writes docs/images/console-*.png.

A simulated fleet runs fast until its charts have a history, breaks in three ways, and is looked at once each incident
has its cause and its plan. The same seed gives the same fleet and jobs; only the time of day differs between two runs.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from tests import servers
from tests.support import waiting
from tests.support.paths import ROOT
from tests.support.running_product import Product, await_that, up
from watchkeeper.client.hub import Client

IMAGES = ROOT / "docs" / "images"
GPUS = 512
FLEET = ("--gpus", str(GPUS), "--mode", "ask", "--seed", "1")
HISTORY = timedelta(minutes=16)
AFTERWARDS = timedelta(minutes=6)
LOST = {"scenario": "xid-79", "node": "gpu-r03-02", "gpu": 3}
HOT = {"scenario": "fan-failure", "node": "gpu-r06-04"}
BROKEN = (LOST, HOT, {"scenario": "ib-symbol-errors", "node": "gpu-r07-01"})
PATIENCE_SECONDS, LOOK_SECONDS = 600.0, 2.0


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture: where it is taken, in which theme, how tall, and what must stand there before."""

    name: str
    path: str
    theme: str
    height: int
    ready: str


def take(folder: Path, *, speed: float) -> None:
    """Start the fleet, break it, and write the pictures into the folder."""
    servers.READY_SECONDS = PATIENCE_SECONDS
    with (
        tempfile.TemporaryDirectory() as kept,
        up(Path(kept), *FLEET, "--speed", f"{speed:g}") as product,
        sync_playwright() as play,
    ):
        hub = Client(product.url)
        live_through(hub, product)
        browser = play.chromium.launch(executable_path=str(servers.require("chromium")), args=["--no-sandbox"])
        for shot in shots(product):
            picture(browser, product.url + shot.path, shot=shot, into=folder)
        browser.close()


def live_through(hub: Client, product: Product) -> None:
    await_that(lambda: len(hub.fleet().nodes) == GPUS // 8, within_seconds=PATIENCE_SECONDS)
    until(hub, HISTORY)
    for fault in BROKEN:
        hub.inject(dict(fault))
    for fault in BROKEN:
        node = str(fault["node"])
        await_that(lambda node=node: found(product, node), within_seconds=PATIENCE_SECONDS)
    until(hub, AFTERWARDS)


def until(hub: Client, later: timedelta) -> None:
    """Wait until the fleet's own clock has gone that far; asked now and then, because the hub has enough to do."""
    end = clock(hub) + later
    waiting.until(lambda: clock(hub) >= end, timeout_seconds=PATIENCE_SECONDS, interval_seconds=LOOK_SECONDS)


def clock(hub: Client) -> datetime:
    return hub.status().now


def found(product: Product, node: str) -> str:
    """The incident of a node, once it has a cause and a plan."""
    told = (one for one in product.incidents() if one["place"]["node"] == node and one["plan"])
    return next((str(one["id"]) for one in told), "")


def shots(product: Product) -> list[Shot]:
    lost, hot = found(product, str(LOST["node"])), str(HOT["node"])
    return [
        Shot("console-fleet-dark", "/", "dark", 900, "now"),
        Shot("console-incident-light", f"/incidents/{lost}", "light", 960, "timeline"),
        Shot("console-node-dark", f"/node/{hot}", "dark", 1040, "node-strips"),
    ]


def picture(browser: Browser, url: str, *, shot: Shot, into: Path) -> None:
    size = ViewportSize(width=1440, height=shot.height)
    theme = "light" if shot.theme == "light" else "dark"
    page: Page = browser.new_page(viewport=size, color_scheme=theme, timezone_id="UTC", locale="en-GB")
    page.goto(url)
    expect(page.get_by_test_id(shot.ready)).to_have_attribute("data-ready", "yes", timeout=60_000)
    expect(page.locator("main .bone")).to_have_count(0, timeout=60_000)
    expect(page.get_by_test_id("link")).to_have_attribute("data-link", "live", timeout=60_000)
    page.screenshot(path=into / f"{shot.name}.png")
    page.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Take the README's pictures anew.")
    parser.add_argument("--into", type=Path, default=IMAGES, help="the folder for them")
    parser.add_argument("--speed", type=float, default=10.0, help="simulated seconds per second; less where it is busy")
    chosen = parser.parse_args()
    take(chosen.into, speed=chosen.speed)
