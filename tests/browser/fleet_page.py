"""The page of the fleet, and what is drawn on it."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.web.running import Site

# Counts the distinct colours of the heat map; an empty canvas has one.
COLOURS = """canvas => { const d = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  const seen = new Set(); for (let i = 0; i < d.length; i += 4) seen.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]);
  return seen.size; }"""


def open_fleet(page: Page, site: Site, path: str = "/") -> None:
    page.goto(site.url + path)
    expect(page.get_by_test_id("link")).to_have_attribute("data-link", "live")
    expect(page.get_by_test_id("heatmap")).to_have_attribute("data-drawn", re.compile(r"^20"))
