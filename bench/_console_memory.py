"""Memory of a fleet page that stays open: its JavaScript heap after a forced collection, again and again.

Part of `python -m bench screen --memory`. The simulated fleet runs ten times as fast as life, and a note on an open
incident some times a second has the hub send its list and a picture each time, so that minutes here are hours of a
usual page: `as_hours` says how many, by the pictures that came.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from playwright.sync_api import CDPSession, Page, sync_playwright

from bench import _console_page
from tests import servers
from tests.support.running_product import Product, await_that
from watchkeeper.client.hub import Client

SPEED = "10"
FAULT = {"scenario": "xid-79", "node": "gpu-r01-01", "gpu": 0}
NUDGE_SECONDS = 0.3
# A page that was just opened still fills its charts, and the browser still compiles its code.
SETTLING_SHARE = 0.5
# What a hub with default settings sends: a picture with every scrape.
USUAL_SECONDS = 15.0
COUNTERS = ("Nodes", "JSEventListeners")


def measure(product: Product, *, minutes: float) -> dict[str, Any]:
    hub = Client(product.url)
    hub.inject(FAULT)
    incident = await_that(hub.incidents, within_seconds=60)[0].id
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(servers.require("chromium")), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        page.add_init_script(_console_page.WATCH)
        page.goto(product.url)
        page.wait_for_selector("[data-testid=now][data-ready=yes]", timeout=60_000)
        inspector = page.context.new_cdp_session(page)
        inspector.send("Performance.enable")
        found = watch(page, inspector, lambda: hub.note(incident, text="still looking"), minutes=minutes)
        browser.close()
    return found


def watch(page: Page, inspector: CDPSession, nudge: Any, *, minutes: float) -> dict[str, Any]:
    """Heap and counters every few seconds until the time is over."""
    began, taken = time.monotonic(), [look(inspector)]
    every = max(2.0, min(30.0, 60 * minutes / 60))
    while (past := time.monotonic() - began) < 60 * minutes:
        nudge()
        page.wait_for_timeout(1000 * NUDGE_SECONDS)
        if past >= every * len(taken):
            taken.append(look(inspector))
    pictures = len(page.evaluate("window.noted.updates"))
    return told(taken, minutes=minutes) | {"pictures": pictures, "as_hours": round(pictures * USUAL_SECONDS / 3600, 1)}


def look(inspector: CDPSession) -> dict[str, float]:
    heap = _console_page.heap_bytes(inspector)
    counted = {one["name"]: one["value"] for one in inspector.send("Performance.getMetrics")["metrics"]}
    return {"at": time.monotonic(), "heap": heap, **{name: counted[name] for name in COUNTERS}}


def told(taken: list[dict[str, float]], *, minutes: float) -> dict[str, Any]:
    """First and last, and the slope of what lies behind the settling, in kilobytes a minute."""
    settled = taken[int(len(taken) * SETTLING_SHARE) :]
    at, heap = np.array([one["at"] for one in settled]), np.array([one["heap"] for one in settled])
    slope = float(np.polyfit(at - at[0], heap, 1)[0]) if len(settled) > 2 else float("nan")
    return {
        "minutes": minutes,
        "heap_mb": [round(one["heap"] / 1e6, 3) for one in taken],
        "grown_kb_per_minute": round(60 * slope / 1000, 2),
        "nodes": [int(settled[0]["Nodes"]), int(settled[-1]["Nodes"])],
        "listeners": [int(settled[0]["JSEventListeners"]), int(settled[-1]["JSEventListeners"])],
    }
