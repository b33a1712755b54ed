"""Side by side: a filled hub, Debian's Prometheus and VictoriaMetrics with the same telemetry, asked the same.

`filled` starts them and yields one `Peer` each. Servers get their samples by remote write, less than an hour of the
whole fleet at a time, because a Prometheus takes nothing that is an hour older than its newest sample. `compare` asks
every peer the same question in turn and keeps the best time of each: what the machine does beside it only adds.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import cramjam
import numpy as np

from bench import telemetry
from tests import servers
from tests.support import engines
from watchkeeper.model.labels import Labels
from watchkeeper.query.remote import remote_write

SLICE_SLOTS = 120
PAST_SLICE = 10
FILL_SECONDS = 900.0
# Shorter than any server keeps a connection that nobody uses.
IDLE_SECONDS = 2.0
OURS, PROMETHEUS, VICTORIA = "watchkeeper", "prometheus", "victoria-metrics"
# Two engines add the same numbers in different orders.
TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Peer:
    """A server that answers Prometheus' HTTP API over one connection that stays open."""

    name: str
    connection: http.client.HTTPConnection
    last_asked: list[float] = field(default_factory=lambda: [0.0])

    def ask(self, path: str, **parameters: str) -> tuple[float, bytes]:
        """Seconds until the last byte of the answer, and the answer."""
        target = f"/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        if time.monotonic() - self.last_asked[0] > IDLE_SECONDS:
            # The server may have closed the line while slower peers were asked.
            self.connection.close()
            self.connection.connect()
        began = time.perf_counter()
        self.connection.request("GET", target)
        answer = self.connection.getresponse()
        body = answer.read()
        seconds = time.perf_counter() - began
        self.last_asked[0] = time.monotonic()
        if answer.status != 200:
            raise RuntimeError(f"{self.name} answered {answer.status} to {target}: {body[:500]!r}")
        return seconds, body


@dataclass(frozen=True, slots=True)
class Asked:
    """One question to all peers: milliseconds by name, and whether ours and Prometheus' answers are equal."""

    milliseconds: dict[str, float]
    is_equal: bool

    def ratio(self, other: str) -> float:
        return self.milliseconds[other] / self.milliseconds[OURS]


@contextlib.contextmanager
def filled(fleet: telemetry.Telemetry, folder: Path, *, others: Sequence[str]) -> Iterator[list[Peer]]:
    """Ours first, then the others that are installed."""
    with contextlib.ExitStack() as stack:
        urls = {}
        for name in others:
            if servers.find(name):
                start = engines.prometheus if name == PROMETHEUS else engines.victoria_metrics
                urls[name] = stack.enter_context(start(folder))
        port = servers.free_port()
        command = [sys.executable, "-m", "bench._hub", folder, port, fleet.gpus, fleet.slots]
        log = stack.enter_context((folder / "hub.log").open("wb"))
        ours = subprocess.Popen([str(part) for part in command], stdout=log, stderr=subprocess.STDOUT)
        stack.callback(servers.stop, ours)
        if urls:
            write(fleet, list(urls.values()))
        if VICTORIA in urls:
            engines.flush_victoria(urls[VICTORIA])
        urls = {OURS: f"http://127.0.0.1:{port}", **urls}
        _wait(ours, urls[OURS], folder / "hub.log")
        yield [Peer(name, stack.enter_context(contextlib.closing(_connect(url)))) for name, url in urls.items()]


def _connect(url: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=600)


def _wait(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + FILL_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=2):
            return
        time.sleep(0.2)
    raise RuntimeError(f"the hub did not answer within {FILL_SECONDS:g} s:\n{log.read_text()[-2000:]}")


