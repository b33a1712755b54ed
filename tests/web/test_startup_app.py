"""While a hub starts, queries are answered, and other requests wait for the full application."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Callable
from functools import cached_property
from typing import TypeVar

import pytest

from tests.support.waiting import until_async
from tests.web.canned_engine import CannedQueries
from tests.web.running import ANSWER_SECONDS, Reply, Site
from tests.web.small_hub import SmallHub
from watchkeeper.hub import samples
from watchkeeper.kit import clock
from watchkeeper.query import engine
from watchkeeper.web import app, server, startup_app
from watchkeeper.web.auth import auth, auth_reload

T = TypeVar("T")
QUESTION = "/api/v1/query?query=up"


class SlowQueries(CannedQueries):
    """Answers when it is let."""

    def __init__(self, inner: engine.Engine, time: clock.Clock) -> None:
        super().__init__(inner, time)
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def run_for_user(self, work: Callable[[], T], *, timeout_seconds: float = samples.QUERY_TIMEOUT_SECONDS) -> T:
        self.is_asked.set()
        await self.may_answer.wait()
        return await super().run_for_user(work, timeout_seconds=timeout_seconds)


class SlowHub(SmallHub):
    @cached_property
    def queries(self) -> SlowQueries:
        return SlowQueries(self.engine, self.clock)


@contextlib.asynccontextmanager
async def open_hub(
    hub: SmallHub, access: auth.Auth | None = None
) -> AsyncIterator[tuple[startup_app.StartupApp, Site]]:
    """A server that has begun, on a hub that is not whole yet."""
    listener, offered = server.listen("127.0.0.1", 0), hub.services
    first, stop, is_up = (
        startup_app.StartupApp(
            offered.runtime, offered.queries, auth_files=auth_reload.AuthFiles(access or auth.Auth())
        ),
        asyncio.Event(),
        asyncio.Event(),
    )
    served = asyncio.create_task(server.serve(first, listener, stop=stop, is_serving=is_up))
    async with asyncio.timeout(ANSWER_SECONDS):
        await is_up.wait()
        yield first, Site(hub, listener.getsockname()[1], asyncio.get_running_loop())
        stop.set()
        await served


def send_request(site: Site, path: str, headers: dict[str, str] | None = None) -> asyncio.Task[Reply]:
    return asyncio.create_task(asyncio.to_thread(site.ask, path, headers=headers))


def test_queries_are_answered_during_startup() -> None:
    async def run() -> None:
        async with open_hub(SmallHub()) as (_, site):
            reply = await send_request(site, QUESTION)
            assert (reply.status, reply.json["status"]) == (200, "success")
            assert "content-security-policy" in reply.headers
            span = await send_request(site, "/api/v1/query_range?query=up&start=0&end=60&step=15")
            assert span.status == 200

    asyncio.run(run())


@pytest.mark.parametrize("path", ["/-/ready", "/api/v1/labels", "/api/status", "/"])
def test_other_requests_wait_for_the_full_application(path: str) -> None:
    async def run() -> None:
        hub = SmallHub()
        async with open_hub(hub) as (first, site):
            waiting = send_request(site, path)
            # Answered behind it: it has been read.
            assert (await send_request(site, QUESTION)).status == 200
            await asyncio.wait({waiting}, timeout=0.2)
            assert not waiting.done()
            first.set_application(app.create_app(hub.services, auth.Auth()))
            assert (await waiting).status == 200
            assert (await send_request(site, QUESTION)).status == 200

    asyncio.run(run())


def test_startup_queries_need_a_login_too() -> None:
    async def run() -> None:
        token = auth.Token("grafana", auth.Role.VIEWER, hashlib.sha256(b"secret").digest())
        async with open_hub(SmallHub(), auth.Auth((token,))) as (_, site):
            assert (await send_request(site, QUESTION)).status == 401
            assert (await send_request(site, QUESTION, {"Authorization": "Bearer secret"})).status == 200

    asyncio.run(run())


def test_startup_yields_to_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup_app, "MAX_YIELD_SECONDS", ANSWER_SECONDS)

    async def run() -> None:
        hub = SlowHub()
        async with open_hub(hub) as (first, site):
            await first.yield_to_requests()
            reply = send_request(site, QUESTION)
            await hub.queries.is_asked.wait()
            stepping = asyncio.create_task(first.yield_to_requests())
            await asyncio.wait({stepping}, timeout=0.1)
            assert not stepping.done()
            hub.queries.may_answer.set()
            await stepping
            assert (await reply).status == 200

    asyncio.run(run())


def test_steady_queries_do_not_block_the_startup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup_app, "MAX_YIELD_SECONDS", 0.2)

    async def run() -> None:
        hub = SlowHub()
        async with open_hub(hub) as (first, site):
            reply = send_request(site, QUESTION)
            await hub.queries.is_asked.wait()
            began = time.monotonic()
            for _ in range(3):
                await first.yield_to_requests()
            assert time.monotonic() - began < ANSWER_SECONDS
            hub.queries.may_answer.set()
            assert (await reply).status == 200

    asyncio.run(run())


def test_requests_get_an_error_if_the_hub_fails_to_start() -> None:
    async def run() -> None:
        async with open_hub(SmallHub()) as (first, site):
            waiting = [send_request(site, path) for path in ("/api/incidents", "/")]
            await until_async(lambda: first._is_started._waiters)  # type: ignore[attr-defined]
            first.fail_startup()
            replies = await asyncio.gather(*waiting)
        assert [reply.status for reply in replies] == [503, 503]
        assert replies[0].json["error"] == "the hub failed to start; see its log"

    asyncio.run(run())
