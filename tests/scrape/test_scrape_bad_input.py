"""Pages that are wrong, endless or strange, and rules about what is kept of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.support.loopback import Heard, reply, serve
from tests.support.scraped import OWN, Kept, target, with_pages
from watchkeeper.model.exemplars import Exemplar
from watchkeeper.model.labels import Labels
from watchkeeper.scrape.dcgm_names import canonical_labels, names_before_4_6
from watchkeeper.scrape.fleet import ScrapedInventory
from watchkeeper.scrape.jobs import LabelLimits, ScrapeJob
from watchkeeper.scrape.relabel import RelabelAction, RelabelRule
from watchkeeper.scrape.scrape import ScrapeSettings, TargetHealth, TargetLoop
from watchkeeper.store.exemplars import Exemplars
from watchkeeper.store.metadata import Metadata

MINUTE_MS = 60_000


def with_job(job: ScrapeJob, *pages: bytes, sink: Kept | None = None) -> Kept:
    """Scrape these pages one after another, a second apart, as a target of this job."""
    remaining, kept = list(pages), sink or Kept()

    async def story() -> None:
        async with serve(lambda _: remaining.pop(0)) as server:
            loop = TargetLoop(
                replace(target(server), job=job), ScrapeSettings(), sink=kept, inventory=ScrapedInventory()
            )
            for at_ms in range(1000, 1000 * len(pages) + 1, 1000):
                await loop.scrape(at_ms)
            await loop._connection.aclose()

    asyncio.run(story())
    return kept


def test_a_dropped_series_is_never_stored_and_the_others_keep_their_values() -> None:
    rules = (RelabelRule(source_labels=("__name__",), regex="go_.*", action=RelabelAction.DROP),)
    page = reply("go_threads 9\na 1\ngo_gc 2\nb 3\n")
    kept = with_job(ScrapeJob(metric_rules=rules), page, page)
    assert {name: kept.told()[name] for name in ("a", "b")} == {"a": 1.0, "b": 3.0}
    assert not [labels for labels in kept.known if labels.name.startswith("go_")]
    assert (kept.told()["scrape_samples_scraped"], kept.told()["scrape_samples_post_metric_relabeling"]) == (4.0, 2.0)
    assert kept.appends[0][1] is kept.appends[1][1]


def test_rules_may_rename_a_series_and_of_two_equal_ones_the_first_is_kept() -> None:
    rules = (RelabelRule(regex="gpu", action=RelabelAction.LABEL_DROP),)
    kept = with_job(ScrapeJob(metric_rules=rules), reply('a{gpu="0"} 1\na{gpu="1"} 2\n'))
    assert kept.told()["a"] == 1.0


def test_times_far_ahead_are_dropped_and_counted() -> None:
    far = 1000 + 11 * MINUTE_MS

    @with_pages(reply(f"a 1 {far}\nb 2\nc 3 900\n"), reply("a 1\nb 2\n"))
    async def story(loop: TargetLoop, sink: Kept, _: ScrapedInventory) -> None:
        state = await loop.scrape(1000)
        assert state.error == "1 samples were dropped: their timestamps are more than 10 minutes ahead"
        assert loop.dropped_samples["future"] == 1
        assert [at_ms for _, _, at_ms, _ in sink.appends] == [900, 1000]
        assert (sink.told(0), sink.told().get("b")) == ({"c": 3.0}, 2.0)
        await loop.scrape(2000)
        assert (sink.told()["a"], sink.told()["b"]) == (1.0, 2.0)


def test_times_of_the_exporter_do_not_count_where_the_job_says_so() -> None:
    kept = with_job(ScrapeJob(honor_timestamps=False), reply("a 1 500\n"))
    assert (kept.appends[-1][2], kept.told()["a"]) == (1000, 1.0)


def test_a_target_that_never_finishes_is_given_up_in_time() -> None:
    async def drip(request: Heard) -> bytes:
        request.writer.write(b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not request.writer.is_closing():
            request.writer.write(b"4\r\na 1\n\r\n")
            await request.writer.drain()
            await asyncio.sleep(0.005)
        return b""

    async def story() -> None:
        async with serve(drip) as server:
            settings = ScrapeSettings(timeout_seconds=0.1)
            loop = TargetLoop(target(server), settings, sink=Kept(), inventory=ScrapedInventory())
            state = await loop.scrape(1000)
            assert state.health is TargetHealth.DOWN
            assert "no answer within 0.1 s" in (state.error or "")

    asyncio.run(story())


@pytest.mark.slow
def test_a_page_of_a_million_series_is_refused_with_both_numbers() -> None:
    @with_pages(reply("".join(f"a{number} 1\n" for number in range(1_000_000))), reply("a 1\n"))
    async def story(loop: TargetLoop, sink: Kept, _: ScrapedInventory) -> None:
        state = await loop.scrape(1000)
        assert "1000000 samples, the limit is 250000" in (state.error or "")
        assert (await loop.scrape(2000)).health is TargetHealth.UP


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "application/json", "application/vnd.google.protobuf"])
def test_a_page_that_is_no_page_of_metrics_is_a_failed_scrape(kind: str) -> None:
    @with_pages(reply("<html>", Content_Type=kind))
    async def story(loop: TargetLoop, _: Kept, __: ScrapedInventory) -> None:
        state = await loop.scrape(1000)
        assert "expected a metrics page" in (state.error or "")


def test_a_target_may_change_its_format_between_two_scrapes() -> None:
    openmetrics = "application/openmetrics-text; version=1.0.0"
    first = reply("a 1 2\nb 7\n# EOF\n", Content_Type=openmetrics)

    @with_pages(first, reply("a 1 2000\nb 8\n", Content_Type="text/plain"), reply('a 5 # {x="y"} 9\n# EOF\n'))
    async def story(loop: TargetLoop, sink: Kept, _: ScrapedInventory) -> None:
        for at_ms in (2500, 3000):
            await loop.scrape(at_ms)
        assert [(at_ms, sink.told(n).get("a")) for n, (_, _, at_ms, _) in enumerate(sink.appends)] == [
            *((2000, 1.0), (2500, None)),
            *((2000, 1.0), (3000, None)),
        ]


def test_exemplars_reach_the_store_under_the_labels_of_the_stored_series() -> None:
    kind = "application/openmetrics-text; version=1.0.0"
    page = reply('a_total{x="1"} 1 # {t="p"} 3 0.5\nb_total 2 # {t="q"} 4\n# EOF\n', Content_Type=kind)

    noted: list[tuple[Labels, Exemplar]] = []

    class Noting(Exemplars):
        def add(self, series: Labels, exemplar: Exemplar) -> bool:
            noted.append((series, exemplar))
            return super().add(series, exemplar)

    @with_pages(page, page)
    async def story(loop: TargetLoop, sink: Kept, _: ScrapedInventory) -> None:
        sink.exemplars = Noting()
        await loop.scrape(2000)
        await loop.scrape(3000)
        own = dict(loop.state.target.labels)
        assert noted == [
            (Labels({**own, "__name__": "a_total", "x": "1"}), Exemplar(Labels({"t": "p"}), 3.0, 500)),
            (Labels({**own, "__name__": "b_total"}), Exemplar(Labels({"t": "q"}), 4.0, 2000)),
        ]


def test_an_exemplar_or_a_time_is_never_taken_for_the_value() -> None:
    kind = "application/openmetrics-text; version=1.0.0"
    pages = [f'a_total 1 # {{t="x"}} {exemplar}\nb 2 {at}\n# EOF\n' for exemplar, at in ((1, 2), (77, 3))]

    @with_pages(*(reply(page, Content_Type=kind) for page in pages))
    async def story(loop: TargetLoop, sink: Kept, _: ScrapedInventory) -> None:
        for at_ms in (2000, 3000):
            await loop.scrape(at_ms)
            assert (sink.told()["a_total"], sink.told(-2)["b"]) == (1.0, 2.0)


def test_a_label_of_a_megabyte_is_a_bad_line_and_the_others_are_kept() -> None:
    @with_pages(reply(f'a{{x="{"y" * 1_000_000}"}} 1\nb 2\n'))
    async def story(loop: TargetLoop, sink: Kept, _: ScrapedInventory) -> None:
        state = await loop.scrape(1000)
        assert (state.health, state.bad_lines, sink.told()["b"]) == (TargetHealth.UP, 1, 2.0)
        assert "1,000,000 characters" in (state.error or "")
        assert len(state.error or "") < 400


def test_what_an_exporter_says_about_its_metrics_is_handed_on() -> None:
    metadata = Metadata()
    pages = (reply("# TYPE a gauge\n# HELP a Heat.\na 1\n"), reply("# TYPE b counter\nb 1\n"))
    with_job(ScrapeJob(), *pages, sink=Kept(metadata=metadata))
    assert metadata.descriptions() == {"a": ("gauge", "Heat.", ""), "b": ("counter", "", "")}


def test_newer_names_of_dcgm_become_the_usual_ones() -> None:
    assert names_before_4_6()["DCGM_FI_DEV_GPU_TEMP_CELSIUS"] == "DCGM_FI_DEV_GPU_TEMP"
    newer = {"__name__": "DCGM_FI_DEV_GPU_TEMP_CELSIUS", "hostname": "n1"}
    assert canonical_labels(newer, node="other") == {"__name__": "DCGM_FI_DEV_GPU_TEMP", "Hostname": "n1"}
    assert canonical_labels({"__name__": "DCGM_FI_DEV_GPU_TEMP"}, node="n2")["Hostname"] == "n2"
    untouched = {"__name__": "http_requests_total", "hostname": "n1"}
    assert canonical_labels(untouched, node="n2") is untouched


def test_a_scraped_page_of_a_newer_exporter_is_stored_under_the_usual_names() -> None:
    kept = with_job(ScrapeJob(), reply('DCGM_FI_DEV_XID_ERROR{gpu="0",UUID="GPU-1",hostname="n1"} 79\n'))
    usual_labels = {"__name__": "DCGM_FI_DEV_XID_ERRORS", "gpu": "0", "UUID": "GPU-1", "Hostname": "n1"}
    assert Labels({**OWN, **usual_labels}) in kept.known


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        (LabelLimits(count=4), "has 5 labels besides `cluster`, the label_limit of its job is 4"),
        (LabelLimits(name_length=7), "has 8 bytes in the name of a label, the label_name_length_limit of its job is 7"),
        (LabelLimits(value_length=8), "has 9 bytes in the value of a label, the label_value_length_limit"),
        (LabelLimits(5, 8, 9), ""),
    ],
)
def test_labels_beyond_the_limits_of_a_job_fail_the_scrape(limits: LabelLimits, problem: str) -> None:
    async def story() -> None:
        async with serve(lambda _: reply('a{b="123456789",c="1"} 1\nd 2\n')) as server:
            kept = Kept()
            job = replace(target(server), job=ScrapeJob(label_limits=limits))
            loop = TargetLoop(job, ScrapeSettings(), sink=kept, inventory=ScrapedInventory())
            for at_ms in (1000, 2000):
                state = await loop.scrape(at_ms)
                assert (state.health is TargetHealth.DOWN, problem in (state.error or "")) == (bool(problem), True)
                assert kept.told()["up"] == (0.0 if problem else 1.0)
            await loop.close(3000)

    asyncio.run(story())
