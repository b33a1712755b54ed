"""List and watch one kind of object of a Kubernetes API server.

A kind is listed once, in pages, and then watched from the resourceVersion of the list. Bookmarks keep that version
recent, so that a watch resumes after a disconnect; a new list is needed only when it has expired (410).
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

# A page of 200 pods is about 2 MB of JSON, and temporarily 15 MB of objects.
PAGE_SIZE = 200
MAX_LINE_BYTES = 16 * 1024 * 1024
MAX_PAGE_BYTES = 64 * 1024 * 1024
LIST_SECONDS = 60.0
# The server ends a watch after this long; the client then only reconnects.
WATCH_SECONDS = 290
# Bookmarks arrive about once a minute; a watch that is silent for longer than this is dead.
IDLE_SECONDS = 150.0
RETRY_BACKOFF = backoff.Backoff(1.0, 30.0)
GONE, NOT_FOUND = 410, 404
# A server returns these for a version that it never had, for example after a restore from a backup. A server that
# starts returns them as well, so the objects are listed again only after several refusals.
UNKNOWN_VERSION_STATUSES = frozenset({400, 504})
REFUSALS_BEFORE_LIST = 3
# A server gets a new API only when it is upgraded, so this is checked rarely.
ABSENT_SECONDS = 600.0
MAX_OBJECTS = 100_000
STATUS_PROBLEMS = {
    401: "the token is not accepted (401)",
    403: "list and watch are not allowed (403). Create the role in docs/howto/kubernetes.md",
}


@dataclass(frozen=True, slots=True)
class ResourceKind(Generic[T]):
    """One kind of object: its API path, which objects are kept, and how they are read."""

    name: str
    path: str
    read: Callable[[Any], T]
    key: Callable[[Any], Key]
    fields: str = ""
    is_kept: Callable[[Any], bool] = lambda _: True
    limit: int = MAX_OBJECTS
    drops_oldest: bool = False
    # Longer for events: they have no watch cache in the API server, and so no bookmarks.
    idle_seconds: float = IDLE_SECONDS
    # True for an API that older servers do not have: a 404 is not a problem.
    may_be_absent: bool = False


@dataclass(frozen=True, slots=True)
class WatchMetrics:
    lists: own_metrics.Metric
    changes: own_metrics.Metric
    failures: own_metrics.Metric
    unreadable: own_metrics.Metric
    objects: own_metrics.Metric

    @classmethod
    def declare(cls, registry: own_metrics.Registry) -> WatchMetrics:
        prefix = "watchkeeper_kubernetes"
        return cls(
            registry.counter(f"{prefix}_lists_total", "Complete lists read from the Kubernetes API, by resource"),
            registry.counter(
                f"{prefix}_changes_total", "Changes received by watches of the Kubernetes API, by resource"
            ),
            registry.counter(f"{prefix}_failures_total", "Failed lists and watches of the Kubernetes API, by resource"),
            registry.counter(
                f"{prefix}_unreadable_total",
                "Objects dropped because they could not be read or exceed the limit, by resource",
            ),
            registry.gauge(f"{prefix}_objects", "Objects of the Kubernetes API in memory, by resource"),
        )


class VersionExpired(CollectError):
    """The resourceVersion of a list or watch has expired on the server."""


class ResourceWatch(Generic[T]):
    """The objects of one kind, kept up to date by `run`."""

    def __init__(self, kind: ResourceKind[T], server: ApiServer, *, time: clock.Clock, metrics: WatchMetrics) -> None:
        self.kind = kind
        self.items: dict[Key, T] = {}
        self.revision = 0
        self._synced_at: datetime | None = None
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
        """Whether a complete list has been read."""
        return self._synced_at is not None

    @property
    def synced_at(self) -> datetime | None:
        """The latest time at which `items` was current: now, while a watch is open."""
        return self._time.now() if self._is_open else self._synced_at

    async def run(self) -> None:
        """List and watch until cancelled; failures set `problem`, are counted, and are retried with backoff."""
        while True:
            try:
                if self._version is None:
                    await self._list()
                await self._watch(self._version or "0")
            except VersionExpired:
                self._version = None
                # If the server expires every version at once, do not list in a tight loop.
                await self._time.sleep(RETRY_BACKOFF.first_seconds)
            except http.HttpStatusError as error:
                if error.status == NOT_FOUND and self.kind.may_be_absent:
                    self._mark_synced()
                    await self._time.sleep(ABSENT_SECONDS)
                else:
                    await self._fail(error)
            except CollectError as error:
                await self._fail(error)

    async def _list(self) -> None:
        """Read all pages, then replace the items: an incomplete list must not look like a small cluster."""
        self._metrics.lists.add(resource=self.kind.name)
        objects: dict[Key, T] = {}
        continue_token = ""
        connection = http.Connection(
            access=self._server.access, timeout_seconds=LIST_SECONDS, max_body_bytes=MAX_PAGE_BYTES
        )
        try:
            while True:
                page = await self._get_page(connection, continue_token)
                page_items, metadata = page.get("items"), page.get("metadata")
                if not isinstance(metadata, dict) or not isinstance(page_items, list | None):
                    raise CollectError(f"not a list of {self.kind.name}", where=self._server.url)
                for raw in page_items or ():
                    self._store_object(objects, raw)
                continue_token = metadata.get("continue") or ""
                if not continue_token:
                    break
        finally:
            await connection.aclose()
        self.items, self._version = objects, str(metadata.get("resourceVersion") or "0")
        self._mark_synced()

    async def _get_page(self, connection: http.Connection, continue_token: str) -> Mapping[str, Any]:
        position = {"continue": continue_token} if continue_token else {}
        response = await connection.send(self._build_request(limit=PAGE_SIZE, **position))
        if response.status == GONE:
            raise VersionExpired("the list expired while it was read", where=self._server.url)
        if response.status != 200:
            raise http.HttpStatusError(response.status, where=f"{self._server.url}{self.kind.path}")
        return _parse_object(response.body, self._server.url)

    async def _watch(self, version: str) -> None:
        """Apply the changes since `version` until the server ends the watch, which it does regularly."""
        request = self._build_request(
            watch=1, allowWatchBookmarks="true", resourceVersion=version, timeoutSeconds=WATCH_SECONDS
        )
        connection = http.Connection(access=self._server.access, max_body_bytes=MAX_LINE_BYTES)
        started_at = self._time.now()
        lines = connection.stream_lines(request, idle_seconds=self.kind.idle_seconds, on_open=self._mark_open)
        async with aclosing(lines) as changes:
            try:
                async for line in changes:
                    if line.strip():
                        self._apply_change(_parse_object(line, self._server.url))
            except http.HttpStatusError as error:
                self._refusals += error.status in UNKNOWN_VERSION_STATUSES
                if error.status == GONE or self._refusals >= REFUSALS_BEFORE_LIST:
                    self._version, self._refusals = None, 0
                if error.status == GONE:
                    raise VersionExpired(error.problem, where=error.where) from error
                raise
            finally:
                if self._is_open:
                    self._is_open, self._synced_at = False, self._time.now()
        if (self._time.now() - started_at).total_seconds() < RETRY_BACKOFF.first_seconds:
            await self._time.sleep(RETRY_BACKOFF.first_seconds)

    def _apply_change(self, change: Mapping[str, Any]) -> None:
        change_type, raw = change.get("type"), change.get("object")
        if not isinstance(raw, dict):
            raise CollectError(f"not a change: {quote(dict(change))}", where=self._server.url)
        if change_type == "ERROR":
            self._version = None
            error_class = VersionExpired if raw.get("code") == GONE else CollectError
            problem = f"ended the watch: {quote(raw.get('message'))}"
            raise error_class(problem, where=f"{self._server.url}{self.kind.path}")
        metadata = raw.get("metadata")
        if isinstance(metadata, dict) and metadata.get("resourceVersion"):
            self._version = str(metadata["resourceVersion"])
        self._mark_synced()
        if change_type == "BOOKMARK":
            return
        self._metrics.changes.add(resource=self.kind.name)
        if change_type == "DELETED":
            self.items.pop(self.kind.key(raw), None)
        else:
            self._store_object(self.items, raw)
        self._metrics.objects.set(len(self.items), resource=self.kind.name)

    def _store_object(self, items: dict[Key, T], raw: Any) -> None:
        """Store the newest version of an object; if it cannot be read, count it and drop the old version as well."""
        try:
            key = self.kind.key(raw)
            items.pop(key, None)
            if not self.kind.is_kept(raw):
                return
            if len(items) >= self.kind.limit:
                if not self.kind.drops_oldest:
                    limit = self.kind.limit
                    raise CollectError(f"there are more than {limit} {self.kind.name}, the limit is {limit}")
                del items[next(iter(items))]
            items[key] = self.kind.read(raw)
        except CollectError as error:
            self._metrics.unreadable.add(resource=self.kind.name)
            log.debug("kubernetes object dropped", extra=fields(resource=self.kind.name, error=error))

    def _mark_open(self) -> None:
        self._is_open = True
        self._mark_synced()

    def _mark_synced(self) -> None:
        self._synced_at = self._time.now()
        self.revision += 1
        self._refusals = self._failures = 0
        if self.problem_since is not None:
            seconds = round((self._synced_at - self.problem_since).total_seconds())
            log.info("kubernetes watch reconnected", extra=fields(resource=self.kind.name, after_seconds=seconds))
        self.problem, self.problem_since = "", None
        self._metrics.objects.set(len(self.items), resource=self.kind.name)

    async def _fail(self, error: CollectError) -> None:
        """Log and count the failure, set `problem`, and wait with backoff before the retry."""
        self._metrics.failures.add(resource=self.kind.name)
        problem = _describe_error(error)
        if self.problem_since is None:
            # The hub logs a warning if this lasts until its next discovery; a shorter outage is only logged here.
            log.info("kubernetes watch disconnected", extra=fields(resource=self.kind.name, problem=problem))
        self.problem, self.problem_since = problem, self.problem_since or self._time.now()
        self._failures += 1
        await self._time.sleep(RETRY_BACKOFF.delay_seconds(self._failures))

    def _build_request(self, **parameters: Any) -> http.HttpRequest:
        if self.kind.fields:
            parameters["fieldSelector"] = self.kind.fields
        headers = {"Accept": "application/json", **self._server.access.authorization_header()}
        return http.HttpRequest(f"{self._server.url}{self.kind.path}?{urlencode(parameters)}", headers=headers)


def key_of(raw: Any) -> Key:
    """The namespace and name of an object, the default key of a kind."""
    metadata = json_facts.mapping(raw, "metadata")
    return json_facts.text(metadata, "namespace"), json_facts.require_name(metadata)


def _parse_object(line: bytes, where: str) -> Mapping[str, Any]:
    try:
        parsed = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise CollectError(f"not JSON: {error}", where=where) from error
    if not isinstance(parsed, dict):
        raise CollectError(f"not an object of the Kubernetes API: {quote(parsed)}", where=where)
    return parsed


def _describe_error(error: CollectError) -> str:
    status = error.status if isinstance(error, http.HttpStatusError) else 0
    return STATUS_PROBLEMS.get(status, error.problem)
