"""Compare a filled hub with Debian's Prometheus and VictoriaMetrics: the same telemetry, the same queries.

`running_peers` starts the servers and yields a Peer for each. Servers get their samples by remote write, less than an
hour of the whole fleet at a time, because Prometheus rejects samples that are an hour older than its newest one.
`compare` sends the same query to every peer in turn and keeps the best time of each: other work on the machine only
adds time.
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
PAST_SLICE_SLOTS = 10
FILL_SECONDS = 900.0
# Shorter than the idle timeout of any server.
IDLE_SECONDS = 2.0
OURS, PROMETHEUS, VICTORIA = "watchkeeper", "prometheus", "victoria-metrics"
# Engines add the same numbers in different orders.
TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Peer:
    """A server with Prometheus' HTTP API, over one persistent connection."""

    name: str
    connection: http.client.HTTPConnection
    last_query_at: list[float] = field(default_factory=lambda: [0.0])

    def query(self, path: str, **parameters: str) -> tuple[float, bytes]:
        """Send a query; returns the seconds until the last byte, and the response body."""
        target = f"/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        if time.monotonic() - self.last_query_at[0] > IDLE_SECONDS:
            # The server may have closed the idle connection.
            self.connection.close()
            self.connection.connect()
        started_at = time.perf_counter()
        self.connection.request("GET", target)
        response = self.connection.getresponse()
        body = response.read()
        seconds = time.perf_counter() - started_at
        self.last_query_at[0] = time.monotonic()
        if response.status != 200:
            raise RuntimeError(f"{self.name} returned {response.status} for {target}: {body[:500]!r}")
        return seconds, body


@dataclass(frozen=True, slots=True)
class QueryComparison:
    """One query to all peers: milliseconds by name, and whether our result equals Prometheus'."""

    milliseconds: dict[str, float]
    is_equal: bool

    def ratio(self, peer_name: str) -> float:
        return self.milliseconds[peer_name] / self.milliseconds[OURS]


@contextlib.contextmanager
def running_peers(fleet: telemetry.Telemetry, folder: Path, *, others: Sequence[str]) -> Iterator[list[Peer]]:
    """Start all servers; yields our hub first, then the others that are installed."""
    with contextlib.ExitStack() as stack:
        urls = {}
        for name in others:
            if servers.find(name):
                start = engines.prometheus if name == PROMETHEUS else engines.victoria_metrics
                urls[name] = stack.enter_context(start(folder))
        port = servers.free_port()
        command = [sys.executable, "-m", "bench._hub", folder, port, fleet.gpus, fleet.slots]
        log = stack.enter_context((folder / "hub.log").open("wb"))
        hub = subprocess.Popen([str(part) for part in command], stdout=log, stderr=subprocess.STDOUT)
        stack.callback(servers.stop, hub)
        if urls:
            write_telemetry(fleet, list(urls.values()))
        if VICTORIA in urls:
            engines.flush_victoria(urls[VICTORIA])
        urls = {OURS: f"http://127.0.0.1:{port}", **urls}
        _wait_until_ready(hub, urls[OURS], folder / "hub.log")
        yield [Peer(name, stack.enter_context(contextlib.closing(_connect(url)))) for name, url in urls.items()]


def _connect(url: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=600)


def _wait_until_ready(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + FILL_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=2):
            return
        time.sleep(0.2)
    raise RuntimeError(f"the hub was not ready within {FILL_SECONDS:g} s:\n{log.read_text()[-2000:]}")


