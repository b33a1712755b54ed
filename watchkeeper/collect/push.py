"""Bringing spooled events to the hub: in order, a batch at a time, until the hub says it has them.

`after_answer` decides what an answer means and is pure; `push_forever` does it. The agent runs it beside
the follower, and both only meet in the spool.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import StrEnum

from watchkeeper.collect import http
from watchkeeper.collect.spool import Spool
from watchkeeper.errors import CollectError
from watchkeeper.kit import clock, logs, own_metrics

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
# A hub that asks for more patience than this has made a mistake.
LONGEST_RETRY_AFTER_SECONDS = 300.0


class Verdict(StrEnum):
    """What the hub's answer means for the batch."""

    DELIVERED = "delivered"
    REFUSED = "refused"
    LATER = "later"


@dataclass(frozen=True, slots=True)
class Hub:
    """Where events go. `token` None is a hub on this machine, which asks for none."""

    url: str
    token: str | None = None
    timeout_seconds: float = 10.0


def after_answer(response: http.Response, pause_seconds: float) -> tuple[Verdict, float]:
    """What to do with the batch, and how long to wait before the next request."""
    if response.status == 200:
        return Verdict.DELIVERED, 0.0
    # Malformed or too large: the same bytes will be refused for ever and must not block what follows.
    if response.status in (400, 413, 422):
        return Verdict.REFUSED, 0.0
    asked = response.headers.get("retry-after", "")
    if response.status in (429, 503) and asked.isascii() and asked.isdigit():
        return Verdict.LATER, min(float(asked), LONGEST_RETRY_AFTER_SECONDS)
    return Verdict.LATER, pause_seconds


async def push_forever(spool: Spool, hub: Hub, *, time: clock.Clock, pushed: own_metrics.Metric) -> None:
    """Deliver batches as they come; `pushed` counts the events the hub has confirmed."""
    connection = http.Connection(timeout_seconds=hub.timeout_seconds)
    headers = {"Content-Type": "application/json"}
    if hub.token is not None:
        headers["Authorization"] = f"Bearer {hub.token}"
    address = f"{hub.url.rstrip('/')}/api/events"
    pause = FIRST_PAUSE_SECONDS
    try:
        while True:
            batch = await spool.next_batch()
            try:
                response = await connection.send(http.Request(address, "POST", headers=headers, body=batch.body))
                verdict, wait = after_answer(response, pause)
                problem = f"answered {response.status}: {response.body[:200].decode('utf-8', 'replace')}"
            except CollectError as error:
                verdict, wait, problem = Verdict.LATER, pause, str(error)
            if verdict is Verdict.DELIVERED:
                spool.done(batch)
                pushed.add(batch.count)
                pause = FIRST_PAUSE_SECONDS
            elif verdict is Verdict.REFUSED:
                spool.reject(batch)
                log.error("The hub refuses events", extra=logs.fields(hub=hub.url, count=batch.count, error=problem))
            else:
                log.warning("Events wait", extra=logs.fields(hub=hub.url, error=problem, retry_seconds=wait))
                await time.sleep(wait)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
    finally:
        await connection.aclose()
