"""A node makes itself known to the hub: `POST /api/nodes` when it starts, when something changes, and now and then.

The body is a `NodeRegistration` in kit.wire form, at most 64 KiB. The hub takes it as what the node should have and,
if the node says on which port its /metrics can be read without a secret, as a target. The address is not in the body:
the hub uses the one the request came from, so that no agent can send it elsewhere.
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
PAUSES = backoff.Backoff(5.0, 60.0)
# How often is looked whether there is something new to say.
LOOK_SECONDS = 5.0


async def register_forever(
    hub: push.HubEndpoint, current: Callable[[], fleet.NodeRegistration], *, time: clock.Clock
) -> None:
    """Send what is so, again whenever it differs, and every few minutes in case the hub has restarted."""
    connection = http.Connection(timeout_seconds=hub.timeout_seconds, access=hub.access)
    address = f"{hub.url.rstrip('/')}/api/nodes"
    sent: fleet.NodeRegistration | None = None
    failures = 0
    try:
        while True:
            registration = current()
            body = wire.dumps(registration).encode()
            problem = await _send(connection, http.HttpRequest(address, "POST", hub.headers, body))
            if problem is None:
                if sent is None:
                    log.info("Node registered", extra=logs.fields(hub=hub.url, gpus=len(registration.gpus)))
                sent, failures = registration, 0
                await _until_new(current, sent, time=time)
            else:
                failures += 1
                pause = PAUSES.delay_seconds(failures)
                log.warning("Node not registered", extra=logs.fields(hub=hub.url, error=problem, retry_seconds=pause))
                await time.sleep(pause)
    finally:
        await connection.aclose()


async def _send(connection: http.Connection, request: http.HttpRequest) -> str | None:
    """Why it did not work, or None if it did."""
    try:
        response = await connection.send(request)
    except CollectError as error:
        return str(error)
    return None if response.status == 200 else response.error_summary


async def _until_new(
    current: Callable[[], fleet.NodeRegistration], sent: fleet.NodeRegistration, *, time: clock.Clock
) -> None:
    waited = 0.0
    while waited < REPEAT_SECONDS and current() == sent:
        await time.sleep(LOOK_SECONDS)
        waited += LOOK_SECONDS
