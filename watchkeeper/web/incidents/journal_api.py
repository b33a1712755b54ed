"""Serve the audit log: search it, verify its hash chain, and export it.

A search reads a limited part of the journal and returns how far it got. The chain is verified in a thread, one
verification at a time, and the verdict is cached for some minutes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypedDict

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from watchkeeper.hub import services
from watchkeeper.kit import clock, wire
from watchkeeper.store.journal import journal_search
from watchkeeper.store.journal.chain import JournalEntry
from watchkeeper.web.endpoint import QueryParam, get, parse_whole_number, read_number
from watchkeeper.web.prometheus import prometheus_params as form

MAX_ENTRIES = 1000
# About 100 MB, streamed page by page.
MAX_EXPORTED = 200_000
MAX_KINDS, MAX_WORDS, MAX_WORD_LENGTH = 50, 8, 100
VERDICT_CACHE_SECONDS = 300.0
FILTERS = (
    QueryParam("kind", "Return only entries of this kind; repeat it for several kinds."),
    QueryParam("subject", "Return only entries about this subject, such as INC-17."),
    QueryParam("actor", "Return only entries by this person or program."),
    QueryParam("q", "Return only entries that contain all of these words."),
    QueryParam("from", "Return only entries at or after this time: RFC 3339 or Unix seconds."),
    QueryParam("to", "Return only entries at or before this time: RFC 3339 or Unix seconds."),
    QueryParam("before", "Return only entries older than this entry number, for the next page.", int),
    QueryParam("limit", f"Number of entries, at most {MAX_ENTRIES}. Default: 200.", int),
)


@dataclass(frozen=True, slots=True)
class JournalEntryView:
    """A journal entry; its sentence is in `text`, not in `body`."""

    seq: int
    at: datetime
    actor: str
    kind: str
    subject: str
    text: str
    body: Mapping[str, Any]
    epoch: int
    hash: str


class JournalPage(TypedDict):
    now: datetime
    entries: list[JournalEntryView]
    first: int
    last: int
    looked_back_to: int
    kinds: dict[str, int]


class ChainVerdict(TypedDict):
    checked_at: datetime
    entries: int
    is_intact: bool
    first_broken: int | None


class JournalApi:
    def __init__(self, hub: services.Services) -> None:
        self._runtime, self._journal, self._repairs = hub.runtime, hub.journal, hub.repairs
        self._verify_lock = asyncio.Lock()
        self._verdict: tuple[float, ChainVerdict] | None = None

    def _location(self) -> journal_search.JournalLocation:
        if self._repairs is None:
            raise HTTPException(404, "a replayed recording has no journal")
        settings = self._runtime.settings
        return journal_search.JournalLocation(settings.journal_path, settings.journal.url_file)

    @get("/api/journal", *FILTERS)
    async def list_entries(self, request: Request) -> JournalPage:
        """Audit log, newest first: who did what to which subject."""
        location, entry_filter = self._location(), _entry_filter(request)

        def search() -> tuple[journal_search.EntryPage, list[JournalEntryView]]:
            page = journal_search.search(location, entry_filter)
            return page, [entry_view(entry) for entry in page.entries]

        page, entries = await self._journal.read(search)
        return JournalPage(
            now=self._runtime.clock.now(),
            entries=entries,
            first=page.first,
            last=page.last,
            looked_back_to=page.looked_back_to,
            kinds=page.kinds,
        )

    @get("/api/journal/verify", QueryParam("again", "1: verify now; do not use the cached result."))
    async def verify_chain(self, request: Request) -> ChainVerdict:
        """Verify the hash chain of the audit log: whether any entry was changed."""
        location, now = self._location(), self._runtime.clock.now()
        is_forced = request.query_params.get("again") == "1"
        async with self._verify_lock:
            cached = self._verdict
            if cached is None or is_forced or not 0 <= now.timestamp() - cached[0] < VERDICT_CACHE_SECONDS:
                broken, count = await asyncio.to_thread(journal_search.first_invalid_entry, location)
                verdict = ChainVerdict(checked_at=now, entries=count, is_intact=broken is None, first_broken=broken)
                cached = self._verdict = (now.timestamp(), verdict)
        return cached[1]

    @get("/api/journal.jsonl", *FILTERS, media_type="application/x-ndjson")
    async def export_entries(self, request: Request) -> Response:
        """Download the audit log as JSON Lines, with the hashes of its chain."""
        location, entry_filter = self._location(), _entry_filter(request)
        name = f"journal-{self._runtime.clock.now():%Y%m%dT%H%M%SZ}.jsonl"
        headers, lines = (
            {"Content-Disposition": f'attachment; filename="{name}"'},
            _export_lines(location, entry_filter),
        )
        return StreamingResponse(lines, media_type="application/x-ndjson", headers=headers)


def _export_lines(
    location: journal_search.JournalLocation, entry_filter: journal_search.EntryFilter
) -> Iterator[bytes]:
    remaining, before = MAX_EXPORTED, entry_filter.before
    while remaining > 0:
        page = journal_search.search(location, replace(entry_filter, before=before, limit=min(remaining, MAX_ENTRIES)))
        for entry in page.entries:
            yield orjson.dumps(wire.to_plain(entry_view(entry)) | {"prev": entry.prev}) + b"\n"
        remaining -= len(page.entries)
        if page.looked_back_to <= page.first:
            return
        before = page.looked_back_to


def entry_view(entry: JournalEntry) -> JournalEntryView:
    fields = {name: getattr(entry, name) for name in JournalEntryView.__slots__}
    return JournalEntryView(**fields | {"body": {name: value for name, value in entry.body.items() if name != "text"}})


def _entry_filter(request: Request) -> journal_search.EntryFilter:
    params = request.query_params
    limit, before = read_number(request, "limit", default=200, limit=MAX_ENTRIES), params.get("before")
    before_seq = None if before is None else parse_whole_number(before)
    if before is not None and before_seq is None:
        raise HTTPException(400, "`before` must be the number of an entry")
    words, kinds = tuple(params.get("q", "").split()), tuple(params.getlist("kind"))
    if len(words) > MAX_WORDS or len(kinds) > MAX_KINDS or any(len(word) > MAX_WORD_LENGTH for word in words):
        problem = f"at most {MAX_WORDS} words of {MAX_WORD_LENGTH} characters in `q`, and {MAX_KINDS} times `kind`"
        raise HTTPException(400, problem)
    return journal_search.EntryFilter(
        kinds,
        params.get("subject", ""),
        params.get("actor", ""),
        words,
        _read_time(params.get("from"), "from"),
        _read_time(params.get("to"), "to"),
        before_seq,
        limit,
    )


def _read_time(text: str | None, name: str) -> datetime | None:
    return clock.from_ms(form.read_time(name, text)) if text else None
