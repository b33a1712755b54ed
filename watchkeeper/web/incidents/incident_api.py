"""Assign, silence and report incidents over HTTP, receive Alertmanager's webhook, and download evidence bundles.

`fleet_api` lists, shows, acknowledges and resolves incidents. This module checks a request, passes it to a service of
the hub and writes the answer.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any, Literal, NotRequired, TypedDict

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.errors import StoreError, WireError
from watchkeeper.hub import services
from watchkeeper.incidents import incident_labels
from watchkeeper.kit import durations, wire
from watchkeeper.model.incidents import Incident
from watchkeeper.model.notices import Notice
from watchkeeper.model.silences import Matcher, Silence, parse_matcher
from watchkeeper.notify import alertmanager, digest, incident_report, silence_store
from watchkeeper.web import shapes
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import (
    QueryParam,
    check_node,
    delete,
    get,
    ok_response,
    post,
    read_body,
    read_json_object,
    read_number,
)
from watchkeeper.web.incidents import incident_request
from watchkeeper.web.incidents.incident_reports import IncidentReports
from watchkeeper.web.shedding import ConcurrencyLimit

# One group of Alertmanager can hold thousands of alerts.
WEBHOOK_BYTES = 16 * 1024 * 1024
MAX_CONCURRENT_WEBHOOKS = 32
MAX_MATCHERS = 20
MAX_DAYS = 366
# Each uses about 10 MiB of memory while it is built.
MAX_CONCURRENT_BUNDLES = 2


class IncidentAssigned(TypedDict):
    incident: Incident


class SilenceChanged(TypedDict):
    silence: shapes.SilenceView


class NoticeList(TypedDict):
    notices: list[Notice]


class SilenceList(TypedDict):
    silences: list[shapes.ListedSilence]
    problem: str


class DigestText(TypedDict):
    digest: digest.Digest
    text: str


class AlertsAccepted(TypedDict):
    taken: int
    problems: list[str]


class SilenceBody(TypedDict):
    """The body of a silence: a duration in `for`, such as 2h, or an end time in `ends_at`."""

    reason: str
    ends_at: NotRequired[str]
    starts_at: NotRequired[str]
    maintenance: NotRequired[bool]


class NewSilenceBody(SilenceBody):
    matchers: list[str]


class IncidentApi:
    def __init__(self, hub: services.Services, reports: IncidentReports) -> None:
        self._runtime, self._journal, self._incidents = hub.runtime, hub.journal, hub.incidents
        self._silences, self._rules, self._reports = hub.silences, hub.rules, reports
        # Alertmanager retries only after a 5xx.
        problem = f"{{count}} webhook calls are running, the limit is {MAX_CONCURRENT_WEBHOOKS}"
        self._webhooks = ConcurrencyLimit(MAX_CONCURRENT_WEBHOOKS, problem, status=503, retry_after_seconds=1)

    @post("/api/incidents/{id}/assign", body={"to": str})
    async def assign(self, request: Request) -> IncidentAssigned:
        """Assign an incident to a person."""
        incident, body = await incident_request.load_with_body(self._journal, request)
        actor, assignee = request.state.caller.name, incident_request.read_line(body, "to")
        return IncidentAssigned(incident=await self._incidents.assign(incident.id, actor, assignee))

    @post("/api/incidents/{id}/silence", body=SilenceBody, response=SilenceChanged)
    async def silence_incident(self, request: Request) -> Response:
        """Silence all incidents at the place of this incident for a time."""
        incident, body = await incident_request.load_with_body(self._journal, request)
        return await self._silence(request, body, incident_labels.place_matchers(incident.place))

    @get(
        "/api/incidents/{id}/report",
        QueryParam("format", "Format of the report. Default: markdown.", Literal["markdown", "json"]),
        media_type="text/markdown",
    )
    async def get_report(self, request: Request) -> Response:
        """Report of an incident: timeline, diagnosis, repairs and impact, as Markdown or JSON."""
        report = await self._reports.load_report(await incident_request.load_incident(self._journal, request))
        if request.query_params.get("format", "markdown") == "json":
            return ok_response(**incident_report.as_plain(report))
        return Response(incident_report.as_markdown(report), media_type="text/markdown; charset=utf-8")

    @get("/api/incidents/{id}/notices")
    async def list_notices(self, request: Request) -> NoticeList:
        """Notifications sent about an incident: receiver, time and result."""
        id = (await incident_request.load_incident(self._journal, request)).id
        return NoticeList(notices=await self._journal.read(lambda: self._journal.notices(id)))

    @get("/api/silences", response=SilenceList)
    async def list_silences(self, _: Request) -> Response:
        """List silences: active, scheduled, and expired within the last day."""
        now = self._runtime.clock.now()
        views = [_silence_view(silence) | {"active": silence.is_active(now)} for silence in self._silences.silences()]
        return ok_response(silences=views, problem=self._silences.silences_problem())

    @post("/api/silences", body=NewSilenceBody, response=SilenceChanged)
    async def add_silence(self, request: Request) -> Response:
        """Silence incidents that match all matchers."""
        body = await read_json_object(request, incident_request.MAX_BODY_BYTES)
        matcher_texts = body.get("matchers")
        if not isinstance(matcher_texts, list) or not 0 < len(matcher_texts) <= MAX_MATCHERS:
            raise HTTPException(400, f'matchers: expected 1 to {MAX_MATCHERS} matchers such as node="gpu-r01-01"')
        try:
            matchers = tuple(parse_matcher(str(text)) for text in matcher_texts)
        except ValueError as error:
            raise HTTPException(400, f"matchers: {error}") from error
        return await self._silence(request, body, matchers)

    @delete("/api/silences/{id}", response=SilenceChanged)
    async def end_silence(self, request: Request) -> Response:
        """Expire a silence now."""
        ended = await self._silences.expire_silence(request.path_params["id"], request.state.caller.name)
        return ok_response(silence=_silence_view(ended))

    @get("/api/digest", QueryParam("days", f"Length of the window in days, at most {MAX_DAYS}. Default: 7.", int))
    async def get_digest(self, request: Request) -> DigestText:
        """Summary of the incidents of the last days, as data and as text."""
        days = read_number(request, "days", default=7, limit=MAX_DAYS)
        until = self._runtime.clock.now()
        made_digest = await self._reports.make_digest(until - timedelta(days=days), until)
        return DigestText(digest=made_digest, text="\n".join(digest.digest_lines(made_digest)))

    @post("/api/alertmanager", role=Role.AGENT, body=dict[str, Any], response=AlertsAccepted)
    async def receive_webhook(self, request: Request) -> Response:
        """Receive alerts of another Prometheus in the format of Alertmanager's webhook."""
        # The token of a single node is refused.
        check_node(request.state.caller, None)
        with self._webhooks:
            body = await read_body(request, WEBHOOK_BYTES)
            now, cause_by_alert_name = self._runtime.clock.now(), self._rules.alert_causes()
            stale = timedelta(seconds=self._runtime.settings.notify.webhook_silence_seconds)
            try:
                # Parsing thousands of alerts would block the event loop.
                read = partial(alertmanager.read_webhook, cause_by_alert_name=cause_by_alert_name, stale=stale)
                parsed = await asyncio.to_thread(read, body, now)
            except WireError as error:
                raise HTTPException(400, "; ".join(error.problems)) from error
            try:
                await self._incidents.ingest_external_alerts(parsed.alerts)
            except StoreError as error:
                # Deliberately not the 409 of a conflict between two hubs: Alertmanager retries only after a 5xx.
                raise HTTPException(503, str(error)) from error
            return ok_response(taken=len(parsed.alerts), problems=parsed.problems)

    async def _silence(self, request: Request, body: dict[str, Any], matchers: tuple[Matcher, ...]) -> Response:
        now = self._runtime.clock.now()
        try:
            starts_at = wire.parse_time(body["starts_at"]) if body.get("starts_at") else now
            ends_at = (
                wire.parse_time(body["ends_at"])
                if body.get("ends_at")
                else starts_at + timedelta(milliseconds=durations.parse_ms(str(body.get("for", ""))))
            )
        except (ValueError, TypeError, OverflowError) as error:
            raise HTTPException(400, f"set `for`, such as 2h, or `ends_at`: {error}") from error
        actor, reason = request.state.caller.name, incident_request.read_line(body, "reason")
        is_maintenance = body.get("maintenance") is True
        silence_request = silence_store.SilenceRequest(
            matchers, actor, reason, starts_at, ends_at, is_maintenance=is_maintenance
        )
        return ok_response(silence=_silence_view(await self._silences.silence(silence_request)))


