"""Fault to screen: from the injection of Xid 79 to the incident's card in a real browser.

The page itself notes when a card appears (a MutationObserver and the browser's clock), so that the
bench's own polling adds nothing. The clocks are one machine's. With `--page` the fleet page itself is measured instead:
`_console_page`; with `--memory` a page that stays open: `_console_memory`.
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

WATCH = """
window.seen = {};
new MutationObserver(() => {
  for (const card of document.querySelectorAll('[data-testid=incident-card]')) {
    const title = card.textContent;
    if (!(title in window.seen)) window.seen[title] = Date.now();
  }
}).observe(document.body, {childList: true, subtree: true, characterData: true});
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--injections", type=int, default=100, help="how many faults")
    parser.add_argument("--page", action="store_true", help="measure the page with a whole fleet instead of faults")
    parser.add_argument("--memory", action="store_true", help="watch the memory of a page that stays open instead")
    parser.add_argument("--minutes", type=float, default=3, help="how long --memory watches")
    parser.add_argument("--gpus", type=int, default=10_000, help="size of the fleet of --page and --memory")
    parser.add_argument("--seconds", type=float, default=30, help="how long --page watches each part")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    if options.memory:
        return measure_memory(options)
    return measure_page(options) if options.page else measure_faults(options)


def measure_memory(options: argparse.Namespace) -> dict[str, Any]:
    servers.READY_SECONDS = 120.0
    arguments = ("--gpus", str(options.gpus), "--speed", _console_memory.SPEED)
    with tempfile.TemporaryDirectory() as folder, up(Path(folder), *arguments) as product:
        await_that(lambda: is_whole(product, options.gpus), within_seconds=180)
        return {"gpus": options.gpus, **_console_memory.measure(product, minutes=options.minutes)}


def measure_page(options: argparse.Namespace) -> dict[str, Any]:
    # Ten thousand GPUs take a while to be made up; the tests' patience is for small fleets.
    servers.READY_SECONDS = 120.0
    with tempfile.TemporaryDirectory() as folder, up(Path(folder), "--gpus", str(options.gpus)) as product:
        await_that(lambda: is_whole(product, options.gpus), within_seconds=180)
        return {"gpus": options.gpus, **_console_page.measure(product, seconds=options.seconds)}


def measure_faults(options: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder, up(Path(folder), "--gpus", "1024") as product:
        await_that(lambda: gpus_known(product) == 1024, within_seconds=60)
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=str(servers.require("chromium")), args=["--no-sandbox"])
            page = browser.new_page()
            page.goto(product.url)
            page.get_by_test_id("heatmap").wait_for()
            page.evaluate(WATCH)
            taken = sorted(inject(product, page, number) for number in range(options.injections))
            browser.close()
    return {
        "injections": len(taken),
        "p50_seconds": round(statistics.median(taken), 3),
        "p99_seconds": round(taken[min(len(taken) - 1, int(len(taken) * 0.99))], 3),
        "worst_seconds": round(taken[-1], 3),
    }


def is_whole(product: Product, gpus: int) -> bool:
    """Whether every GPU was read; a hub that is busy with its first scrapes may take longer to say so."""
    try:
        return gpus_known(product) == gpus
    except OSError:
        return False


def gpus_known(product: Product) -> int:
    result = product.get("/api/v1/query?query=count(DCGM_FI_DEV_GPU_TEMP)")["data"]["result"]
    return int(result[0]["value"][1]) if result else 0


def inject(product: Product, page: Page, number: int) -> float:
    """Seconds from the request to the card; each fault strikes a node of its own."""
    node = f"gpu-r{number // 8 + 1:02}-{number % 8 + 1:02}"
    began = time.time()
    page.request.post(f"{product.url}/api/sim/faults", data={"scenario": "xid-79", "node": node, "gpu": 0})
    title = f"GPU 0 on {node} fell off the bus"
    seen = await_that(
        lambda: page.evaluate("t => Object.entries(window.seen).find(([k]) => k.includes(t))?.[1] ?? 0", title)
    )
    return float(seen) / 1000 - began