def write(fleet: telemetry.Telemetry, urls: Sequence[str], *, days: int = 0) -> None:
    """Bring the telemetry into servers by remote write, behind seldom copies of its readings over days before it."""
    readings = dict(fleet.metrics())
    names = {
        node: [series_head(fleet.labels(metric, gpu)) for metric in readings for gpu in fleet.gpus_of(node)]
        for node in range(fleet.nodes)
    }
    past = np.array(telemetry.past_ms(days), dtype=np.int64)
    turns = np.arange(len(past)) % fleet.slots
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(contextlib.closing(_connect(url))) for url in urls]

        def send(node: int, times_ms: telemetry.Ids, slots: telemetry.Ids) -> None:
            gpus = fleet.gpus_of(node)
            rows = np.concatenate([values[gpus.start : gpus.stop, slots] for values in readings.values()])
            _post(lines, request(names[node], times_ms, rows))

        for part in _slices(len(past), PAST_SLICE):
            for node in range(fleet.nodes):
                send(node, past[part], turns[part])
        for part in _slices(fleet.slots, SLICE_SLOTS):
            for node in range(fleet.nodes):
                send(node, fleet.times_ms(node)[part], np.arange(part.start, part.stop))


def _slices(length: int, step: int) -> Iterator[slice]:
    for low, high in pairwise([*range(0, length, step), length]):
        yield slice(low, high)


def _post(lines: Sequence[http.client.HTTPConnection], body: bytes) -> None:
    for line in lines:
        line.request("POST", "/api/v1/write", body, remote_write.HEADERS)
    for line in lines:
        answer = line.getresponse()
        problem = answer.read()
        if answer.status // 100 != 2:
            raise RuntimeError(f"remote write was answered with {answer.status}: {problem[:500]!r}")


def series_head(labels: Labels) -> bytes:
    """The labels of a series as remote write has them; every part here is shorter than 128 bytes."""
    found = b""
    for name, value in labels.pairs:
        pair = b"\x0a%c%b\x12%c%b" % (len(name), name.encode(), len(value), value.encode())
        found += b"\x0a%c%b" % (len(pair), pair)
    return found


def request(heads: Sequence[bytes], times_ms: telemetry.Ids, values: telemetry.Floats) -> bytes:
    """A remote write request of series that share their times: what `remote_write.encode` writes, without a loop."""
    cells = np.empty((*values.shape, remote_write.SAMPLE_BYTES), dtype=np.uint8)
    cells[..., :3] = np.frombuffer(remote_write.SAMPLE_HEAD, dtype=np.uint8)
    cells[..., 3:11] = values[..., None].astype("<f8").view(np.uint8)
    cells[..., 11] = remote_write.TIME_TAG
    for place in range(6):
        cells[..., 12 + place] = (times_ms >> 7 * place) & 0x7F | (0x80 if place < 5 else 0)
    body = bytearray()
    for head, samples in zip(heads, cells, strict=True):
        size = len(head) + samples.size
        # A varint of two bytes: between 128 and 16,383 for up to SLICE_SLOTS samples.
        body += b"\x0a%c%c" % (size & 0x7F | 0x80, size >> 7) + head + samples.tobytes()
    return bytes(cramjam.snappy.compress_raw(bytes(body)))


def compare(peers: Sequence[Peer], path: str, *, rounds: int, **parameters: str) -> Asked:
    """Ask every peer in turn, once to warm up and then for each round; the best time counts."""
    answers = {peer.name: peer.ask(path, **parameters)[1] for peer in peers}
    best = dict.fromkeys(answers, math.inf)
    for _ in range(rounds):
        for peer in peers:
            best[peer.name] = min(best[peer.name], peer.ask(path, **parameters)[0])
    is_equal = PROMETHEUS not in answers or same(answers[OURS], answers[PROMETHEUS])
    return Asked({name: round(1000 * seconds, 3) for name, seconds in best.items()}, is_equal)


def same(ours: bytes, theirs: bytes) -> bool:
    """Whether two answers have the same series, times and values."""
    left, right = _points(json.loads(ours)), _points(json.loads(theirs))
    return left.keys() == right.keys() and all(
        [at for at, _ in left[labels]] == [at for at, _ in right[labels]]
        and all(
            math.isclose(float(a), float(b), rel_tol=TOLERANCE) or a == b
            for (_, a), (_, b) in zip(left[labels], right[labels], strict=True)
        )
        for labels in left
    )


def _points(answer: dict[str, Any]) -> dict[tuple[tuple[str, str], ...], list[list[Any]]]:
    return {
        tuple(sorted(row["metric"].items())): row.get("values") or [row["value"]] for row in answer["data"]["result"]
    }


def geometric_mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))
