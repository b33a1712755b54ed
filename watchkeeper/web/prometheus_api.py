"""Prometheus' HTTP API, so that Grafana, promtool and every other client work against a hub.

Shapes, parameter names, error types and status codes are Prometheus'; where it has a field that we
do not know, the field is there and empty. The console draws its charts through the same endpoints.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.errors import QueryError, StoreError
from watchkeeper.kit import clock, wire
from watchkeeper.model.labels import METRIC_NAME, Labels
from watchkeeper.query import engine
from watchkeeper.query.promql import ast, parser, printer
from watchkeeper.web import prometheus_form as form
from watchkeeper.web import prometheus_status as status
from watchkeeper.web.answers import PROMETHEUS_PREFIX, Answer, Endpoint, json_answer, prometheus_error, read_body
from watchkeeper.web.auth import Role
from watchkeeper.web.view import HubView

# Prometheus' own limit on an expression is the size of a URL or form; ours is a generous form.
FORM_LIMIT_BYTES = 256 * 1024
EVERYTHING = ((engine.Matcher(METRIC_NAME, engine.MatchOp.NOT_EQUAL, ""),),)


class Form:
    """The parameters of one request, from the URL and a form body alike."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self._pairs = pairs

    @classmethod
    async def of(cls, request: Request) -> Form:
        pairs = list(request.query_params.multi_items())
        if request.method == "POST":
            body = await read_body(request, FORM_LIMIT_BYTES)
            pairs = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True) + pairs
        return cls(pairs)

    def one(self, name: str) -> str | None:
        return next((value for key, value in self._pairs if key == name), None)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name]


class PrometheusApi:
    """One method per endpoint; each takes the form and returns `data`, with warnings where there are any."""

    def __init__(self, hub: HubView) -> None:
        self._hub = hub

    async def query(self, asked: Form) -> Response:
        expr = _expression(asked)
        at_ms = form.read_time("time", asked.one("time"), default_ms=clock.to_ms(self._hub.clock.now()))
        answer = await self._hub.ask(expr, at_ms)
        return await _write(answer, at_ms)

    async def query_range(self, asked: Form) -> Response:
        span = form.read_span(asked.one("start"), asked.one("end"), asked.one("step"))
        answer = await self._hub.ask_range(_expression(asked), span)
        return await _write(answer, None)

    async def format_query(self, asked: Form) -> Response:
        return success(printer.to_text(parser.parse(_expression(asked))))

    async def series(self, asked: Form) -> Response:
        if not asked.all("match[]"):
            raise form.BadParameter("no match[] parameter provided")
        found = await self._series(asked)
        return limited([dict(labels) for labels in found], asked)

    async def labels(self, asked: Form) -> Response:
        found = await self._series(asked)
        return limited(sorted({name for labels in found for name in labels}), asked)

    async def label_values(self, asked: Form, name: str) -> Response:
        if not name:
            raise form.BadParameter('invalid label name: ""')
        found = await self._series(asked)
        return limited(sorted({labels[name] for labels in found if name in labels}), asked)

    async def metadata(self, asked: Form) -> Response:
        known: Mapping[str, Any] = getattr(self._hub.engine, "metadata", dict)()
        wanted, most = asked.one("metric"), form.read_limit(asked.one("limit"))
        names = [name for name in known if not wanted or name == wanted][:most]
        return success({name: [wire.to_plain(known[name])] for name in names})

    async def targets(self, _: Form) -> Response:
        every = self._hub.settings.fleet
        pace = {"scrapeInterval": every.scrape_interval, "scrapeTimeout": every.scrape_timeout}
        active = [status.target(state) | pace for state in self._hub.targets()]
        return success({"activeTargets": active, "droppedTargets": [], "droppedTargetCounts": {}})

    async def rules(self, asked: Form) -> Response:
        wanted = asked.one("type")
        if wanted not in (None, "", "alert", "record"):
            raise form.BadParameter(f'not supported value "{wanted}"')
        every = self._hub.settings.rules.interval_seconds
        groups = [status.group(g, state, default_seconds=every) for g, state in self._hub.rule_groups()]
        for group in groups if wanted else ():
            group["rules"] = [rule for rule in group["rules"] if rule["type"].startswith(wanted)]
        return success({"groups": groups})

    async def alerts(self, _: Form) -> Response:
        return success({"alerts": [status.alert(a) for a in self._hub.alerts() if status.is_active(a)]})

    async def build(self, _: Form) -> Response:
        empty = dict.fromkeys(("revision", "branch", "buildUser", "buildDate", "goVersion"), "")
        return success({"version": self._hub.version, **empty, "application": "watchkeeper"})

    async def _series(self, asked: Form) -> list[Labels]:
        selectors = [_matchers(text) for text in asked.all("match[]")] or EVERYTHING
        now_ms = clock.to_ms(self._hub.clock.now())
        start_ms = form.read_time("start", asked.one("start"), default_ms=0)
        end_ms = form.read_time("end", asked.one("end"), default_ms=now_ms)
        if end_ms < start_ms:
            raise form.BadParameter('invalid parameter "end": end timestamp must not be before start time')
        return await asyncio.to_thread(self._hub.engine.series, selectors, start_ms, end_ms)


