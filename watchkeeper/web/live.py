"""Live updates over one WebSocket per viewer: incidents at once, a picture of the fleet per tick.

One task follows the hub's changes and a timer. It draws each picture once, whatever the number of
viewers, and leaves it in every viewer's mailbox. A mailbox has one place per kind of message and the
newest wins, so a slow browser skips pictures instead of queueing them. Fault → screen goes through
here: a change of incidents is sent before anything is asked of the engine. While nobody looks, a picture and the
answer of /api/fleet are made now and then all the same: whoever opens the page sees the fleet at once, under the time
of that picture, and the next one a moment later. A picture of another inventory than before comes with its answer of
/api/fleet, for the one means nothing without the other. A viewer that says which edition of that answer it has is told
before a picture what has changed since: it need not ask, and whoever holds a GPU now is told the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from watchkeeper.errors import WatchkeeperError
from watchkeeper.hub import services
from watchkeeper.hub.runtime import Runtime
from watchkeeper.hub.samples import Queries
from watchkeeper.kit import clock, wire
from watchkeeper.kit.logs import fields
from watchkeeper.query import engine
from watchkeeper.scrape import status_series
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import Endpoint
from watchkeeper.web.fleet import fleet_layout, fleet_snapshot, frames
from watchkeeper.web.incidents.cards import IncidentCards

log = logging.getLogger(__name__)

# A change may bring a new picture at once, but not more often than an eye can follow.
SHORTEST_PAUSE_SECONDS = 0.25
# Each viewer costs a socket and up to one picture of memory; a control room has tens, not hundreds.
VIEWER_LIMIT = 200
MESSAGE_LIMIT_BYTES = 4096
# How old the holders of GPUs may be that viewers are shown: three questions to the engine, once for all viewers.
HOLDERS_SECONDS = 60.0
# How old the first picture of the first viewer may be; at 10,000 GPUs one picture a minute is a hundredth of a core.
UNWATCHED_SECONDS = 60.0
# How long whoever was given that picture waits for one of now; 10,000 GPUs stand on the screen 0.6 s after the call.
NEXT_PICTURE_SECONDS = 1.0
# Each colour is a question to the engine for every picture; who asks for one more gets the usual one.
MOST_COLOURS = 16
TRY_AGAIN_LATER = 1013
# RFC 6455 and the IANA registry: 1008 is "policy violation".
POLICY_VIOLATION = 1008
# Who cannot be told anything now, because the journal does not answer, is told that long after.
AGAIN_SECONDS = 5.0
# A viewer whose token, session or name was taken away sees nothing new after that long.
LOOK_AGAIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class LiveFrame:
    """A picture as it is sent, and the answer of /api/fleet that it belongs to."""

    picture: bytes
    stock: fleet_snapshot.FleetSnapshot | None = None


class Mailbox:
    """What one viewer has yet to receive: at most one message of each kind."""

    def __init__(self) -> None:
        self.colour = frames.DEFAULT_COLOUR
        # What the viewer has of /api/fleet; None for one that has not said so, and is sent pictures only.
        self.edition: str | None = None
        self._waiting: dict[str, str | LiveFrame] = {}
        self._known: set[str] = set()
        self._filled = asyncio.Event()

    def put(self, kind: str, message: str | LiveFrame) -> None:
        self._known.add(kind)
        self._waiting[kind] = message
        self._filled.set()

    def put_first(self, kind: str, message: str) -> None:
        """What a viewer is shown first, unless a newer one came while this was made."""
        if kind not in self._known:
            self.put(kind, message)

    async def take_all(self) -> list[str | LiveFrame]:
        await self._filled.wait()
        self._filled.clear()
        messages = list(self._waiting.values())
        self._waiting.clear()
        return messages


class LiveUpdates:
    """The one task that draws, and the viewers it draws for."""

    def __init__(
        self,
        runtime: Runtime,
        queries: Queries,
        *,
        journal: services.JournalProtocol,
        fleet: services.FleetProtocol,
        cards: IncidentCards,
        stock: fleet_snapshot.FleetSnapshots,
        interval_seconds: float,
    ) -> None:
        self._runtime, self._queries, self._journal, self._fleet = runtime, queries, journal, fleet
        self._cards = cards
        self._stock = stock
        self._interval_seconds = interval_seconds
        self._viewers: set[Mailbox] = set()
        self._newest: tuple[float, LiveFrame] | None = None
        self._drawn_version = ""
        self._wake = asyncio.Event()
        self._gauge = runtime.metrics.gauge("watchkeeper_web_viewers", "Browsers with a live connection")
        self._frames = runtime.metrics.counter(
            "watchkeeper_web_frames_total", "Pictures of the fleet drawn for viewers"
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        loops = (self._follow_changes, self._draw_forever)
        tasks = [asyncio.create_task(self._beginning_again(loop)) for loop in loops]
        try:
            yield
        finally:
            self._stock.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def serve(self, socket: WebSocket, may_stay: Callable[[], bool] = lambda: True) -> None:
        """Talk to one viewer until it leaves, or may not stay any longer; the gate has let it in already."""
        await socket.accept()
        if len(self._viewers) >= VIEWER_LIMIT:
            await socket.close(
                TRY_AGAIN_LATER, f"{len(self._viewers)} viewers are connected, the limit is {VIEWER_LIMIT}"
            )
            return
        mailbox = Mailbox()
        self._viewers.add(mailbox)
        self._gauge.set(len(self._viewers))
        ready = self.ready()
        if ready is None:
            self._wake.set()
        else:
            mailbox.put("frame", ready)
            # The page that opens still waits for its code and its other answers: they come first.
            asyncio.get_running_loop().call_later(NEXT_PICTURE_SECONDS, self._wake.set)
        sending = asyncio.create_task(self._send(socket, mailbox))
        try:
            mailbox.put_first("incidents", await self._journal.read(self._incidents_message))
            await self._listen(socket, mailbox, may_stay)
        finally:
            self._viewers.discard(mailbox)
            self._gauge.set(len(self._viewers))
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    def ready(self) -> LiveFrame | None:
        """The newest picture in the usual colour, unless it is too old to begin with."""
        oldest = 2 * max(self._interval_seconds, UNWATCHED_SECONDS)
        return self._newest[1] if self._newest is not None and self._age_seconds() < oldest else None

    async def picture(self, _: Request) -> Response:
        """The picture that is ready, as the socket would send it; 204 where there is none yet."""
        ready = self.ready()
        headers = {"Cache-Control": "no-store"}
        if ready is None:
            return Response(status_code=204, headers=headers)
        return Response(ready.picture, media_type="application/octet-stream", headers=headers)

    def endpoints(self) -> list[Endpoint]:
        words = "The newest picture of the fleet as /api/live sends it, for a page that opens; 204 where none is ready"
        media = "application/octet-stream"
        return [Endpoint(("GET",), "/api/picture", Role.VIEWER, self.picture, summary=words, media_type=media)]

    def _age_seconds(self) -> float:
        return self._runtime.clock.now().timestamp() - (self._newest[0] if self._newest else 0.0)

    async def _listen(self, socket: WebSocket, mailbox: Mailbox, may_stay: Callable[[], bool]) -> None:
        """A viewer says two things only: by which metric its map is coloured, and what it has of /api/fleet."""
        with contextlib.suppress(WebSocketDisconnect, KeyError, RuntimeError):
            while may_stay():
                try:
                    # A binary frame has no text, and raises KeyError: whoever sends one is not our console.
                    text = await asyncio.wait_for(socket.receive_text(), LOOK_AGAIN_SECONDS)
                except TimeoutError:
                    continue
                colour, edition = _said(text)
                mailbox.edition = edition or mailbox.edition
                if colour is not None and colour != mailbox.colour:
                    mailbox.colour = colour
                    self._wake.set()
            await socket.close(POLICY_VIOLATION, "signed out")

    async def _beginning_again(self, loop: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await loop()
            except Exception as error:  # Deliberately everything: viewers would look at an old picture for ever.
                known = isinstance(error, WatchkeeperError)
                log.warning("Viewers cannot be told", extra=fields(error=error), exc_info=None if known else error)
                await asyncio.sleep(AGAIN_SECONDS)

    async def _follow_changes(self) -> None:
        """Tell viewers at once that something changed; in a storm a few times a second, with the newest list."""
        async with self._runtime.changes.subscribe() as queue:
            # What changed while viewers could not be told is told first.
            messages = {"incidents"} if self._viewers else set()
            while True:
                if messages - {"fleet"} and self._viewers:
                    self._send_all("incidents", await self._journal.read(self._incidents_message))
                if messages:
                    self._wake.set()
                    await asyncio.sleep(SHORTEST_PAUSE_SECONDS)
                messages = {await queue.get()}
                while not queue.empty():
                    messages.add(queue.get_nowait())

    async def _draw_forever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._interval_seconds)
            self._wake.clear()
            if self._viewers:
                await self._draw(has_new_stock=self._has_changed() or self._stock.age_seconds() >= HOLDERS_SECONDS)
                await asyncio.sleep(SHORTEST_PAUSE_SECONDS)
            elif self._is_outdated():
                await self._draw(has_new_stock=True)

    def _is_outdated(self) -> bool:
        """Whether the picture that waits for the first viewer is old, or of a fleet that has changed since."""
        age = self._age_seconds()
        return age >= UNWATCHED_SECONDS or (age >= self._interval_seconds and self._has_changed())

    def _has_changed(self) -> bool:
        return fleet_layout.current_layout(self._fleet).version != self._drawn_version

    async def _draw(self, *, has_new_stock: bool) -> None:
        stock, now = fleet_layout.current_layout(self._fleet), self._runtime.clock.now()
        at_ms = clock.to_ms(now)
        shared = {
            name: await self._ask(expr, at_ms)
            for name, expr in (
                ("work", frames.WORK_EXPR),
                ("gpu_util", frames.COLOURS["gpu_util"].expr),
                ("power", frames.COLOURS["power"].expr),
                ("throttle", frames.THROTTLE_EXPR),
                ("slices", status_series.MIG_MEMORY),
            )
        }
        new_stock = await self._stock.make(stock) if has_new_stock else None
        open_incidents = await self._journal.read(self._journal.incidents)
        readings = frames.FrameReadings(**shared, holders=self._fleet.workload_labels())
        picture = await asyncio.to_thread(frames.draw_picture, stock, readings, open_incidents)
        header = {"kind": "frame", "at": wire.format_time(now), "version": stock.version}
        for name in self._wanted():
            colour = frames.find_colour(name)
            assert colour is not None
            answer = await self._ask(colour.expr, at_ms)
            packed = await asyncio.to_thread(_packed, stock, answer, colour, picture, {**header, "colour": name})
            self._frames.add(colour=name if name in frames.COLOURS else "other")
            if new_stock is not None:
                self._stock.keep(new_stock)
                self._drawn_version, new_stock = stock.version, None
            shown = LiveFrame(packed, self._stock.newest_for(stock.version))
            if name == frames.DEFAULT_COLOUR:
                self._newest = (now.timestamp(), shown)
            for viewer in self._viewers:
                if viewer.colour == name:
                    viewer.put("frame", shown)

    def _wanted(self) -> list[str]:
        """The colours that are looked at, or the usual one; viewers of one too many fall back to it too."""
        wanted = list(dict.fromkeys(viewer.colour for viewer in self._viewers))
        for viewer in self._viewers:
            if viewer.colour in wanted[MOST_COLOURS:]:
                viewer.colour = frames.DEFAULT_COLOUR
        return list(dict.fromkeys(viewer.colour for viewer in self._viewers)) or [frames.DEFAULT_COLOUR]

    async def _ask(self, expr: str, at_ms: int) -> engine.QueryResult | None:
        """An answer, or None where the engine cannot give one; the map then says unknown instead of old."""
        try:
            return await self._queries.instant(expr, at_ms)
        except WatchkeeperError as error:
            log.warning("A live reading failed", extra=fields(expr=expr, error=str(error)))
            return None

    def _incidents_message(self) -> str:
        content = {"kind": "incidents", "at": wire.format_time(self._runtime.clock.now()), **self._cards.make_panel()}
        return orjson.dumps(content).decode()

    def _send_all(self, kind: str, message: str) -> None:
        for viewer in self._viewers:
            viewer.put(kind, message)

    async def _send(self, socket: WebSocket, mailbox: Mailbox) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            while True:
                for message in await mailbox.take_all():
                    if isinstance(message, str):
                        await socket.send_text(message)
                        continue
                    if (news := self._news(mailbox, message.stock)) is not None:
                        await socket.send_text(news)
                    await socket.send_bytes(message.picture)

    def _news(self, mailbox: Mailbox, made: fleet_snapshot.FleetSnapshot | None) -> str | None:
        """What a viewer must know before it is shown a picture; said again until it has an edition that is known."""
        since = mailbox.edition
        if made is None or since is None or since == made.edition:
            return None
        if self._stock.has_edition(since):
            mailbox.edition = made.edition
        return self._stock.changes_since(since, made)


def _packed(
    stock: fleet_layout.FleetLayout,
    answer: engine.QueryResult | None,
    colour: frames.MapColour,
    picture: frames.FramePicture,
    header: Mapping[str, object],
) -> bytes:
    """The picture in one colour; the scale travels with it, because readings may be what says it."""
    values = (
        frames.values_by_slot_or_node(stock, answer)
        if colour.title == colour.expr
        else frames.values_by_slot(stock, answer)
    )
    low, high = frames.colour_scale(colour, values)
    return frames.pack_frame(replace(picture, values=values), {**header, "low": low, "high": high})


def _said(text: str) -> tuple[str | None, str | None]:
    """The metric that a viewer asks for, and the edition that it has; None for what it did not say, or nobody has."""
    try:
        said = orjson.loads(text) if len(text) <= MESSAGE_LIMIT_BYTES else None
    except orjson.JSONDecodeError:
        return None, None
    colour, edition = (said.get(name) if isinstance(said, dict) else None for name in ("colour", "edition"))
    is_colour = isinstance(colour, str) and frames.find_colour(colour) is not None
    return colour if is_colour else None, edition if isinstance(edition, str) else None
