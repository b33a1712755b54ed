"""Scaling advice brought to whoever wants it: worked out now and then, and sent to a webhook when it is another one.

The answer of GET /api/capacity/advice, for an autoscaler or a ticket system that would rather be told than ask. Each
POST carries the whole advice, so one that is lost is made good by the next; what was not taken is sent again. `app`
runs it beside the server, on the hub that leads. Nothing of ours acts on the advice.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException

from watchkeeper.errors import ReceiverError, WatchkeeperError, error_reason
from watchkeeper.hub.health import HubHealth
from watchkeeper.hub.runtime import Runtime
from watchkeeper.kit import wire
from watchkeeper.kit.logs import fields
from watchkeeper.notify import receiver_http

log = logging.getLogger(__name__)

KIND = "watchkeeper.capacity.advice"
# While the hub reads its journal, or the other side does not answer.
AGAIN_SECONDS = 60.0


class AdviceHook:
    """`make` works the advice out; nothing is made or sent where [capacity] names no webhook."""

    def __init__(
        self, runtime: Runtime, health: HubHealth, *, make: Callable[[Mapping[str, str]], Awaitable[dict[str, Any]]]
    ) -> None:
        self._runtime, self._health, self._make = runtime, health, make
        self._settings = runtime.settings.capacity
        # What the other side has taken, nothing to begin with, and what went wrong last.
        self._taken, self._problem = _key([]), ""
        self._sent = runtime.metrics.counter(
            "watchkeeper_capacity_advice_sent_total", "Times that the webhook for scaling advice has taken it"
        )
        self._failed = runtime.metrics.counter(
            "watchkeeper_capacity_advice_failures_total", "Times that the webhook for scaling advice did not take it"
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        if self._settings.advice_webhook is None:
            yield
            return
        task = asyncio.create_task(self._forever())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _forever(self) -> None:
        while True:
            pause = AGAIN_SECONDS
            try:
                if self._health.is_ready:
                    await self._look()
                    pause = self._settings.advice_interval_seconds
                self._say("")
            except (WatchkeeperError, HTTPException) as error:
                self._failed.add()
                self._say(str(error))
            except Exception as error:  # Deliberately everything: nobody would notice that the advice has ended.
                log.exception("Scaling advice could not be made")
                self._failed.add()
                self._say(type(error).__name__)
            await self._runtime.clock.sleep(min(pause, self._settings.advice_interval_seconds))

    async def _look(self) -> None:
        made = wire.to_plain(await self._make({}))
        key = _key(made["advice"])
        if key == self._taken:
            return
        await asyncio.to_thread(self._post, {"kind": KIND, "version": self._runtime.version, **made}, key)
        self._taken = key
        self._sent.add()

    def _post(self, body: Mapping[str, Any], key: str) -> None:
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"watchkeeper/{self._runtime.version}",
            "Idempotency-Key": key,
        }
        if self._settings.advice_token_file is not None:
            path = Path(self._settings.advice_token_file)
            try:
                headers["Authorization"] = f"Bearer {path.read_text(encoding='utf-8').strip()}"
            except (OSError, UnicodeDecodeError) as error:
                raise ReceiverError(f"its token cannot be read: {error_reason(error)}", where=str(path)) from error
        url = self._settings.advice_webhook or ""
        status, answer = receiver_http.http_post(url, json.dumps(body, ensure_ascii=False).encode(), headers)
        # A redirect is not followed: the advice would go where nobody configured it to go.
        if not 200 <= status < 300:
            raise ReceiverError(f"answered {status}: {answer}", where="capacity.advice_webhook")

    def _say(self, problem: str) -> None:
        """Once when it begins and once when it is over."""
        if bool(problem) != bool(self._problem):
            log.warning("Scaling advice for the webhook", extra=fields(problem=problem or "is taken again"))
        self._problem = problem


def _key(advice: Any) -> str:
    """The same for the same advice, whenever it is worked out."""
    return hashlib.sha256(json.dumps(advice, sort_keys=True).encode()).hexdigest()[:32]