def endpoints(hub: HubView) -> list[Endpoint]:
    api = PrometheusApi(hub)
    both, get = ("GET", "POST"), ("GET",)
    rows: list[tuple[tuple[str, ...], str, Callable[..., Any]]] = [
        (both, "query", api.query),
        (both, "query_range", api.query_range),
        (both, "format_query", api.format_query),
        (both, "series", api.series),
        (both, "labels", api.labels),
        (get, "label/{name}/values", api.label_values),
        (get, "metadata", api.metadata),
        (get, "targets", api.targets),
        (get, "rules", api.rules),
        (get, "alerts", api.alerts),
        (get, "status/buildinfo", api.build),
    ]
    return [
        Endpoint(methods, PROMETHEUS_PREFIX + path, Role.VIEWER, _answering(method)) for methods, path, method in rows
    ]


def _answering(method: Callable[..., Any]) -> Answer:
    async def answer(request: Request) -> Response:
        """Errors become Prometheus' error types: what was asked wrongly, what failed while it ran, what is away."""
        try:
            response: Response = await method(await Form.of(request), **request.path_params)
        except (form.BadParameter, _Unparsable) as error:
            return prometheus_error(str(error), status=400)
        except QueryError as error:
            return prometheus_error(str(error), status=422)
        except StoreError as error:
            return prometheus_error(str(error), status=503)
        except HTTPException as error:
            return prometheus_error(error.detail, status=error.status_code)
        return response

    return answer


class _Unparsable(Exception):
    """The expression is not PromQL: the caller's fault, unlike one that fails while it runs."""


def _expression(asked: Form) -> str:
    expr = asked.one("query") or ""
    _parse("query", expr)
    return expr


def _parse(name: str, text: str) -> ast.Expr:
    try:
        return parser.parse(text)
    except QueryError as error:
        raise _Unparsable(f'invalid parameter "{name}": {error}') from error


def _matchers(text: str) -> tuple[engine.Matcher, ...]:
    tree = _parse("match[]", text)
    if not isinstance(tree, ast.Selector):
        raise form.BadParameter('invalid parameter "match[]": expected a series selector such as up{job="x"}')
    return tree.matchers


async def _write(answer: engine.Answer, at_ms: int | None) -> Response:
    """Rendering a large answer takes longer than asking for it, so it leaves the event loop as well."""

    def render() -> Response:
        return success(form.write_answer(answer, at_ms), answer.warnings)

    return await asyncio.to_thread(render) if answer.frame.values.size > 10_000 else render()


def success(content: Any, warnings: Sequence[str] = ()) -> Response:
    body = {"status": "success", "data": content}
    return json_answer(body | {"warnings": list(warnings)} if warnings else body)


def limited(items: list[Any], asked: Form) -> Response:
    most = form.read_limit(asked.one("limit"))
    if most is None or len(items) <= most:
        return success(items)
    return success(items[:most], ["results truncated due to limit"])
