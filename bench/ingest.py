"""Ingest: the cost of a sample from an exporter's page to the WAL, compared with Prometheus and VictoriaMetrics.

`samples_per_second` is parsing, appending and logging alone, on one core, in this process. Then all servers scrape the
same pages over HTTP at the same time, each started as by a user with the same prometheus.yml.
`*_samples_per_cpu_second` uses the kernel's CPU time of each process, including other work of the hub, and `ratio`
compares these. The ratio is valid only without `failed_scrapes`: a response after the timeout costs CPU and yields no
sample.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench import _pages, telemetry
from bench.idle import TICKS, cpu_seconds
from tests import servers
from tests.support.running_product import WATCHKEEPER
from watchkeeper.readers.exposition import ExpositionParser
from watchkeeper.store import durable

OURS, PROMETHEUS, VICTORIA = "watchkeeper", "prometheus", "victoria-metrics"
# In the first scrape every series is new. At the 17th our rows grow, which happens six times in 480 scrapes and takes
# 0.5 ms for a node each time, 8 µs per scrape on average. Twenty scrapes would have none of that, or far too much.
WARM_SCRAPES = 18
# Scrapes per second of each of three scrapers, which keep two cores half busy. With four times as many, the exporters
# respond too late, and timeouts and reconnects are measured instead.
MAX_SCRAPES = 320
RULES = "groups: [{name: silent, rules: [{alert: Never, expr: vector(0) > 1}]}]\n"


@dataclass(frozen=True, slots=True)
class Scraper:
    """A server that scrapes the exporters and has Prometheus' HTTP API."""

    pid: int
    url: str

    def count_failed_scrapes(self, seconds: int) -> int | None:
        """The number of failed scrapes in the last seconds; None if unknown."""
        expr = f"sum(count_over_time(up[{seconds}s])) - sum(sum_over_time(up[{seconds}s]))"
        query = urllib.parse.urlencode({"query": expr})
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/query?{query}", timeout=60) as answer:
                result = json.loads(answer.read())["data"]["result"]
        except OSError:
            return None
        return round(float(result[0]["value"][1])) if result else None


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=int, default=512, help="size of the fleet; use 10000 for published results")
    parser.add_argument(
        "--interval",
        type=int,
        default=0,
        help="seconds between scrapes of a target; by default the lowest for two cores",
    )
    parser.add_argument("--seconds", type=int, default=20, help="seconds to measure")
    parser.add_argument("--warm", type=int, default=WARM_SCRAPES, help="scrapes of each target before measuring")
    parser.add_argument("--slots", type=int, default=20, help="pages of each node for the test without HTTP")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    options.interval = options.interval or -(-telemetry.Telemetry(options.gpus).nodes // MAX_SCRAPES)
    with tempfile.TemporaryDirectory() as folder:
        store_numbers = parse_append_log(
            telemetry.Telemetry(min(options.gpus, 512), options.slots), Path(folder) / "alone"
        )
        numbers = (
            {"gpus": options.gpus, "interval_seconds": options.interval}
            | store_numbers
            | measure_side_by_side(options, Path(folder))
        )
    ours = numbers[f"{OURS}_samples_per_cpu_second"]
    if f"{PROMETHEUS}_samples_per_cpu_second" in numbers:
        numbers["ratio"] = round(ours / numbers[f"{PROMETHEUS}_samples_per_cpu_second"], 3)
    if f"{VICTORIA}_samples_per_cpu_second" in numbers:
        numbers["victoria_ratio"] = round(ours / numbers[f"{VICTORIA}_samples_per_cpu_second"], 3)
    return numbers | {"load_average": round(os.getloadavg()[0], 2)}


def parse_append_log(fleet: telemetry.Telemetry, path: Path) -> dict[str, float]:
    """CPU time from page to WAL, without the first round, in which every line is new."""
    pages, clock = _pages.render_pages(fleet), [telemetry.START_MS]
    store = durable.open_store(path, durable.StoreSettings(), clock_ms=lambda: clock[0])
    parsers = [ExpositionParser() for _ in pages]
    ids = [np.empty(0, dtype=np.int64) for _ in pages]
    started_at = 0.0
    for slot in range(fleet.slots):
        clock[0] = telemetry.START_MS + slot * telemetry.INTERVAL_MS
        started_at = started_at if slot != 1 else time.process_time()
        for node, parser in enumerate(parsers):
            page = parser.parse(pages[node][slot])
            if len(ids[node]) != len(page.handles):
                ids[node] = np.array([store.series_id(parser.labels[handle]) for handle in page.handles])
            store.append_scrape(f"node-{node}", ids[node], clock[0], np.frombuffer(page.values))
        store.sync()
    cpu_used = time.process_time() - started_at
    log_bytes = store.status().log_bytes
    store.close()
    samples = fleet.samples // fleet.slots * (fleet.slots - 1)
    return {
        "samples_per_second": round(samples / cpu_used),
        "log_bytes_per_sample": round(log_bytes / fleet.samples, 3),
    }


def measure_side_by_side(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        pages = stack.enter_context(exporters(options.gpus, folder))
        scrapers = {OURS: stack.enter_context(hub(pages, options, folder))}
        for name, start in ((PROMETHEUS, prometheus), (VICTORIA, victoria_metrics)):
            if servers.find(name):
                scrapers[name] = stack.enter_context(start(pages, options, folder))
        wait_until_warm(pages, list(scrapers), options)
        counts_before, cpu_before = (
            read_counts(pages),
            {name: cpu_seconds(scraper.pid) for name, scraper in scrapers.items()},
        )
        time.sleep(options.seconds)
        cpu_used = {name: cpu_seconds(scraper.pid) - cpu_before[name] for name, scraper in scrapers.items()}
        scraped = {name: read_counts(pages)[name] - counts_before[name] for name in scrapers}
        failed = {name: scraper.count_failed_scrapes(options.seconds) for name, scraper in scrapers.items()}
    samples_per_scrape = len(telemetry.METRICS) * min(options.gpus, telemetry.GPUS_PER_NODE)
    # A small fleet may need less than one tick of the kernel's clock.
    numbers = {
        f"{name}_samples_per_cpu_second": round(scraped[name] * samples_per_scrape / max(cpu_used[name], 1 / TICKS))
        for name in scrapers
    }
    return numbers | {"failed_scrapes": failed}


def wait_until_warm(pages: int, names: list[str], options: argparse.Namespace) -> None:
    """Wait until each scraper has read every page `options.warm` times."""
    min_scrapes = options.warm * telemetry.Telemetry(options.gpus).nodes
    while any(read_counts(pages).get(name, 0) < min_scrapes for name in names):
        time.sleep(0.5)


@contextlib.contextmanager
def exporters(gpus: int, folder: Path) -> Iterator[int]:
    """Serve all exporters; yields their port."""
    port = servers.free_port()
    command = [sys.executable, "-m", "bench._pages", str(port), str(gpus)]
    with servers.running(command, ready_url=f"http://127.0.0.1:{port}/counts", log=folder / "pages.log"):
        yield port


def read_counts(pages: int) -> dict[str, int]:
    with urllib.request.urlopen(f"http://127.0.0.1:{pages}/counts", timeout=10) as answer:
        counts: dict[str, int] = json.loads(answer.read())
    return counts


def scrape_config(name: str, pages: int, options: argparse.Namespace, *, folder: Path) -> Path:
    """Write a prometheus.yml with the pages of all nodes, under a separate path for each scraper."""
    job = {
        "job_name": "dcgm",
        "scrape_interval": f"{options.interval}s",
        "scrape_timeout": f"{options.interval}s",
        "static_configs": [
            {
                "targets": [f"127.0.0.1:{pages}"],
                "labels": {"__metrics_path__": f"/{name}/{node}", "instance": f"gpu-{node:04d}"},
            }
            for node in range(telemetry.Telemetry(options.gpus).nodes)
        ],
    }
    path = folder / f"{name}.yml"
    path.write_text(json.dumps({"scrape_configs": [job]}))
    return path


@contextlib.contextmanager
def hub(pages: int, options: argparse.Namespace, folder: Path) -> Iterator[Scraper]:
    port = servers.free_port()
    url = f"http://127.0.0.1:{port}"
    (folder / "rules.yml").write_text(RULES)
    (folder / "hub.toml").write_text(
        f'[hub]\nport = {port}\ndata = "{folder / "hub"}"\n'
        f'[fleet]\nprometheus_config = "{scrape_config(OURS, pages, options, folder=folder)}"\n'
        f'[rules]\nfiles = ["{folder / "rules.yml"}"]\n'
    )
    line: list[str | Path] = [*WATCHKEEPER, "hub", "--config", folder / "hub.toml"]
    with servers.running(line, ready_url=f"{url}/-/ready", log=folder / "hub.log") as server:
        yield Scraper(server.pid, url)


@contextlib.contextmanager
def prometheus(pages: int, options: argparse.Namespace, folder: Path) -> Iterator[Scraper]:
    url = f"127.0.0.1:{servers.free_port()}"
    line = [
        *("prometheus", f"--config.file={scrape_config(PROMETHEUS, pages, options, folder=folder)}"),
        *(f"--storage.tsdb.path={folder / 'prometheus'}", f"--web.listen-address={url}"),
    ]
    with servers.running(line, ready_url=f"http://{url}/-/ready", log=folder / "prometheus.log") as server:
        yield Scraper(server.pid, f"http://{url}")


@contextlib.contextmanager
def victoria_metrics(pages: int, options: argparse.Namespace, folder: Path) -> Iterator[Scraper]:
    url = f"127.0.0.1:{servers.free_port()}"
    line = [
        *("victoria-metrics", f"-promscrape.config={scrape_config(VICTORIA, pages, options, folder=folder)}"),
        *(f"-storageDataPath={folder / 'victoria'}", f"-httpListenAddr={url}"),
    ]
    with servers.running(line, ready_url=f"http://{url}/health", log=folder / "victoria.log") as server:
        yield Scraper(server.pid, f"http://{url}")
