"""The remote engine: sends queries to a server with the Prometheus HTTP API.

The hub creates it instead of the embedded engine if `[query] engine = "prometheus"`. Calls block, and may come from any
number of threads; decision 0007 explains why this package contains a network client.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias
from urllib.parse import quote, urlencode

from watchkeeper import errors
from watchkeeper.config import settings
from watchkeeper.kit import logs
from watchkeeper.model.exemplars import Exemplar
from watchkeeper.model.labels import Labels
from watchkeeper.query.engine import InstantEngine, QueryLimits, QueryRange, QueryResult, Selectors
from watchkeeper.query.promql import parser
from watchkeeper.query.remote import responses
from watchkeeper.query.remote.http import Request, Response, ServerClient
from watchkeeper.query.remote.remote_appender import RemoteAppender
from watchkeeper.store import interfaces

log = logging.getLogger(__name__)

Form: TypeAlias = list[tuple[str, str]]

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
# Without this VictoriaMetrics aligns the times of a query to its cache; other servers ignore it.
EXACT_TIMES = ("nocache", "1")
# The server limits depth, samples and series. 11,001 steps is Prometheus' own limit.
LIMITS = QueryLimits(max_samples=None, max_depth=None, max_series=None)


class PrometheusEngine:
    """Implements `query.engine.Engine` over one server; `remote` appends samples to it."""

    def __init__(self, access: settings.QuerySettings) -> None:
        if access.url is None:
            raise errors.StartRefused("query.url is not set", remedy="Set query.url to the address of the server")
        self._access = access
        self._limits = LIMITS
        self._client = ServerClient(access, access.url)
        self.remote = RemoteAppender(access, server=self._client.url)

    def close(self) -> None:
        self._client.close()
        self.remote.close()

    @property
    def appender(self) -> interfaces.Appender:
        return self.remote

    @property
    def local(self) -> None:
        return None

    def for_rules(self) -> InstantEngine:
        return self

    def limits(self) -> QueryLimits:
        return self._limits

    def instant(self, expr: str, at_ms: int) -> QueryResult:
        self._check_size(expr)
        return self._evaluate(
            "/api/v1/query", expr, [("time", _seconds(at_ms))], lambda response: self._read_vector(response, at_ms)
        )

    def _read_vector(self, response: Response, at_ms: int) -> QueryResult:
        rows = responses.read_vector_rows(response.body) if response.status == 200 else None
        if rows is not None:
            return responses.build_vector(rows, at_ms)
        data, notes = responses.read_payload(response, self._client.url)
        with self._convert_read_errors():
            return responses.read_instant(data, at_ms, notes)

    def range(self, expr: str, span: QueryRange) -> QueryResult:
        self._check_size(expr)
        self._limits.check_steps(span)
        times = [("start", _seconds(span.start_ms)), ("end", _seconds(span.end_ms)), ("step", _seconds(span.step_ms))]
        return self._evaluate("/api/v1/query_range", expr, times, lambda response: self._read_matrix(response, span))

    def _read_matrix(self, response: Response, span: QueryRange) -> QueryResult:
        data, notes = responses.read_payload(response, self._client.url)
        with self._convert_read_errors():
            return responses.read_range(data, span, notes)

    def series(self, matchers: Selectors, start_ms: int, end_ms: int) -> list[Labels]:
        if not matchers:
            return []
        data = self._fetch_list("/api/v1/series", matchers, start_ms, end_ms)
        with self._convert_read_errors():
            return sorted(Labels(pairs) for pairs in data or ())

    def label_names(self, matchers: Selectors, start_ms: int, end_ms: int) -> list[str]:
        return sorted(self._fetch_list("/api/v1/labels", matchers, start_ms, end_ms) or ())

    def label_values(self, name: str, matchers: Selectors, *, start_ms: int, end_ms: int) -> list[str]:
        path = f"/api/v1/label/{quote(name, safe='')}/values"
        return sorted(self._fetch_list(path, matchers, start_ms, end_ms, method="GET") or ())

    def metadata(self) -> dict[str, tuple[str, str, str]]:
        data, _ = self._fetch("/api/v1/metadata", [], method="GET")
        with self._convert_read_errors():
            return {
                name: (entries[0].get("type", ""), entries[0].get("help", ""), entries[0].get("unit", ""))
                for name, entries in (data or {}).items()
                if entries
            }

    def exemplars(self, matchers: Selectors, start_ms: int, end_ms: int) -> list[tuple[Labels, list[Exemplar]]]:
        times = [("start", _seconds(start_ms)), ("end", _seconds(end_ms))]
        expr = " or ".join(responses.format_selector(selector) for selector in matchers)
        data, _ = self._fetch("/api/v1/query_exemplars", [("query", expr), *times])
        with self._convert_read_errors():
            return responses.read_exemplars(data)

    def _check_size(self, expr: str) -> None:
        size, max_bytes = len(expr.encode("utf-8", "replace")), self._limits.max_expression_bytes
        if max_bytes is not None and size > max_bytes:
            raise errors.QueryLimit(f"the expression has {size} bytes, the limit is {max_bytes}")

    def _evaluate(self, path: str, expr: str, form: Form, read: Callable[[Response], QueryResult]) -> QueryResult:
        try:
            return read(self._send(path, [("query", expr), *form, EXACT_TIMES]))
        except errors.QueryError as error:
            # VictoriaMetrics reports no position. Our parser runs only then, because a server may support more than
            # PromQL.
            if error.line is None and not isinstance(error, errors.QueryLimit):
                parser.parse(expr, self._limits)
            raise

    def _fetch_list(self, path: str, matchers: Selectors, start_ms: int, end_ms: int, *, method: str = "POST") -> Any:
        form = [("match[]", responses.format_selector(selector)) for selector in matchers]
        data, notes = self._fetch(
            path, [*form, ("start", _seconds(start_ms)), ("end", _seconds(end_ms))], method=method
        )
        for warning in notes.warnings:
            log.warning("query warning from server", extra=logs.fields(path=path, warning=warning))
        return data

    def _fetch(self, path: str, form: Form, *, method: str = "POST") -> tuple[Any, responses.ResponseNotes]:
        return responses.read_payload(self._send(path, form, method=method), self._client.url)

    def _send(self, path: str, form: Form, *, method: str = "POST") -> Response:
        text = urlencode([*form, ("timeout", f"{self._access.timeout_seconds:g}s")])
        if method == "GET":
            request = Request("GET", f"{path}?{text}")
        else:
            request = Request("POST", path, body=text.encode(), headers=FORM)
        return self._client.send(request)

    @contextlib.contextmanager
    def _convert_read_errors(self) -> Iterator[None]:
        """Raise StoreError for a response with an unexpected structure, instead of Python's own errors."""
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise errors.StoreError(
                f"the response of the server does not match the Prometheus HTTP API ({type(error).__name__}: {error})",
                where=self._client.url,
                remedy="Check that query.url is the address of a server with the Prometheus HTTP API",
            ) from error


def _seconds(ms: int) -> str:
    """Format milliseconds as seconds, exactly: a float of a current timestamp would be rounded."""
    return f"{'-' if ms < 0 else ''}{abs(ms) // 1000}.{abs(ms) % 1000:03d}"
