"""Scraping: what a page becomes, what a silent target becomes, and when each is read."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.loopback import Heard, reply, serve
from tests.support.manual_clock import ManualClock, settle
from tests.support.scraped import OWN, Kept, target, with_pages
from tests.support.waiting import turns, until_async
from watchkeeper.model.fleet import Node
from watchkeeper.model.labels import Labels
from watchkeeper.net.http import HttpRequest, HttpResponse
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.readers.exposition import FamilyMetadata
from watchkeeper.scrape import schedule, target_loop
from watchkeeper.scrape.fleet import ScrapedInventory
from watchkeeper.scrape.jobs import Target
from watchkeeper.scrape.scrape import Scraper
from watchkeeper.scrape.target_loop import SYNTHESISED, ScrapeSettings, TargetHealth, TargetLoop
from watchkeeper.store.head.head import Head

START = datetime(2026, 3, 1, tzinfo=UTC)


def test_a_page_is_appended_with_what_prometheus_says_about_a_scrape() -> None:
    @with_pages(reply('a{gpu="0"} 1\nb 2\n'))
    async def story(loop: TargetLoop, sink: Kept, _: ScrapedInventory) -> None:
        state = await loop.scrape(1000)
        assert (state.health, state.last_scrape_ms, state.samples, state.error) == (TargetHealth.UP, 1000, 2, None)
        assert sink.told() == {
            'a{gpu="0"}': 1.0,
            "b": 2.0,
            "up": 1.0,
            "scrape_samples_scraped": 2.0,
            "scrape_samples_post_metric_relabeling": 2.0,
            "scrape_series_added": 2.0,
        }
        assert Labels({**OWN, "__name__": "a", "gpu": "0"}) in sink.known


@dataclass
class Rushed:
    """A target whose page is there at once."""

    page: bytes = b"a 1\n"
    status: int = 200

    async def send(self, _: HttpRequest) -> HttpResponse:
        return HttpResponse(self.status, {}, self.page)

    async def aclose(self) -> None:
        pass


def test_whoever_asks_the_hub_waits_for_one_page_and_not_for_all_that_came_together() -> None:
    async def story() -> None:
        sink, turn, before, most = Kept(), asyncio.Lock(), 0, 0
        target = Target("n1", "http://n1/metrics", Labels(OWN), "sim", node="n1")
        loops = [
            TargetLoop(
                target, ScrapeSettings(), sink=sink, inventory=ScrapedInventory(), connection=Rushed(), parse_lock=turn
            )
            for _ in range(40)
        ]
        read = asyncio.gather(*(loop.scrape(1000) for loop in loops))
        while not read.done():
            await turns()
            before, most = len(sink.appends), max(most, len(sink.appends) - before)
        assert (len(sink.appends), most) == (40, 1)

    asyncio.run(story())


def test_a_page_about_a_whole_cluster_is_met_in_slices() -> None:
    async def story() -> None:
        sink, before, most = Kept(max_series=20_000), 0, 0
        target = Target("n1", "http://n1/metrics", Labels(OWN), "sim", node="n1")
        page = b"".join(b'kube_pod_info{pod="%d",uid="%040d"} 1\n' % (pod, pod) for pod in range(10_000))
        assert len(page) > target_loop.LARGE_PAGE_BYTES
        read = asyncio.ensure_future(
            TargetLoop(
                target, ScrapeSettings(), sink=sink, inventory=ScrapedInventory(), connection=Rushed(page)
            ).scrape(1000)
        )
        while not read.done():
            await turns()
            before, most = len(sink.known), max(most, len(sink.known) - before)
        assert read.result().samples == 10_000
        assert most <= target_loop.SLICE_SERIES

    asyncio.run(story())


def test_an_unchanged_page_hands_over_the_same_list_of_series() -> None:
    @with_pages(reply("a 1\n"), reply("a 2\n"), reply("a 3\n"))
    async def story(loop: TargetLoop, sink: Kept, _: ScrapedInventory) -> None:
        for at_ms in (1000, 2000, 3000):
            await loop.scrape(at_ms)
        assert sink.appends[0][1] is sink.appends[1][1] is sink.appends[2][1]
        assert sink.told()["scrape_series_added"] == 0.0
        assert sink.told()["a"] == 3.0


def test_a_series_that_vanished_is_marked_stale_once() -> None:
    @with_pages(reply("a 1\nb 2\n"), reply("a 1\n"), reply("a 1\n"))
    async def story(loop: TargetLoop, sink: Kept, _: ScrapedInventory) -> None:
        for at_ms in (1000, 2000, 3000):
            await loop.scrape(at_ms)
        assert sink.told(1)["b"] == "stale"
        assert "b" not in sink.told(2)


def test_a_series_that_was_away_for_long_is_asked_for_anew() -> None:
    @with_pages(reply("a 1\nb 2\n"), reply("a 1\n"), reply("a 1\nb 3\n"))
    async def story(loop: TargetLoop, sink: Kept, _: ScrapedInventory) -> None:
        await loop.scrape(1000)
        await loop.scrape(2000)
        sink.forget("b")
        await loop.scrape(3000)
        assert sink.told()["b"] == 3.0


def test_ids_that_the_store_has_forgotten_are_replaced_by_the_next_scrape() -> None:
    @with_pages(reply("a 1\n"), reply("a 2\n"), reply("a 3\n"))
    async def story(loop: TargetLoop, sink: Kept, _: ScrapedInventory) -> None:
        await loop.scrape(1000)
        sink.forget("a")
        sink.forget("up")
        await loop.scrape(2000)
        await loop.scrape(3000)
        present = [number for number in sink.appends[-1][1] if number not in sink.forgotten]
        assert {sink.known[labels] for labels in sink.known} == set(present)


def test_a_target_that_fails_ends_its_series_and_says_down() -> None:
    @with_pages(reply("a 1\n"), reply("no", status=500), reply("no", status=500), reply("a 2\n"))
    async def story(loop: TargetLoop, sink: Kept, _: ScrapedInventory) -> None:
        await loop.scrape(1000)
        state = await loop.scrape(2000)
        assert state.health is TargetHealth.DOWN
        assert state.error is not None
        assert state.error.endswith("answered 500")
        assert (sink.told()["a"], sink.told()["up"]) == ("stale", 0.0)
        await loop.scrape(3000)
        assert "a" not in sink.told()
        await loop.scrape(4000)
        assert (sink.told()["a"], sink.told()["up"], sink.told()["scrape_series_added"]) == (2.0, 1.0, 1.0)


def test_ids_outlast_one_failure_and_not_two() -> None:
    page, failure = reply("a 1\nb 2\n"), reply("no", status=500)

    @with_pages(page, failure, page, failure, failure, page)
    async def story(loop: TargetLoop, sink: Kept, _: ScrapedInventory) -> None:
        await loop.scrape(1000)
        before, calls, healths = sink.asked, [], []
        for at_ms in (2000, 3000, 4000, 5000, 6000):
            healths.append((await loop.scrape(at_ms)).health)
            calls.append(sink.asked - before)
        assert healths == [TargetHealth.DOWN, TargetHealth.UP, TargetHealth.DOWN, TargetHealth.DOWN, TargetHealth.UP]
        assert calls == [0, 0, 0, 0, 2]
        read, failed, again = (list(ids) for _, ids, _, _ in sink.appends[:3])
        assert read == failed == again


def test_a_page_with_bad_lines_is_up_and_names_them() -> None:
    @with_pages(reply("a 1\nb\n"))
    async def story(loop: TargetLoop, sink: Kept, _: ScrapedInventory) -> None:
        state = await loop.scrape(1000)
        assert (state.health, state.samples, state.bad_lines) == (TargetHealth.UP, 1, 1)
        assert state.error is not None
        assert state.error.startswith("line 2:")


@pytest.mark.parametrize("answer", [Rushed(b"a 2\n"), Rushed(status=503)], ids=["a page without it", "no page"])
def test_a_series_that_ended_while_the_hub_was_away_ends_with_the_first_scrape(answer: Rushed) -> None:
    async def story() -> None:
        target, engine = Target("n1", "http://n1/metrics", Labels(OWN), "sim", node="n1"), EmbeddedEngine(Head())
        before = TargetLoop(
            target,
            ScrapeSettings(),
            sink=engine.appender,
            inventory=ScrapedInventory(),
            connection=Rushed(b"a 1\nb 1\n"),
        )
        for second in (1000, 1015):
            await before.scrape(second * 1000)
        after = TargetLoop(
            target, ScrapeSettings(), sink=engine.appender, inventory=ScrapedInventory(), connection=answer
        )
        assert len(engine.instant("b", 1_060_000).latest()) == 1
        for second in (1060, 1075):
            await after.scrape(second * 1000)
            assert engine.instant("b", second * 1000).latest() == {}
            assert len(engine.instant("up", second * 1000).latest()) == 1

    asyncio.run(story())


def test_samples_with_their_own_time_keep_it_and_never_turn_stale() -> None:
    @with_pages(reply("a 1\nb 2 500\n"), reply("a 1\nb 2\n"), reply("a 1\nb 3 700\n"), reply("c 1\n"))
    async def story(loop: TargetLoop, sink: Kept, _: ScrapedInventory) -> None:
        for at_ms in (1000, 2000, 3000, 4000):
            await loop.scrape(at_ms)
        times = [(at_ms, sink.told(n).get("b")) for n, (_, _, at_ms, _) in enumerate(sink.appends)]
        assert times == [(500, 2.0), (1000, None), (2000, 2.0), (700, 3.0), (3000, None), (4000, None)]
        assert sink.told()["a"] == "stale"


def test_a_clash_of_labels_is_settled_as_prometheus_does() -> None:
    @with_pages(reply('a{job="x",exported_job="y"} 1\n'))
    async def ours(loop: TargetLoop, sink: Kept, _: ScrapedInventory) -> None:
        await loop.scrape(1000)
        assert Labels({**OWN, "__name__": "a", "exported_job": "y", "exported_exported_job": "x"}) in sink.known

    @with_pages(reply('a{job="x"} 1\n'), settings=ScrapeSettings(honor_labels=True))
    async def theirs(loop: TargetLoop, sink: Kept, _: ScrapedInventory) -> None:
        await loop.scrape(1000)
        assert Labels({**OWN, "__name__": "a", "job": "x"}) in sink.known


def test_the_fleet_learns_gpus_and_notices_when_one_vanishes() -> None:
    line = 'T{{gpu="{0}",UUID="GPU-{0}",pci_bus_id="00000000:0{0}:00.0",Hostname="n1"}} 1\n'

    @with_pages(reply(line.format(1) + line.format(2)), reply(line.format(1)), reply("other 1\n"))
    async def story(loop: TargetLoop, _: Kept, inventory: ScrapedInventory) -> None:
        inventory.set_expected_nodes([Node("sim", "n1")], 0)
        gone = []
        for at_ms in (1000, 2000, 3000):
            await loop.scrape(at_ms)
            gone.append([gpu.gone_since_ms for gpu in inventory.gpus_of(Node("sim", "n1"))])
        assert gone == [[None, None], [None, 1000], [2000, 1000]]


def test_a_rank_that_names_its_gpu_is_no_sign_of_it() -> None:
    readings = 'DCGM_FI_DEV_GPU_TEMP{gpu="1",UUID="GPU-1",Hostname="n1"} 40\n'
    page = 'training_rank_info{rank="0",UUID="GPU-1",Hostname="n1"} 1\n'

    @with_pages(reply(readings + page), reply(page))
    async def story(loop: TargetLoop, _: Kept, inventory: ScrapedInventory) -> None:
        inventory.set_expected_nodes([Node("sim", "n1")], 0)
        for at_ms in (1000, 2000):
            await loop.scrape(at_ms)
        assert [gpu.gone_since_ms for gpu in inventory.gpus_of(Node("sim", "n1"))] == [1000]


def test_a_page_that_never_fitted_into_the_store_is_neither_up_nor_down() -> None:
    @with_pages(reply("a 1\nb 1\n"))
    async def story(loop: TargetLoop, sink: Kept, _: ScrapedInventory) -> None:
        sink.max_series = len(sink.known) + 1
        state = await loop.scrape(1000)
        assert state.health is TargetHealth.UNKNOWN
        assert state.error == "the store is full: 1 series of the page were dropped"
        assert (sink.told()["a"], sink.told()["up"]) == (1.0, "stale")
        assert loop.dropped_samples["full"] == 1


def test_a_store_that_became_full_leaves_out_what_is_new_and_goes_on_with_the_rest() -> None:
    @with_pages(reply("a 1\n"), reply("a 2\nb 2\n"), reply("a 3\nb 3\n"), reply("a 4\nb 4\n"))
    async def story(loop: TargetLoop, sink: Kept, _: ScrapedInventory) -> None:
        await loop.scrape(1000)
        sink.max_series = len(sink.known)
        for at_ms in (2000, 3000):
            state = await loop.scrape(at_ms)
            assert (state.health, "the store is full" in (state.error or "")) == (TargetHealth.UP, True)
            assert (sink.told()["a"], sink.told()["up"], "b" in sink.told()) == (at_ms / 1000, 1.0, False)
        sink.max_series += 1
        state = await loop.scrape(3000 + target_loop.FULL_RETRY_MS)
        assert (state.error, sink.told()["b"]) == (None, 4.0)


def page_of(*gpus: int) -> str:
    return "".join(f'T{{gpu="{gpu}",UUID="GPU-{gpu}",Hostname="n1"}} 1\n' for gpu in gpus)


def test_a_page_whose_gpus_found_no_room_is_neither_up_nor_down_until_they_do() -> None:
    @with_pages(reply(page_of(0)), reply(page_of(0, 1)), reply(page_of(0, 1)))
    async def story(loop: TargetLoop, sink: Kept, _: ScrapedInventory) -> None:
        assert (await loop.scrape(1000)).health is TargetHealth.UP
        sink.max_series = len(sink.known)
        assert (await loop.scrape(2000)).health is TargetHealth.UNKNOWN
        assert sink.told()["up"] == "stale"
        sink.max_series += 1
        assert (await loop.scrape(2000 + target_loop.FULL_RETRY_MS)).health is TargetHealth.UP
        assert sink.told()["up"] == 1.0


def test_a_page_is_up_again_when_the_gpu_without_room_has_left_it() -> None:
    @with_pages(reply(page_of(0)), reply(page_of(0, 1) + "a 1\n"), reply(page_of(0) + "a 1\n"))
    async def story(loop: TargetLoop, sink: Kept, _: ScrapedInventory) -> None:
        await loop.scrape(1000)
        sink.max_series = len(sink.known)
        healths = [(await loop.scrape(at_ms)).health for at_ms in (2000, 3000)]
        assert healths == [TargetHealth.UNKNOWN, TargetHealth.UP]


def test_openmetrics_is_read_as_such_when_the_exporter_says_so() -> None:
    kind = "application/openmetrics-text; version=1.0.0; charset=utf-8"

    @with_pages(reply('a_total 3 # {x="y"} 1\n# EOF\n', Content_Type=kind))
    async def story(loop: TargetLoop, sink: Kept, _: ScrapedInventory) -> None:
        await loop.scrape(1000)
        assert sink.told()["a_total"] == 3.0


def scraper(sink: Kept, clock: ManualClock, **options: float) -> Scraper:
    settings = ScrapeSettings(interval_seconds=10.0, concurrency=int(options.get("concurrency", 64)))
    return Scraper(settings, time=clock, sink=lambda: sink, inventory=ScrapedInventory())


async def pass_time(clock: ManualClock, seconds: float, done: Callable[[], bool]) -> None:
    # Tasks that have just been started must first get to their sleep.
    await settle()
    await clock.advance(seconds)
    await until_async(done)


def test_every_target_is_read_once_in_each_interval_at_its_own_slot() -> None:
    async def story() -> None:
        sink, clock = Kept(), ManualClock(START)
        async with serve(lambda _: reply("a 1\n")) as server:
            watched = [target(server, f"/{n}") for n in range(5)]
            scrapes = scraper(sink, clock)
            await scrapes.set_targets(watched)
            assert {state.health for state in scrapes.states()} == {TargetHealth.UNKNOWN}
            for round_number in range(3):
                for _ in range(100):
                    await pass_time(clock, 0.1, lambda: len(server.heard) == len(sink.appends))
                assert len(sink.appends) == 5 * (round_number + 1)
            for watched_target in watched:
                times = [at_ms for key, _, at_ms, _ in sink.appends if key == watched_target.key]
                assert [at_ms % 10_000 for at_ms in times] == [schedule.offset_ms(watched_target.key, 10_000)] * 3
            assert {state.health for state in scrapes.states()} == {TargetHealth.UP}
            await scrapes.close()

    asyncio.run(story())


class SettableClock(ManualClock):
    """A clock that can be set back without making current sleeps longer."""

    def set_back(self, seconds: float) -> None:
        self._now -= timedelta(seconds=seconds)
        self._sleepers = [(at - timedelta(seconds=seconds), future) for at, future in self._sleepers]


def test_a_clock_that_is_set_back_an_hour_stops_no_scrape() -> None:
    async def story() -> None:
        sink, clock = Kept(), SettableClock(START)
        async with serve(lambda _: reply("a 1\n")) as server:
            scrapes = scraper(sink, clock)
            await scrapes.set_targets([target(server, "/one")])
            await pass_time(clock, 10, lambda: len(sink.appends) == 1)
            clock.set_back(3600)
            await pass_time(clock, 10, lambda: len(sink.appends) == 2)
            await pass_time(clock, 10, lambda: len(sink.appends) == 3)
            before, first, second = (at_ms for _, _, at_ms, _ in sink.appends)
            assert (first, second) == (before + 10_000 - 3_600_000, before + 20_000 - 3_600_000)
            await scrapes.close()

    asyncio.run(story())


@given(st.integers(0, 10**6), st.integers(-(10**7), 10**7), st.integers(1, 10**5))
def test_no_target_waits_longer_than_two_intervals_whatever_the_clock_does(
    slot_ms: int, moved_ms: int, interval_ms: int
) -> None:
    now_ms = slot_ms + moved_ms
    following = schedule.following_slot(slot_ms, now_ms, 0, interval_ms=interval_ms)
    assert now_ms < following <= now_ms + 2 * interval_ms
    assert following > slot_ms or moved_ms < -interval_ms


def test_a_target_that_is_no_longer_listed_ends_and_the_others_go_on() -> None:
    async def story() -> None:
        sink, clock = Kept(), ManualClock(START)
        async with serve(lambda _: reply("# TYPE a gauge\na 1\n")) as server:
            stays, goes = target(server, "/stays"), target(server, "/goes")
            scrapes = scraper(sink, clock)
            await scrapes.set_targets([stays, goes])
            await pass_time(clock, 10, lambda: len(sink.appends) == 2)
            assert scrapes.families() == {"a": FamilyMetadata("gauge")}
            await scrapes.set_targets([stays])
            assert set(sink.told().values()) == {"stale"}
            assert len(sink.told()) == len(SYNTHESISED)
            await pass_time(clock, 10, lambda: len(sink.appends) == 4)
            assert [state.target for state in scrapes.states()] == [stays]
            await scrapes.close()

    asyncio.run(story())


def test_no_more_targets_are_read_at_once_than_allowed() -> None:
    async def story() -> None:
        sink, clock, running, most = Kept(), ManualClock(START), 0, 0

        async def slow(_: Heard) -> bytes:
            nonlocal running, most
            running, most = running + 1, max(most, running + 1)
            await turns(100)
            running -= 1
            return reply("a 1\n")

        async with serve(slow) as server:
            scrapes = scraper(sink, clock, concurrency=2)
            await scrapes.set_targets([target(server, f"/{n}") for n in range(8)])
            await pass_time(clock, 10, lambda: len(sink.appends) == 8)
            assert most == 2
            await scrapes.close()

    asyncio.run(story())


@given(st.text(max_size=20), st.integers(1, 10**6), st.integers(0, 10**13))
def test_the_next_slot_lies_ahead_within_one_interval_and_in_place(key: str, interval_ms: int, now_ms: int) -> None:
    offset = schedule.offset_ms(key, interval_ms)
    slot = schedule.next_slot(now_ms, offset, interval_ms=interval_ms)
    assert 0 <= offset < interval_ms
    assert now_ms < slot <= now_ms + interval_ms
    assert slot % interval_ms == offset


def test_a_fleet_spreads_over_the_interval_and_a_few_targets_share_each_place() -> None:
    offsets = Counter(schedule.offset_ms(f"gpu http://10.0.0.{n}:9400/metrics", 15_000) for n in range(1250))
    assert 140 < len(offsets) <= 150
    assert max(offsets.values()) < 25
    assert {offset % schedule.SLOT_MS for offset in offsets} == {0}


@pytest.mark.parametrize(("now_ms", "written"), [(10_000, 10_000), (10_150, 10_000), (10_151, 10_151)])
def test_a_slightly_late_sample_carries_its_slot_and_a_late_one_the_truth(now_ms: int, written: int) -> None:
    assert schedule.sample_time(10_000, now_ms, interval_ms=15_000) == written
