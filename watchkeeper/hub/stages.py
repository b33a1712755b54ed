"""Hold the stages that were built on the current journal, and replace them together.

When several hubs share a journal, each change of the leader opens another journal. Services read the stages from
`CurrentStages` at each use, so none of them keeps state of the previous journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from watchkeeper.errors import HubError
from watchkeeper.hub import pipeline
from watchkeeper.notify import delivery
from watchkeeper.remediate import evidence, orders
from watchkeeper.store.journal import journal as journals

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stages:
    journal: journals.Journal
    pipeline: pipeline.Pipeline
    notifier: delivery.Notifier
    evidence: evidence.EvidenceSources
    # None if the hub has no key for work orders.
    orders: orders.OrderQueue | None


class CurrentStages:
    def __init__(self) -> None:
        self._stages: Stages | None = None
        # All writes of incidents and the journal run on one thread, which avoids locks and fsync on the event loop.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._waiting = 0

    async def write(self, work: Callable[[], T]) -> T:
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._waiting -= 1

    @property
    def is_busy(self) -> bool:
        return self._waiting > 0

    def close(self) -> None:
        self._thread.shutdown()

    def replace(self, stages: Stages) -> None:
        self._stages = stages

    @property
    def has_stages(self) -> bool:
        return self._stages is not None

    @property
    def stages(self) -> Stages:
        if self._stages is None:
            raise HubError("the journal is not read yet", status=503)
        return self._stages
