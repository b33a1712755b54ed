"""A fleet of any size on a VictoriaMetrics, its rules evaluated by us and by vmalert; `bench remote --streamed`.

25 metrics for each GPU, as `telemetry` has them. A page is made when it is scraped and gone when it was read: of
100,000 GPUs all pages are 700 MB. Real target loops read them, real remote write brings them to the server, in real
time and as fast as it goes. Then everybody who can own the rules has a look at them while nothing is written:
first we, then vmalert with the same files. Costs of making pages are measured and left out.
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

# Of each GPU; scrapes get one after the other.
READINGS = 4
CLUSTER = "main"
ADDRESS = "stream.invalid:80"
# A server that is slower than we are is waited for: a hub would have the rest of the interval.
MOST_WAITING = 200_000
FLUSH_SECONDS = 600.0
RULE_SECONDS = 15.0
SLOWEST = 12


class Stream:
    """Pages of a fleet, each made anew; between two calls only labels of GPUs and numbers are held."""

    def __init__(self, gpus: int) -> None:
        self.fleet = telemetry.Telemetry(gpus, READINGS)
        self._names = [telemetry.name_of(metric) for metric in telemetry.METRICS]
        readings = dict(self.fleet.metrics())
        self._readings = [readings[metric] for metric in telemetry.METRICS]
        self.cpu_seconds = 0.0
        self.turn = 0

    async def send(self, request: http.HttpRequest) -> http.HttpResponse:
        before = time.process_time()
        page = self.page(int(request.url.rpartition("/")[2]))
        self.cpu_seconds += time.process_time() - before
        return http.HttpResponse(200, {}, page)

    async def aclose(self) -> None:
        return None

    def page(self, node: int) -> bytes:
        gpus, slot = self.fleet.gpus_of(node), self.turn % READINGS
        bodies = [str(self.fleet.labels("", gpu)).partition("{")[2].replace(", ", ",") for gpu in gpus]
        rows = zip(self._names, (held[gpus.start : gpus.stop, slot].tolist() for held in self._readings), strict=True)
        return "".join(
            f"{name}{{{body} {_pages.write(value)}\n"
            for name, values in rows
            for body, value in zip(bodies, values, strict=True)
        ).encode()

    def targets(self) -> bytes:
        """The list that discovery reads."""
        return json.dumps(
            [
                {"targets": [ADDRESS], "labels": {"__metrics_path__": f"/{node}", "instance": f"gpu-{node:04d}"}}
                for node in range(self.fleet.nodes)
            ]
        ).encode()


@dataclass(slots=True)
class Turn:
    """One turn of all rules: seconds and interval of each group, what each rule took, and how much it wrote."""

    groups: list[tuple[float, float]] = field(default_factory=list)
    rules: list[tuple[float, int, str]] = field(default_factory=list)
    failing: int = 0
    cpu_seconds: float = 0.0
    server_cpu_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Parties:
    """Everybody who takes part."""

    stream: Stream
    engine: prometheus.PrometheusEngine
    known: fleet.ScrapedInventory
    loops: Sequence[scrape.TargetLoop]
    pid: int
    url: str
    holders: status_series.StatusSeries = field(default_factory=status_series.StatusSeries)

    def stand(self, at_ms: int) -> None:
        """What a hub writes itself at each interval: its nodes, and who holds which GPU."""
        gpus = range(self.stream.fleet.gpus)
        before = time.process_time()
        told = [self.stream.fleet.labels("GPU_UTIL", gpu).with_labels(cluster=CLUSTER) for gpu in gpus]
        self.stream.cpu_seconds += time.process_time() - before
        held = self.holders.samples(status_series.workload_series(told), at_ms)
        self.engine.appender.append(fleet.inventory_samples(self.known, at_ms) + held)


def say(text: str) -> None:
    """Progress, with each number as soon as it is known: a run of an hour may be ended early."""
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", file=sys.stderr, flush=True)


async def measure(
    options: argparse.Namespace, engine: prometheus.PrometheusEngine, *, url: str, pid: int, folder: Path
) -> dict[str, Any]:
    stream, known = Stream(options.gpus), fleet.ScrapedInventory()
    found = discovery.read_groups(stream.targets(), "the stream", defaults=discovery.DiscoveryDefaults(cluster=CLUSTER))
    known.set_expected_nodes(found.nodes, clock.to_ms(datetime.now(UTC)))
    settings = scrape.ScrapeSettings(interval_seconds=RULE_SECONDS)
    loops = [
        scrape.TargetLoop(one, settings, sink=engine.appender, inventory=known, connection=stream)
        for one in found.targets
    ]
    parties = Parties(stream, engine, known, loops, pid, url)
    numbers: dict[str, Any] = {"gpus": options.gpus, "nodes": len(loops)}
    numbers["first_interval"] = await written(parties, 1)
    if isinstance(engine, LocalCacheEngine):
        # As in a hub that has run for longer than any window; windows hold what was written.
        engine.cache_appender.since_ms = 0
    numbers["interval"] = await written(parties, options.intervals)
    numbers["series"] = len(engine.remote._numbered)
    numbers["lost"] = engine.remote.sender.dropped.total() if engine.remote.sender is not None else 0
    await asyncio.to_thread(show, url)
    if options.turns:
        who = "our_rules_near" if options.near else "our_rules"
        numbers[who] = [judged(turn) async for turn in our_turns(parties, options.turns, folder)]
    if options.vmalert_seconds:
        numbers["vmalert"] = await asyncio.to_thread(vmalert, url, pid, options.vmalert_seconds, folder=folder)
    return numbers


async def written(parties: Parties, intervals: int) -> dict[str, float]:
    """Scrape all pages so often and write them; the means of one interval."""
    sender, stream = parties.engine.remote.sender, parties.stream
    assert sender is not None
    began, own, there = time.monotonic(), time.process_time() - stream.cpu_seconds, cpu_seconds(parties.pid)
    kept = sender.kept
    for number in range(intervals):
        stream.turn += 1
        at_ms = clock.to_ms(datetime.now(UTC))
        for loop in parties.loops:
            await loop.scrape(at_ms)
            if sender.queued > MOST_WAITING:
                await asyncio.to_thread(sender.flush, FLUSH_SECONDS)
        await asyncio.to_thread(parties.stand, at_ms)
        if not await asyncio.to_thread(sender.flush, FLUSH_SECONDS):
            raise RuntimeError(f"the server did not take what was written within {FLUSH_SECONDS:g} s")
        say(f"interval {number + 1} of {intervals} written, {time.monotonic() - began:.0f} s")
    seconds, samples = time.monotonic() - began, sender.kept - kept
    used = time.process_time() - stream.cpu_seconds - own
    found = {
        "samples": round(samples / intervals),
        "seconds": round(seconds / intervals, 1),
        "samples_per_second": round(samples / seconds),
        "cpu_seconds": round(used / intervals, 2),
        "server_cpu_seconds": round((cpu_seconds(parties.pid) - there) / intervals, 2),
        "memory_mib": round(resident_mib_of_self(), 1),
        "server_memory_mib": round(resident_mib(parties.pid), 1),
    }
    say(json.dumps(found))
    return found


def resident_mib_of_self() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def show(url: str) -> None:
    """Let the server answer with what was written a moment ago; it would do so after seconds."""
    with urllib.request.urlopen(f"{url}/internal/force_flush", timeout=FLUSH_SECONDS):
        pass


async def our_turns(parties: Parties, turns: int, folder: Path) -> AsyncIterator[Turn]:
    """Every shipped rule asked over HTTP, or near by, and written back: turn after turn, each after an interval."""
    kept = journal.Journal(folder / "journal.sqlite")
    rules = rulefile.load_rules([rule_loops.SHIPPED_RULES])
    parts = pipeline.dry_run_dependencies(parties.engine, parties.known, journal=kept, rules=rules)
    line = pipeline.Pipeline(parts, now=datetime.now(UTC))
    try:
        for number in range(turns):
            if number:
                await written(parties, 1)
                await asyncio.to_thread(show, parties.url)
            turn = await asyncio.to_thread(our_turn, line, rules, parties)
            say(f"turn {number + 1} of {turns} of our rules: {json.dumps(judged(turn))}")
            yield turn
    finally:
        kept.close()


def our_turn(line: pipeline.Pipeline, rules: rulefile.RuleSet, parties: Parties) -> Turn:
    turn, now = Turn(), datetime.now(UTC)
    own, there = time.process_time(), cpu_seconds(parties.pid)
    for group in rules.groups:
        began = time.perf_counter()
        line.evaluate(group, now)
        turn.groups.append((time.perf_counter() - began, group.interval_seconds or RULE_SECONDS))
        for rule in group.rules:
            state = line.rule_state[evaluate.rule_key(group, rule)]
            turn.rules.append((state.duration_seconds, len(state.written), f"{group.name} {rule.name}"))
            turn.failing += state.health is not evaluate.RuleHealth.OK
    if parties.engine.remote.sender is not None:
        parties.engine.remote.sender.flush(FLUSH_SECONDS)
    turn.cpu_seconds, turn.server_cpu_seconds = time.process_time() - own, cpu_seconds(parties.pid) - there
    return turn


def judged(turn: Turn) -> dict[str, Any]:
    """A turn as numbers. Our groups have their turns one after the other, so their shares of their intervals add up."""
    whole = sum(seconds for seconds, _ in turn.groups)
    often = sum(seconds for seconds, interval in turn.groups if interval <= RULE_SECONDS)
    share = sum(seconds / interval for seconds, interval in turn.groups)
    slowest = sorted(turn.rules, reverse=True)[:SLOWEST]
    return {
        "seconds": round(whole, 2),
        "seconds_of_groups_each_15_s": round(often, 2),
        "share_of_time": round(share, 3),
        "keeps_up": share <= 1,
        "cpu_seconds": round(turn.cpu_seconds, 2),
        "server_cpu_seconds": round(turn.server_cpu_seconds, 2),
        "series_written": sum(count for _, count, _ in turn.rules),
        "failing": turn.failing,
        "slowest": {name: f"{seconds:.2f} s, {count} series" for seconds, count, name in slowest},
    }


def rules_for_vmalert(folder: Path) -> Path:
    """The shipped rules without `keep_firing_for`, which Debian's vmalert does not know."""
    kept = folder / "rules"
    kept.mkdir()
    for path in rule_loops.SHIPPED_RULES.glob("*.yaml"):
        lines = path.read_text().splitlines(keepends=True)
        (kept / path.name).write_text("".join(one for one in lines if "keep_firing_for:" not in one))
    return kept


