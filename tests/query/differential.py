"""The same samples and the same questions for a real Prometheus and for us, over HTTP, and how the replies differ.

`NEWER_PROMETHEUS=/path/to/prometheus python -m tests.query.differential --count 3000 --seed 7` asks servers of
version 3 and prints every difference. With `--record FILE` their replies are written down, for `test_differential`,
which needs no server. One server drops metric names late, as we do, the other at once; some names come back from
the dead in the first. And 3.5 keeps histograms in places that it uses again: it is asked twice where it differs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import re
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http.client import HTTPConnection as Api
from http.client import RemoteDisconnected
from pathlib import Path
from typing import Any

from tests import servers
from tests.query import questions
from tests.web.running import serving
from tests.web.small_hub import SmallHub
from watchkeeper.model.histograms import CUSTOM, Histogram, HistogramSample, ResetHint, sum_histograms
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import STALE, Sample
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.query.remote import remote_write
from watchkeeper.query.remote.sender import group_by_series
from watchkeeper.store.head.head import Head
from watchkeeper.store.interfaces import AnySample

START_MS, STEP_MS, SCRAPES = 1_700_000_000_000, 15_000, 80
INSTANT = "1700000900"
SPAN = {"start": "1700000580", "end": "1700000700", "step": "60"}
FEATURES = "native-histograms,promql-experimental-functions"
DELAYED = f"{FEATURES},promql-delayed-name-removal"
TRIES = 3
# Characters of a question and its replies; most have half of that.
LONGEST_RECORD = 800
TOLERANCE = 1e-9
NEWER = "NEWER_PROMETHEUS"
# What versions after 3.5 say besides.
LATER_NOTES = re.compile("sort is ineffective|conflicting counter resets during histogram aggregation")
# What 3.5 says besides.
NO_NAME = ' for metric name ""'
PLACE = re.compile(r" \(\d+:\d+\)$")


def floats(chance: random.Random) -> Iterator[Sample]:
    """Gauges with gaps, counters with resets, odd numbers, series that end and come back; some on whole steps."""
    odd = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e308, -1e308, 1e-300, 2.5, -3.0)
    for node in ("n1", "n2", "n3"):
        shift = {"n1": 0, "n2": 317, "n3": 7_000}[node]
        for gpu in ("0", "1"):
            own, joules = {"node": node, "gpu": gpu}, chance.choice((0.0, 5.0, 1e9))
            for at in range(SCRAPES):
                at_ms = START_MS + at * STEP_MS + shift
                joules = 0.0 if chance.random() < 0.04 else joules + chance.randrange(0, 5000)
                if chance.random() > 0.1:
                    yield Sample(Labels({"__name__": "temp", **own}), at_ms, round(chance.uniform(30, 95), 4))
                    yield Sample(Labels({"__name__": "energy_total", **own}), at_ms, joules)
                yield Sample(Labels({"__name__": "num", **own}), at_ms, float(chance.randrange(-4, 5)))
                yield Sample(Labels({"__name__": "gpu.load", **own}), at_ms, float(at % 7))
                if gpu == "0":
                    yield Sample(Labels({"__name__": "odd", **own}), at_ms, chance.choice(odd))
                is_away = at % 30 in range(9 + shift % 5, 20)
                if at % 30 == 9 + shift % 5:
                    yield Sample(Labels({"__name__": "ended", **own}), at_ms, STALE)
                elif not is_away:
                    yield Sample(Labels({"__name__": "ended", **own}), at_ms, float(at))
                if at % 16 == 3:
                    yield Sample(Labels({"__name__": "sparse", **own}), at_ms, chance.uniform(-9, 9))
        for at in range(SCRAPES):
            place = Labels({"__name__": "place", "node": node, "rack": f"r{node[1:]}"})
            yield Sample(place, START_MS + at * STEP_MS + shift, 1.0)


def classic(chance: random.Random) -> Iterator[Sample]:
    """Cumulative buckets: good ones, ones that are not cumulative or have no bound, and ones beside a native one."""
    for name in ("wait_bucket", "broken_bucket", "both"):
        for node in ("n1", "n2"):
            counts = [0.0] * 5
            for at in range(SCRAPES):
                counts = [count + chance.randrange(0, 6) for count in counts]
                for slot, bound in enumerate(("0.1", "0.5", "1", "10", "+Inf")):
                    summed = math.fsum(counts[: slot + 1])
                    if name == "broken_bucket":
                        summed, bound = summed - 4.0 * (slot == 2), "nonsense" if slot == 3 else bound
                    own = {"__name__": name, "node": node, "le": bound}
                    yield Sample(Labels(own), START_MS + at * STEP_MS + 40, summed)


def observed(chance: random.Random, schema: int, *, threshold: float = 0.001) -> Histogram:
    """Some observations, none of which lies in the zero bucket's reach twice."""
    sides = [
        tuple((at, float(chance.randrange(0, 20))) for at in sorted(chance.sample(range(2, 12), size)))
        # A chunk of Prometheus gives each of its histograms all the buckets that any of them has, so all have some.
        for size in (chance.randrange(1, 6), chance.randrange(1, 4))
    ]
    zeros = float(chance.randrange(0, 5))
    count = zeros + sum(count for side in sides for _, count in side)
    return Histogram(schema, count, chance.uniform(-50, 100), threshold, zeros, sides[0], sides[1])


