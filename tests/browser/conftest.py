"""A browser with a page for each test, and one running product for the pages that need a whole one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests import servers
from tests.support.running_product import Product, await_that, up
from watchkeeper.web import pages

# What a page is expected to show is awaited for that long: two slow cores may have a hub, a browser and other tests.
PATIENCE_SECONDS = 45.0
FLAGS = [
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run"),
]
expect.set_options(timeout=1000 * PATIENCE_SECONDS)


@pytest.fixture(scope="package")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """64 simulated GPUs at ten times the speed of life; tests break nodes of their own and mend nothing."""
    servers.require("chromium")
    with up(tmp_path_factory.mktemp("demo"), "--speed", "10") as running:
        await_that(running.scraped, within_seconds=PATIENCE_SECONDS)
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not (pages.STATIC / "index.html").is_file():
        pytest.skip(f"the console is not built. `{pages.BUILD_COMMAND}` builds it")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=servers.require("chromium"), args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page whose errors fail the test: scripts that throw, and anything the security policy stops."""
    opened = browser.new_page(viewport={"width": 1600, "height": 1000}, color_scheme="dark")
    opened.set_default_timeout(1000 * PATIENCE_SECONDS)
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda said: problems.append(said.text) if "Content Security Policy" in said.text else None)
    yield opened
    opened.close()
    assert problems == []