def write_telemetry(fleet: telemetry.Telemetry, urls: Sequence[str], *, days: int = 0) -> None:
    """Send the telemetry to servers by remote write, after sparse copies of its readings for earlier days."""
    readings = dict(fleet.metrics())
    names = {
        node: [series_head(fleet.labels(metric, gpu)) for metric in readings for gpu in fleet.gpus_of(node)]
        for node in range(fleet.nodes)
    }
    past_times = np.array(telemetry.past_ms(days), dtype=np.int64)
    slots_of_past = np.arange(len(past_times)) % fleet.slots
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(contextlib.closing(_connect(url))) for url in urls]

        def send(node: int, times_ms: telemetry.Ids, slots: telemetry.Ids) -> None:
            gpus = fleet.gpus_of(node)
            rows = np.concatenate([values[gpus.start : gpus.stop, slots] for values in readings.values()])
            _post(connections, request(names[node], times_ms, rows))

        for part in _slices(len(past_times), PAST_SLICE_SLOTS):
            for node in range(fleet.nodes):
                send(node, past_times[part], slots_of_past[part])
        for part in _slices(fleet.slots, SLICE_SLOTS):
            for node in range(fleet.nodes):
                send(node, fleet.times_ms(node)[part], np.arange(part.start, part.stop))


def _slices(length: int, step: int) -> Iterator[slice]:
    for low, high in pairwise([*range(0, length, step), length]):
        yield slice(low, high)


def _post(connections: Sequence[http.client.HTTPConnection], body: bytes) -> None:
    for connection in connections:
        connection.request("POST", "/api/v1/write", body, remote_write.HEADERS)
    for connection in connections:
        response = connection.getresponse()
        problem = response.read()
        if response.status // 100 != 2:
            raise RuntimeError(f"remote write failed with {response.status}: {problem[:500]!r}")


def series_head(labels: Labels) -> bytes:
    """The labels of a series in the remote write format; every part is shorter than 128 bytes."""
    encoded = b""
    for name, value in labels.pairs:
        pair = b"\x0a%c%b\x12%c%b" % (len(name), name.encode(), len(value), value.encode())
        encoded += b"\x0a%c%b" % (len(pair), pair)
    return encoded


def request(heads: Sequence[bytes], times_ms: telemetry.Ids, values: telemetry.Floats) -> bytes:
    """Encode a remote write request of series with the same times, like `remote_write.encode` but vectorised."""
    encoded_samples = np.empty((*values.shape, remote_write.SAMPLE_BYTES), dtype=np.uint8)
    encoded_samples[..., :3] = np.frombuffer(remote_write.SAMPLE_HEAD, dtype=np.uint8)
    encoded_samples[..., 3:11] = values[..., None].astype("<f8").view(np.uint8)
    encoded_samples[..., 11] = remote_write.TIME_TAG
    for byte_index in range(6):
        encoded_samples[..., 12 + byte_index] = (times_ms >> 7 * byte_index) & 0x7F | (0x80 if byte_index < 5 else 0)
    body = bytearray()
    for head, samples in zip(heads, encoded_samples, strict=True):
        size = len(head) + samples.size
        # A varint of two bytes: between 128 and 16,383 for up to SLICE_SLOTS samples.
        body += b"\x0a%c%c" % (size & 0x7F | 0x80, size >> 7) + head + samples.tobytes()
    return bytes(cramjam.snappy.compress_raw(bytes(body)))


def compare(peers: Sequence[Peer], path: str, *, rounds: int, **parameters: str) -> QueryComparison:
    """Send a query to every peer in turn, once to warm up and then `rounds` times; the best time counts."""
    bodies = {peer.name: peer.query(path, **parameters)[1] for peer in peers}
    best_seconds = dict.fromkeys(bodies, math.inf)
    for _ in range(rounds):
        for peer in peers:
            best_seconds[peer.name] = min(best_seconds[peer.name], peer.query(path, **parameters)[0])
    is_equal = PROMETHEUS not in bodies or are_equal(bodies[OURS], bodies[PROMETHEUS])
    return QueryComparison({name: round(1000 * seconds, 3) for name, seconds in best_seconds.items()}, is_equal)


def are_equal(ours: bytes, theirs: bytes) -> bool:
    """Whether two results have the same series, times and values."""
    left, right = _points(json.loads(ours)), _points(json.loads(theirs))
    return left.keys() == right.keys() and all(
        [at_s for at_s, _ in left[labels]] == [at for at, _ in right[labels]]
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
