"""GET /api/history: the events of a node or GPU over the last weeks, with the meaning of each Xid.

The node and GPU pages of the console list them and draw them into charts. Incidents contain only their signals; this
contains all events, including those without an incident.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TypedDict

from starlette.exceptions import HTTPException
from starlette.requests import Request

from watchkeeper.catalogue import xid
from watchkeeper.hub import services
from watchkeeper.kit import wire
from watchkeeper.model import alerts, events, fleet
from watchkeeper.web.endpoint import QueryParam, get, read_number

DEFAULT_DAYS, MAX_DAYS = 90, 366
# A node that repeats one line for days has thousands of events; the counts include all of them.
MAX_EVENTS = 500


class HistoryEvent(TypedDict):
    """An event, with the meaning and severity of its Xid from the catalogue."""

    id: str
    at: str
    kind: str
    code: int | None
    text: str
    gpu: str | None
    process: str | None
    meaning: str | None
    severity: str | None


class EventCount(TypedDict):
    kind: str
    code: int | None
    events: int
    newest: str
    meaning: str | None


class EventHistory(TypedDict):
    now: datetime
    days: int
    # The hub has events from then on: the start of `days`, or the first entry of its journal.
    since: datetime
    total: int
    events: list[HistoryEvent]
    counts: list[EventCount]


class HistoryApi:
    def __init__(self, hub: services.Services) -> None:
        self._runtime, self._journal, self._fleet = hub.runtime, hub.journal, hub.fleet

    @get(
        "/api/history",
        QueryParam("node", "Name of the node.", is_required=True),
        QueryParam("gpu", "Return only events of the GPU with this UUID."),
        QueryParam("cluster", "Cluster of the node, if several clusters have a node with this name."),
        QueryParam("days", f"Return events of this many days, 1 to {MAX_DAYS}. Default: {DEFAULT_DAYS}.", int),
    )
    async def get_history(self, request: Request) -> EventHistory:
        """List the events of a node or GPU, newest first, with the meaning of each Xid."""
        params = request.query_params
        node, gpu = params.get("node", ""), params.get("gpu") or None
        if not node:
            raise HTTPException(400, "`node` is required: /api/history?node=NAME")
        days = read_number(request, "days", default=DEFAULT_DAYS, limit=MAX_DAYS)
        clusters = {listed.cluster for listed in self._fleet.nodes() if listed.name == node}
        only_cluster = clusters.pop() if len(clusters) == 1 else self._runtime.settings.fleet.cluster
        cluster = params.get("cluster") or only_cluster
        now = self._runtime.clock.now()
        place = fleet.Place(cluster, node=node, gpu=gpu)
        first = await self._journal.read(lambda: self._journal.first_entry_at() or now)
        matches = await self._journal.read(lambda: self._journal.events_at(place, now - timedelta(days=days), now))
        newest = sorted(matches, key=lambda event: event.at, reverse=True)
        # An agent may report events from before the hub's first entry.
        oldest_known = min([first, *(event.at for event in newest[-1:])])
        return EventHistory(
            now=now,
            days=days,
            since=max(now - timedelta(days=days), oldest_known),
            total=len(matches),
            events=[describe_event(event) for event in newest[:MAX_EVENTS]],
            counts=count_events(newest),
        )


def describe_event(event: events.Event) -> HistoryEvent:
    xid_row = xid.lookup(event.code) if event.kind is events.EventKind.XID and event.code is not None else None
    process = event.process
    return {
        "id": event.id,
        "at": wire.format_time(event.at),
        "kind": event.kind.value,
        "code": event.code,
        "text": event.text,
        "gpu": event.place.gpu,
        "process": None if process is None else " ".join(str(part) for part in (process.name, process.pid) if part),
        "meaning": None if xid_row is None else xid_row.name,
        "severity": (alerts.Severity.WARNING if xid_row is None else xid_row.severity).value,
    }


def count_events(newest: Sequence[events.Event]) -> list[EventCount]:
    """Count events by kind and code, the most frequent first; `newest` must be sorted, the newest event first."""
    counts = Counter((event.kind, event.code) for event in newest)
    newest_at: dict[tuple[events.EventKind, int | None], datetime] = {}
    for event in newest:
        newest_at.setdefault((event.kind, event.code), event.at)
    return [
        {
            "kind": kind.value,
            "code": code,
            "events": count,
            "newest": wire.format_time(newest_at[kind, code]),
            "meaning": xid.lookup(code).name if kind is events.EventKind.XID and code is not None else None,
        }
        for (kind, code), count in counts.most_common()
    ]
