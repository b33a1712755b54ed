"""Measure the fleet page of a large fleet: first paint, updates, size, API calls, layout shift, memory and viewer cost.

Part of `python -m bench screen --page`. A script in the page records times with the browser's clock: when a picture, or
the fleet message before it, arrives, and when the picture is drawn on the map. The age of a picture starts when the hub
starts to render it. The page is opened twice with an empty cache: on a hub that has just read its fleet, and later
(`warm`). The cost of viewers is the CPU use of the hub with viewers minus that without them, in the same run, because
the simulated fleet is in the same process.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, CDPSession, Page, sync_playwright
from websockets.asyncio.client import connect

from tests import servers
from tests.support.running_product import Product

# Records the arrival of each picture, or of the message before it, before the page's code does, and the time when this
# picture is drawn. Drawing it again, because a filter or a list changed, is no update.
OBSERVER_SCRIPT = """
window.noted = {first: 0, updated: 0, shown: '', updates: [], ages: [], shift: 0, arrived: 0, waits: '', moved: {},
  news: 0, streamed: 0};
const Plain = window.WebSocket;
window.WebSocket = class extends Plain { constructor(...all) { super(...all);
  this.addEventListener('message', e => {
    window.noted.streamed += e.data.byteLength ?? e.data.length;
    if (typeof e.data === 'string') {
      if (e.data.startsWith('{"kind":"fleet"')) window.noted.news ||= performance.now();
      return; }
    const long = new DataView(e.data).getUint32(0, true);
    window.noted.waits = JSON.parse(new TextDecoder().decode(new Uint8Array(e.data, 4, long))).at;
    window.noted.arrived = window.noted.news || performance.now();
    window.noted.news = 0; }); } };
