"""Scaling advice at a webhook over a real socket: sent when it is another one, again when it was not taken."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted_server import Reply, Scripted, serving
from tests.support.waiting import until_async
from tests.web.small_hub import SmallHub
from watchkeeper.config import settings
from watchkeeper.web.accounting.advice_hook import AdviceWebhook
from watchkeeper.web.app import create_app
from watchkeeper.web.auth.auth import Auth

ADD = {"action": "add", "gpus": 24, "why": "expected demand exceeds 80 % of the fleet", "confidence": 0.5}


def hub_for(url: str | None, **more: Any) -> SmallHub:
    hub = SmallHub()
    capacity = settings.CapacitySettings(advice_webhook=url, **more)
    hub.settings = replace(hub.settings, capacity=capacity)
    return hub


def hook(hub: SmallHub, *advice: dict[str, Any] | None) -> AdviceWebhook:
    """One that is given other advice at each look; None is no advice."""
    left = list(advice)

    async def make(_: Mapping[str, str]) -> dict[str, Any]:
        piece = left.pop(0)
        return {"now": hub.clock.now(), "sentence": "Full soon.", "advice": [] if piece is None else [piece]}

    return AdviceWebhook(hub.services.runtime, hub.services.health, make=make)


def send(webhook: AdviceWebhook, times: int) -> None:
    async def run() -> None:
        for _ in range(times):
            await webhook.send_if_changed()

    asyncio.run(run())


def bodies(server: Scripted) -> list[dict[str, Any]]:
    return [json.loads(body) for body in server.bodies]


def test_advice_is_sent_only_when_it_changes(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    with serving(*[Reply(ends=True)] * 2) as server:
        hub = hub_for(f"{server.url}/scale", advice_token_file=str(tmp_path / "token"))
        send(hook(hub, ADD, ADD, {**ADD, "gpus": 32}), 3)
        assert [body["advice"][0]["gpus"] for body in bodies(server)] == [24, 32]
        assert set(bodies(server)[0]) == {"kind", "version", "now", "sentence", "advice"}
        assert server.requests[0].startswith("POST /scale ")
        assert server.header("Authorization") == "Bearer secret"


def test_no_advice_is_sent_at_first_and_later_that_advice_ended() -> None:
    with serving(*[Reply(ends=True)] * 2) as server:
        send(hook(hub_for(server.url), None, ADD, None, None), 4)
        assert [len(body["advice"]) for body in bodies(server)] == [1, 0]


def test_a_failed_delivery_is_retried() -> None:
    with serving(
        Reply(503, ends=True), Reply(302, headers={"Location": "/else"}, ends=True), Reply(ends=True)
    ) as server:
        webhook = hook(hub_for(server.url), ADD, ADD, ADD, ADD)
        for status in (503, 302):
            with pytest.raises(Exception, match=f"answered {status}"):
                send(webhook, 1)
        send(webhook, 2)
        assert len(server.requests) == 3
        assert len({request.partition("Idempotency-Key: ")[2].split()[0] for request in server.requests}) == 1


def test_the_running_hub_sends_the_answer_of_its_own_api() -> None:
    with serving(Reply(ends=True)) as server:
        hub = hub_for(server.url)
        app = create_app(hub.services, Auth())

        async def run() -> None:
            async with app.router.lifespan_context(app):
                await until_async(lambda: server.bodies)

        asyncio.run(run())
        assert bodies(server)[0]["kind"] == "watchkeeper.capacity.advice"


def test_an_address_that_cannot_be_called_is_refused_by_the_settings() -> None:
    with pytest.raises(ValueError, match="`advice_webhook` is not an http or https URL"):
        settings.CapacitySettings(advice_webhook="scaler:8080")
