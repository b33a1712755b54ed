"""Cancel the answer to a request whose client has disconnected.

`gate` puts it around the reads of viewers: a query without a client leaves its place in the queue, or ends at
its next check (`kit.allowance`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import Self

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

from watchkeeper.web.endpoint import BODY_TIMEOUT_SECONDS

# Nearly all answers are faster, and then nothing has to be watched.
START_SECONDS = 0.05
# The status that nginx logs; no one receives it.
CLIENT_CLOSED_REQUEST = 499
# Forms of queries have at most 256 KiB.
MAX_READ_AHEAD_BYTES = 512 * 1024
WITHOUT_BODY = ("GET", "HEAD")


class ClientDisconnected(HTTPException):
    """The client disconnected before it was answered."""

    def __init__(self) -> None:
        super().__init__(CLIENT_CLOSED_REQUEST, "the client disconnected before it was answered")


class DisconnectWatch:
    """A context in which this task is cancelled when the client disconnects; then it raises ClientDisconnected.

    Use its `request`: messages about a connection can be read by one reader only, so the watch begins after the body,
    which is read first, unless it is large.
    """

    def __init__(self, request: Request) -> None:
        self._receive = request.receive
        self.request = Request(request.scope, self._read)
        self._read_ahead: deque[Message] = deque()
        self._has_body = asyncio.Event()
        if request.method in WITHOUT_BODY:
            self._has_body.set()
        self._is_gone = False
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._read_body()
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(START_SECONDS, self._start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if not self._is_gone:
            return
        assert self._task is not None
        if self._task.uncancel() <= 0 and kind is asyncio.CancelledError:
            raise ClientDisconnected from error

    async def _read_body(self) -> None:
        """Read the body, or its beginning, for the endpoint, which may have to wait for its turn."""
        size = 0
        try:
            async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
                while not self._has_body.is_set() and size < MAX_READ_AHEAD_BYTES:
                    message = await self._receive_body()
                    self._read_ahead.append(message)
                    size += len(message.get("body", b""))
        except TimeoutError as error:
            raise HTTPException(408, f"the body did not arrive within {BODY_TIMEOUT_SECONDS:g} s") from error

    async def _read(self) -> Message:
        return self._read_ahead.popleft() if self._read_ahead else await self._receive_body()

    async def _receive_body(self) -> Message:
        message = await self._receive()
        if not message.get("more_body"):
            self._has_body.set()
        return message

    def _start(self) -> None:
        self._watcher = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        await self._has_body.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._is_gone = True
        assert self._task is not None
        self._task.cancel()
