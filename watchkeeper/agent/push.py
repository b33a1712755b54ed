"""Pushes spooled events to the hub (`POST /api/events`), and registers the node (`POST /api/nodes`).

Events are pushed in order, one batch at a time, until the hub confirms them. If the hub fails on an event, its batch is
halved until the event is alone, and then rejected, but only if the hub has confirmed others meanwhile: a hub that
confirms nothing causes no loss.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from watchkeeper.agent.spool import EventBatch, Spool
from watchkeeper.errors import CollectError
from watchkeeper.kit import backoff, clock, logs, own_metrics, wire
from watchkeeper.model import fleet
from watchkeeper.net import http
from watchkeeper.net.access import NO_ACCESS, Access

log = logging.getLogger(__name__)

RETRY_BACKOFF = backoff.Backoff(1.0, 60.0)
# A hub that requests a longer delay has made a mistake.
MAX_RETRY_AFTER_SECONDS = 300.0
# About half a minute with the backoff: a hub that restarts is back by then.
MAX_TRIES = 5
REGISTRATION_BACKOFF = backoff.Backoff(5.0, 60.0)
REGISTRATION_REPEAT_SECONDS = 300.0
# How often the registration is checked for a change.
REGISTRATION_POLL_SECONDS = 5.0


class PushResult(StrEnum):
    DELIVERED = "delivered"
    REFUSED = "refused"
    RETRY = "retry"
    SERVER_ERROR = "server_error"


@dataclass(frozen=True, slots=True)
class HubEndpoint:
    """The hub; `token` None: a hub on this node, which needs none. `access` has the certificates."""

    url: str
    token: str | None = None
    timeout_seconds: float = 10.0
    access: Access = NO_ACCESS

    @property
    def headers(self) -> dict[str, str]:
        authorization = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        return {"Content-Type": "application/json", **authorization}


def classify_response(response: http.HttpResponse, backoff_seconds: float) -> tuple[PushResult, float]:
    if response.status == 200:
        return PushResult.DELIVERED, 0.0
    # Malformed or too large: the same bytes are always refused and must not block later events.
    if response.status in (400, 413, 422):
        return PushResult.REFUSED, 0.0
    retry_after = response.headers.get("retry-after", "")
    if response.status in (429, 503) and retry_after.isascii() and retry_after.isdigit():
        return PushResult.RETRY, min(float(retry_after), MAX_RETRY_AFTER_SECONDS)
    # The hub failed on this request; the next requests show whether it fails on all.
    if response.status == 500:
        return PushResult.SERVER_ERROR, backoff_seconds
    return PushResult.RETRY, backoff_seconds


@dataclass(slots=True)
class SuspectBatches:
    """Batches on which the hub failed: how often, and how many events were delivered before the first failure."""

    spool: Spool
    delivered_events: int = 0
    failures: dict[Path, tuple[int, int]] = field(default_factory=dict)

    def record_delivery(self, batch: EventBatch) -> None:
        self.delivered_events += batch.count
        self.failures.pop(batch.path, None)
        if not self.spool.used_bytes:
            self.failures.clear()

    def record_failure(self, batch: EventBatch) -> bool:
        """Record that the hub failed on a batch; True if it was rejected, because others were delivered since."""
        tries, delivered_before = self.failures.pop(batch.path, (0, self.delivered_events))
        if tries + 1 < MAX_TRIES:
            self.failures[batch.path] = (tries + 1, delivered_before)
            return False
        if batch.count == 1 and self.delivered_events > delivered_before:
            self.spool.reject(batch)
            return True
        for half in self.spool.requeue_halves(batch):
            # A half is divided again after one failure; a single event gets all tries.
            self.failures[half] = (MAX_TRIES - 1 if batch.count > 2 else 0, delivered_before)
        return False


async def push_forever(spool: Spool, hub: HubEndpoint, *, time: clock.Clock, pushed: own_metrics.Metric) -> None:
    """Push batches forever; `pushed` counts the events that the hub has confirmed."""
    connection = http.Connection(timeout_seconds=hub.timeout_seconds, access=hub.access)
    address = f"{hub.url.rstrip('/')}/api/events"
    failures = 0
    suspects = SuspectBatches(spool)
    try:
        while True:
            batch = await spool.next_batch()
            backoff_seconds = RETRY_BACKOFF.delay_seconds(failures + 1)
            try:
                request = http.HttpRequest(address, "POST", headers=hub.headers, body=batch.body)
                response = await connection.send(request)
                result, delay_seconds = classify_response(response, backoff_seconds)
                problem = response.error_summary
            except CollectError as error:
                result, delay_seconds, problem = PushResult.RETRY, backoff_seconds, str(error)
            if result is PushResult.DELIVERED:
                spool.confirm(batch)
                suspects.record_delivery(batch)
                pushed.add(batch.count)
                failures = 0
            elif result is PushResult.REFUSED:
                spool.reject(batch)
                log_fields = logs.fields(hub=hub.url, count=batch.count, error=problem)
                log.error("push refused, events dropped", extra=log_fields)
            else:
                if result is PushResult.SERVER_ERROR and suspects.record_failure(batch):
                    log.error("hub failed on an event, event dropped", extra=logs.fields(hub=hub.url, error=problem))
                log.warning("push failed", extra=logs.fields(hub=hub.url, error=problem, retry_seconds=delay_seconds))
                await time.sleep(delay_seconds)
                failures += 1
    finally:
        await connection.aclose()


async def register_forever(
    hub: HubEndpoint, build_registration: Callable[[], fleet.NodeRegistration], *, time: clock.Clock
) -> None:
    """Register the node, again after each change, and every few minutes in case the hub has restarted.

    The body has no address: the hub uses the address that the request came from, so that an agent cannot redirect it.
    """
    connection = http.Connection(timeout_seconds=hub.timeout_seconds, access=hub.access)
    address = f"{hub.url.rstrip('/')}/api/nodes"
    sent: fleet.NodeRegistration | None = None
    failures = 0
    try:
        while True:
            registration = build_registration()
            body = wire.dumps(registration).encode()
            try:
                response = await connection.send(http.HttpRequest(address, "POST", hub.headers, body))
                problem = None if response.status == 200 else response.error_summary
            except CollectError as error:
                problem = str(error)
            if problem is None:
                if sent is None:
                    log.info("node registered", extra=logs.fields(hub=hub.url, gpus=len(registration.gpus)))
                sent, failures = registration, 0
                waited_seconds = 0.0
                while waited_seconds < REGISTRATION_REPEAT_SECONDS and build_registration() == sent:
                    await time.sleep(REGISTRATION_POLL_SECONDS)
                    waited_seconds += REGISTRATION_POLL_SECONDS
            else:
                failures += 1
                pause = REGISTRATION_BACKOFF.delay_seconds(failures)
                log_fields = logs.fields(hub=hub.url, error=problem, retry_seconds=pause)
                log.warning("node registration failed", extra=log_fields)
                await time.sleep(pause)
    finally:
        await connection.aclose()