def vmalert(url: str, pid: int, seconds: float, *, folder: Path) -> dict[str, Any]:
    """The same rules in vmalert for some time: its groups have their turns side by side, each in its interval."""
    address = f"127.0.0.1:{servers.free_port()}"
    # It will not start without somebody who takes its alerts.
    with serving(Reply()) as alertmanager:
        line: list[str | Path] = [servers.require("vmalert"), f"-rule={rules_for_vmalert(folder)}/*.yaml"]
        line += [f"-datasource.url={url}", f"-remoteWrite.url={url}", f"-notifier.url={alertmanager.url}"]
        line += [f"-httpListenAddr={address}", f"-evaluationInterval={RULE_SECONDS:g}s", "-disableAlertgroupLabel"]
        line += ["-remoteWrite.maxQueueSize=2000000", "-remoteWrite.maxBatchSize=10000"]
        there = cpu_seconds(pid)
        with servers.running(line, ready_url=f"http://{address}/health", log=folder / "vmalert.log") as server:
            say(f"vmalert evaluates for {seconds:g} s")
            time.sleep(seconds)
            found = told(f"http://{address}/metrics")
            own, memory = cpu_seconds(server.pid), resident_mib(server.pid)
    slowest = {name: value for name, value in found.items() if 'quantile="1"' in name}
    turns = {name: value for name, value in found.items() if name.startswith("vmalert_iteration_total{")}
    return {
        "seconds": seconds,
        "turns": round(sum(turns.values())),
        "missed": round(sum(value for name, value in found.items() if "iteration_missed_total" in name)),
        "slowest_group_seconds": round(max(slowest.values(), default=float("nan")), 2),
        "sum_of_groups_seconds": round(sum(slowest.values()), 2),
        "errors": round(sum(value for name, value in found.items() if name.startswith("vmalert_execution_errors"))),
        "dropped": round(sum(value for name, value in found.items() if "remotewrite_dropped_rows_total" in name)),
        "cpu_seconds": round(own, 2),
        "server_cpu_seconds": round(cpu_seconds(pid) - there, 2),
        "memory_mib": round(memory, 1),
        "server_memory_mib": round(resident_mib(pid), 1),
    }


def told(url: str) -> dict[str, float]:
    """A page of metrics, by series."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (one.rpartition(" ") for one in lines if one.startswith("vmalert_"))
    return {name: float(value) for name, _, value in pairs}
