"""GET /api/history: what happened at a node or a GPU in the last weeks, with what each Xid means.

The console's pages of a node and of a GPU draw it into their charts and list it. Incidents have the signals that
belong to them; this has every event, also those nobody was told about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypedDict

from starlette.exceptions import HTTPException
from starlette.requests import Request

from watchkeeper.catalogue import xid
from watchkeeper.hub import services
from watchkeeper.hub.runtime import Runtime
from watchkeeper.kit import wire
from watchkeeper.model import alerts, events, fleet
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import Endpoint, QueryParam, parse_whole_number

USUAL_DAYS, MOST_DAYS = 90, 366
# A node that repeats one line for days has thousands; the newest say enough, and the counts have all.
MOST_SHOWN = 500


class HistoryEvent(TypedDict):
    """An event, with the catalogue's words for it; both are None where it has no number."""

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


@dataclass(frozen=True, slots=True)
class EventHistory:
    now: datetime
    days: int
    total: int
    events: list[HistoryEvent]
    counts: list[EventCount]


class HistoryApi:
    def __init__(self, runtime: Runtime, journal: services.JournalProtocol, *, fleet: services.FleetProtocol) -> None:
        self._runtime, self._journal, self._fleet = runtime, journal, fleet

    async def history(self, request: Request) -> EventHistory:
        asked = request.query_params
        node, gpu, days = (
            asked.get("node", ""),
            asked.get("gpu") or None,
            parse_whole_number(asked.get("days", str(USUAL_DAYS))),
        )
        if not node:
            raise HTTPException(400, "name a node: /api/history?node=…, and perhaps gpu=UUID")
        if days is None or not 1 <= days <= MOST_DAYS:
            raise HTTPException(400, f"days must be a number from 1 to {MOST_DAYS}")
        clusters = {one.cluster for one in self._fleet.nodes() if one.name == node}
        cluster = asked.get("cluster") or (
            clusters.pop() if len(clusters) == 1 else self._runtime.settings.fleet.cluster
        )
        now = self._runtime.clock.now()
        place = fleet.Place(cluster, node=node, gpu=gpu)
        found = await self._journal.read(lambda: self._journal.events_at(place, now - timedelta(days=days), now))
        newest = sorted(found, key=lambda event: event.at, reverse=True)
        return EventHistory(
            now=now,
            days=days,
            total=len(found),
            events=[describe_event(e) for e in newest[:MOST_SHOWN]],
            counts=count_events(newest),
        )


def describe_event(event: events.Event) -> HistoryEvent:
    row = xid.lookup(event.code) if event.kind is events.EventKind.XID and event.code is not None else None
    process = event.process
    return {
        "id": event.id,
        "at": wire.format_time(event.at),
        "kind": event.kind.value,
        "code": event.code,
        "text": event.text,
        "gpu": event.place.gpu,
        "process": None if process is None else " ".join(str(part) for part in (process.name, process.pid) if part),
        "meaning": None if row is None else row.name,
        "severity": (alerts.Severity.WARNING if row is None else row.severity).value,
    }


def count_events(newest: Sequence[events.Event]) -> list[EventCount]:
    """How often each kind and number came, the most frequent first; `newest` has the newest event first."""
    often = Counter((event.kind, event.code) for event in newest)
    last: dict[tuple[events.EventKind, int | None], datetime] = {}
    for event in newest:
        last.setdefault((event.kind, event.code), event.at)
    return [
        {
            "kind": kind.value,
            "code": code,
            "events": times,
            "newest": wire.format_time(last[kind, code]),
            "meaning": xid.lookup(code).name if kind is events.EventKind.XID and code is not None else None,
        }
        for (kind, code), times in often.most_common()
    ]


def endpoints(api: HistoryApi) -> list[Endpoint]:
    return [
        Endpoint(
            ("GET",),
            "/api/history",
            Role.VIEWER,
            api.history,
            summary="What happened at a node or a GPU, newest first, with what each Xid means",
            params=(
                QueryParam("node", "the node's name", is_required=True),
                QueryParam("gpu", "only events of the GPU with this UUID"),
                QueryParam("cluster", "where two clusters have a node of this name"),
                QueryParam("days", f"how far back, at most {MOST_DAYS}; {USUAL_DAYS} unless given", int),
            ),
        )
    ]
