"""Real senders write to us: Prometheus' and vmagent's remote write arrive as they were scraped."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import servers
from tests.query import contract
from tests.support import engines
from tests.support.scripted import Asked, Reply, Scripted, serving
from tests.support.waiting import until
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.query.engine import ResultType
from watchkeeper.query.remote import remote_write
from watchkeeper.store.head.head import Head

pytestmark = pytest.mark.servers
PAGE = """# TYPE temp gauge
temp{{gpu="0",name="a \\"quoted\\" näme"}} {turn}
temp{{gpu="1"}} NaN
temp{{gpu="2"}} +Inf
energy_total{{gpu="0"}} {turn}000000000.5
"""


class Hub:
    """The two ends we play: a target that is scraped, and the receiver of what was scraped."""

    def __init__(self) -> None:
        self.engine = EmbeddedEngine(Head())
        self.turns = itertools.count(1)
        self.is_well = threading.Event()
        self.is_well.set()
        self.refused: list[str] = []

    def answer(self, asked: Asked) -> Reply:
        if asked.path.startswith("/metrics"):
            return Reply(200, PAGE.format(turn=next(self.turns)).encode()) if self.is_well.is_set() else Reply(500)
        problem = remote_write.unsupported_reason(
            asked.headers.get("Content-Type"), asked.headers.get("Content-Encoding")
        )
        assert problem is None, problem
        status, text = remote_write.response_for(remote_write.append_request(asked.body, self.engine.appender))
        self.refused += [text] if text else []
        return Reply(status, text.encode())

    def count(self, selector: str) -> float:
        newest = self.engine.head.newest_ms or 0
        return sum(self.engine.instant(f"count_over_time({selector}[1h])", newest).latest().values())


def config(server: Scripted) -> str:
    target = server.url.removeprefix("http://")
    return (
        "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
        f"scrape_configs: [{{job_name: gpu, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )


@pytest.fixture
def hub() -> Iterator[tuple[Hub, Scripted]]:
    hub = Hub()
    with serving(hub.answer) as server:
        yield hub, server


def test_what_prometheus_writes_to_us_is_what_it_answers_itself(hub: tuple[Hub, Scripted], tmp_path: Path) -> None:
    ours, server = hub
    quick = "queue_config: {batch_send_deadline: 100ms}"
    write = f"remote_write: [{{url: '{server.url}/api/v1/write', {quick}}}]\n"
    with engines.prometheus(tmp_path, config(server) + write) as url, engines.engine_of(url) as theirs:
        until(lambda: ours.count('temp{gpu="0"}') >= 8)
        at_ms = ours.engine.head.newest_ms or 0
        for expr in ("temp[1h]", "energy_total[1h]", "up[1h]", 'scrape_samples_scraped{job="gpu"}[1h]'):
            mine, other = ours.engine.instant(expr, at_ms), theirs.instant(expr, at_ms)
            assert mine.kind is ResultType.MATRIX
            assert contract.rows_of(mine)
            assert contract.differences(mine, other) == []
        assert ours.refused == []


def test_a_series_that_ends_at_prometheus_ends_here(hub: tuple[Hub, Scripted], tmp_path: Path) -> None:
    ours, server = hub
    quick = "queue_config: {batch_send_deadline: 100ms}"
    write = f"remote_write: [{{url: '{server.url}/api/v1/write', {quick}}}]\n"
    with engines.prometheus(tmp_path, config(server) + write):
        until(lambda: ours.count("temp") >= 6)
        ours.is_well.clear()
        until(lambda: 0.0 in ours.engine.instant("up", ours.engine.head.newest_ms or 0).latest().values())
    assert ours.engine.instant("temp", ours.engine.head.newest_ms or 0).latest() == {}


def test_vmagent_writes_to_us(hub: tuple[Hub, Scripted], tmp_path: Path) -> None:
    ours, server = hub
    (tmp_path / "scrape.yml").write_text(config(server))
    port = servers.free_port()
    command = [
        servers.require("vmagent"),
        f"-promscrape.config={tmp_path / 'scrape.yml'}",
        f"-remoteWrite.url={server.url}/api/v1/write",
        f"-remoteWrite.tmpDataPath={tmp_path / 'vmagent'}",
        "-remoteWrite.flushInterval=200ms",
        # With more queues than one, samples of a series overtake each other.
        "-remoteWrite.queues=1",
        f"-httpListenAddr=127.0.0.1:{port}",
    ]
    with contextlib.ExitStack() as opened:
        ready = f"http://127.0.0.1:{port}/health"
        opened.enter_context(servers.running(command, ready_url=ready, log=tmp_path / "vmagent.log"))
        until(lambda: ours.count('temp{gpu="0"}') >= 5)
    [(labels, _, values)] = ours.engine.instant('temp{gpu="0"}[1h]', ours.engine.head.newest_ms or 0).frame.rows()
    assert labels["name"] == 'a "quoted" näme'
    assert values.tolist() == [values[0] + turn for turn in range(len(values))]
    assert ours.refused == []
