"""Registers the node with the hub: `POST /api/nodes` at the start, after a change, and every few minutes.

The body is a `NodeRegistration` in kit.wire format, at most 64 KiB. The hub takes the node's expected GPUs from it and,
if it has the port of a /metrics page that needs no credentials, a target. The body has no address: the hub uses the
address that the request came from, so that an agent cannot redirect it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from watchkeeper.agent import push
from watchkeeper.errors import CollectError
from watchkeeper.kit import backoff, clock, logs, wire
from watchkeeper.model import fleet
from watchkeeper.net import http

log = logging.getLogger(__name__)

REPEAT_SECONDS = 300.0
RETRY_BACKOFF = backoff.Backoff(5.0, 60.0)
# How often the registration is checked for a change.
POLL_SECONDS = 5.0


async def register_forever(
    hub: push.HubEndpoint, build_registration: Callable[[], fleet.NodeRegistration], *, time: clock.Clock
) -> None:
    """Register the node, again after each change, and every few minutes in case the hub has restarted."""
    connection = http.Connection(timeout_seconds=hub.timeout_seconds, access=hub.access)
    address = f"{hub.url.rstrip('/')}/api/nodes"
    sent: fleet.NodeRegistration | None = None
    failures = 0
    try:
        while True:
            registration = build_registration()
            body = wire.dumps(registration).encode()
            problem = await _send(connection, http.HttpRequest(address, "POST", hub.headers, body))
            if problem is None:
                if sent is None:
                    log.info("node registered", extra=logs.fields(hub=hub.url, gpus=len(registration.gpus)))
                sent, failures = registration, 0
                await _wait_for_change(build_registration, sent, time=time)
            else:
                failures += 1
                pause = RETRY_BACKOFF.delay_seconds(failures)
                log_fields = logs.fields(hub=hub.url, error=problem, retry_seconds=pause)
                log.warning("node registration failed", extra=log_fields)
                await time.sleep(pause)
    finally:
        await connection.aclose()


async def _send(connection: http.Connection, request: http.HttpRequest) -> str | None:
    """Send a request; returns the problem, or None if it succeeded."""
    try:
        response = await connection.send(request)
    except CollectError as error:
        return str(error)
    return None if response.status == 200 else response.error_summary


async def _wait_for_change(
    build_registration: Callable[[], fleet.NodeRegistration], sent: fleet.NodeRegistration, *, time: clock.Clock
) -> None:
    waited_seconds = 0.0
    while waited_seconds < REPEAT_SECONDS and build_registration() == sent:
        await time.sleep(POLL_SECONDS)
        waited_seconds += POLL_SECONDS
