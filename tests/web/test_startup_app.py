"""While a hub starts: questions are answered, everything else waits for the whole application and is not refused."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator
from functools import cached_property

import pytest

from tests.support.waiting import until_async
from tests.web.canned_engine import CannedQueries
from tests.web.running import ANSWER_SECONDS, Reply, Site
from tests.web.small_hub import SmallHub
from watchkeeper.kit import clock
from watchkeeper.query import engine
from watchkeeper.web import app, server, startup_app
from watchkeeper.web.auth import auth, auth_reload

QUESTION = "/api/v1/query?query=up"


class SlowQueries(CannedQueries):
    """Answers when it is let."""

    def __init__(self, asked: engine.Engine, time: clock.Clock) -> None:
        super().__init__(asked, time)
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def instant(self, expr: str, at_ms: int | None = None) -> engine.QueryResult:
        self.is_asked.set()
        await self.may_answer.wait()
        return await super().instant(expr, at_ms)


class SlowHub(SmallHub):
    @cached_property
    def queries(self) -> SlowQueries:
        return SlowQueries(self.engine, self.clock)


@contextlib.asynccontextmanager
async def opened(hub: SmallHub, known: auth.Auth | None = None) -> AsyncIterator[tuple[startup_app.StartupApp, Site]]:
    """A server that has begun, on a hub that is not whole yet."""
    listener, offered = server.listen("127.0.0.1", 0), hub.services
    first, stop, is_up = (
        startup_app.StartupApp(
            offered.runtime, offered.queries, auth_files=auth_reload.AuthFiles(known or auth.Auth())
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


def asked(site: Site, path: str, headers: dict[str, str] | None = None) -> asyncio.Task[Reply]:
    return asyncio.create_task(asyncio.to_thread(site.ask, path, headers=headers))


def test_questions_are_answered_before_the_hub_is_whole() -> None:
    async def run() -> None:
        async with opened(SmallHub()) as (_, site):
            reply = await asked(site, QUESTION)
            assert (reply.status, reply.json["status"]) == (200, "success")
            assert "content-security-policy" in reply.headers
            span = await asked(site, "/api/v1/query_range?query=up&start=0&end=60&step=15")
            assert span.status == 200

    asyncio.run(run())


@pytest.mark.parametrize("path", ["/-/ready", "/api/v1/labels", "/api/status", "/"])
def test_everything_else_waits_and_is_not_refused(path: str) -> None:
    async def run() -> None:
        hub = SmallHub()
        async with opened(hub) as (first, site):
            waiting = asked(site, path)
            # Answered behind it: it has been read.
            assert (await asked(site, QUESTION)).status == 200
            await asyncio.wait({waiting}, timeout=0.2)
            assert not waiting.done()
            first.set_application(app.create_app(hub.services, auth.Auth()))
            assert (await waiting).status == 200
            assert (await asked(site, QUESTION)).status == 200

    asyncio.run(run())


def test_who_may_not_come_in_may_not_ask_early() -> None:
    async def run() -> None:
        token = auth.Token("grafana", auth.Role.VIEWER, hashlib.sha256(b"secret").digest())
        async with opened(SmallHub(), auth.Auth((token,))) as (_, site):
            assert (await asked(site, QUESTION)).status == 401
            assert (await asked(site, QUESTION, {"Authorization": "Bearer secret"})).status == 200

    asyncio.run(run())


def test_what_is_left_to_do_steps_aside_for_those_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup_app, "MAX_YIELD_SECONDS", ANSWER_SECONDS)

    async def run() -> None:
        hub = SlowHub()
        async with opened(hub) as (first, site):
            await first.yield_to_requests()
            reply = asked(site, QUESTION)
            await hub.queries.is_asked.wait()
            stepping = asyncio.create_task(first.yield_to_requests())
            await asyncio.wait({stepping}, timeout=0.1)
            assert not stepping.done()
            hub.queries.may_answer.set()
            await stepping
            assert (await reply).status == 200

    asyncio.run(run())


def test_those_who_ask_all_the_time_do_not_keep_the_hub_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup_app, "MAX_YIELD_SECONDS", 0.2)

    async def run() -> None:
        hub = SlowHub()
        async with opened(hub) as (first, site):
            reply = asked(site, QUESTION)
            await hub.queries.is_asked.wait()
            began = time.monotonic()
            for _ in range(3):
                await first.yield_to_requests()
            assert time.monotonic() - began < ANSWER_SECONDS
            hub.queries.may_answer.set()
            assert (await reply).status == 200

    asyncio.run(run())


def test_whoever_waits_for_a_hub_that_cannot_start_is_told_so_and_keeps_nobody_from_ending() -> None:
    async def run() -> None:
        async with opened(SmallHub()) as (first, site):
            waiting = [asked(site, path) for path in ("/api/incidents", "/")]
            await until_async(lambda: first._is_started._waiters)  # type: ignore[attr-defined]
            first.fail_startup()
            replies = await asyncio.gather(*waiting)
        assert [reply.status for reply in replies] == [503, 503]
        assert replies[0].json["error"] == "the hub failed to start; see its log"

    asyncio.run(run())