def custom(chance: random.Random, bounds: tuple[float, ...]) -> Histogram:
    counts = tuple((at, float(chance.randrange(0, 9))) for at in range(len(bounds) + 1) if chance.random() < 0.8)
    summed = sum(count for _, count in counts)
    return Histogram(CUSTOM, summed, float(chance.randrange(0, 100)), positive=counts, bounds=bounds)


def native(chance: random.Random) -> Iterator[AnySample]:
    """Counters of several schemas that begin anew, gauges, custom bounds, and series that change their kind."""
    for job in ("a", "b", "c"):
        reached: dict[str, Histogram] = {}
        for at in range(SCRAPES):
            at_ms = START_MS + at * STEP_MS + {"a": 0, "b": 317, "c": 7_000}[job]
            bounds = (1.0, 2.5, 10.0) if at % 20 < 12 else (1.0, 10.0, 20.0)
            schema = chance.choice((1, 1, 1, 0)) if at > 30 else 1
            for name, more in (
                ("latency", observed(chance, min(schema, reached["latency"].schema if reached else schema))),
                ("custom", custom(chance, (1.0, 2.5, 10.0))),
            ):
                begins = name not in reached or chance.random() < 0.06
                # Prometheus 3.5 lets a rate reach below zero, later ones do not: so no counter begins near it.
                before = more.scaled(1000.0) if begins else reached[name]
                reached[name] = sum_histograms([before, more]).histogram
                yield HistogramSample(Labels({"__name__": name, "job": job}), at_ms, reached[name])
            gauge = replace(observed(chance, chance.choice((0, 2, 3))), hint=ResetHint.GAUGE)
            yield HistogramSample(Labels({"__name__": "depth", "job": job}), at_ms, gauge)
            yield HistogramSample(Labels({"__name__": "bounds", "job": job}), at_ms, custom(chance, bounds))
            wide = observed(chance, 0, threshold=chance.choice((0.001, 0.25, 2.0)))
            yield HistogramSample(Labels({"__name__": "zeros", "job": job}), at_ms, wide)
            mixed = Labels({"__name__": "mixed", "job": job})
            is_number = at % 9 < 4
            yield Sample(mixed, at_ms, 3.0) if is_number else HistogramSample(mixed, at_ms, observed(chance, 0))
    for node in ("n1", "n2"):
        for at in range(SCRAPES):
            both = Labels({"__name__": "both", "node": node})
            yield HistogramSample(both, START_MS + at * STEP_MS + 40, observed(chance, 0))


