"""Evaluate the rules of a fleet of any size on VictoriaMetrics, by us and by vmalert: `bench remote --streamed`.

Each GPU has the 25 metrics of `telemetry`. Pages are rendered when they are scraped and not stored: those of 100,000
GPUs are 700 MB. Real target loops scrape them, and real remote write sends them to the server, as fast as possible.
Then rules are evaluated while nothing is written: first by us, then by vmalert with the same files. The cost of
rendering pages is measured and subtracted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import _pages, telemetry
from bench.idle import cpu_seconds, resident_mib
from tests import servers
from tests.support.scripted import Reply, serving
from watchkeeper.hub import pipeline, rule_loops
from watchkeeper.kit import clock
from watchkeeper.net import http
from watchkeeper.query import prometheus
from watchkeeper.query.local_cache import LocalCacheEngine
from watchkeeper.rules import evaluate, rulefile
from watchkeeper.scrape import discovery, fleet, scrape, status_series
from watchkeeper.store.journal import journal

# Readings of each GPU, which scrapes get in turn.
READINGS = 4
CLUSTER = "main"
ADDRESS = "stream.invalid:80"
# Wait for a slower server; a hub would have the rest of the interval.
MAX_QUEUED = 200_000
FLUSH_SECONDS = 600.0
RULE_SECONDS = 15.0
SLOWEST_RULES = 12


class Stream:
    """Renders the pages of a fleet on request; only labels and readings are in memory."""

    def __init__(self, gpus: int) -> None:
        self.fleet = telemetry.Telemetry(gpus, READINGS)
        self._names = [telemetry.metric_name(metric) for metric in telemetry.METRICS]
        readings = dict(self.fleet.metrics())
        self._readings = [readings[metric] for metric in telemetry.METRICS]
        self.cpu_seconds = 0.0
        self.scrape_index = 0

    async def send(self, request: http.HttpRequest) -> http.HttpResponse:
        cpu_before = time.process_time()
        page = self.page(int(request.url.rpartition("/")[2]))
        self.cpu_seconds += time.process_time() - cpu_before
        return http.HttpResponse(200, {}, page)

    async def aclose(self) -> None:
        return None

    def page(self, node: int) -> bytes:
        gpus, slot = self.fleet.gpus_of(node), self.scrape_index % READINGS
        bodies = [str(self.fleet.labels("", gpu)).partition("{")[2].replace(", ", ",") for gpu in gpus]
        rows = zip(
            self._names,
            (values_of_gpus[gpus.start : gpus.stop, slot].tolist() for values_of_gpus in self._readings),
            strict=True,
        )
        return "".join(
            f"{name}{{{body} {_pages.format_number(value)}\n"
            for name, values in rows
            for body, value in zip(bodies, values, strict=True)
        ).encode()

    def targets(self) -> bytes:
        """The targets in the format of service discovery."""
        return json.dumps(
            [
                {"targets": [ADDRESS], "labels": {"__metrics_path__": f"/{node}", "instance": f"gpu-{node:04d}"}}
                for node in range(self.fleet.nodes)
            ]
        ).encode()


@dataclass(slots=True)
class RuleEvaluation:
    """One evaluation of all rules: seconds and interval of each group, and seconds and series of each rule."""

    groups: list[tuple[float, float]] = field(default_factory=list)
    rules: list[tuple[float, int, str]] = field(default_factory=list)
    failing: int = 0
    cpu_seconds: float = 0.0
    server_cpu_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Participants:
    """The parts of one run."""

    stream: Stream
    engine: prometheus.PrometheusEngine
    inventory: fleet.ScrapedInventory
    loops: Sequence[scrape.TargetLoop]
    server_pid: int
    url: str
    holders: status_series.StatusSeries = field(default_factory=status_series.StatusSeries)

    def append_status_series(self, at_ms: int) -> None:
        """Append the series of nodes and GPU holders, as a hub does at each interval."""
        gpus = range(self.stream.fleet.gpus)
        cpu_before = time.process_time()
        labels_of_gpus = [self.stream.fleet.labels("GPU_UTIL", gpu).with_labels(cluster=CLUSTER) for gpu in gpus]
        self.stream.cpu_seconds += time.process_time() - cpu_before
        workload_samples = self.holders.samples(status_series.workload_series(labels_of_gpus), at_ms)
        self.engine.appender.append(fleet.inventory_samples(self.inventory, at_ms) + workload_samples)


def log_progress(text: str) -> None:
    """Print progress with intermediate results, because a run of an hour may be stopped early."""
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", file=sys.stderr, flush=True)


async def measure(
    options: argparse.Namespace, engine: prometheus.PrometheusEngine, *, url: str, pid: int, folder: Path
) -> dict[str, Any]:
    stream, inventory = Stream(options.gpus), fleet.ScrapedInventory()
    discovered = discovery.read_groups(stream.targets(), "the stream", cluster=CLUSTER)
    inventory.set_expected_nodes(discovered.nodes, clock.to_ms(datetime.now(UTC)))
    settings = scrape.ScrapeSettings(interval_seconds=RULE_SECONDS)
    loops = [
        scrape.TargetLoop(target, settings, sink=engine.appender, inventory=inventory, connection=stream)
        for target in discovered.targets
    ]
    participants = Participants(stream, engine, inventory, loops, pid, url)
    numbers: dict[str, Any] = {"gpus": options.gpus, "nodes": len(loops)}
    numbers["first_interval"] = await write_intervals(participants, 1)
    if isinstance(engine, LocalCacheEngine):
        # As in a hub that has run for longer than any window.
        engine.cache_appender.since_ms = 0
    numbers["interval"] = await write_intervals(participants, options.intervals)
    numbers["series"] = len(engine.remote._encoded_labels)
    numbers["lost"] = engine.remote.sender.dropped.total() if engine.remote.sender is not None else 0
    await asyncio.to_thread(flush_server, url)
    if options.turns:
        who = "our_rules_near" if options.near else "our_rules"
        numbers[who] = [
            summarise(evaluation) async for evaluation in evaluate_repeatedly(participants, options.turns, folder)
        ]
    if options.vmalert_seconds:
        numbers["vmalert"] = await asyncio.to_thread(vmalert, url, pid, options.vmalert_seconds, folder=folder)
    return numbers


async def write_intervals(participants: Participants, intervals: int) -> dict[str, float]:
    """Scrape and write all pages `intervals` times; returns means per interval."""
    sender, stream = participants.engine.remote.sender, participants.stream
    assert sender is not None
    started_at, own_cpu_before, server_cpu_before = (
        time.monotonic(),
        time.process_time() - stream.cpu_seconds,
        cpu_seconds(participants.server_pid),
    )
    kept_before = sender.kept
    for number in range(intervals):
        stream.scrape_index += 1
        at_ms = clock.to_ms(datetime.now(UTC))
        for loop in participants.loops:
            await loop.scrape(at_ms)
            if sender.queued > MAX_QUEUED:
                await asyncio.to_thread(sender.flush, FLUSH_SECONDS)
        await asyncio.to_thread(participants.append_status_series, at_ms)
        if not await asyncio.to_thread(sender.flush, FLUSH_SECONDS):
            raise RuntimeError(f"the server did not accept the samples within {FLUSH_SECONDS:g} s")
        log_progress(f"interval {number + 1} of {intervals} written, {time.monotonic() - started_at:.0f} s")
    seconds, samples = time.monotonic() - started_at, sender.kept - kept_before
    used = time.process_time() - stream.cpu_seconds - own_cpu_before
    numbers = {
        "samples": round(samples / intervals),
        "seconds": round(seconds / intervals, 1),
        "samples_per_second": round(samples / seconds),
        "cpu_seconds": round(used / intervals, 2),
        "server_cpu_seconds": round((cpu_seconds(participants.server_pid) - server_cpu_before) / intervals, 2),
        "memory_mib": round(resident_mib_of_self(), 1),
        "server_memory_mib": round(resident_mib(participants.server_pid), 1),
    }
    log_progress(json.dumps(numbers))
    return numbers


def resident_mib_of_self() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def flush_server(url: str) -> None:
    """Make the newest samples visible to queries, which would otherwise take seconds."""
    with urllib.request.urlopen(f"{url}/internal/force_flush", timeout=FLUSH_SECONDS):
        pass


async def evaluate_repeatedly(participants: Participants, count: int, folder: Path) -> AsyncIterator[RuleEvaluation]:
    """Evaluate all shipped rules repeatedly, over HTTP or from the local cache, each time after an interval."""
    sample_journal = journal.Journal(folder / "journal.sqlite")
    rules = rulefile.load_rules([rule_loops.SHIPPED_RULES])
    dependencies = pipeline.dry_run_dependencies(
        participants.engine, participants.inventory, journal=sample_journal, rules=rules
    )
    rule_pipeline = pipeline.Pipeline(dependencies, now=datetime.now(UTC))
    try:
        for number in range(count):
            if number:
                await write_intervals(participants, 1)
                await asyncio.to_thread(flush_server, participants.url)
            evaluation = await asyncio.to_thread(evaluate_all, rule_pipeline, rules, participants)
            log_progress(f"evaluation {number + 1} of {count} of our rules: {json.dumps(summarise(evaluation))}")
            yield evaluation
    finally:
        sample_journal.close()


def evaluate_all(
    rule_pipeline: pipeline.Pipeline, rules: rulefile.RuleSet, participants: Participants
) -> RuleEvaluation:
    evaluation, now = RuleEvaluation(), datetime.now(UTC)
    own_cpu_before, server_cpu_before = time.process_time(), cpu_seconds(participants.server_pid)
    for group in rules.groups:
        started_at = time.perf_counter()
        rule_pipeline.evaluate(group, now)
        evaluation.groups.append((time.perf_counter() - started_at, group.interval_seconds or RULE_SECONDS))
        for rule in group.rules:
            state = rule_pipeline.rule_state[evaluate.rule_key(group, rule)]
            evaluation.rules.append((state.duration_seconds, len(state.written), f"{group.name} {rule.name}"))
            evaluation.failing += state.health is not evaluate.RuleHealth.OK
    if participants.engine.remote.sender is not None:
        participants.engine.remote.sender.flush(FLUSH_SECONDS)
    evaluation.cpu_seconds, evaluation.server_cpu_seconds = (
        time.process_time() - own_cpu_before,
        cpu_seconds(participants.server_pid) - server_cpu_before,
    )
    return evaluation


def summarise(evaluation: RuleEvaluation) -> dict[str, Any]:
    """An evaluation as numbers. Our groups run one after another, so their shares of their intervals add up."""
    total_seconds = sum(seconds for seconds, _ in evaluation.groups)
    frequent_seconds = sum(seconds for seconds, interval in evaluation.groups if interval <= RULE_SECONDS)
    share = sum(seconds / interval for seconds, interval in evaluation.groups)
    slowest = sorted(evaluation.rules, reverse=True)[:SLOWEST_RULES]
    return {
        "seconds": round(total_seconds, 2),
        "seconds_of_groups_each_15_s": round(frequent_seconds, 2),
        "share_of_time": round(share, 3),
        "keeps_up": share <= 1,
        "cpu_seconds": round(evaluation.cpu_seconds, 2),
        "server_cpu_seconds": round(evaluation.server_cpu_seconds, 2),
        "series_written": sum(count for _, count, _ in evaluation.rules),
        "failing": evaluation.failing,
        "slowest": {name: f"{seconds:.2f} s, {count} series" for seconds, count, name in slowest},
    }


def rules_for_vmalert(folder: Path) -> Path:
    """The shipped rules without `keep_firing_for`, which Debian's vmalert does not support."""
    rules_folder = folder / "rules"
    rules_folder.mkdir()
    for path in rule_loops.SHIPPED_RULES.glob("*.yaml"):
        lines = path.read_text().splitlines(keepends=True)
        (rules_folder / path.name).write_text("".join(line for line in lines if "keep_firing_for:" not in line))
    return rules_folder


