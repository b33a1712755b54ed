"""The application on a real socket in a thread, and a plain client for it."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.web.small_hub import SmallHub
from watchkeeper.hub.services import Services
from watchkeeper.web import server
from watchkeeper.web.app import create_app
from watchkeeper.web.auth.auth import Auth
from watchkeeper.web.auth.auth_reload import AuthFiles
from watchkeeper.web.auth.tls import Certificates

# It takes 2 s at most; others on a busy machine may keep both cores for longer.
STOP_SECONDS = 40.0
ANSWER_SECONDS = 60.0


def ask_json(url: str) -> tuple[int, Any]:
    """Status and body of any server, a refusal's too; None for a body that is no object."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            body = error.read()
            return error.code, json.loads(body) if body.startswith(b"{") else None


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Site:
    """A running application; `call` runs a function on its event loop, where the hub lives."""

    hub: Any
    port: int
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def call(self, function: Any, *args: Any, **named: Any) -> Any:
        async def run() -> Any:
            return function(*args, **named)

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(ANSWER_SECONDS)

    def ask(self, path: str, *, method: str = "GET", body: Any = None, headers: dict[str, str] | None = None) -> Reply:
        sent = dict(headers or {})
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
            sent.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_SECONDS)
        with contextlib.closing(connection):
            connection.request(method, path, body=body, headers=sent)
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())


@contextlib.contextmanager
def serving(
    hub: SmallHub | Services,
    auth: Auth | AuthFiles | None = None,
    *,
    interval_seconds: float = 0.5,
    port: int = 0,
    certificates: Certificates | None = None,
) -> Iterator[Site]:
    """Serve the application until the block ends; leaving it checks that the stop is quick."""
    listener = server.listen("127.0.0.1", port)
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    async def run() -> None:
        offered = hub if isinstance(hub, Services) else hub.services
        app = create_app(offered, auth or Auth(), live_interval_seconds=interval_seconds)
        await server.serve(app, listener, stop=stop, certificates=certificates)

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    site = Site(hub, listener.getsockname()[1], loop)
    thread.start()
    try:
        yield site
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(STOP_SECONDS)
        assert not thread.is_alive(), f"the server did not stop within {STOP_SECONDS:g} s"
        loop.close()
