"""Events on their way to the hub: spooled, pushed in order, deleted only when confirmed."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.loopback import Heard, Loopback, reply, serve
from tests.support.manual_clock import ManualClock
from tests.support.waiting import until_async
from watchkeeper.agent import spool as spool_module
from watchkeeper.agent.push import HubEndpoint, PushResult, classify_response, push_forever
from watchkeeper.agent.spool import Spool
from watchkeeper.kit.own_metrics import Metric
from watchkeeper.kit.wire import loads
from watchkeeper.model.events import Event, EventKind
from watchkeeper.model.fleet import Place
from watchkeeper.net.http import HttpResponse

START = datetime(2026, 3, 1, tzinfo=UTC)


def event(number: int, text: str = "x") -> Event:
    return Event(f"sim/n1/b/kmsg/{number}", EventKind.XID, 79, Place("sim", node="n1"), START, text)


def lost() -> Metric:
    return Metric("lost", "counter", "")


def numbers(body: bytes) -> list[int]:
    return [int(event.id.rpartition("/")[2]) for event in loads(tuple[Event, ...], body)]  # type: ignore[arg-type]


def first_batch(spool: Spool) -> list[int]:
    async def story() -> list[int]:
        batch = await spool.next_batch()
        spool.confirm(batch)
        return numbers(batch.body)

    return asyncio.run(story())


def test_events_come_out_in_order_and_survive_a_restart(tmp_path: Path) -> None:
    before = Spool(tmp_path, dropped_counter=lost())
    for number in (1, 2):
        before.append(event(number))
    before.close()
    after = Spool(tmp_path, dropped_counter=lost())
    after.append(event(3))
    assert (first_batch(after), first_batch(after)) == ([1, 2], [3])
    assert (after.used_bytes, list(tmp_path.glob("*.jsonl"))) == (0, [])
    after.close()


def test_an_incomplete_line_is_counted_and_the_others_are_sent(tmp_path: Path) -> None:
    before = Spool(tmp_path, dropped_counter=lost())
    before.append(event(1))
    before.close()
    (file,) = tmp_path.glob("*.jsonl")
    with file.open("ab") as tear:
        tear.write(b'{"id": "sim/n1')
    missing = lost()
    assert first_batch(Spool(tmp_path, dropped_counter=missing)) == [1]
    assert missing.get() == 1


def test_a_file_that_cannot_be_read_counts_as_lost_and_is_kept(tmp_path: Path) -> None:
    (tmp_path / "000000000001.jsonl").mkdir()
    missing = lost()
    spool = Spool(tmp_path, dropped_counter=missing)
    spool.append(event(2))
    assert first_batch(spool) == [2]
    assert (missing.get(), [path.name for path in (tmp_path / "rejected").iterdir()]) == (1, ["000000000001.jsonl"])
    spool.close()


def test_an_event_that_is_too_large_is_counted_and_the_others_are_sent(tmp_path: Path) -> None:
    missing = lost()
    spool = Spool(tmp_path, dropped_counter=missing)
    spool.append(event(1, "x" * 1_000_000))
    spool.append(event(2))
    assert (first_batch(spool), missing.get()) == ([2], 1)
    spool.close()


def test_a_batch_never_exceeds_the_limits_of_the_hub(tmp_path: Path) -> None:
    spool = Spool(tmp_path, dropped_counter=lost())
    for number in range(1001):
        spool.append(event(number))
    assert (len(first_batch(spool)), len(first_batch(spool))) == (1000, 1)
    for number in range(3):
        spool.append(event(number, "x" * 400_000))
    assert (first_batch(spool), first_batch(spool)) == ([0, 1], [2])
    spool.close()


def test_a_full_spool_drops_the_oldest_events_and_logs_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spool_module, "BATCH_EVENTS", 10)
    missing = lost()
    spool = Spool(tmp_path, dropped_counter=missing, max_bytes=5000)
    for number in range(40):
        spool.append(event(number))
    assert spool.used_bytes <= 5000
    assert missing.get() == 20
    assert first_batch(spool) == list(range(20, 30))
    assert caplog.records[0].message == "spool full, events dropped"
    assert caplog.records[0].__dict__["fields"]["limit_bytes"] == 5000
    spool.close()


def without_a_disk(folder: Path, missing: Metric) -> Spool:
    spool = Spool(folder / "spool", dropped_counter=missing)
    for path in (folder / "spool/rejected", folder / "spool"):
        path.rmdir()
    (folder / "spool").write_text("")
    return spool


def test_events_that_cannot_be_written_wait_in_memory_and_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    missing = lost()
    spool = without_a_disk(tmp_path, missing)
    for number in (1, 2):
        spool.append(event(number))
    assert spool.used_bytes > 0
    assert first_batch(spool) == [1, 2]
    assert (spool.used_bytes, missing.get()) == (0, 0)
    assert caplog.text.count("events kept in memory") == 1
    (tmp_path / "spool").unlink()
    spool.append(event(3))
    assert [file.name for file in (tmp_path / "spool").iterdir()] == ["000000000001.jsonl"]
    assert first_batch(spool) == [3]
    spool.close()


def test_memory_keeps_one_batch_and_counts_dropped_events(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    missing = lost()
    spool = without_a_disk(tmp_path, missing)
    for number in range(1002):
        spool.append(event(number))
    assert (missing.get(), first_batch(spool)) == (2, list(range(1000)))
    fields = caplog.records[-1].__dict__["fields"]
    assert (fields["events_in_memory"], fields["limit_events"]) == (1000, 1000)


def test_a_batch_that_cannot_be_deleted_is_not_sent_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **_: bool) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    spool = Spool(tmp_path, dropped_counter=lost())
    spool.append(event(1))
    monkeypatch.setattr(Path, "unlink", refuse)
    assert first_batch(spool) == [1]
    spool.append(event(2))
    assert first_batch(spool) == [2]
    spool.close()


def test_a_read_only_disk_at_the_start_does_not_stop_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    spool = Spool(tmp_path / "spool", dropped_counter=lost())
    spool.append(event(1))
    assert first_batch(spool) == [1]


@pytest.mark.parametrize(
    ("status", "headers", "verdict", "wait"),
    [
        (200, {}, PushResult.DELIVERED, 0.0),
        (400, {}, PushResult.REFUSED, 0.0),
        (413, {}, PushResult.REFUSED, 0.0),
        (401, {}, PushResult.RETRY, 4.0),
        (429, {"retry-after": "7"}, PushResult.RETRY, 7.0),
        (503, {"retry-after": "99999"}, PushResult.RETRY, 300.0),
        (503, {"retry-after": "soon"}, PushResult.RETRY, 4.0),
        (500, {}, PushResult.SERVER_ERROR, 4.0),
        (502, {}, PushResult.RETRY, 4.0),
    ],
)
def test_each_answer_of_the_hub_has_one_meaning(
    status: int, headers: dict[str, str], verdict: PushResult, wait: float
) -> None:
    assert classify_response(HttpResponse(status, headers), 4.0) == (verdict, wait)


def push(tmp_path: Path, answers: list[bytes], story: Callable[..., object]) -> None:
    """Run a story beside a pusher whose hub gives these answers, then only 200."""

    def answer(_: Heard) -> bytes:
        return answers.pop(0) if answers else reply('{"ok":true}')

    async def wait_until_delivered() -> None:
        async with serve(answer) as server:
            spool, clock, pushed = (
                Spool(tmp_path, dropped_counter=lost()),
                ManualClock(START),
                Metric("pushed", "counter", ""),
            )
            pusher = asyncio.create_task(
                push_forever(spool, HubEndpoint(server.origin, "secret"), time=clock, pushed=pushed)
            )
            await story(server, spool, clock, pushed)  # type: ignore[misc]
            pusher.cancel()
            await asyncio.gather(pusher, return_exceptions=True)
            spool.close()

    asyncio.run(wait_until_delivered())


def test_events_are_pushed_with_the_token_and_deleted_when_confirmed(tmp_path: Path) -> None:
    async def story(server: Loopback, spool: Spool, clock: ManualClock, pushed: Metric) -> None:
        spool.append(event(1))
        await until_async(lambda: pushed.get() == 1)
        (request,) = server.heard
        assert (request.method, request.path) == ("POST", "/api/events")
        assert request.headers["authorization"] == "Bearer secret"
        assert numbers(request.body) == [1]
        assert spool.used_bytes == 0

    push(tmp_path, [], story)


def test_retry_after_of_a_busy_hub_is_respected_and_the_order_is_kept(tmp_path: Path) -> None:
    async def story(server: Loopback, spool: Spool, clock: ManualClock, pushed: Metric) -> None:
        spool.append(event(1))
        await until_async(lambda: len(clock._sleepers) == 1)
        spool.append(event(2))
        await clock.advance(6.9)
        assert len(server.heard) == 1
        await clock.advance(0.2)
        await until_async(lambda: pushed.get() == 2)
        assert [numbers(request.body) for request in server.heard] == [[1], [1], [2]]

    push(tmp_path, [reply(status=429, Retry_After="7")], story)


def test_an_unreachable_hub_is_retried_with_backoff(tmp_path: Path) -> None:
    async def story(server: Loopback, spool: Spool, clock: ManualClock, pushed: Metric) -> None:
        spool.append(event(1))
        for seconds in (1, 2, 4):
            await until_async(lambda: len(clock._sleepers) == 1)
            due, _ = clock._sleepers[0]
            assert (due - clock.now()).total_seconds() == seconds
            await clock.advance(seconds)
        await until_async(lambda: pushed.get() == 1)

    push(tmp_path, [reply(status=500)] * 3, story)


def test_a_batch_that_the_hub_refuses_is_rejected_and_the_others_are_sent(tmp_path: Path) -> None:
    async def story(server: Loopback, spool: Spool, clock: ManualClock, pushed: Metric) -> None:
        spool.append(event(1))
        await until_async(lambda: len(server.heard) == 1 and spool.used_bytes == 0)
        spool.append(event(2))
        await until_async(lambda: pushed.get() == 1)
        (rejected,) = (tmp_path / "rejected").iterdir()
        assert json.loads(rejected.read_text())["id"] == "sim/n1/b/kmsg/1"

    push(tmp_path, [reply('{"ok":false}', status=400)], story)


def push_to_a_hub_that_breaks(tmp_path: Path, breaks: Callable[[list[int]], bool], events: int) -> list[list[int]]:
    """What a hub heard that breaks at some batches, until the spool is empty or an hour is over."""
    batches: list[list[int]] = []

    def answer(request: Heard) -> bytes:
        batches.append(numbers(request.body))
        return reply(status=500) if breaks(batches[-1]) else reply('{"ok":true}')

    async def wait_until_delivered() -> None:
        async with serve(answer) as server:
            spool, clock = Spool(tmp_path, dropped_counter=lost()), ManualClock(START)
            for number in range(events):
                spool.append(event(number))
            hub, pushed = HubEndpoint(server.origin), Metric("pushed", "counter", "")
            pusher = asyncio.create_task(push_forever(spool, hub, time=clock, pushed=pushed))
            while spool.used_bytes and clock.now() < START + timedelta(hours=1):
                await until_async(lambda: bool(clock._sleepers) or not spool.used_bytes)
                await clock.advance(60)
            pusher.cancel()
            await asyncio.gather(pusher, return_exceptions=True)
            spool.close()

    asyncio.run(wait_until_delivered())
    return batches


def test_an_event_on_which_the_hub_fails_is_rejected_and_all_others_arrive(tmp_path: Path) -> None:
    batches = push_to_a_hub_that_breaks(tmp_path, lambda batch: 77 in batch, events=100)
    arrived = [number for batch in batches if 77 not in batch for number in batch]
    assert sorted(arrived) == [number for number in range(100) if number != 77]
    (rejected,) = (tmp_path / "rejected").iterdir()
    assert json.loads(rejected.read_text())["id"] == "sim/n1/b/kmsg/77"
    assert len(batches) < 30


def test_a_hub_that_fails_on_every_event_causes_no_loss(tmp_path: Path) -> None:
    push_to_a_hub_that_breaks(tmp_path, lambda batch: True, events=4)
    assert list((tmp_path / "rejected").iterdir()) == []
    kept = [json.loads(line)["id"] for path in tmp_path.glob("*.jsonl") for line in path.read_text().splitlines()]
    assert sorted(kept) == [f"sim/n1/b/kmsg/{number}" for number in range(4)]
