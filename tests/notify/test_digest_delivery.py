"""The digest as a message: when it is due, that it is sent once, and what it says."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.incident_stories import NOON, Room, gpu, later, xid
from tests.support.manual_clock import ManualClock
from tests.support.waiting import until_async
from tests.support.webhooks import Web, running
from watchkeeper.incidents import incident_labels
from watchkeeper.notify import digest, routing
from watchkeeper.store.journal.journal import Journal, JournalEntry

# 4 May 2026 is a Monday.
AT_NOON = routing.DigestSchedule(("lead",), at="Mon 12:00")


def table(port: int, schedule: routing.DigestSchedule = AT_NOON) -> routing.Routing:
    return routing.Routing((routing.Receiver("lead", webhook=f"http://127.0.0.1:{port}/"),), digest=schedule)


@pytest.mark.parametrize(
    ("at", "zone", "due"),
    [
        ("Mon 12:00", "UTC", NOON),
        ("Mon 12:01", "UTC", NOON + timedelta(minutes=1) - timedelta(days=7)),
        ("Sun 09:00", "UTC", datetime(2026, 5, 3, 9, tzinfo=UTC)),
        ("Mon 09:00", "Europe/Berlin", datetime(2026, 5, 4, 7, tzinfo=UTC)),
        ("Mon 21:30", "Asia/Tokyo", datetime(2026, 4, 27, 12, 30, tzinfo=UTC)),
    ],
)
def test_the_digest_was_due_at_that_time_of_the_week(at: str, zone: str, due: datetime) -> None:
    assert routing.DigestSchedule(("lead",), at=at, zone=zone).last_due(NOON) == due


def test_a_hub_that_was_down_for_days_sends_no_old_digest() -> None:
    assert len(digest.due_digests(table(1), NOON + timedelta(hours=23))) == 1
    assert digest.due_digests(table(1), NOON + timedelta(hours=25)) == []


@pytest.mark.parametrize("wrong", ["Mon", "Mon 9:00", "Someday 09:00", "Mon 25:00"])
def test_an_invalid_time_of_the_week_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"time of the week|hour must be"):
        routing.DigestSchedule(("lead",), at=wrong)


def test_a_receiver_that_is_not_in_the_file_is_refused() -> None:
    with pytest.raises(ValueError, match="digest: receiver lead is not defined"):
        routing.Routing(digest=AT_NOON)


@pytest.mark.slow
def test_a_digest_is_sent_once_also_after_a_restart_and_a_failure(room: Room) -> None:
    room.push(xid(79, gpu(3), -3600), at=-3600)
    web = Web(503)

    async def live(from_seconds: float, seconds: float) -> None:
        time, made = (
            ManualClock(later(from_seconds)),
            digest.DigestDelivery(room.journal, str, incident_labels.InventoryLookup()),
        )

        async def at_once(work):  # type: ignore[no-untyped-def]
            return work()

        sending = asyncio.create_task(made.run(lambda: table(port), time, at_once))
        for _ in range(int(seconds / 30)):
            await asyncio.sleep(0.02)
            await time.advance(30)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)

    with running(web) as port:
        asyncio.run(live(0, 900))
        room.restart(1000)
        asyncio.run(live(1000, 900))
    (sent,) = web.got
    assert sent["title"] == "Incidents 2026-04-27 to 2026-05-04: 1, 1 still open"
    assert sent["digest"]["by_cause"][0]["cause"] == "gpu_fell_off_bus"  # type: ignore[index]


class ThreadRecordingJournal(Journal):
    """Remembers which threads have asked whether a digest was sent."""

    def timeline(self, incident_id: str, limit: int = 1000) -> list[JournalEntry]:
        by.add(threading.current_thread())
        return super().timeline(incident_id, limit)


by: set[threading.Thread] = set()


def test_the_event_loop_does_not_wait_for_the_journal(room: Room) -> None:
    async def live() -> None:
        time, made = (
            ManualClock(NOON),
            digest.DigestDelivery(room.journal, str, incident_labels.InventoryLookup()),
        )
        sending = asyncio.create_task(made.run(lambda: table(1), time, asyncio.to_thread))
        await until_async(lambda: by)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)

    room.journal.close()
    room.journal = ThreadRecordingJournal(room.path)
    asyncio.run(live())
    assert threading.main_thread() not in by
