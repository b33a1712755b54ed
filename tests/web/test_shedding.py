"""Under load panels are refused first, then pages; changes and pushes are never refused."""

from __future__ import annotations

import asyncio

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tests.support.waiting import turns
from watchkeeper.kit import own_metrics
from watchkeeper.web import shedding
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import Endpoint
from watchkeeper.web.shedding import (
    MANY_REQUESTS,
    MAX_CONCURRENT,
    MAX_PAGE_REQUESTS,
    MAX_PANEL_REQUESTS,
    MAX_WAITING_PER_CLIENT,
    PANEL_SLOTS,
    SLOTS_PER_CLIENT,
    LoadShedder,
    replay_limit,
)


async def nothing(_: Request) -> Response:
    return Response()


PANEL = Endpoint("/api/v1/query_range", nothing)
PAGE = Endpoint("/api/incidents", nothing)
CHANGE = Endpoint("/api/incidents/{id}/acknowledge", nothing, role=Role.OPERATOR, changes=True)
PUSH = Endpoint("/api/events", nothing, role=Role.AGENT, changes=True)


def test_panels_are_refused_before_pages_and_changes_never() -> None:
    load = LoadShedder(own_metrics.Registry())
    for _ in range(MAX_PANEL_REQUESTS):
        assert load.start_request(PANEL)
    with pytest.raises(HTTPException) as refused:
        load.start_request(PANEL)
    assert (refused.value.status_code, refused.value.headers) == (503, {"Retry-After": "5"})
    assert f"{MAX_PANEL_REQUESTS} requests are in progress, the limit is {MAX_PANEL_REQUESTS}" in refused.value.detail
    for _ in range(MAX_PAGE_REQUESTS - MAX_PANEL_REQUESTS):
        assert load.start_request(PAGE)
    with pytest.raises(HTTPException):
        load.start_request(PAGE)
    assert not load.start_request(CHANGE)
    assert not load.start_request(PUSH)


def test_a_finished_request_frees_its_place() -> None:
    load = LoadShedder(own_metrics.Registry())
    for _ in range(2 * MAX_PAGE_REQUESTS):
        assert load.start_request(PANEL)
        load.end_request()


def test_under_load_few_requests_run_at_once_and_all_finish() -> None:
    load, at_work, most = LoadShedder(own_metrics.Registry()), 0, 0

    async def question() -> None:
        nonlocal at_work, most
        async with load.acquire_slot(PAGE):
            at_work += 1
            most = max(most, at_work)
            await turns()
            at_work -= 1
        load.end_request()

    async def story() -> None:
        for _ in range(MANY_REQUESTS + 20):
            load.start_request(PAGE)
        await asyncio.gather(*(question() for _ in range(MANY_REQUESTS + 20)))

    asyncio.run(story())
    # The last ones find that not so many are left.
    assert MAX_CONCURRENT <= most <= MANY_REQUESTS


def test_under_load_no_request_starts_while_rules_are_evaluated() -> None:
    busy = [True, True, True, False]
    load = LoadShedder(own_metrics.Registry(), lambda: busy.pop(0))

    async def story() -> None:
        async with load.acquire_slot(PAGE):
            assert len(busy) == 4, "rules do not matter while few ask"
        for _ in range(MANY_REQUESTS + 1):
            load.start_request(PAGE)
        async with load.acquire_slot(PAGE):
            assert busy == []

    asyncio.run(story())


@pytest.mark.slow
def test_requests_do_not_wait_for_constant_rule_evaluation() -> None:
    load = LoadShedder(own_metrics.Registry(), lambda: True)

    async def story() -> None:
        for _ in range(MANY_REQUESTS + 1):
            load.start_request(PAGE)
        async with asyncio.timeout(30), load.acquire_slot(PAGE):
            pass

    asyncio.run(story())


def start_panels(load: LoadShedder, *clients: str) -> tuple[list[str], list[asyncio.Task[None]], asyncio.Event]:
    """Panels of these clients, which run until the event is set; the names of those that run, in their order."""
    running, may_end = list[str](), asyncio.Event()

    async def panel(client: str) -> None:
        async with load.acquire_slot(PANEL, client):
            running.append(client)
            await may_end.wait()

    return running, [asyncio.create_task(panel(client)) for client in clients], may_end


def test_one_client_never_has_all_slots_and_clients_take_turns() -> None:
    async def story() -> None:
        running, tasks, may_end = start_panels(LoadShedder(own_metrics.Registry()), *["heavy"] * 20, "ann", "bob")
        await turns()
        assert running == [*["heavy"] * SLOTS_PER_CLIENT, "ann"]
        may_end.set()
        await asyncio.gather(*tasks)
        assert running[PANEL_SLOTS : PANEL_SLOTS + 3].count("bob") == 1

    asyncio.run(story())


def test_a_cancelled_panel_leaves_the_queue_and_a_running_one_its_slot() -> None:
    metrics = own_metrics.Registry()

    async def story() -> None:
        running, tasks, may_end = start_panels(LoadShedder(metrics), *["heavy"] * 20)
        await turns()
        for task in tasks[:-1]:
            task.cancel()
        await asyncio.gather(*tasks[:-1], return_exceptions=True)
        await turns()
        assert running == ["heavy"] * (SLOTS_PER_CLIENT + 1)
        may_end.set()
        await asyncio.gather(*tasks[-1:])

    asyncio.run(story())
    assert 'watchkeeper_web_panels{state="running"} 0' in metrics.render()
    assert 'watchkeeper_web_panels{state="waiting"} 0' in metrics.render()


def test_too_many_waiting_panels_of_one_client_are_refused_but_not_those_of_others() -> None:
    metrics = own_metrics.Registry()

    async def story() -> None:
        load = LoadShedder(metrics)
        _, tasks, may_end = start_panels(load, *["heavy"] * (SLOTS_PER_CLIENT + MAX_WAITING_PER_CLIENT), "ann")
        await turns()
        with pytest.raises(HTTPException, match="300 panels of this client wait, the limit is 300") as refused:
            async with load.acquire_slot(PANEL, "heavy"):
                pass
        assert (refused.value.status_code, refused.value.headers) == (503, {"Retry-After": "5"})
        may_end.set()
        await asyncio.gather(*tasks)

    asyncio.run(story())
    assert 'watchkeeper_web_refused_total{kind="panel"} 1' in metrics.render()


def test_a_panel_that_waits_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shedding, "MAX_QUEUE_SECONDS", 0.01)

    async def story() -> None:
        load = LoadShedder(own_metrics.Registry())
        _, tasks, may_end = start_panels(load, *["heavy"] * SLOTS_PER_CLIENT)
        await turns()
        with pytest.raises(HTTPException, match=r"waited 0\.01 s for one of 4 slots") as refused:
            async with load.acquire_slot(PANEL, "heavy"):
                pass
        assert refused.value.status_code == 503
        may_end.set()
        await asyncio.gather(*tasks)

    asyncio.run(story())


def test_long_calculations_above_the_limit_are_refused_with_both_numbers() -> None:
    places = replay_limit("rule replays", limit=2)
    with places, places, pytest.raises(HTTPException, match=r"2 rule replays .* the limit is 2") as refused, places:
        pass
    assert (refused.value.status_code, refused.value.headers) == (429, {"Retry-After": "5"})
    with places, places:
        pass
