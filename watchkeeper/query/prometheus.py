"""The remote engine: PromQL answered by any server with the Prometheus HTTP API.

The hub makes one instead of the embedded engine when `[query] engine = "prometheus"`; rules, pages, reports and
checks notice no difference. Samples go there by remote write (`remote_appender`). Calls block, and may come from any
number of threads. Decision 0007 says why this package of all holds a network client.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from watchkeeper import errors
from watchkeeper.config import settings
from watchkeeper.kit import logs
from watchkeeper.model.exemplars import Exemplar
from watchkeeper.model.labels import Labels
from watchkeeper.query.engine import InstantEngine, Matcher, QueryLimits, QueryRange, QueryResult
from watchkeeper.query.promql import parser
from watchkeeper.query.remote import answers, vectors
from watchkeeper.query.remote.http import Request, Response, ServerClient
from watchkeeper.query.remote.remote_appender import RemoteAppender
from watchkeeper.store import interfaces

log = logging.getLogger(__name__)

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
# VictoriaMetrics moves the times of a query to fit its cache unless it is told not to; others ignore this.
EXACT_TIMES = ("nocache", "1")
# Depth, samples and series are the server's business, and it says so itself. 11,001 points is Prometheus' own limit.
LIMITS = QueryLimits(max_samples=None, max_depth=None, max_series=None)


class PrometheusEngine:
    """Implements `query.engine.Engine` over one server; `remote` writes to it."""

    def __init__(self, access: settings.QuerySettings, limits: QueryLimits = LIMITS) -> None:
        if access.url is None:
            raise errors.StartRefused("there is no server to ask", remedy="Write its address into query.url")
        self._access = access
        self._limits = limits
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
        self._check(expr)
        return self._evaluate("/api/v1/query", expr, [("time", _seconds(at_ms))], lambda one: self._vector(one, at_ms))

    def _vector(self, response: Response, at_ms: int) -> QueryResult:
        rows = vectors.read(response.body) if response.status == 200 else None
        if rows is not None:
            return answers.vector(rows.labels, rows.values, at_ms, said=answers.said(rows.beside))
        found, said = answers.content(response, self._client.url)
        with self._reading():
            return answers.instant(found, at_ms, said)

    def range(self, expr: str, span: QueryRange) -> QueryResult:
        self._check(expr)
        steps, most = (span.end_ms - span.start_ms) // span.step_ms + 1, self._limits.max_steps
        if most is not None and steps > most:
            raise errors.QueryLimit(
                f"the query has {steps} steps, the limit is {most}", remedy="Use a larger step or a shorter time"
            )
        times = [("start", _seconds(span.start_ms)), ("end", _seconds(span.end_ms)), ("step", _seconds(span.step_ms))]
        return self._evaluate("/api/v1/query_range", expr, times, lambda one: self._matrix(one, span))

    def _matrix(self, response: Response, span: QueryRange) -> QueryResult:
        found, said = answers.content(response, self._client.url)
        with self._reading():
            return answers.ranged(found, span, said)

    def series(self, matchers: Sequence[Sequence[Matcher]], start_ms: int, end_ms: int) -> list[Labels]:
        if not matchers:
            return []
        found = self._list("/api/v1/series", matchers, start_ms, end_ms)
        with self._reading():
            return answers.label_sets(found)

    def label_names(self, matchers: Sequence[Sequence[Matcher]], start_ms: int, end_ms: int) -> list[str]:
        return sorted(self._list("/api/v1/labels", matchers, start_ms, end_ms) or ())

    def label_values(
        self, name: str, matchers: Sequence[Sequence[Matcher]], *, start_ms: int, end_ms: int
    ) -> list[str]:
        path = f"/api/v1/label/{quote(name, safe='')}/values"
        return sorted(self._list(path, matchers, start_ms, end_ms, method="GET") or ())

    def metadata(self) -> dict[str, tuple[str, str, str]]:
        """Type, help and unit of each metric that a target of the server described."""
        found, _ = self._ask("/api/v1/metadata", [], method="GET")
        with self._reading():
            return {
                name: (kinds[0].get("type", ""), kinds[0].get("help", ""), kinds[0].get("unit", ""))
                for name, kinds in (found or {}).items()
                if kinds
            }

    def exemplars(
        self, matchers: Sequence[Sequence[Matcher]], start_ms: int, end_ms: int
    ) -> list[tuple[Labels, list[Exemplar]]]:
        """The server's exemplars of the series that one of the selectors means."""
        times = [("start", _seconds(start_ms)), ("end", _seconds(end_ms))]
        expr = " or ".join(answers.selector(each) for each in matchers)
        found, _ = self._ask("/api/v1/query_exemplars", [("query", expr), *times])
        with self._reading():
            return answers.exemplars(found)

    def _check(self, expr: str) -> None:
        size, most = len(expr.encode("utf-8", "replace")), self._limits.max_expression_bytes
        if most is not None and size > most:
            raise errors.QueryLimit(f"the expression has {size} bytes, the limit is {most}")

    def _evaluate(
        self, path: str, expr: str, form: list[tuple[str, str]], read: Callable[[Response], QueryResult]
    ) -> QueryResult:
        try:
            return read(self._send(path, [("query", expr), *form, EXACT_TIMES]))
        except errors.QueryError as error:
            # VictoriaMetrics tells no place. Our parser is asked only then, because a server may know more than PromQL.
            if error.line is None and not isinstance(error, errors.QueryLimit):
                parser.parse(expr, self._limits)
            raise

    def _list(
        self, path: str, matchers: Sequence[Sequence[Matcher]], start_ms: int, end_ms: int, *, method: str = "POST"
    ) -> Any:
        form = [("match[]", answers.selector(each)) for each in matchers]
        found, said = self._ask(path, [*form, ("start", _seconds(start_ms)), ("end", _seconds(end_ms))], method=method)
        for line in said.warnings:
            log.warning("The server warns about its answer", extra=logs.fields(path=path, warning=line))
        return found

    def _ask(self, path: str, form: list[tuple[str, str]], *, method: str = "POST") -> tuple[Any, answers.Said]:
        return answers.content(self._send(path, form, method=method), self._client.url)

    def _send(self, path: str, form: list[tuple[str, str]], *, method: str = "POST") -> Response:
        text = urlencode([*form, ("timeout", f"{self._access.timeout_seconds:g}s")])
        if method == "GET":
            request = Request("GET", f"{path}?{text}")
        else:
            request = Request("POST", path, body=text.encode(), headers=FORM)
        return self._client.send(request)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """An answer of a wrong shape is the server's fault, whatever our reading of it stumbled over."""
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise errors.StoreError(
                f"the server's answer has not the form of Prometheus' API ({type(error).__name__}: {error})",
                where=self._client.url,
                remedy="Check that query.url leads to a server with the Prometheus HTTP API",
            ) from error


def _seconds(ms: int) -> str:
    """Exactly: a float of today's milliseconds in seconds has no digits to spare."""
    return f"{'-' if ms < 0 else ''}{abs(ms) // 1000}.{abs(ms) % 1000:03d}"
