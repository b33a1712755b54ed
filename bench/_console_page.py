"""The fleet page with a whole fleet in it: first paint, updates, weight, calls, jumps, memory, and what viewers cost.

Part of `python -m bench screen --page`. The page itself notes the moments: when bytes of a picture arrive, or of
the news of its fleet before it, and when that picture stands on the map, by the browser's clock; a picture's age is
counted from the moment the hub began it. It is opened twice by a browser that knows nothing: on a hub that has just met
its fleet, and again later (`warm`). What viewers cost is the difference between the hub with them and without, in the
same run, because the simulated fleet lives in the same process.
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

# Notes the arrival of each picture, or of the news before it, before the page's own code does, and the moment that same
# picture stands on the canvas; what is drawn again, because a filter or a list has changed, is no update.
WATCH = """
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
OF_OPENING = ("first_useful_paint_ms", "first_update_ms", "update_first_ms", "update_worst_ms", "age_worst_ms")
TICK = os.sysconf("SC_CLK_TCK")


def measure(product: Product, *, seconds: float) -> dict[str, Any]:
    """Everything about one page, and then about fifty viewers; `seconds` is how long each part is watched."""
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(servers.require("chromium")), args=["--no-sandbox"])
        found = watch_page(fresh_page(browser), product.url, seconds)
        warm = watch_page(fresh_page(browser), product.url, min(seconds, WARM_SECONDS))
        browser.close()
    found["warm"] = {name: number for name, number in warm.items() if name in OF_OPENING}
    return found | asyncio.run(cost_of_viewers(product, seconds)) | {"load_average": round(os.getloadavg()[0], 1)}


def fresh_page(browser: Browser) -> Page:
    return browser.new_context(viewport={"width": 1600, "height": 1000}).new_page()


def watch_page(page: Page, url: str, seconds: float) -> dict[str, Any]:
    inspector = page.context.new_cdp_session(page)
    inspector.send("Network.enable")
    weight, calls = [0], [0]
    inspector.on("Network.loadingFinished", lambda told: weight.__setitem__(0, weight[0] + told["encodedDataLength"]))
    page.on("request", lambda request: calls.__setitem__(0, calls[0] + ("/api/" in request.url)))
    page.add_init_script(WATCH)
    page.goto(url)
    # No function is awaited: the page's security policy forbids `eval`, which that would need.
    page.wait_for_selector('[data-testid=heatmap][data-drawn^="20"]', timeout=60_000)
    page.wait_for_selector("[data-testid=now][data-ready=yes]", timeout=60_000)
    streamed = page.evaluate("window.noted.streamed")
    opened = {
        "kilobytes_to_open": round(weight[0] / 1000, 1),
        "kilobytes_streamed_to_open": round(streamed / 1000, 1),
        "api_calls_to_open": calls[0],
    }
    heap, calls[0], began = heap_bytes(inspector), 0, time.monotonic()
    page.wait_for_timeout(1000 * seconds)
    watched = time.monotonic() - began
    noted = page.evaluate("window.noted")
    grown = heap_bytes(inspector) - heap
    painted = page.evaluate("performance.getEntriesByType('paint').map(e => [e.name, e.startTime])")
    page.context.close()
    return opened | {
        "first_contentful_paint_ms": round(dict(painted).get("first-contentful-paint", 0)),
        **moments(noted),
        "layout_shift": round(noted["shift"], 4),
        "layout_shift_of": {name: round(part, 4) for name, part in noted["moved"].items() if part >= 0.0001},
        "api_calls_per_minute": round(60 * calls[0] / watched, 1),
        "kilobytes_streamed_per_minute": round(60 * (noted["streamed"] - streamed) / 1000 / watched, 1),
        "heap_mb": round(heap / 1e6, 1),
        "heap_grown_mb": round(grown / 1e6, 2),
    }


def moments(noted: Mapping[str, Any]) -> dict[str, float]:
    """When the first picture stood there, when the next, and how long each took from its arrival and from the hub."""
    first, updates = [*noted["updates"], math.nan][0], sorted(noted["updates"]) or [math.nan]
    ages = sorted(noted["ages"]) or [math.nan]
    return {
        "first_useful_paint_ms": round(noted["first"]),
        "first_update_ms": round(noted["updated"]),
        "updates": len(noted["updates"]),
        "update_first_ms": round(first, 1),
        "update_p50_ms": round(statistics.median(updates), 1),
        "update_worst_ms": round(updates[-1], 1),
        "age_p50_ms": round(statistics.median(ages), 1),
        "age_worst_ms": round(ages[-1], 1),
    }


def heap_bytes(inspector: CDPSession) -> float:
    inspector.send("HeapProfiler.collectGarbage")
    return float(inspector.send("Runtime.getHeapUsage")["usedSize"])


async def cost_of_viewers(product: Product, seconds: float) -> dict[str, float]:
    """Cores that the hub uses for viewers: with fifty of them, less what it uses without."""
    alone = await cores(product, seconds)
    address = f"ws://{urlsplit(product.url).netloc}/api/live"
    received, edition = [0], product.get("/api/fleet?max_age=120&workloads=0")["edition"]
    async with asyncio.TaskGroup() as group:
        watching = [group.create_task(view(address, edition, received)) for _ in range(VIEWERS)]
        while received[0] < VIEWERS:
            await asyncio.sleep(0.1)
        received[0] = 0
        together = await cores(product, seconds)
        for task in watching:
            task.cancel()
    return {
        "hub_cores_alone": round(alone, 3),
        "hub_cores_with_viewers": round(together, 3),
        "cores_for_50_viewers": round(together - alone, 3),
        "pictures_per_viewer_per_minute": round(60 * received[0] / VIEWERS / seconds, 1),
    }


async def view(address: str, edition: str, received: list[int]) -> None:
    """What an open page costs the hub: pictures, incidents, and what has changed since the edition that it has."""
    async with connect(address, max_size=None, proxy=None) as socket:
        await socket.send(json.dumps({"edition": edition}))
        async for message in socket:
            received[0] += isinstance(message, bytes)


async def cores(product: Product, seconds: float) -> float:
    before, began = cpu_seconds(product.server.pid), time.monotonic()
    await asyncio.sleep(seconds)
    return (cpu_seconds(product.server.pid) - before) / (time.monotonic() - began)


def cpu_seconds(pid: int) -> float:
    """What a process and its children have used so far (proc(5): utime and stime are fields 14 and 15)."""
    cells = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return (int(cells[11]) + int(cells[12])) / TICK + sum(cpu_seconds(int(child)) for child in children)