def vmalert(url: str, pid: int, seconds: float, *, folder: Path) -> dict[str, Any]:
    """Run the same rules in vmalert for some time; its groups run in parallel, each at its interval."""
    address = f"127.0.0.1:{servers.free_port()}"
    # vmalert needs a notifier to start.
    with serving(Reply()) as alertmanager:
        command: list[str | Path] = [servers.require("vmalert"), f"-rule={rules_for_vmalert(folder)}/*.yaml"]
        command += [f"-datasource.url={url}", f"-remoteWrite.url={url}", f"-notifier.url={alertmanager.url}"]
        command += [f"-httpListenAddr={address}", f"-evaluationInterval={RULE_SECONDS:g}s", "-disableAlertgroupLabel"]
        command += ["-remoteWrite.maxQueueSize=2000000", "-remoteWrite.maxBatchSize=10000"]
        server_cpu_before = cpu_seconds(pid)
        with servers.running(command, ready_url=f"http://{address}/health", log=folder / "vmalert.log") as server:
            log_progress(f"vmalert evaluates for {seconds:g} s")
            time.sleep(seconds)
            metrics = read_metrics(f"http://{address}/metrics")
            own_cpu_seconds, memory_mib = cpu_seconds(server.pid), resident_mib(server.pid)
    slowest = {name: value for name, value in metrics.items() if 'quantile="1"' in name}
    iterations = {name: value for name, value in metrics.items() if name.startswith("vmalert_iteration_total{")}
    return {
        "seconds": seconds,
        "turns": round(sum(iterations.values())),
        "missed": round(sum(value for name, value in metrics.items() if "iteration_missed_total" in name)),
        "slowest_group_seconds": round(max(slowest.values(), default=float("nan")), 2),
        "sum_of_groups_seconds": round(sum(slowest.values()), 2),
        "errors": round(sum(value for name, value in metrics.items() if name.startswith("vmalert_execution_errors"))),
        "dropped": round(sum(value for name, value in metrics.items() if "remotewrite_dropped_rows_total" in name)),
        "cpu_seconds": round(own_cpu_seconds, 2),
        "server_cpu_seconds": round(cpu_seconds(pid) - server_cpu_before, 2),
        "memory_mib": round(memory_mib, 1),
        "server_memory_mib": round(resident_mib(pid), 1),
    }


def read_metrics(url: str) -> dict[str, float]:
    """The metrics of vmalert, by series."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if line.startswith("vmalert_"))
    return {name: float(value) for name, _, value in pairs}
