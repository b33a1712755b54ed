"""Ingest: what a sample costs from an exporter's page to the log on disk, beside Prometheus and VictoriaMetrics.

Two figures. `samples_per_second` is parse, append and log alone, on one core, in this process. Then all scrape the same
pages over HTTP at the same time, each as it is started by a user and with the same prometheus.yml, and the kernel says
what each process used: `*_samples_per_cpu_second`, with what the hub does beside scraping. `ratio` compares these. It
counts only while `failed_scrapes` are none: an answer that comes after the timeout costs, and brings no sample.
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
# In the first scrape every series is new, and at the 17th our rows grow, which they do six times in 480 scrapes: each
# time 0.5 ms for a node, 8 µs for a scrape on average. A look of twenty scrapes holds none of that, or far too much.
WARM_SCRAPES = 18
# Scrapes in a second by each of three scrapers that keep two cores half busy. Four times as many would need four cores:
# the exporters then answer too late, and everybody is measured in giving up and connecting anew.
MOST_SCRAPES = 320
RULES = "groups: [{name: silent, rules: [{alert: Never, expr: vector(0) > 1}]}]\n"


@dataclass(frozen=True, slots=True)
class Scraper:
    """A server that scrapes the exporters, and answers Prometheus' HTTP API."""

    pid: int
    url: str

    def failures(self, seconds: int) -> int | None:
        """How many of its scrapes in the last seconds brought nothing; None if it does not say."""
        asked = f"sum(count_over_time(up[{seconds}s])) - sum(sum_over_time(up[{seconds}s]))"
        query = urllib.parse.urlencode({"query": asked})
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/query?{query}", timeout=60) as answer:
                found = json.loads(answer.read())["data"]["result"]
        except OSError:
            return None
        return round(float(found[0]["value"][1])) if found else None


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=int, default=512, help="size of the fleet; 10000 is the one that counts")
    parser.add_argument(
        "--interval",
        type=int,
        default=0,
        help="seconds between scrapes of a target; as few as two cores bear, if not said",
    )
    parser.add_argument("--seconds", type=int, default=20, help="how long to look")
    parser.add_argument("--warm", type=int, default=WARM_SCRAPES, help="scrapes of each target before looking")
    parser.add_argument("--slots", type=int, default=20, help="pages of each node for the figure without HTTP")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    options.interval = options.interval or -(-telemetry.Telemetry(options.gpus).nodes // MOST_SCRAPES)
    with tempfile.TemporaryDirectory() as folder:
        alone = parse_append_log(telemetry.Telemetry(min(options.gpus, 512), options.slots), Path(folder) / "alone")
        numbers = (
            {"gpus": options.gpus, "interval_seconds": options.interval} | alone | side_by_side(options, Path(folder))
        )
    ours = numbers[f"{OURS}_samples_per_cpu_second"]
    if f"{PROMETHEUS}_samples_per_cpu_second" in numbers:
        numbers["ratio"] = round(ours / numbers[f"{PROMETHEUS}_samples_per_cpu_second"], 3)
    if f"{VICTORIA}_samples_per_cpu_second" in numbers:
        numbers["victoria_ratio"] = round(ours / numbers[f"{VICTORIA}_samples_per_cpu_second"], 3)
    return numbers | {"load_average": round(os.getloadavg()[0], 2)}


def parse_append_log(fleet: telemetry.Telemetry, path: Path) -> dict[str, float]:
    """CPU time from page to log; the first round, in which every line is new, is not counted."""
    pages, clock = _pages.pages(fleet), [telemetry.START_MS]
    store = durable.open_store(path, durable.StoreSettings(), clock_ms=lambda: clock[0])
    parsers = [ExpositionParser() for _ in pages]
    ids = [np.empty(0, dtype=np.int64) for _ in pages]
    began = 0.0
    for slot in range(fleet.slots):
        clock[0] = telemetry.START_MS + slot * telemetry.INTERVAL_MS
        began = began if slot != 1 else time.process_time()
        for node, parser in enumerate(parsers):
            page = parser.parse(pages[node][slot])
            if len(ids[node]) != len(page.handles):
                ids[node] = np.array([store.series_id(parser.labels[handle]) for handle in page.handles])
            store.append_scrape(f"node-{node}", ids[node], clock[0], np.frombuffer(page.values))
        store.sync()
    taken = time.process_time() - began
    log_bytes = store.status().log_bytes
    store.close()
    samples = fleet.samples // fleet.slots * (fleet.slots - 1)
    return {"samples_per_second": round(samples / taken), "log_bytes_per_sample": round(log_bytes / fleet.samples, 3)}


def side_by_side(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        pages = stack.enter_context(exporters(options.gpus, folder))
        found = {OURS: stack.enter_context(hub(pages, options, folder))}
        for name, start in ((PROMETHEUS, prometheus), (VICTORIA, victoria_metrics)):
            if servers.find(name):
                found[name] = stack.enter_context(start(pages, options, folder))
        wait_until_warm(pages, list(found), options)
        counts, before = asked(pages), {name: cpu_seconds(one.pid) for name, one in found.items()}
        time.sleep(options.seconds)
        used = {name: cpu_seconds(one.pid) - before[name] for name, one in found.items()}
        scraped = {name: asked(pages)[name] - counts[name] for name in found}
        failed = {name: one.failures(options.seconds) for name, one in found.items()}
    each = len(telemetry.METRICS) * min(options.gpus, telemetry.GPUS_PER_NODE)
    # A small fleet may need less than the one tick in which the kernel counts.
    numbers = {
        f"{name}_samples_per_cpu_second": round(scraped[name] * each / max(used[name], 1 / TICKS)) for name in found
    }
    return numbers | {"failed_scrapes": failed}


def wait_until_warm(pages: int, names: list[str], options: argparse.Namespace) -> None:
    """Until everyone has read each page so often."""
    enough = options.warm * telemetry.Telemetry(options.gpus).nodes
    while any(asked(pages).get(name, 0) < enough for name in names):
        time.sleep(0.5)


@contextlib.contextmanager
def exporters(gpus: int, folder: Path) -> Iterator[int]:
    """The port of all exporters."""
    port = servers.free_port()
    command = [sys.executable, "-m", "bench._pages", str(port), str(gpus)]
    with servers.running(command, ready_url=f"http://127.0.0.1:{port}/counts", log=folder / "pages.log"):
        yield port


def asked(pages: int) -> dict[str, int]:
    with urllib.request.urlopen(f"http://127.0.0.1:{pages}/counts", timeout=10) as answer:
        found: dict[str, int] = json.loads(answer.read())
    return found


def scrape_config(name: str, pages: int, options: argparse.Namespace, *, folder: Path) -> Path:
    """A prometheus.yml with every node's page, under a path of the scraper's own."""
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