def bodies(seed: int = 5) -> Iterator[bytes]:
    """Requests of remote write, one scrape after the other."""
    chance = random.Random(seed)
    by_scrape: dict[int, list[AnySample]] = {}
    for sample in (*floats(chance), *classic(chance), *native(chance)):
        by_scrape.setdefault((sample.at_ms - START_MS) // STEP_MS, []).append(sample)
    for _, found in sorted(by_scrape.items()):
        numbers = group_by_series(sample for sample in found if isinstance(sample, Sample))
        yield remote_write.encode(list(numbers), [one for one in found if isinstance(one, HistogramSample)])


@contextlib.contextmanager
def connected(url: str) -> Iterator[Api]:
    with contextlib.closing(Api(url.removeprefix("http://"), timeout=60)) as api:
        yield api


@contextlib.contextmanager
def ours() -> Iterator[Api]:
    """Our API over an engine that holds the samples."""
    hub, engine = SmallHub(), EmbeddedEngine(Head(retention_ms=10**11))
    for body in bodies():
        taken = remote_write.append_request(body, engine.appender)
        assert not taken.dropped, taken.dropped
    hub.engine = engine
    with serving(hub) as site, connected(site.url) as api:
        yield api


@contextlib.contextmanager
def theirs(program: Path, folder: Path) -> Iterator[tuple[Api, ...]]:
    """The APIs of two Prometheus servers that hold the samples; the first drops names late."""
    late, early = folder / "late", folder / "early"
    with _server(program, late, features=DELAYED) as first, _server(program, early, features=FEATURES) as second:
        yield first, second


@contextlib.contextmanager
def _server(program: Path, folder: Path, *, features: str) -> Iterator[Api]:
    folder.mkdir()
    url = f"http://127.0.0.1:{servers.free_port()}"
    (folder / "prometheus.yml").write_text("")
    command = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'samples'}",
        f"--web.listen-address={url.removeprefix('http://')}",
        "--web.enable-remote-write-receiver",
        "--storage.tsdb.retention.time=100y",
        f"--enable-feature={features}",
    ]
    with servers.running(command, ready_url=f"{url}/-/ready", log=folder / "prometheus.log"):
        for body in bodies():
            request = urllib.request.Request(f"{url}/api/v1/write", data=body, headers=remote_write.HEADERS)
            urllib.request.urlopen(request).close()
        with connected(url) as api:
            yield api


@dataclass(frozen=True, slots=True)
class Reply:
    """What an API said: rows of points by series, or that it refused; an ordered answer keeps its order."""

    refused: str | None
    kind: str
    rows: dict[str, list[Any]]
    notes: tuple[str, ...]

    @classmethod
    def read(cls, body: dict[str, Any]) -> Reply:
        if body["status"] != "success":
            return cls(body["errorType"], "", {}, ())
        kind, result = body["data"]["resultType"], body["data"]["result"]
        if kind in ("scalar", "string"):
            rows = {"": [["value", *result]]}
        else:
            rows = {json.dumps(row["metric"], sort_keys=True): _points(row) for row in result}
        said = {*body.get("warnings", ()), *body.get("infos", ())}
        return cls(None, kind, rows, tuple(sorted(note for note in said if not LATER_NOTES.search(note))))


def _points(row: dict[str, Any]) -> list[Any]:
    found = [["value", at, value] for at, value in ([row["value"]] if "value" in row else row.get("values", []))]
    cells = [row["histogram"]] if "histogram" in row else row.get("histograms", [])
    return sorted(found + [["histogram", at, cell] for at, cell in cells], key=lambda point: float(point[1]))


def ask(api: Api, expr: str, **when: str) -> dict[str, Any]:
    """The body of a reply; a range where `when` has a start, else an instant."""
    path = "query_range" if "start" in when else "query"
    form = urllib.parse.urlencode({"query": expr, **when})
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    try:
        api.request("POST", f"/api/v1/{path}", form, headers)
        reply = api.getresponse()
    except RemoteDisconnected:
        # A connection that was kept open may end between two questions.
        api.close()
        api.request("POST", f"/api/v1/{path}", form, headers)
        reply = api.getresponse()
    body: dict[str, Any] = json.load(reply)
    return body


def both_ways(api: Api, expr: str) -> list[dict[str, Any]]:
    return [ask(api, expr, time=INSTANT), ask(api, expr, **SPAN)]


