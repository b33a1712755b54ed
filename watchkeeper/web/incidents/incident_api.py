"""Working on incidents over HTTP: assign, silence, report, digest; and Alertmanager's webhook.

`fleet_api` lists and shows incidents; what people do to them beyond a note is here. Nothing is decided here: a
request is checked, handed to the hub, and its answer written.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, NotRequired, TypedDict

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.errors import StoreError, WireError
from watchkeeper.hub import services
from watchkeeper.hub.runtime import Runtime
from watchkeeper.incidents import incident_labels
from watchkeeper.kit import durations, wire
from watchkeeper.model.incidents import Incident
from watchkeeper.model.notices import Notice
from watchkeeper.model.silences import Matcher, Silence, parse_matcher
from watchkeeper.notify import alertmanager, digest, incident_report, silence_store
from watchkeeper.web import shapes
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import (
    Endpoint,
    QueryParam,
    check_node,
    ok_response,
    parse_whole_number,
    read_body,
    read_json_object,
)
from watchkeeper.web.incidents import incident_request
from watchkeeper.web.incidents.incident_reports import IncidentReports

# A group of Alertmanager's may hold thousands of alerts.
WEBHOOK_BYTES = 16 * 1024 * 1024
WEBHOOKS_IN_FLIGHT = 32
MOST_MATCHERS = 20
MOST_DAYS = 366


@dataclass(frozen=True, slots=True)
class IncidentAssigned:
    incident: Incident


@dataclass(frozen=True, slots=True)
class SilenceChanged:
    silence: shapes.SilenceView


@dataclass(frozen=True, slots=True)
class NoticeList:
    notices: list[Notice]


@dataclass(frozen=True, slots=True)
class SilenceList:
    silences: list[shapes.ListedSilence]
    problem: str


@dataclass(frozen=True, slots=True)
class DigestText:
    digest: digest.Digest
    text: str


@dataclass(frozen=True, slots=True)
class AlertsAccepted:
    taken: int
    problems: list[str]


class SilenceBody(TypedDict):
    """The body of a silence: `for` such as 2h, or `ends_at`."""

    reason: str
    ends_at: NotRequired[str]
    starts_at: NotRequired[str]
    maintenance: NotRequired[bool]


class NewSilenceBody(SilenceBody):
    matchers: list[str]


class IncidentApi:
    def __init__(
        self,
        runtime: Runtime,
        journal: services.JournalProtocol,
        *,
        incidents: services.IncidentsProtocol,
        silences: services.SilencesProtocol,
        rules: services.RulesProtocol,
        stories: IncidentReports,
    ) -> None:
        self._runtime, self._journal, self._incidents = runtime, journal, incidents
        self._silences, self._rules, self._stories = silences, rules, stories
        self._webhooks = 0

    async def assign(self, request: Request) -> IncidentAssigned:
        incident, body = (
            await incident_request.load_incident(self._journal, request),
            await read_json_object(request, incident_request.BODY_BYTES),
        )
        changed = await self._incidents.assign(
            incident.id, request.state.caller.name, incident_request.read_line(body, "to")
        )
        return IncidentAssigned(incident=changed)

    async def silence_incident(self, request: Request) -> Response:
        """Silence everything at the place of an incident for some time."""
        incident, body = (
            await incident_request.load_incident(self._journal, request),
            await read_json_object(request, incident_request.BODY_BYTES),
        )
        made = await self._silences.silence(self._wish(request, body, incident_labels.place_matchers(incident.place)))
        return ok_response(silence=_shown(made))

    async def silences(self, _: Request) -> Response:
        now = self._runtime.clock.now()
        shown = [_shown(one) | {"active": one.is_active(now)} for one in self._silences.silences()]
        return ok_response(silences=shown, problem=self._silences.silences_problem())

    async def add_silence(self, request: Request) -> Response:
        body = await read_json_object(request, incident_request.BODY_BYTES)
        listed = body.get("matchers")
        if not isinstance(listed, list) or not 0 < len(listed) <= MOST_MATCHERS:
            raise HTTPException(400, f'matchers: expected 1 to {MOST_MATCHERS} texts such as node="gpu-r01-01"')
        try:
            matchers = tuple(parse_matcher(str(text)) for text in listed)
        except ValueError as error:
            raise HTTPException(400, f"matchers: {error}") from error
        made = await self._silences.silence(self._wish(request, body, matchers))
        return ok_response(silence=_shown(made))

    async def end_silence(self, request: Request) -> Response:
        ended = await self._silences.expire_silence(request.path_params["id"], request.state.caller.name)
        return ok_response(silence=_shown(ended))

    async def report(self, request: Request) -> Response:
        """The whole story, as Markdown or JSON."""
        story = await self._stories.load_story(await incident_request.load_incident(self._journal, request))
        if request.query_params.get("format", "markdown") == "json":
            return ok_response(**incident_report.as_plain(story))
        return Response(incident_report.as_markdown(story), media_type="text/markdown; charset=utf-8")

    async def digest(self, request: Request) -> DigestText:
        days = parse_whole_number(request.query_params.get("days", "7"))
        if days is None or not 1 <= days <= MOST_DAYS:
            raise HTTPException(400, f"days must be a number from 1 to {MOST_DAYS}")
        until = self._runtime.clock.now()
        made = await self._stories.make_digest(until - timedelta(days=days), until)
        return DigestText(digest=made, text="\n".join(digest.digest_lines(made)))

    async def notices(self, request: Request) -> NoticeList:
        """Who was told about an incident, when, and what they answered."""
        id = (await incident_request.load_incident(self._journal, request)).id
        return NoticeList(notices=await self._journal.read(lambda: self._journal.notices(id)))

    async def webhook(self, request: Request) -> Response:
        """Alertmanager tells us about alerts of somebody else's rules; the token of one node is not enough."""
        check_node(request.state.caller, None)
        if self._webhooks >= WEBHOOKS_IN_FLIGHT:
            # Alertmanager tries again after a 5xx, and only then.
            problem = f"{self._webhooks} calls are being taken, the limit is {WEBHOOKS_IN_FLIGHT}"
            raise HTTPException(503, problem, headers={"Retry-After": "1"})
        self._webhooks += 1
        try:
            return await self._take_webhook(await read_body(request, WEBHOOK_BYTES))
        finally:
            self._webhooks -= 1

    async def _take_webhook(self, body: bytes) -> Response:
        now, causes = self._runtime.clock.now(), self._rules.alert_causes()
        stale = timedelta(seconds=self._runtime.settings.notify.webhook_silence_seconds)
        try:
            # Thousands of alerts take a while to read; the loop has other things to do.
            found = await asyncio.to_thread(
                alertmanager.read_webhook, body, now, cause_by_alert_name=causes, stale=stale
            )
        except WireError as error:
            raise HTTPException(400, "; ".join(error.problems)) from error
        try:
            await self._incidents.ingest_external_alerts(found.alerts)
        except StoreError as error:
            # Alertmanager brings them again after a 5xx, and only then; a conflict of two hubs would be a 409.
            raise HTTPException(503, str(error)) from error
        return ok_response(taken=len(found.alerts), problems=found.problems)

    def _wish(
        self, request: Request, body: dict[str, Any], matchers: tuple[Matcher, ...]
    ) -> silence_store.SilenceRequest:
        now = self._runtime.clock.now()
        try:
            starts_at = wire.parse_time(body["starts_at"]) if body.get("starts_at") else now
            ends_at = wire.parse_time(body["ends_at"]) if body.get("ends_at") else starts_at + _lasting(body)
        except (ValueError, TypeError, OverflowError) as error:
            raise HTTPException(400, f"a silence needs `for` such as 2h, or `ends_at`: {error}") from error
        return silence_store.SilenceRequest(
            matchers,
            request.state.caller.name,
            incident_request.read_line(body, "reason"),
            starts_at,
            ends_at,
            is_maintenance=body.get("maintenance") is True,
        )


