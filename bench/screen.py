"""Fault to screen: time from the injection of an Xid 79 to the incident card in a real browser.

A MutationObserver in the page records when a card appears with the clock of the same machine, so that polling adds no
time. With `--page` the fleet page is measured instead (`_console_page`), with `--memory` a page that stays open
(`_console_memory`).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from bench import _console_memory, _console_page
from tests import servers
from tests.support.running_product import Product, await_that, up

OBSERVER_SCRIPT = """
window.seen = {};
new MutationObserver(() => {
  for (const card of document.querySelectorAll('[data-testid=incident-card]')) {
    const title = card.textContent;
    if (!(title in window.seen)) window.seen[title] = Date.now();
  }
}).observe(document.body, {childList: true, subtree: true, characterData: true});
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--injections", type=int, default=100, help="number of faults")
    parser.add_argument("--page", action="store_true", help="measure the page of a large fleet instead of faults")
    parser.add_argument("--memory", action="store_true", help="measure the memory of a page that stays open instead")
    parser.add_argument("--minutes", type=float, default=3, help="minutes to measure with --memory")
    parser.add_argument("--gpus", type=int, default=10_000, help="size of the fleet with --page and --memory")
    parser.add_argument("--seconds", type=float, default=30, help="seconds to measure each part with --page")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    if options.memory:
        return measure_memory(options)
    return measure_page(options) if options.page else measure_faults(options)


def measure_memory(options: argparse.Namespace) -> dict[str, Any]:
    servers.READY_SECONDS = 120.0
    arguments = ("--gpus", str(options.gpus), "--speed", _console_memory.SPEED)
    with tempfile.TemporaryDirectory() as folder, up(Path(folder), *arguments) as product:
        await_that(lambda: has_all_gpus(product, options.gpus), within_seconds=180)
        return {"gpus": options.gpus, **_console_memory.measure(product, minutes=options.minutes)}


def measure_page(options: argparse.Namespace) -> dict[str, Any]:
    # A large simulated fleet takes longer to start than the default timeout allows.
    servers.READY_SECONDS = 120.0
    with tempfile.TemporaryDirectory() as folder, up(Path(folder), "--gpus", str(options.gpus)) as product:
        await_that(lambda: has_all_gpus(product, options.gpus), within_seconds=180)
        return {"gpus": options.gpus, **_console_page.measure(product, seconds=options.seconds)}


def measure_faults(options: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder, up(Path(folder), "--gpus", "1024") as product:
        await_that(lambda: count_gpus(product) == 1024, within_seconds=60)
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=str(servers.require("chromium")), args=["--no-sandbox"])
            page = browser.new_page()
            page.goto(product.url)
            page.get_by_test_id("heatmap").wait_for()
            page.evaluate(OBSERVER_SCRIPT)
            seconds = sorted(inject(product, page, number) for number in range(options.injections))
            browser.close()
    return {
        "injections": len(seconds),
        "p50_seconds": round(statistics.median(seconds), 3),
        "p99_seconds": round(seconds[min(len(seconds) - 1, int(len(seconds) * 0.99))], 3),
        "worst_seconds": round(seconds[-1], 3),
    }


def has_all_gpus(product: Product, gpus: int) -> bool:
    """Whether all GPUs have been scraped; a hub that is busy with its first scrapes may not respond in time."""
    try:
        return count_gpus(product) == gpus
    except OSError:
        return False


def count_gpus(product: Product) -> int:
    result = product.get("/api/v1/query?query=count(DCGM_FI_DEV_GPU_TEMP)")["data"]["result"]
    return int(result[0]["value"][1]) if result else 0


def inject(product: Product, page: Page, number: int) -> float:
    """Seconds from the request to the card; each fault has a different node."""
    node = f"gpu-r{number // 8 + 1:02}-{number % 8 + 1:02}"
    started_at = time.time()
    page.request.post(f"{product.url}/api/sim/faults", data={"scenario": "xid-79", "node": node, "gpu": 0})
    title = f"GPU 0 on {node} fell off the bus"
    shown_at_ms = await_that(
        lambda: page.evaluate("t => Object.entries(window.seen).find(([k]) => k.includes(t))?.[1] ?? 0", title)
    )
    return float(shown_at_ms) / 1000 - started_at
