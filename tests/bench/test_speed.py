"""Short benchmarks: no loss of more than 30 % compared with the stored speeds, on any machine.

speeds.toml has the lowest speed of several runs, on an idle and on a busy machine.
"""

from __future__ import annotations

import asyncio
import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bench import _hub, _pages, cli, cold, disk, rules, scale, telemetry
from bench import range as panels
from tests.bench import speeds
from tests.support.running_product import WATCHKEEPER
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.query.engine import QueryRange, QueryResult
from watchkeeper.readers.exposition import ExpositionParser
from watchkeeper.store import durable
from watchkeeper.web.prometheus import prometheus_json

pytestmark = pytest.mark.alone

FLEET = telemetry.Telemetry(gpus=512, slots=240)
SMALL = telemetry.Telemetry(gpus=64, slots=240)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedEngine]:
    store = open_store(tmp_path_factory.mktemp("speed"))
    _hub.fill(store, FLEET)
    yield EmbeddedEngine(store)
    store.close()


def open_store(path: Path) -> durable.DurableStore:
    return durable.open_store(path, durable.StoreSettings(), clock_ms=lambda: FLEET.end_ms)


def table_work() -> None:
    """NumPy copies, sums and sorts: about a tenth of the reads of the queries."""
    for _ in range(4):
        table = np.arange(512.0 * 240).reshape(512, 240) % 97
        np.sort(table.copy(), axis=1).sum(axis=0)


def page_work(pages: list[bytes]) -> None:
    """Split pages and parse their numbers."""
    for page in pages:
        array("d", [float(line.rpartition(b" ")[2]) for line in page.split(b"\n") if line])


def ask_rules(engine: EmbeddedEngine) -> list[QueryResult]:
    return [engine.instant(expr, FLEET.end_ms) for expr in rules.EXPRESSIONS]


def ask_panels(engine: EmbeddedEngine) -> list[object]:
    span = QueryRange(FLEET.end_ms - 239 * telemetry.INTERVAL_MS, FLEET.end_ms, telemetry.INTERVAL_MS)
    return [prometheus_json.write_result(engine.range(expr, span), None) for expr in panels.EXPRESSIONS]


def test_rules_keep_their_speed(engine: EmbeddedEngine) -> None:
    speeds.check("rules", lambda: ask_rules(engine), table_work)


def test_panels_keep_their_speed(engine: EmbeddedEngine) -> None:
    speeds.check("range", lambda: ask_panels(engine), table_work)


class Scraping:
    """Parses, appends and logs the pages of a small fleet repeatedly, with scrape intervals between."""

    def __init__(self, folder: Path) -> None:
        self.pages = [page for node in _pages.render_pages(telemetry.Telemetry(64, 2)) for page in node]
        self._now_ms = telemetry.START_MS
        self._store = durable.open_store(folder, durable.StoreSettings(), clock_ms=lambda: self._now_ms)
        self._parsers = [ExpositionParser() for _ in self.pages[::2]]
        self._ids: dict[int, array[int]] = {}

    def __call__(self) -> None:
        for turn in range(2):
            self._now_ms += telemetry.INTERVAL_MS
            for node, parser in enumerate(self._parsers):
                page = parser.parse(self.pages[2 * node + turn])
                if node not in self._ids:
                    ids = (self._store.series_id(parser.labels[handle]) for handle in page.handles)
                    self._ids[node] = array("q", ids)
                self._store.append_scrape(f"node-{node}", self._ids[node], self._now_ms, page.values)
        self._store.sync()

    def close(self) -> None:
        self._store.close()


def test_ingest_keeps_its_speed(tmp_path: Path) -> None:
    scraping = Scraping(tmp_path)
    speeds.check("ingest", scraping, lambda: page_work(scraping.pages))
    scraping.close()


def test_reading_the_wal_keeps_its_speed(tmp_path: Path) -> None:
    cold.fill(SMALL, tmp_path, with_blocks=False)

    def reopen() -> None:
        durable.open_store(tmp_path, durable.StoreSettings(), clock_ms=lambda: cold.end_ms(SMALL)).close()

    speeds.check("cold", reopen, table_work)


def test_the_size_of_samples_on_disk_does_not_grow(tmp_path: Path) -> None:
    numbers = disk.fill_store(SMALL, tmp_path)
    assert numbers["block_bytes_per_sample"] * speeds.KEPT_SHARE <= speeds.stored("disk_bytes_per_sample")
    assert numbers["log_bytes_per_sample"] * speeds.KEPT_SHARE <= speeds.stored("log_bytes_per_sample")


def test_the_memory_of_a_store_does_not_grow(tmp_path: Path) -> None:
    cold.fill(SMALL, tmp_path, with_blocks=False)
    numbers = cold.measure_reopen(tmp_path, SMALL)
    used = numbers["opened_megabytes"] - numbers["empty_megabytes"]
    assert used * speeds.KEPT_SHARE <= speeds.stored("memory_megabytes")


@pytest.mark.slow
def test_the_cpu_time_of_a_fleet_does_not_grow() -> None:
    def taken() -> float:
        with tempfile.TemporaryDirectory() as folder:
            return asyncio.run(scale.measure_size(64, warm=1, intervals=2, folder=Path(folder)))["cpu_seconds"]

    speeds.compare("scale", taken, lambda: speeds.cpu_seconds(table_work), turns=range(2, 8))


@pytest.mark.slow
def test_the_command_line_keeps_its_start_time() -> None:
    line = [*WATCHKEEPER, "--help"]
    speeds.compare(
        "cli", lambda: speeds.cpu_seconds_of(line), lambda: speeds.cpu_seconds_of(cli.REFERENCE), turns=range(5, 30)
    )
