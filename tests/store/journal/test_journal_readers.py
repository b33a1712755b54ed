"""Reading the journal away from the event loop: who reads little does not wait for those who read much."""

from __future__ import annotations

import asyncio
import threading

from watchkeeper.store.journal.journal_readers import JournalReaders


def test_a_short_read_does_not_wait_for_long_ones_that_nobody_waits_for_any_more() -> None:
    has_begun, may_end = threading.Semaphore(0), threading.Event()

    def long() -> None:
        has_begun.release()
        may_end.wait(60)

    async def story() -> None:
        readers = JournalReaders()
        gone = [asyncio.create_task(readers.read(long, is_long=True)) for _ in range(4)]
        await asyncio.to_thread(has_begun.acquire)
        for one in gone:
            one.cancel()
            await asyncio.gather(one, return_exceptions=True)
        assert await asyncio.wait_for(readers.read(lambda: "little"), 20) == "little"
        may_end.set()
        readers.close()

    asyncio.run(story())
