"""Listing and watching one kind of object of a Kubernetes API server, for ever.

A kind is listed once, in pages, and then watched from the version that the list ended with; bookmarks keep that version
young, so that a broken connection goes on where it was, and a list is needed only when the server has forgotten the
version (410). What is kept is what the kind's reader makes of an object. `kubernetes_watch` says which kinds there are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

import orjson

from watchkeeper.errors import CollectError, quote
from watchkeeper.kit import backoff, clock, own_metrics
from watchkeeper.kit.logs import fields
from watchkeeper.net import http
from watchkeeper.readers import json_facts
from watchkeeper.readers.clusters.kubeconfig import ApiServer

log = logging.getLogger(__name__)
T = TypeVar("T")

Key = tuple[str, ...]

# A page of 200 pods is about 2 MB of JSON, which becomes 15 MB of objects for a moment.
PAGE = 200
MAX_LINE_BYTES = 16 * 1024 * 1024
MAX_PAGE_BYTES = 64 * 1024 * 1024
LIST_SECONDS = 60.0
# The server ends a watch after this long, which costs a reconnection and nothing else.
WATCH_SECONDS = 290
# Bookmarks come about once a minute; a watch without any sign of life for longer than this hangs.
QUIET_SECONDS = 150.0
PAUSES = backoff.Backoff(1.0, 30.0)
GONE, NOT_FOUND = 410, 404
# How a server refuses a version that it has never had: its history is another one, restored from a backup perhaps. Not
# at once, because one that starts answers like this as well.
STRANGE_VERSION = frozenset({400, 504})
REFUSALS_BEFORE_LIST = 3
# A server gets a new API when it is upgraded, which nobody does every ten minutes.
ABSENT_SECONDS = 600.0
MAX_OBJECTS = 100_000


@dataclass(frozen=True, slots=True)
class ResourceKind(Generic[T]):
    """One kind of object: where it is, what of it is kept, and how it is read."""

    name: str
    path: str
    read: Callable[[Any], T]
    key: Callable[[Any], Key]
    fields: str = ""
    keeps: Callable[[Any], bool] = lambda _: True
    limit: int = MAX_OBJECTS
    forgets_oldest: bool = False
    # Events have no watch cache in the API server, and so no bookmarks.
    quiet_seconds: float = QUIET_SECONDS
    # True for an API that older servers do not have: its absence is no problem.
    may_be_absent: bool = False


@dataclass(frozen=True, slots=True)
class WatchMetrics:
    lists: own_metrics.Metric
    changes: own_metrics.Metric
    failures: own_metrics.Metric
    unreadable: own_metrics.Metric
    kept: own_metrics.Metric

    @classmethod
    def declare(cls, registry: own_metrics.Registry) -> WatchMetrics:
        prefix = "watchkeeper_kubernetes"
        return cls(
            registry.counter(f"{prefix}_lists_total", "Whole lists read from the Kubernetes API, by resource"),
            registry.counter(f"{prefix}_changes_total", "Changes that watches of the Kubernetes API told, by resource"),
            registry.counter(f"{prefix}_failures_total", "Lists and watches that failed, by resource"),
            registry.counter(f"{prefix}_unreadable_total", "Objects without the promised shape, by resource"),
            registry.gauge(f"{prefix}_objects", "Objects kept of the Kubernetes API, by resource"),
        )


class VersionExpired(CollectError):
    """The server no longer knows the version that a watch was to go on from."""


class ResourceWatch(Generic[T]):
    """Everything of one kind, as last told."""

    def __init__(self, kind: ResourceKind[T], server: ApiServer, *, time: clock.Clock, metrics: WatchMetrics) -> None:
        self.kind = kind
        self.items: dict[Key, T] = {}
        self.revision = 0
        self._heard_at: datetime | None = None
        self._is_open = False
        self.problem = ""
        self.problem_since: datetime | None = None
        self._server = server
        self._time = time
        self._metrics = metrics
        self._version: str | None = None
        self._refusals = 0
        self._failures = 0

    @property
    def is_synced(self) -> bool:
        """True from the first whole list on."""
        return self._heard_at is not None

    @property
    def synced_at(self) -> datetime | None:
        """Up to when what is kept was so: now, while a watch is open."""
        return self._time.now() if self._is_open else self._heard_at

    async def run(self) -> None:
        """List and watch for ever; whatever fails is said by `problem`, counted, and tried again."""
        while True:
            try:
                if self._version is None:
                    await self._list()
                await self._watch(self._version or "0")
            except VersionExpired:
                self._version = None
                # A server that expires everything at once must not be listed as fast as it can answer.
                await self._time.sleep(PAUSES.first_seconds)
            except http.HttpStatusError as error:
                if error.status == NOT_FOUND and self.kind.may_be_absent:
                    self._is_well()
                    await self._time.sleep(ABSENT_SECONDS)
                else:
                    await self._fail(error)
            except CollectError as error:
                await self._fail(error)

    async def _list(self) -> None:
        """Read every page and only then replace what is kept: half a cluster must not look like a small one."""
        self._metrics.lists.add(resource=self.kind.name)
        found: dict[Key, T] = {}
        go_on = ""
        connection = http.Connection(
            access=self._server.access, timeout_seconds=LIST_SECONDS, max_body_bytes=MAX_PAGE_BYTES
        )
        try:
            while True:
                page = await self._page(connection, go_on)
                items, about = page.get("items"), page.get("metadata")
                if not isinstance(about, dict) or not isinstance(items, list | None):
                    raise CollectError(f"not a list of {self.kind.name}", where=self._server.url)
                for raw in items or ():
                    self._put(found, raw)
                go_on = about.get("continue") or ""
                if not go_on:
                    break
        finally:
            await connection.aclose()
        self.items, self._version = found, str(about.get("resourceVersion") or "0")
        self._is_well()

    async def _page(self, connection: http.Connection, go_on: str) -> Mapping[str, Any]:
        response = await connection.send(self._request(limit=PAGE, **({"continue": go_on} if go_on else {})))
        if response.status == GONE:
            raise VersionExpired("the list changed too much while it was read", where=self._server.url)
        if response.status != 200:
            raise http.HttpStatusError(response.status, where=f"{self._server.url}{self.kind.path}")
        return _object(response.body, self._server.url)

    async def _watch(self, version: str) -> None:
        """Follow the changes since `version` until the server ends the watch, which it does now and then."""
        request = self._request(
            watch=1, allowWatchBookmarks="true", resourceVersion=version, timeoutSeconds=WATCH_SECONDS
        )
        connection = http.Connection(access=self._server.access, max_body_bytes=MAX_LINE_BYTES)
        began = self._time.now()
        lines = connection.stream_lines(request, idle_seconds=self.kind.quiet_seconds, on_open=self._open)
        async with aclosing(lines) as changes:
            try:
                async for line in changes:
                    if line.strip():
                        self._take(_object(line, self._server.url))
            except http.HttpStatusError as error:
                self._refusals += error.status in STRANGE_VERSION
                if error.status == GONE or self._refusals >= REFUSALS_BEFORE_LIST:
                    self._version, self._refusals = None, 0
                if error.status == GONE:
                    raise VersionExpired(error.problem, where=error.where) from error
                raise
            finally:
                self._close()
        if (self._time.now() - began).total_seconds() < PAUSES.first_seconds:
            await self._time.sleep(PAUSES.first_seconds)

    def _take(self, change: Mapping[str, Any]) -> None:
        what, raw = change.get("type"), change.get("object")
        if not isinstance(raw, dict):
            raise CollectError(f"not a change: {quote(dict(change))}", where=self._server.url)
        if what == "ERROR":
            self._version = None
            wanted = VersionExpired if raw.get("code") == GONE else CollectError
            raise wanted(f"ended the watch: {quote(raw.get('message'))}", where=f"{self._server.url}{self.kind.path}")
        about = raw.get("metadata")
        if isinstance(about, dict) and about.get("resourceVersion"):
            self._version = str(about["resourceVersion"])
        self._is_well()
        if what == "BOOKMARK":
            return
        self._metrics.changes.add(resource=self.kind.name)
        if what == "DELETED":
            self.items.pop(self.kind.key(raw), None)
        else:
            self._put(self.items, raw)
        self._metrics.kept.set(len(self.items), resource=self.kind.name)

    def _put(self, items: dict[Key, T], raw: Any) -> None:
        """Keep an object in its newest form; what cannot be read is counted, and its old form is not kept either."""
        try:
            key = self.kind.key(raw)
            items.pop(key, None)
            if not self.kind.keeps(raw):
                return
            if len(items) >= self.kind.limit:
                if not self.kind.forgets_oldest:
                    limit = self.kind.limit
                    raise CollectError(f"more than {limit} {self.kind.name}, and {limit} is the most that are kept")
                del items[next(iter(items))]
            items[key] = self.kind.read(raw)
        except CollectError as error:
            self._metrics.unreadable.add(resource=self.kind.name)
            log.debug("An object of the Kubernetes API is left out", extra=fields(error=error))

    def _open(self) -> None:
        self._is_open = True
        self._is_well()

    def _close(self) -> None:
        if self._is_open:
            self._is_open, self._heard_at = False, self._time.now()

    def _is_well(self) -> None:
        self._heard_at = self._time.now()
        self.revision += 1
        self._refusals = self._failures = 0
        if self.problem_since is not None:
            seconds = (self._heard_at - self.problem_since).total_seconds()
            log.info("Kubernetes is heard again", extra=fields(resource=self.kind.name, after_seconds=round(seconds)))
        self.problem, self.problem_since = "", None
        self._metrics.kept.set(len(self.items), resource=self.kind.name)

    async def _fail(self, error: CollectError) -> None:
        """Say it, count it, and wait before the next try, longer each time."""
        self._metrics.failures.add(resource=self.kind.name)
        problem = _explained(error)
        if self.problem_since is None:
            # The hub warns of what lasts until its next look at the fleet; a shorter outage is said here alone.
            log.info("Kubernetes is not heard", extra=fields(resource=self.kind.name, problem=problem))
        self.problem, self.problem_since = problem, self.problem_since or self._time.now()
        self._failures += 1
        await self._time.sleep(PAUSES.delay_seconds(self._failures))

    def _request(self, **parameters: Any) -> http.HttpRequest:
        if self.kind.fields:
            parameters["fieldSelector"] = self.kind.fields
        headers = {"Accept": "application/json", **self._server.access.authorization_header()}
        return http.HttpRequest(f"{self._server.url}{self.kind.path}?{urlencode(parameters)}", headers=headers)


def key_of(raw: Any) -> Key:
    """Namespace and name of an object."""
    about = json_facts.mapping(raw, "metadata")
    return json_facts.text(about, "namespace"), json_facts.require_name(about)


def _object(line: bytes, where: str) -> Mapping[str, Any]:
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise CollectError(f"not JSON: {error}", where=where) from error
    if not isinstance(found, dict):
        raise CollectError(f"not an object of the Kubernetes API: {quote(found)}", where=where)
    return found


def _explained(error: CollectError) -> str:
    status = error.status if isinstance(error, http.HttpStatusError) else None
    if status == 401:
        return "the token is not accepted (401)"
    if status == 403:
        return "list and watch are not allowed (403); docs/howto/kubernetes.md has the role"
    return error.problem
