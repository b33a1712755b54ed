"""Reading the journal outside the event loop: short reads do not wait for long ones."""

from __future__ import annotations

import asyncio
import threading

from watchkeeper.store.journal.journal_readers import JournalReaders


def test_a_short_read_does_not_wait_for_abandoned_long_reads() -> None:
    has_begun, may_end = threading.Semaphore(0), threading.Event()

    def long() -> None:
        has_begun.release()
        may_end.wait(60)

    async def story() -> None:
        readers = JournalReaders()
        gone = [asyncio.create_task(readers.read(long, is_long=True)) for _ in range(4)]
        await asyncio.to_thread(has_begun.acquire)
        for read in gone:
            read.cancel()
            await asyncio.gather(read, return_exceptions=True)
        assert await asyncio.wait_for(readers.read(lambda: "little"), 20) == "little"
        may_end.set()
        readers.close()

    asyncio.run(story())
