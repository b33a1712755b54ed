"""Send scaling advice to a webhook when it changes, for an autoscaler or a ticket system.

The body is the answer of GET /api/capacity/advice. Each POST has the complete advice, so a lost one is replaced by the
next; a failed one is retried.
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
from watchkeeper.hub.runtime import Runtime
from watchkeeper.hub.services import HubHealth
from watchkeeper.kit import wire
from watchkeeper.kit.logs import fields
from watchkeeper.notify import receiver_http

log = logging.getLogger(__name__)

KIND = "watchkeeper.capacity.advice"
# The pause while the hub is not ready, or after a failure.
RETRY_SECONDS = 60.0


class AdviceWebhook:
    """Sends what `make` returns; does nothing unless [capacity] advice_webhook is set."""

    def __init__(
        self, runtime: Runtime, health: HubHealth, *, make: Callable[[Mapping[str, str]], Awaitable[dict[str, Any]]]
    ) -> None:
        self._runtime, self._health, self._make = runtime, health, make
        self._settings = runtime.settings.capacity
        # The key of the last delivered advice, at first that of no advice, and the last problem.
        self._delivered_key, self._problem = _advice_key([]), ""
        self._sent = runtime.metrics.counter(
            "watchkeeper_capacity_advice_sent_total", "Scaling advice delivered to the webhook"
        )
        self._failed = runtime.metrics.counter(
            "watchkeeper_capacity_advice_failures_total",
            "Failed attempts to compute scaling advice or deliver it to the webhook",
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        if self._settings.advice_webhook is None:
            yield
            return
        task = asyncio.create_task(self._send_repeatedly())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _send_repeatedly(self) -> None:
        while True:
            pause = RETRY_SECONDS
            try:
                if self._health.is_ready:
                    await self.send_if_changed()
                    pause = self._settings.advice_interval_seconds
                self._set_problem("")
            except (WatchkeeperError, HTTPException) as error:
                self._failed.add()
                self._set_problem(str(error))
            except Exception as error:  # Deliberately everything: else advice would stop unnoticed.
                log.exception("scaling advice failed")
                self._failed.add()
                self._set_problem(type(error).__name__)
            await self._runtime.clock.sleep(min(pause, self._settings.advice_interval_seconds))

    async def send_if_changed(self) -> None:
        answer = wire.to_plain(await self._make({}))
        key = _advice_key(answer["advice"])
        if key == self._delivered_key:
            return
        await asyncio.to_thread(self._post, {"kind": KIND, "version": self._runtime.version, **answer}, key)
        self._delivered_key = key
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
                raise ReceiverError(
                    f"reading the webhook token failed: {error_reason(error)}", where=str(path)
                ) from error
        url = self._settings.advice_webhook or ""
        status, response = receiver_http.http_post(url, json.dumps(body, ensure_ascii=False).encode(), headers)
        # Deliberately no redirects: the advice goes only to the configured URL.
        if not 200 <= status < 300:
            raise ReceiverError(f"answered {status}: {response}", where="capacity.advice_webhook")

    def _set_problem(self, problem: str) -> None:
        """Store the problem; log the first failure and the recovery."""
        if problem and not self._problem:
            log.warning("scaling advice webhook failed", extra=fields(problem=problem))
        elif self._problem and not problem:
            log.info("scaling advice webhook recovered")
        self._problem = problem


def _advice_key(advice: Any) -> str:
    """Deduplication key: equal advice has the same key."""
    return hashlib.sha256(json.dumps(advice, sort_keys=True).encode()).hexdigest()[:32]
