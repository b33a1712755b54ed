"""Live updates over one WebSocket per viewer: incidents at once, a picture of the fleet per tick.

One task follows `hub.changes` and a timer. It draws each picture once, whatever the number of
viewers, and leaves it in every viewer's mailbox. A mailbox has one place per kind of message and the
newest wins, so a slow browser skips pictures instead of queueing them. Fault → screen goes through
here: a change of incidents is sent before anything is asked of the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import orjson
from starlette.websockets import WebSocket, WebSocketDisconnect

from watchkeeper.errors import WatchkeeperError
from watchkeeper.kit import clock, wire
from watchkeeper.kit.logs import fields
from watchkeeper.query import engine
from watchkeeper.web import cards, frames, inventory
from watchkeeper.web.view import HubView

log = logging.getLogger(__name__)

# A change may bring a new picture at once, but not more often than an eye can follow.
SHORTEST_PAUSE_SECONDS = 0.25
# Each viewer costs a socket and up to one picture of memory; a control room has tens, not hundreds.
VIEWER_LIMIT = 200
MESSAGE_LIMIT_BYTES = 4096
# Each colour is a question to the engine for every picture; who asks for one more gets the usual one.
MOST_COLOURS = 16
TRY_AGAIN_LATER = 1013


class Mailbox:
    """What one viewer has yet to receive: at most one message of each kind."""

    def __init__(self) -> None:
        self.colour = frames.DEFAULT_COLOUR
        self._waiting: dict[str, str | bytes] = {}
        self._filled = asyncio.Event()

    def leave(self, kind: str, message: str | bytes) -> None:
        self._waiting[kind] = message
        self._filled.set()

    async def take(self) -> list[str | bytes]:
        await self._filled.wait()
        self._filled.clear()
        messages = list(self._waiting.values())
        self._waiting.clear()
        return messages


class Live:
    """The one task that draws, and the viewers it draws for."""

    def __init__(self, hub: HubView, *, interval_seconds: float) -> None:
        self._hub = hub
        self._interval_seconds = interval_seconds
        self._viewers: set[Mailbox] = set()
        self._newest: tuple[float, bytes] | None = None
        self._wake = asyncio.Event()
        self._gauge = hub.metrics.gauge("watchkeeper_web_viewers", "Browsers with a live connection")
        self._frames = hub.metrics.counter("watchkeeper_web_frames_total", "Pictures of the fleet drawn for viewers")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._follow_changes()), asyncio.create_task(self._draw_forever())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def serve(self, socket: WebSocket) -> None:
        """Talk to one viewer until it leaves; the gate has let it in already."""
        await socket.accept()
        if len(self._viewers) >= VIEWER_LIMIT:
            await socket.close(
                TRY_AGAIN_LATER, f"{len(self._viewers)} viewers are connected, the limit is {VIEWER_LIMIT}"
            )
            return
        mailbox = Mailbox()
        self._viewers.add(mailbox)
        self._gauge.set(len(self._viewers))
        mailbox.leave("incidents", self._incidents_message())
        if self._newest is not None and self._age_seconds() < 2 * self._interval_seconds:
            mailbox.leave("frame", self._newest[1])
        self._wake.set()
        sending = asyncio.create_task(_send(socket, mailbox))
        try:
            await self._listen(socket, mailbox)
        finally:
            self._viewers.discard(mailbox)
            self._gauge.set(len(self._viewers))
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    def _age_seconds(self) -> float:
        return self._hub.clock.now().timestamp() - (self._newest[0] if self._newest else 0.0)

    async def _listen(self, socket: WebSocket, mailbox: Mailbox) -> None:
        """A viewer says one thing only: by which metric its map is coloured."""
        with contextlib.suppress(WebSocketDisconnect, KeyError):
            while True:
                # A binary frame has no text, and raises KeyError: whoever sends one is not our console.
                text = await socket.receive_text()
                wish = _colour_wish(text)
                if wish is not None:
                    mailbox.colour = wish
                    self._wake.set()

    async def _follow_changes(self) -> None:
        """Tell viewers at once that something changed; in a storm a few times a second, with the newest list."""
        async with self._hub.changes.subscribe() as queue:
            while True:
                messages = {await queue.get()}
                while not queue.empty():
                    messages.add(queue.get_nowait())
                if messages != {"fleet"} and self._viewers:
                    self._send_all("incidents", await asyncio.to_thread(self._incidents_message))
                self._wake.set()
                await asyncio.sleep(SHORTEST_PAUSE_SECONDS)

    async def _draw_forever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._interval_seconds)
            self._wake.clear()
            if self._viewers:
                await self._draw()
                await asyncio.sleep(SHORTEST_PAUSE_SECONDS)

    async def _draw(self) -> None:
        stock, now = inventory.take(self._hub.fleet), self._hub.clock.now()
        at_ms = clock.to_ms(now)
        shared = {
            name: await self._ask(expr, at_ms)
            for name, expr in (
                ("work", frames.WORK_EXPR),
                ("gpu_util", frames.COLOURS["gpu_util"].expr),
                ("power", frames.COLOURS["power"].expr),
                ("throttle", frames.THROTTLE_EXPR),
            )
        }
        open_incidents = self._hub.incidents(open_only=True)
        readings = frames.Readings(**shared, holders=self._hub.fleet.holders())
        picture = await asyncio.to_thread(frames.draw, stock, readings, open_incidents)
        header = {"kind": "frame", "at": wire.format_time(now), "version": stock.version}
        for name in self._wanted():
            colour = frames.colour_of(name)
            assert colour is not None
            answer = await self._ask(colour.expr, at_ms)
            packed = await asyncio.to_thread(_packed, stock, answer, colour, picture, {**header, "colour": name})
            self._frames.add(colour=name if name in frames.COLOURS else "other")
            if name == frames.DEFAULT_COLOUR:
                self._newest = (now.timestamp(), packed)
            for viewer in self._viewers:
                if viewer.colour == name:
                    viewer.leave("frame", packed)

    def _wanted(self) -> list[str]:
        """The colours that are looked at; viewers of one too many fall back to the usual one."""
        wanted = list(dict.fromkeys(viewer.colour for viewer in self._viewers))
        for viewer in self._viewers:
            if viewer.colour in wanted[MOST_COLOURS:]:
                viewer.colour = frames.DEFAULT_COLOUR
        return list(dict.fromkeys(viewer.colour for viewer in self._viewers))

    async def _ask(self, expr: str, at_ms: int) -> engine.Answer | None:
        """An answer, or None where the engine cannot give one; the map then says unknown instead of old."""
        try:
            return await self._hub.ask(expr, at_ms)
        except WatchkeeperError as error:
            log.warning("A live reading failed", extra=fields(expr=expr, error=str(error)))
            return None

    def _incidents_message(self) -> str:
        content = {"kind": "incidents", "at": wire.format_time(self._hub.clock.now()), **cards.panel(self._hub)}
        return orjson.dumps(content).decode()

    def _send_all(self, kind: str, message: str) -> None:
        for viewer in self._viewers:
            viewer.leave(kind, message)


def _packed(
    stock: inventory.Inventory,
    answer: engine.Answer | None,
    colour: frames.Colour,
    picture: frames.Picture,
    header: Mapping[str, object],
) -> bytes:
    """The picture in one colour; the scale travels with it, because readings may be what says it."""
    values = frames.place_by_node(stock, answer) if colour.title == colour.expr else frames.place(stock, answer)
    low, high = frames.scale(colour, values)
    return frames.pack(replace(picture, values=values), {**header, "low": low, "high": high})


async def _send(socket: WebSocket, mailbox: Mailbox) -> None:
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        while True:
            for message in await mailbox.take():
                if isinstance(message, bytes):
                    await socket.send_bytes(message)
                else:
                    await socket.send_text(message)


def _colour_wish(text: str) -> str | None:
    """The metric a viewer asks for, or None if it asked for nothing we have."""
    try:
        wish = orjson.loads(text)["colour"] if len(text) <= MESSAGE_LIMIT_BYTES else None
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
    return wish if isinstance(wish, str) and frames.colour_of(wish) is not None else None
