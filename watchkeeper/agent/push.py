"""Bringing spooled events to the hub: in order, a batch at a time, until the hub says it has them.

`after_answer` decides what an answer means and is pure; `push_forever` does it. The agent runs it beside
the follower, and both only meet in the spool. An event at which the hub breaks is narrowed down to and set
aside, but only once the hub has taken others: a hub that takes nothing loses nothing.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from watchkeeper.agent.spool import EventBatch, Spool
from watchkeeper.errors import CollectError
from watchkeeper.kit import backoff, clock, logs, own_metrics
from watchkeeper.net import http
from watchkeeper.net.access import NO_ACCESS, Access

log = logging.getLogger(__name__)

PAUSES = backoff.Backoff(1.0, 60.0)
# A hub that asks for more patience than this has made a mistake.
LONGEST_RETRY_AFTER_SECONDS = 300.0
# Half a minute of the same batch, with growing pauses: a hub that only restarts is back by then.
TRIES = 5


class PushResult(StrEnum):
    """What the hub's answer means for the batch."""

    DELIVERED = "delivered"
    REFUSED = "refused"
    LATER = "later"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class HubEndpoint:
    """Where events go. `token` None is a hub on this machine, which asks for none; `access` has certificates."""

    url: str
    token: str | None = None
    timeout_seconds: float = 10.0
    access: Access = NO_ACCESS

    @property
    def headers(self) -> dict[str, str]:
        """Those of a request with JSON in it."""
        proof = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        return {"Content-Type": "application/json", **proof}


def classify_response(response: http.HttpResponse, pause_seconds: float) -> tuple[PushResult, float]:
    """What to do with the batch, and how long to wait before the next request."""
    if response.status == 200:
        return PushResult.DELIVERED, 0.0
    # Malformed or too large: the same bytes will be refused for ever and must not block what follows.
    if response.status in (400, 413, 422):
        return PushResult.REFUSED, 0.0
    asked = response.headers.get("retry-after", "")
    if response.status in (429, 503) and asked.isascii() and asked.isdigit():
        return PushResult.LATER, min(float(asked), LONGEST_RETRY_AFTER_SECONDS)
    # The hub failed over this request; whether any other would fare better, the next ones show.
    if response.status == 500:
        return PushResult.BROKEN, pause_seconds
    return PushResult.LATER, pause_seconds


@dataclass(slots=True)
class SuspectBatches:
    """Batches at which the hub broke: how often in a row, and how many events it had taken when it first did."""

    spool: Spool
    delivered: int = 0
    broken: dict[Path, tuple[int, int]] = field(default_factory=dict)

    def report_delivery(self, batch: EventBatch) -> None:
        self.delivered += batch.count
        self.broken.pop(batch.path, None)
        if not self.spool.used_bytes:
            self.broken.clear()

    def report_failure(self, batch: EventBatch) -> bool:
        """The hub broke at this batch once more; True when it is set aside, because others were taken meanwhile."""
        tries, since = self.broken.pop(batch.path, (0, self.delivered))
        if tries + 1 < TRIES:
            self.broken[batch.path] = (tries + 1, since)
            return False
        if batch.count == 1 and self.delivered > since:
            self.spool.reject(batch)
            return True
        for part in self.spool.requeue_halves(batch):
            # A part of a batch that had its tries needs one to be divided again; a single event has all of them.
            self.broken[part] = (TRIES - 1 if batch.count > 2 else 0, since)
        return False


async def push_forever(spool: Spool, hub: HubEndpoint, *, time: clock.Clock, pushed: own_metrics.Metric) -> None:
    """Deliver batches as they come; `pushed` counts the events the hub has confirmed."""
    connection = http.Connection(timeout_seconds=hub.timeout_seconds, access=hub.access)
    address = f"{hub.url.rstrip('/')}/api/events"
    failures = 0
    suspects = SuspectBatches(spool)
    try:
        while True:
            batch = await spool.next_batch()
            pause = PAUSES.delay_seconds(failures + 1)
            try:
                response = await connection.send(
                    http.HttpRequest(address, "POST", headers=hub.headers, body=batch.body)
                )
                verdict, wait = classify_response(response, pause)
                problem = response.error_summary
            except CollectError as error:
                verdict, wait, problem = PushResult.LATER, pause, str(error)
            if verdict is PushResult.DELIVERED:
                spool.done(batch)
                suspects.report_delivery(batch)
                pushed.add(batch.count)
                failures = 0
            elif verdict is PushResult.REFUSED:
                spool.reject(batch)
                log.error("The hub refuses events", extra=logs.fields(hub=hub.url, count=batch.count, error=problem))
            else:
                if verdict is PushResult.BROKEN and suspects.report_failure(batch):
                    log.error("The hub breaks at an event", extra=logs.fields(hub=hub.url, error=problem))
                log.warning("Events wait", extra=logs.fields(hub=hub.url, error=problem, retry_seconds=wait))
                await time.sleep(wait)
                failures += 1
    finally:
        await connection.aclose()