def _silence_view(silence: Silence) -> dict[str, Any]:
    plain: dict[str, Any] = wire.to_plain(silence)
    return plain | {"matchers": [str(matcher) for matcher in silence.matchers]}


class BundleApi:
    def __init__(self, hub: services.Services) -> None:
        self._runtime, self._evidence = hub.runtime, hub.evidence
        problem = f"{{count}} bundles are being built, the limit is {MAX_CONCURRENT_BUNDLES}; retry later"
        self._limit = ConcurrencyLimit(MAX_CONCURRENT_BUNDLES, problem, retry_after_seconds=None)

    # Not for viewers: a bundle contains user names and the output of commands on nodes.
    @get(
        "/api/bundle",
        QueryParam("incident", "The id of an incident, such as INC-17; set either this or `node`."),
        QueryParam("node", "The name of a node; set either this or `incident`."),
        QueryParam("cluster", "Cluster of the node, if several clusters have a node with this name."),
        QueryParam("hide_names", "1: replace the names of users and nodes with placeholders."),
        role=Role.OPERATOR,
        media_type="application/gzip",
    )
    async def download(self, request: Request) -> Response:
        """Download the evidence about an incident or a node as a tar.gz."""
        sources, params = self._evidence(), request.query_params
        incident, node = params.get("incident"), params.get("node")
        if (incident is None) == (node is None):
            raise HTTPException(400, "set either `incident` or `node`")
        subject = incident or node or ""
        if sources is None:
            raise HTTPException(409, "evidence bundles are not available in a replayed recording: it has no journal")
        now, hides_names = self._runtime.clock.now(), params.get("hide_names") == "1"
        bundle_node = partial(sources.bundle_node, cluster=params.get("cluster"))
        with self._limit:
            bundle = bundle_node if incident is None else sources.bundle_incident
            archive = await asyncio.to_thread(bundle, subject, now=now, hides_names=hides_names)
        if archive is None:
            raise HTTPException(404, f"{'node' if incident is None else 'incident'} {subject[:80]} not found")
        return Response(archive, media_type="application/gzip")
