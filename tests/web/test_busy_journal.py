"""A busy journal: its pages wait for it, and all other requests do not."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.hub_stories import gpu, xid
from tests.support.opened import opened
from watchkeeper.config import settings
from watchkeeper.hub.hub import Hub
from watchkeeper.kit.clock import ScaledClock
from watchkeeper.web import server
from watchkeeper.web.app import LIVE_PATH, create_app
from watchkeeper.web.auth.auth import Auth
from watchkeeper.web.endpoint import Endpoint

# Long for a test that fails, and much longer than fifty answers of a loop that is free.
HELD_SECONDS, FREE_SECONDS = 40.0, 20.0
QUERIES = {
    "/api/who": "name=n1",
    "/api/history": "node=n1",
    "/api/bundle": "incident=INC-1",
    "/api/recording": "from=1767225600&to=1767226600",
}
NAMES = {"{id}": "INC-1", "{uuid}": "GPU-0", "{name}": "n1", "{namespace}": "default"}
BODY = {"why": "seen", "text": "seen", "to": "ann", "digest": "0", "cause": "unknown", "reason": "seen", "for": "1h"}


def ask(url: str, method: str = "GET") -> int:
    body = json.dumps(BODY).encode() if method == "POST" else None
    request = urllib.request.Request(url, data=body, method=method, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=4 * HELD_SECONDS) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code


def questions(table: list[Endpoint]) -> list[tuple[str, str]]:
    """Everything that can be read, and everything that can be done to an incident, as paths and methods."""
    requests = []
    for endpoint in table:
        path = endpoint.path
        for mark, name in NAMES.items():
            path = path.replace(mark, name)
        is_read = endpoint.methods == ("GET",) and path.startswith("/api/") and path != LIVE_PATH
        if is_read or endpoint.path.startswith("/api/incidents/{id}/"):
            query = QUERIES.get(path)
            requests.append((path + (f"?{query}" if query else ""), endpoint.methods[0]))
    return requests


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[Hub, str, list[Endpoint]]]:
    """A real hub with one incident, its address, and everything that it answers."""
    hub = opened(settings.Settings(hub=settings.HubSettings(data=str(folder / "kept"))), time=ScaledClock())
    stop, listener, app = asyncio.Event(), server.listen("127.0.0.1", 0), create_app(hub.services, Auth())
    tasks = [asyncio.create_task(hub.run(stop)), asyncio.create_task(server.serve(app, listener, stop=stop))]
    await hub.incidents.ingest_events([xid(79, gpu(0), 0)])
    try:
        yield hub, f"http://127.0.0.1:{listener.getsockname()[1]}", app.state.endpoints
    finally:
        stop.set()
        await asyncio.gather(*tasks)
        hub.close()


class Held:
    """A journal that is locked until the test releases it."""

    def __init__(self) -> None:
        self.is_held, self.let_go = threading.Event(), threading.Event()

    def hold(self, hub: Hub) -> None:
        with hub.current.stages.journal.transaction():
            self.is_held.set()
            self.let_go.wait(HELD_SECONDS)


@pytest.mark.slow
def test_no_request_blocks_the_event_loop_while_the_journal_is_busy(tmp_path: Path) -> None:
    held = Held()

    async def story() -> None:
        loop = asyncio.get_running_loop()
        async with running(tmp_path) as (hub, url, table):
            requests = questions(table)
            with ThreadPoolExecutor(len(requests) + 2) as people:
                holder = loop.run_in_executor(people, held.hold, hub)
                await asyncio.to_thread(held.is_held.wait)
                waiting = [loop.run_in_executor(people, ask, url + path, method) for path, method in requests]
                began = time.monotonic()
                healthy = [await loop.run_in_executor(people, ask, f"{url}/-/healthy") for _ in range(50)]
                took = time.monotonic() - began
                held.let_go.set()
                answers = dict(zip(requests, await asyncio.gather(*waiting), strict=True))
                await holder
        assert (set(healthy), took < FREE_SECONDS) == ({200}, True)
        assert [about for about, status in answers.items() if status >= 500] == []
        assert sum(status == 200 for status in answers.values()) > 30

    asyncio.run(story())


@pytest.mark.slow
def test_explain_requests_during_a_busy_journal_do_not_use_all_threads(
    tmp_path: Path,
) -> None:
    held = Held()
    # More of each than there are threads for everything that is not the journal.
    paths = ["/api/explain/pod/n1", "/api/explain/pod/ml/n1", "/api/jobs", "/api/explain/job/n1"] * 40

    async def story() -> None:
        loop = asyncio.get_running_loop()
        async with running(tmp_path) as (hub, url, _):
            with ThreadPoolExecutor(len(paths) + 2) as people:
                holder = loop.run_in_executor(people, held.hold, hub)
                await loop.run_in_executor(people, held.is_held.wait)
                waiting = [loop.run_in_executor(people, ask, url + path) for path in paths]
                began = time.monotonic()
                labels = [await loop.run_in_executor(people, ask, f"{url}/api/v1/labels") for _ in range(50)]
                took = time.monotonic() - began
                held.let_go.set()
                answers = await asyncio.gather(*waiting)
                await holder
        assert (set(labels), took < FREE_SECONDS) == ({200}, True)
        assert set(answers) == {200, 404}

    asyncio.run(story())