new PerformanceObserver(list => {
  for (const e of list.getEntries()) if (!e.hadRecentInput) { window.noted.shift += e.value;
    for (const s of e.sources) { const n = s.node, name = n?.dataset?.testid ?? n?.className ?? n?.nodeName ?? 'gone';
      window.noted.moved[name] = (window.noted.moved[name] ?? 0) + e.value / e.sources.length; } }
}).observe({type: 'layout-shift', buffered: true});
new MutationObserver(all => { for (const one of all) {
  const at = one.target.dataset.drawn, noted = window.noted, now = performance.now();
  if (!at || at === noted.shown) continue;
  if (!noted.first) noted.first = now;
  else if (!noted.updated) noted.updated = now;
  if (noted.shown && at === noted.waits) {
    noted.updates.push(now - noted.arrived);
    noted.ages.push(Date.now() - Date.parse(at)); }
  noted.shown = at;
} }).observe(document, {subtree: true, attributes: true, attributeFilter: ['data-drawn']});
"""
VIEWERS = 50
WARM_SECONDS = 15.0
OPENING_METRICS = ("first_useful_paint_ms", "first_update_ms", "update_first_ms", "update_worst_ms", "age_worst_ms")
TICK = os.sysconf("SC_CLK_TCK")


def measure(product: Product, *, seconds: float) -> dict[str, Any]:
    """Measure one page, then fifty viewers; each part takes `seconds`."""
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(servers.require("chromium")), args=["--no-sandbox"])
        numbers = watch_page(fresh_page(browser), product.url, seconds)
        warm = watch_page(fresh_page(browser), product.url, min(seconds, WARM_SECONDS))
        browser.close()
    numbers["warm"] = {name: number for name, number in warm.items() if name in OPENING_METRICS}
    return numbers | asyncio.run(measure_viewers(product, seconds)) | {"load_average": round(os.getloadavg()[0], 1)}


def fresh_page(browser: Browser) -> Page:
    return browser.new_context(viewport={"width": 1600, "height": 1000}).new_page()


def watch_page(page: Page, url: str, seconds: float) -> dict[str, Any]:
    inspector = page.context.new_cdp_session(page)
    inspector.send("Network.enable")
    weight, calls = [0], [0]
    inspector.on("Network.loadingFinished", lambda event: weight.__setitem__(0, weight[0] + event["encodedDataLength"]))
    page.on("request", lambda request: calls.__setitem__(0, calls[0] + ("/api/" in request.url)))
    page.add_init_script(OBSERVER_SCRIPT)
    page.goto(url)
    # Wait for selectors, not functions: the page's security policy forbids `eval`.
    page.wait_for_selector('[data-testid=heatmap][data-drawn^="20"]', timeout=60_000)
    page.wait_for_selector("[data-testid=now][data-ready=yes]", timeout=60_000)
    streamed = page.evaluate("window.noted.streamed")
    opened = {
        "kilobytes_to_open": round(weight[0] / 1000, 1),
        "kilobytes_streamed_to_open": round(streamed / 1000, 1),
        "api_calls_to_open": calls[0],
    }
    heap, calls[0], started_at = heap_bytes(inspector), 0, time.monotonic()
    page.wait_for_timeout(1000 * seconds)
    watched_seconds = time.monotonic() - started_at
    timings = page.evaluate("window.noted")
    heap_growth = heap_bytes(inspector) - heap
    paint_entries = page.evaluate("performance.getEntriesByType('paint').map(e => [e.name, e.startTime])")
    page.context.close()
    return opened | {
        "first_contentful_paint_ms": round(dict(paint_entries).get("first-contentful-paint", 0)),
        **summarise_updates(timings),
        "layout_shift": round(timings["shift"], 4),
        "layout_shift_of": {name: round(part, 4) for name, part in timings["moved"].items() if part >= 0.0001},
        "api_calls_per_minute": round(60 * calls[0] / watched_seconds, 1),
        "kilobytes_streamed_per_minute": round(60 * (timings["streamed"] - streamed) / 1000 / watched_seconds, 1),
        "heap_mb": round(heap / 1e6, 1),
        "heap_grown_mb": round(heap_growth / 1e6, 2),
    }


def summarise_updates(timings: Mapping[str, Any]) -> dict[str, float]:
    """Times of the first pictures, and the delays of all from arrival and from the hub until they are drawn."""
    first, updates = [*timings["updates"], math.nan][0], sorted(timings["updates"]) or [math.nan]
    ages = sorted(timings["ages"]) or [math.nan]
    return {
        "first_useful_paint_ms": round(timings["first"]),
        "first_update_ms": round(timings["updated"]),
        "updates": len(timings["updates"]),
        "update_first_ms": round(first, 1),
        "update_p50_ms": round(statistics.median(updates), 1),
        "update_worst_ms": round(updates[-1], 1),
        "age_p50_ms": round(statistics.median(ages), 1),
        "age_worst_ms": round(ages[-1], 1),
    }


def heap_bytes(inspector: CDPSession) -> float:
    inspector.send("HeapProfiler.collectGarbage")
    return float(inspector.send("Runtime.getHeapUsage")["usedSize"])


async def measure_viewers(product: Product, seconds: float) -> dict[str, float]:
    """The cores that the hub uses with fifty viewers, minus those without viewers."""
    cores_alone = await measure_cores(product, seconds)
    address = f"ws://{urlsplit(product.url).netloc}/api/live"
    received, edition = [0], product.get("/api/fleet?max_age=120&workloads=0")["edition"]
    async with asyncio.TaskGroup() as group:
        viewers = [group.create_task(keep_page_open(address, edition, received)) for _ in range(VIEWERS)]
        while received[0] < VIEWERS:
            await asyncio.sleep(0.1)
        received[0] = 0
        cores_with_viewers = await measure_cores(product, seconds)
        for task in viewers:
            task.cancel()
    return {
        "hub_cores_alone": round(cores_alone, 3),
        "hub_cores_with_viewers": round(cores_with_viewers, 3),
        "cores_for_50_viewers": round(cores_with_viewers - cores_alone, 3),
        "pictures_per_viewer_per_minute": round(60 * received[0] / VIEWERS / seconds, 1),
    }


async def keep_page_open(address: str, edition: str, received: list[int]) -> None:
    """Receive what an open page gets: pictures, incidents, and changes since its edition."""
    async with connect(address, max_size=None, proxy=None) as socket:
        await socket.send(json.dumps({"edition": edition}))
        async for message in socket:
            received[0] += isinstance(message, bytes)


async def measure_cores(product: Product, seconds: float) -> float:
    cpu_before, started_at = cpu_seconds(product.server.pid), time.monotonic()
    await asyncio.sleep(seconds)
    return (cpu_seconds(product.server.pid) - cpu_before) / (time.monotonic() - started_at)


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and its children (proc(5): utime and stime are fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return (int(fields[11]) + int(fields[12])) / TICK + sum(cpu_seconds(int(child)) for child in children)
