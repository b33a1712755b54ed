"""Measure the memory of a fleet page that stays open: its JavaScript heap after forced garbage collections.

Part of `python -m bench screen --memory`. The simulated fleet runs at ten times real time. Several times a second, a
note on an open incident makes the hub send the incident list and a picture, so that minutes here are hours of a usual
page: `as_hours`, by the number of pictures.
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
# A new page still fills its charts, and the browser still compiles its code.
SETTLING_SHARE = 0.5
# A hub with default settings sends a picture with every scrape.
USUAL_SECONDS = 15.0
COUNTERS = ("Nodes", "JSEventListeners")


def measure(product: Product, *, minutes: float) -> dict[str, Any]:
    hub = Client(product.url)
    hub.inject(FAULT)
    incident = await_that(hub.incidents, within_seconds=60)[0].id
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(servers.require("chromium")), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        page.add_init_script(_console_page.OBSERVER_SCRIPT)
        page.goto(product.url)
        page.wait_for_selector("[data-testid=now][data-ready=yes]", timeout=60_000)
        inspector = page.context.new_cdp_session(page)
        inspector.send("Performance.enable")
        numbers = measure_heap(page, inspector, lambda: hub.note(incident, text="still looking"), minutes=minutes)
        browser.close()
    return numbers


def measure_heap(page: Page, inspector: CDPSession, trigger_update: Any, *, minutes: float) -> dict[str, Any]:
    """Measure heap and counters every few seconds."""
    started_at, samples = time.monotonic(), [read_counters(inspector)]
    every = max(2.0, min(30.0, 60 * minutes / 60))
    while (elapsed_seconds := time.monotonic() - started_at) < 60 * minutes:
        trigger_update()
        page.wait_for_timeout(1000 * NUDGE_SECONDS)
        if elapsed_seconds >= every * len(samples):
            samples.append(read_counters(inspector))
    pictures = len(page.evaluate("window.noted.updates"))
    return summarise(samples, minutes=minutes) | {
        "pictures": pictures,
        "as_hours": round(pictures * USUAL_SECONDS / 3600, 1),
    }


def read_counters(inspector: CDPSession) -> dict[str, float]:
    heap = _console_page.heap_bytes(inspector)
    metrics = {metric["name"]: metric["value"] for metric in inspector.send("Performance.getMetrics")["metrics"]}
    return {"at": time.monotonic(), "heap": heap, **{name: metrics[name] for name in COUNTERS}}


def summarise(samples: list[dict[str, float]], *, minutes: float) -> dict[str, Any]:
    """First and last counters, and the slope of the heap after settling, in kilobytes per minute."""
    settled = samples[int(len(samples) * SETTLING_SHARE) :]
    times, heap = np.array([sample["at"] for sample in settled]), np.array([sample["heap"] for sample in settled])
    slope = float(np.polyfit(times - times[0], heap, 1)[0]) if len(settled) > 2 else float("nan")
    return {
        "minutes": minutes,
        "heap_mb": [round(sample["heap"] / 1e6, 3) for sample in samples],
        "grown_kb_per_minute": round(60 * slope / 1000, 2),
        "nodes": [int(settled[0]["Nodes"]), int(settled[-1]["Nodes"])],
        "listeners": [int(settled[0]["JSEventListeners"]), int(settled[-1]["JSEventListeners"])],
    }
