"""GET /api/journal, /api/journal/verify and /api/journal.jsonl: the audit with filters, its chain, and its export.

A page is at most a thousand entries, a search looks at a bounded part of the journal and says how far it got. The
chain is read in a thread of its own, one reading at a time, and its verdict kept for some minutes. The console's page
Journal asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from watchkeeper.hub import services
from watchkeeper.hub.repair_loop import RepairLoop
from watchkeeper.hub.runtime import Runtime
from watchkeeper.kit import clock, wire
from watchkeeper.store.journal import journal_search
from watchkeeper.store.journal.chain import JournalEntry
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import Endpoint, QueryParam, parse_whole_number
from watchkeeper.web.prometheus import prometheus_form as form

MOST_ENTRIES = 1000
# An export of the whole: about 100 MB, streamed page by page.
MOST_EXPORTED = 200_000
MOST_KINDS, MOST_WORDS, LONGEST_WORD = 50, 8, 100
KEPT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class JournalLine:
    """An entry of the journal, with its sentence."""

    seq: int
    at: datetime
    actor: str
    kind: str
    subject: str
    text: str
    body: Mapping[str, Any]
    epoch: int
    hash: str


@dataclass(frozen=True, slots=True)
class JournalPage:
    now: datetime
    entries: list[JournalLine]
    first: int
    last: int
    looked_back_to: int
    kinds: dict[str, int]


@dataclass(frozen=True, slots=True)
class ChainVerdict:
    checked_at: datetime
    entries: int
    is_intact: bool
    first_broken: int | None


class JournalApi:
    def __init__(self, runtime: Runtime, journal: services.JournalProtocol, *, repairs: RepairLoop | None) -> None:
        self._runtime, self._journal, self._repairs = runtime, journal, repairs
        self._busy = asyncio.Lock()
        self._verdict: tuple[float, ChainVerdict] | None = None

    def _where(self) -> journal_search.JournalLocation:
        if self._repairs is None:
            raise HTTPException(404, "this is a recording: it has no journal")
        settings = self._runtime.settings
        return journal_search.JournalLocation(settings.journal_path, settings.journal.url_file)

    async def entries(self, request: Request) -> JournalPage:
        where, wanted = self._where(), _wanted(request)

        def look() -> tuple[journal_search.EntryPage, list[JournalLine]]:
            found = journal_search.search(where, wanted)
            return found, [journal_line(entry) for entry in found.entries]

        found, entries = await self._journal.read(look)
        return JournalPage(
            now=self._runtime.clock.now(),
            entries=entries,
            first=found.first,
            last=found.last,
            looked_back_to=found.looked_back_to,
            kinds=found.kinds,
        )

    async def verify(self, request: Request) -> ChainVerdict:
        """Read the whole chain again where the last verdict is old, or where `again` asks for it."""
        where, now = self._where(), self._runtime.clock.now()
        is_wanted = request.query_params.get("again") == "1"
        async with self._busy:
            kept = self._verdict
            if kept is None or is_wanted or not 0 <= now.timestamp() - kept[0] < KEPT_SECONDS:
                broken, count = await asyncio.to_thread(journal_search.first_invalid_entry, where)
                verdict = ChainVerdict(now, count, broken is None, broken)
                kept = self._verdict = (now.timestamp(), verdict)
        return kept[1]

    async def export(self, request: Request) -> Response:
        """Every entry that fits, newest first, one JSON object a line, with its hash."""
        where, wanted = self._where(), _wanted(request)
        name = f"journal-{self._runtime.clock.now():%Y%m%dT%H%M%SZ}.jsonl"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return StreamingResponse(_lines(where, wanted), media_type="application/x-ndjson", headers=headers)


def _lines(where: journal_search.JournalLocation, wanted: journal_search.EntryFilter) -> Iterator[bytes]:
    left, before = MOST_EXPORTED, wanted.before
    while left > 0:
        page = journal_search.search(where, replace(wanted, before=before, limit=min(left, MOST_ENTRIES)))
        for entry in page.entries:
            yield orjson.dumps(wire.to_plain(journal_line(entry)) | {"prev": entry.prev}) + b"\n"
        left -= len(page.entries)
        if page.looked_back_to <= page.first:
            return
        before = page.looked_back_to


def journal_line(entry: JournalEntry) -> JournalLine:
    return JournalLine(
        seq=entry.seq,
        at=entry.at,
        actor=entry.actor,
        kind=entry.kind,
        subject=entry.subject,
        text=entry.text,
        body={name: value for name, value in entry.body.items() if name != "text"},
        epoch=entry.epoch,
        hash=entry.hash,
    )


def _wanted(request: Request) -> journal_search.EntryFilter:
    asked = request.query_params
    limit, before = parse_whole_number(asked.get("limit", "200")), asked.get("before")
    if limit is None or not 1 <= limit <= MOST_ENTRIES:
        raise HTTPException(400, f"limit must be a number from 1 to {MOST_ENTRIES:,}")
    number = None if before is None else parse_whole_number(before)
    if before is not None and number is None:
        raise HTTPException(400, "before must be the number of an entry")
    words, kinds = tuple(asked.get("q", "").split()), tuple(asked.getlist("kind"))
    if len(words) > MOST_WORDS or len(kinds) > MOST_KINDS or any(len(word) > LONGEST_WORD for word in words):
        raise HTTPException(400, f"at most {MOST_WORDS} words of {LONGEST_WORD} characters, and {MOST_KINDS} kinds")
    return journal_search.EntryFilter(
        kinds,
        asked.get("subject", ""),
        asked.get("actor", ""),
        words,
        _time(asked.get("from"), "from"),
        _time(asked.get("to"), "to"),
        number,
        limit,
    )


def _time(text: str | None, name: str) -> datetime | None:
    if not text:
        return None
    try:
        return clock.from_ms(form.read_time(name, text))
    except form.BadParameter as error:
        raise HTTPException(400, str(error)) from error


FILTERS = (
    QueryParam("kind", "only entries of this kind; may be given several times"),
    QueryParam("subject", "only about this, such as INC-17"),
    QueryParam("actor", "only by this person or program"),
    QueryParam("q", "only entries with all of these words"),
    QueryParam("from", "not before this time"),
    QueryParam("to", "not after this time"),
    QueryParam("before", "older than the entry of this number, for the next page", int),
    QueryParam("limit", f"how many at most; 200 unless given, at most {MOST_ENTRIES}", int),
)


def endpoints(api: JournalApi) -> list[Endpoint]:
    return [
        Endpoint(
            ("GET",),
            "/api/journal",
            Role.VIEWER,
            api.entries,
            summary="The audit, newest first: who did what to which subject",
            params=FILTERS,
            response=JournalPage,
        ),
        Endpoint(
            ("GET",),
            "/api/journal/verify",
            Role.VIEWER,
            api.verify,
            summary="Whether every entry of the audit is as it was written",
            params=(QueryParam("again", "1: read it now, whatever was found before"),),
            response=ChainVerdict,
        ),
        Endpoint(
            ("GET",),
            "/api/journal.jsonl",
            Role.VIEWER,
            api.export,
            summary="The audit as a file, one JSON object a line, with the hashes of its chain",
            params=FILTERS,
            media_type="application/x-ndjson",
        ),
    ]
