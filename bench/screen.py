"""Fault to screen: from the injection of Xid 79 to the incident's card in a real browser.

The page itself notes when a card appears (a MutationObserver and the browser's clock), so that the
bench's own polling adds nothing. The clocks are one machine's.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests import servers
from tests.product.running import Product, await_that, up

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


def measure(options: argparse.Namespace) -> dict[str, float]:
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
