"""One running product for the pages that need a whole one: started when the first test asks, stopped at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests import servers
from tests.support.running_product import Product, await_that, up

# What a page is expected to show is awaited for that long: two slow cores may have a hub, a browser and other tests.
PATIENCE_SECONDS = 45.0
expect.set_options(timeout=1000 * PATIENCE_SECONDS)


@pytest.fixture(scope="package")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """64 simulated GPUs at ten times the speed of life; tests break nodes of their own and mend nothing."""
    servers.require("chromium")
    with up(tmp_path_factory.mktemp("demo"), "--speed", "10") as running:
        await_that(running.scraped, within_seconds=PATIENCE_SECONDS)
        yield running