def _lasting(body: dict[str, Any]) -> timedelta:
    return timedelta(milliseconds=durations.parse_ms(str(body.get("for", ""))))


def _shown(silence: Silence) -> dict[str, Any]:
    plain: dict[str, Any] = wire.to_plain(silence)
    return plain | {"matchers": [str(matcher) for matcher in silence.matchers]}


# Deliberately one table: a row for each endpoint, with what the API's document says about it.
def endpoints(api: IncidentApi) -> list[Endpoint]:
    get, post = ("GET",), ("POST",)
    return [
        Endpoint(
            post,
            "/api/incidents/{id}/assign",
            Role.OPERATOR,
            api.assign,
            changes=True,
            summary="Give an incident to somebody",
            body={"to": str},
        ),
        Endpoint(
            post,
            "/api/incidents/{id}/silence",
            Role.OPERATOR,
            api.silence_incident,
            changes=True,
            summary="Silence everything at the place of an incident for some time",
            body=SilenceBody,
            response=SilenceChanged,
        ),
        Endpoint(
            get,
            "/api/incidents/{id}/report",
            Role.VIEWER,
            api.report,
            summary="The whole story of an incident, as Markdown or JSON",
            params=(QueryParam("format", "markdown unless given", Literal["markdown", "json"]),),
            media_type="text/markdown",
        ),
        Endpoint(
            get,
            "/api/incidents/{id}/notices",
            Role.VIEWER,
            api.notices,
            summary="Who was told about an incident, when, and what they answered",
        ),
        Endpoint(
            get,
            "/api/silences",
            Role.VIEWER,
            api.silences,
            summary="Silences that are, will be, or were in force within the last day",
            response=SilenceList,
        ),
        Endpoint(
            post,
            "/api/silences",
            Role.OPERATOR,
            api.add_silence,
            changes=True,
            summary="Silence what fits all matchers",
            body=NewSilenceBody,
            response=SilenceChanged,
        ),
        Endpoint(
            ("DELETE",),
            "/api/silences/{id}",
            Role.OPERATOR,
            api.end_silence,
            changes=True,
            summary="End a silence now",
            response=SilenceChanged,
        ),
        Endpoint(
            get,
            "/api/digest",
            Role.VIEWER,
            api.digest,
            summary="A review of the incidents of some days, with a text for people",
            params=(QueryParam("days", f"at most {MOST_DAYS}; 7 unless given", int),),
        ),
        Endpoint(
            post,
            "/api/alertmanager",
            Role.AGENT,
            api.webhook,
            changes=True,
            summary="Take alerts of somebody else's rules, in the form of Alertmanager's webhook",
            body=dict[str, Any],
            response=AlertsAccepted,
        ),
    ]