def difference(wanted: Reply, got: Reply, *, is_ordered: bool = False) -> str | None:
    """How two replies differ, if they do."""
    if wanted.refused or got.refused:
        return None if wanted.refused == got.refused else f"they: {wanted.refused}, we: {got.refused}"
    if wanted.kind != got.kind or wanted.rows.keys() != got.rows.keys():
        return f"series on one side only: {sorted(wanted.rows.keys() ^ got.rows.keys())[:3]}, {wanted.kind} {got.kind}"
    for series, points in wanted.rows.items():
        if [point[:2] for point in points] != [point[:2] for point in got.rows[series]]:
            return f"{series}: other times or kinds: {points[:2]}, we: {got.rows[series][:2]}"
        for left, right in zip(points, got.rows[series], strict=True):
            if not is_same(left[2], right[2]):
                return f"{series} at {left[1]}: {str(left[2])[:300]}, we: {str(right[2])[:300]}"
    if is_ordered and [*wanted.rows] != [*got.rows]:
        return "another order"
    if wanted.notes == got.notes or _unplaced(wanted.notes) == _unplaced(got.notes):
        return None
    return f"they say {wanted.notes}, we {got.notes}"


def _unplaced(notes: tuple[str, ...]) -> set[str]:
    """Without places: of what is said about a subquery Prometheus has forgotten where it stood."""
    return {PLACE.sub("", note).removesuffix(NO_NAME) for note in notes}


def is_same(left: Any, right: Any) -> bool:
    """Numbers in text or not, and histograms bucket by bucket, without those that only rounding has filled."""
    if isinstance(left, dict):
        filled = [[one for one in cell.get("buckets", ()) if abs(float(one[3])) > TOLERANCE] for cell in (left, right)]
        return (
            is_same(left["count"], right["count"])
            and is_same(left["sum"], right["sum"])
            and len(filled[0]) == len(filled[1])
            and all(is_same(a, b) for one, other in zip(*filled, strict=True) for a, b in zip(one, other, strict=True))
        )
    try:
        first, second = float(left), float(right)
    except ValueError:
        return bool(left == right)
    return math.isclose(first, second, rel_tol=TOLERANCE, abs_tol=TOLERANCE) or (first != first and second != second)


def settled(expr: str, apis: tuple[Api, ...], other: Api) -> Iterator[tuple[dict[str, Any], str | None]]:
    """For an instant and for a range: a reply of theirs, ours if there is one, and how it differs."""
    for way, when in (("instant", {"time": INSTANT}), ("range", SPAN)):
        got, first = Reply.read(ask(other, expr, **when)), None
        for api in apis * TRIES:
            body = ask(api, expr, **when)
            found = difference(Reply.read(body), got, is_ordered=is_ordered(expr, way))
            first = first or (body, found and f"{way} {expr}\n    {found}")
            if found is None:
                first = body, None
                break
        assert first is not None
        yield first


def differences(asked: list[str], apis: tuple[Api, ...], other: Api) -> Iterator[str]:
    return (differs for expr in asked for _, differs in settled(expr, apis, other) if differs)


def is_ordered(expr: str, way: str) -> bool:
    return way == "instant" and re.match(r"sort\w*\(temp", expr) is not None


def newer() -> Path | None:
    """A Prometheus of version 3, where the environment names one."""
    named = os.environ.get(NEWER)
    return Path(named) if named else None


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--count", type=int, default=1000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--record", type=Path)
    chosen, program = options.parse_args(), newer()
    if program is None:
        sys.stderr.write(f"{NEWER} does not name a Prometheus\n")
        return 2
    asked = questions.questions(chosen.count, chosen.seed)
    with tempfile.TemporaryDirectory() as folder, theirs(program, Path(folder)) as apis, ours() as other:
        if chosen.record is not None:
            rows = ([expr, [body for body, _ in settled(expr, apis, other)]] for expr in asked)
            lines = [json.dumps(row, separators=(",", ":")) for row in rows]
            chosen.record.write_text("".join(f"{line}\n" for line in lines if len(line) <= LONGEST_RECORD))
            return 0
        began, found = time.process_time(), list(differences(asked, apis, other))
    sys.stdout.write("".join(f"{line}\n" for line in found))
    sys.stdout.write(f"{2 * len(asked)} questions, {len(found)} differ, {time.process_time() - began:.0f} s of CPU\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
