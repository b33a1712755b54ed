"""Native histograms from a scrape: asked for as protobuf where a job wants them, kept, and ended when they are gone."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.support import engines
from tests.support import protobuf_pages as pages
from tests.support.loopback import Heard, Loopback, reply, serve
from tests.support.scraped import Kept
from watchkeeper.model.labels import Labels
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.readers import exposition, exposition_protobuf
from watchkeeper.scrape import prometheus_config
from watchkeeper.scrape.fleet import ScrapedInventory
from watchkeeper.scrape.jobs import ScrapeJob, Target
from watchkeeper.scrape.scrape import ScrapeSettings, TargetHealth, TargetLoop
from watchkeeper.store.head.head import Head

PROTOBUF = f"{exposition_protobuf.CONTENT_TYPE}; proto=io.prometheus.client.MetricFamily; encoding=delimited"
AT_MS, STEP_MS = 1_700_000_000_000, 15_000
HEAT = pages.family("heat", pages.GAUGE, pages.metric(pages.GAUGE, pages.double(1, 41)))
BROKEN = pages.family("x", 9)
NATIVE = ScrapeJob(native_histograms=True)


def latency(count: int) -> bytes:
    content = pages.native(count, 2.5 * count, [count])
    return pages.family("latency", pages.HISTOGRAM, pages.metric(pages.HISTOGRAM, content, job="theirs"))


def protobuf(*families: bytes) -> bytes:
    return reply(b"".join(families), Content_Type=PROTOBUF)


Story = Callable[[TargetLoop, EmbeddedEngine, Loopback], Awaitable[None]]


def run_story(*answers: bytes, job: ScrapeJob = NATIVE) -> Callable[[Story], None]:
    """Run a story with a target that gives these answers one after the other."""
    remaining = list(answers)

    def run(story: Story) -> None:
        async def tell() -> None:
            async with serve(lambda _: remaining.pop(0)) as server:
                target = Target("a:1", f"{server.origin}/metrics", Labels({"job": "j"}), "main", job=job)
                engine = EmbeddedEngine(Head(retention_ms=10**12))
                loop = TargetLoop(target, ScrapeSettings(), sink=engine.appender, inventory=ScrapedInventory())
                await story(loop, engine, server)
                await loop.close(AT_MS + 100 * STEP_MS)

        asyncio.run(tell())

    return run


def test_a_histogram_is_stored_beside_the_numbers_of_its_page() -> None:
    @run_story(protobuf(HEAT, latency(4)), protobuf(HEAT, latency(10)))
    async def story(loop: TargetLoop, engine: EmbeddedEngine, server: Loopback) -> None:
        for scrape in range(2):
            state = await loop.scrape(AT_MS + scrape * STEP_MS)
            assert (state.health, state.error, state.samples) == (TargetHealth.UP, None, 2)
        assert server.heard[0].headers["accept"].startswith(exposition_protobuf.ACCEPT)
        now = AT_MS + STEP_MS
        [(labels, histograms)] = engine.instant("latency", now).latest_histograms().items()
        assert labels == Labels({"__name__": "latency", "exported_job": "theirs", "job": "j"})
        assert (histograms.count, histograms.sum, histograms.positive) == (10.0, 25.0, ((0, 10.0),))
        assert [*engine.instant("histogram_count(increase(latency[16s]))", now).latest().values()] == [6.4]
        assert [*engine.instant("heat", now).latest().values()] == [41.0]
        assert [*engine.instant("scrape_samples_scraped", now).latest().values()] == [2.0]


def test_a_histogram_that_is_gone_or_whose_target_is_silent_ends() -> None:
    @run_story(protobuf(HEAT, latency(4)), protobuf(HEAT), protobuf(latency(5)), reply(status=500))
    async def story(loop: TargetLoop, engine: EmbeddedEngine, _: Loopback) -> None:
        there = []
        for scrape in range(4):
            await loop.scrape(AT_MS + scrape * STEP_MS)
            there.append(len(engine.instant("latency", AT_MS + scrape * STEP_MS).latest_histograms()))
        assert there == [1, 0, 1, 0]


def test_a_target_may_change_from_protobuf_to_text_and_back() -> None:
    text = reply("heat 43\n", Content_Type="text/plain; version=0.0.4")

    @run_story(protobuf(HEAT, latency(4)), text, protobuf(HEAT, latency(6)))
    async def story(loop: TargetLoop, engine: EmbeddedEngine, _: Loopback) -> None:
        counts = []
        for scrape in range(3):
            state = await loop.scrape(AT_MS + scrape * STEP_MS)
            assert state.error is None
            now = AT_MS + scrape * STEP_MS
            counts.append(
                (*engine.instant("heat", now).latest().values(), len(engine.instant("latency", now).frame.labels))
            )
        assert counts == [(41.0, 1), (43.0, 0), (41.0, 1)]


def test_what_of_a_page_cannot_be_read_is_named_in_the_targets_error() -> None:
    @run_story(protobuf(BROKEN, HEAT))
    async def story(loop: TargetLoop, _: EmbeddedEngine, __: Loopback) -> None:
        state = await loop.scrape(AT_MS)
        assert (state.health, state.samples, state.bad_lines) == (TargetHealth.UP, 1, 1)
        assert "unknown type: 9" in (state.error or "")


def test_protobuf_that_is_not_delimited_is_refused() -> None:
    @run_story(reply(b"", Content_Type="application/vnd.google.protobuf; encoding=text"))
    async def story(loop: TargetLoop, _: EmbeddedEngine, __: Loopback) -> None:
        state = await loop.scrape(AT_MS)
        assert state.health is TargetHealth.DOWN
        assert "encoding=text', expected a metrics page. Protobuf is read only with encoding=delimited" in (
            state.error or ""
        )


def test_text_is_asked_for_where_a_job_does_not_want_native_histograms() -> None:
    @run_story(reply("heat 1\n"), job=ScrapeJob())
    async def story(loop: TargetLoop, _: EmbeddedEngine, server: Loopback) -> None:
        await loop.scrape(AT_MS)
        assert "protobuf" not in server.heard[0].headers["accept"]


def test_histograms_that_the_sink_cannot_take_are_counted() -> None:
    async def tell() -> None:
        def answer(_: Heard) -> bytes:
            return protobuf(HEAT, latency(4))

        async with serve(answer) as server:
            target = Target("a:1", f"{server.origin}/metrics", Labels({"job": "j"}), "main", job=NATIVE)
            loop = TargetLoop(target, ScrapeSettings(), sink=Kept(), inventory=ScrapedInventory())
            await loop.scrape(AT_MS)
            assert loop.dropped_samples == {"histogram": 1}
            await loop.close(AT_MS)

    asyncio.run(tell())


@pytest.mark.parametrize(
    ("shared", "own", "native", "classic"),
    [
        ("", "", False, False),
        ("", "scrape_native_histograms: true", True, False),
        ("", "scrape_protocols: [PrometheusProto, PrometheusText0.0.4]", True, False),
        ("", "scrape_protocols: [PrometheusText0.0.4, PrometheusProto]", False, False),
        ("scrape_native_histograms: true", "", True, False),
        ("scrape_native_histograms: true", "scrape_native_histograms: false", False, False),
        ("scrape_protocols: [PrometheusProto]", "always_scrape_classic_histograms: true", True, True),
    ],
)
def test_a_prometheus_yml_says_which_jobs_want_them(
    tmp_path: Path, shared: str, own: str, native: bool, classic: bool
) -> None:
    path = tmp_path / "prometheus.yml"
    path.write_text(f"global:\n  scrape_interval: 5s\n  {shared}\nscrape_configs:\n- job_name: a\n  {own}\n")
    config = prometheus_config.load(path)
    [job] = config.jobs
    assert (job.native_histograms, job.classic_histograms, config.problems) == (native, classic, ())


@pytest.mark.servers
def test_a_real_exporter_has_the_same_series_in_text_and_in_protobuf(tmp_path: Path) -> None:
    def page(url: str, accept: str) -> bytes:
        request = urllib.request.Request(f"{url}/metrics", headers={"Accept": accept})
        with urllib.request.urlopen(request) as answer:
            body: bytes = answer.read()
            return body

    text, protobuf = exposition.ExpositionParser(), exposition_protobuf.ProtobufParser(keeps_classic=True)
    with engines.prometheus(tmp_path, features="native-histograms") as url:
        # The page counts its own scrapes, in series that the first one begins.
        page(url, "text/plain")
        read = text.parse(page(url, "text/plain;version=0.0.4"))
        other = protobuf.parse(page(url, exposition_protobuf.ACCEPT))
    assert other.problems == ()
    assert {text.labels[at] for at in read.handles} == {protobuf.labels[at] for at in other.handles}
    assert text.families == protobuf.families
    assert len(other.handles) > 200
