"""Live updates over one WebSocket per viewer: incidents as they change, and a frame of the fleet map per interval.

Each frame is drawn once for all viewers, also from time to time without viewers, so that a page that opens shows one
at once. A viewer that sends the edition of its /api/fleet response gets the changes since then before the frame,
because a frame cannot be shown without its inventory.
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
from watchkeeper.hub import fleet_layout, services
from watchkeeper.hub.fleet_gpus import FleetGpus
from watchkeeper.kit import clock, wire
from watchkeeper.kit.logs import fields
from watchkeeper.query import engine
from watchkeeper.web.endpoint import get
from watchkeeper.web.fleet import fleet_snapshot, frames
from watchkeeper.web.incidents.incident_reports import IncidentCards

log = logging.getLogger(__name__)

# A change triggers a new frame immediately, but not faster than a person can follow.
MIN_FRAME_INTERVAL_SECONDS = 0.25
# Each viewer costs a socket and up to one frame of memory; a control room has tens of viewers, not hundreds.
MAX_VIEWERS = 200
MAX_MESSAGE_BYTES = 4096
# How old the holders of GPUs may be: loading them takes three queries, once for all viewers.
MAX_HOLDERS_AGE_SECONDS = 60.0
# How often a frame is drawn without viewers; for 10,000 GPUs, one frame per minute takes 1% of a core.
UNWATCHED_FRAME_SECONDS = 60.0
# How long after that frame a new viewer gets a current one; a page shows 10,000 GPUs 0.6 s after it is opened.
SECOND_FRAME_DELAY_SECONDS = 1.0
# Each colour needs a query for every frame; above the limit a viewer gets the default colour.
MAX_COLOURS = 16
BINARY = "application/octet-stream"
TRY_AGAIN_LATER = 1013
# RFC 6455 and the IANA registry: 1008 is "policy violation".
POLICY_VIOLATION = 1008
# How long to wait after a failure, for example of the journal, before updates are sent again.
RETRY_SECONDS = 5.0
# How often a viewer's access is checked: a viewer whose token, session or user was removed is disconnected.
ACCESS_CHECK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class LiveFrame:
    """A packed frame, and the snapshot of /api/fleet that it belongs to."""

    packed: bytes
    snapshot: fleet_snapshot.FleetSnapshot | None = None


class Mailbox:
    """Messages that wait for one viewer: the newest of each kind, so a slow browser skips frames."""

    def __init__(self) -> None:
        self.colour = frames.DEFAULT_COLOUR
        # The edition of /api/fleet that the viewer sent; without one, it gets only frames.
        self.edition: str | None = None
        self._pending: dict[str, str | LiveFrame] = {}
        self._received_kinds: set[str] = set()
        self._filled = asyncio.Event()

    def put(self, kind: str, message: str | LiveFrame) -> None:
        self._received_kinds.add(kind)
        self._pending[kind] = message
        self._filled.set()

    def put_first(self, kind: str, message: str) -> None:
        """Add a first message, unless a newer one of this kind was added before."""
        if kind not in self._received_kinds:
            self.put(kind, message)

    async def take_all(self) -> list[str | LiveFrame]:
        await self._filled.wait()
        self._filled.clear()
        messages = list(self._pending.values())
        self._pending.clear()
        return messages


class LiveUpdates:
    """Connected viewers, and the tasks that send them incidents and frames."""

    def __init__(
        self,
        hub: services.Services,
        *,
        cards: IncidentCards,
        snapshots: fleet_snapshot.FleetSnapshots,
        gpus: FleetGpus,
        interval_seconds: float,
    ) -> None:
        self._runtime, self._queries, self._journal = hub.runtime, hub.queries, hub.journal
        self._cards, self._snapshots, self._interval_seconds = cards, snapshots, interval_seconds
        self._services, self._gpus = hub.node_services, gpus
        self._viewers: set[Mailbox] = set()
        self._newest: tuple[float, LiveFrame] | None = None
        self._drawn_key: object = None
        self._wake = asyncio.Event()
        self._gauge = hub.runtime.metrics.gauge("watchkeeper_web_viewers", "Browsers with a live connection")
        self._frames = hub.runtime.metrics.counter(
            "watchkeeper_web_frames_total", "Frames of the fleet map that were drawn, by colour"
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        loops = (self._follow_changes, self._run_draw_loop)
        tasks = [asyncio.create_task(self._restart_on_error(loop)) for loop in loops]
        try:
            yield
        finally:
            self._snapshots.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def serve(self, socket: WebSocket, may_stay: Callable[[], bool] = lambda: True) -> None:
        """Serve an authorised viewer until it disconnects or `may_stay` returns False."""
        await socket.accept()
        if len(self._viewers) >= MAX_VIEWERS:
            problem = f"{len(self._viewers)} viewers are connected, the limit is {MAX_VIEWERS}"
            await socket.close(TRY_AGAIN_LATER, problem)
            return
        mailbox = Mailbox()
        self._viewers.add(mailbox)
        self._gauge.set(len(self._viewers))
        frame = self.newest_frame()
        if frame is None:
            self._wake.set()
        else:
            mailbox.put("frame", frame)
            # Deliberately delayed: the page is still loading its code and its other data.
            asyncio.get_running_loop().call_later(SECOND_FRAME_DELAY_SECONDS, self._wake.set)
        sending = asyncio.create_task(self._send(socket, mailbox))
        try:
            mailbox.put_first("incidents", await self._journal.read(self._incidents_message))
            await self._listen(socket, mailbox, may_stay)
        finally:
            self._viewers.discard(mailbox)
            self._gauge.set(len(self._viewers))
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    def newest_frame(self) -> LiveFrame | None:
        """The newest frame in the default colour, or None if it is too old to show."""
        max_age_seconds = 2 * max(self._interval_seconds, UNWATCHED_FRAME_SECONDS)
        return self._newest[1] if self._newest is not None and self._age_seconds() < max_age_seconds else None

    @get("/api/picture", media_type=BINARY)
    async def serve_frame(self, _: Request) -> Response:
        """The newest frame of the fleet map, in the format of /api/live; 204 if there is none yet."""
        headers = {"Cache-Control": "no-store"}
        if (frame := self.newest_frame()) is None:
            return Response(status_code=204, headers=headers)
        return Response(frame.packed, media_type=BINARY, headers=headers)

    def _age_seconds(self) -> float:
        return self._runtime.clock.now().timestamp() - (self._newest[0] if self._newest else 0.0)

    async def _listen(self, socket: WebSocket, mailbox: Mailbox, may_stay: Callable[[], bool]) -> None:
        """Read the messages of a viewer: the colour of its map, and the edition of its /api/fleet response."""
        with contextlib.suppress(WebSocketDisconnect, KeyError, RuntimeError):
            while may_stay():
                try:
                    # A binary message raises KeyError; the console does not send any.
                    text = await asyncio.wait_for(socket.receive_text(), ACCESS_CHECK_SECONDS)
                except TimeoutError:
                    continue
                colour, edition = _parse_viewer_message(text)
                mailbox.edition = edition or mailbox.edition
                if colour is not None and colour != mailbox.colour:
                    mailbox.colour = colour
                    self._wake.set()
            await socket.close(POLICY_VIOLATION, "session ended or access revoked")

    async def _restart_on_error(self, loop: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await loop()
            except Exception as error:  # Deliberately everything: otherwise the map of all viewers would stop.
                is_expected = isinstance(error, WatchkeeperError)
                log.warning("live updates failed", extra=fields(error=error), exc_info=None if is_expected else error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _follow_changes(self) -> None:
        """Send changed incidents to viewers immediately; under many changes, at most four times per second."""
        async with self._runtime.changes.subscribe() as queue:
            # After a failure, viewers first get the changes that they missed.
            messages = {"incidents"} if self._viewers else set()
            while True:
                if messages - {"fleet"} and self._viewers:
                    message = await self._journal.read(self._incidents_message)
                    for viewer in self._viewers:
                        viewer.put("incidents", message)
                if messages:
                    self._wake.set()
                    await asyncio.sleep(MIN_FRAME_INTERVAL_SECONDS)
                messages = {await queue.get()}
                while not queue.empty():
                    messages.add(queue.get_nowait())

    async def _run_draw_loop(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._interval_seconds)
            self._wake.clear()
            if self._viewers:
                await self._draw_frames(
                    renew_snapshot=self._has_fleet_changed() or self._snapshots.age_seconds() >= MAX_HOLDERS_AGE_SECONDS
                )
                await asyncio.sleep(MIN_FRAME_INTERVAL_SECONDS)
            elif self._needs_frame():
                await self._draw_frames(renew_snapshot=True)

    def _needs_frame(self) -> bool:
        """Whether the frame for the next viewer is too old, or the inventory has changed since it was drawn."""
        age = self._age_seconds()
        return age >= UNWATCHED_FRAME_SECONDS or (age >= self._interval_seconds and self._has_fleet_changed())

    def _has_fleet_changed(self) -> bool:
        """Whether the inventory has changed, or a target began or ceased to answer, since the newest frame."""
        return self._gpus.sources_key() != self._drawn_key

    async def _draw_frames(self, *, renew_snapshot: bool) -> None:
        sources_key, gpu_states, now = self._gpus.sources_key(), await self._gpus.load(), self._runtime.clock.now()
        layout = gpu_states.layout
        at_ms = clock.to_ms(now)
        results = {
            name: await self._query(expr, at_ms)
            for name, expr in (
                ("work", frames.WORK_EXPR),
                ("activity", frames.ACTIVITY_EXPR),
                ("gpu_util", frames.COLOURS["gpu_util"].expr),
                ("power", frames.COLOURS["power"].expr),
                ("throttle", frames.THROTTLE_EXPR),
            )
        }
        new_snapshot = await self._snapshots.build(gpu_states) if renew_snapshot else None
        open_incidents = await self._journal.read(self._journal.incidents)
        readings = frames.FrameReadings(**results)
        services = self._services()
        content = await asyncio.to_thread(frames.draw_frame, gpu_states, readings, open_incidents, services)
        header = {"kind": "frame", "at": wire.format_time(now), "version": layout.version}
        for name in self._viewed_colours():
            colour = frames.find_colour(name)
            assert colour is not None
            result = await self._query(colour.expr, at_ms)
            packed = await asyncio.to_thread(_pack_colour, layout, result, colour, content, {**header, "colour": name})
            self._frames.add(colour=name if name in frames.COLOURS else "other")
            if new_snapshot is not None:
                self._snapshots.set_cached(new_snapshot)
                self._drawn_key, new_snapshot = sources_key, None
            frame = LiveFrame(packed, self._snapshots.newest_for(layout.version))
            if name == frames.DEFAULT_COLOUR:
                self._newest = (now.timestamp(), frame)
            for viewer in self._viewers:
                if viewer.colour == name:
                    viewer.put("frame", frame)

    def _viewed_colours(self) -> list[str]:
        """The colours that viewers use, or the default one; viewers above the limit are set to the default."""
        colours = list(dict.fromkeys(viewer.colour for viewer in self._viewers))
        for viewer in self._viewers:
            if viewer.colour in colours[MAX_COLOURS:]:
                viewer.colour = frames.DEFAULT_COLOUR
        return list(dict.fromkeys(viewer.colour for viewer in self._viewers)) or [frames.DEFAULT_COLOUR]

    async def _query(self, expr: str, at_ms: int) -> engine.QueryResult | None:
        """Run a query; None if it failed: the map then shows unknown instead of old values."""
        try:
            return await self._queries.instant(expr, at_ms)
        except WatchkeeperError as error:
            log.warning("live query failed", extra=fields(expr=expr, error=str(error)))
            return None

    def _incidents_message(self) -> str:
        content = {"kind": "incidents", "at": wire.format_time(self._runtime.clock.now()), **self._cards.make_panel()}
        return orjson.dumps(content).decode()

    async def _send(self, socket: WebSocket, mailbox: Mailbox) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            while True:
                for message in await mailbox.take_all():
                    if isinstance(message, str):
                        await socket.send_text(message)
                        continue
                    if (changes := self._fleet_changes(mailbox, message.snapshot)) is not None:
                        await socket.send_text(changes)
                    await socket.send_bytes(message.packed)

    def _fleet_changes(self, mailbox: Mailbox, snapshot: fleet_snapshot.FleetSnapshot | None) -> str | None:
        """The changes that a viewer needs before a frame, or None; sent again until its edition is a current one."""
        since = mailbox.edition
        if snapshot is None or since is None or since == snapshot.edition:
            return None
        if self._snapshots.has_edition(since):
            mailbox.edition = snapshot.edition
        return self._snapshots.changes_since(since, snapshot)


def _pack_colour(
    layout: fleet_layout.FleetLayout,
    result: engine.QueryResult | None,
    colour: frames.MapColour,
    content: frames.FrameContent,
    header: Mapping[str, object],
) -> bytes:
    """Pack the frame in one colour; the header includes the scale, which may depend on the values."""
    read_values = frames.values_by_slot_or_node if colour.title == colour.expr else frames.values_by_slot
    values = read_values(layout, result)
    low, high = frames.colour_scale(colour, values)
    return frames.pack_frame(replace(content, values=values), {**header, "low": low, "high": high})


def _parse_viewer_message(text: str) -> tuple[str | None, str | None]:
    """Parse the colour and edition of a viewer's message; None if missing or unknown."""
    try:
        message = orjson.loads(text) if len(text) <= MAX_MESSAGE_BYTES else None
    except orjson.JSONDecodeError:
        return None, None
    colour, edition = (message.get(name) if isinstance(message, dict) else None for name in ("colour", "edition"))
    is_colour = isinstance(colour, str) and frames.find_colour(colour) is not None
    return colour if is_colour else None, edition if isinstance(edition, str) else None
