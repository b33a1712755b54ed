"""GET /api/rules and POST /api/rules/replay: alerting rules with their states, and what one would have fired before.

The list has counts and a bounded number of alerts, however many GPUs misbehave. A replay asks the hub's own samples
and writes nothing: what a rule would record is thrown away, so a rule reads what the hub had recorded. One replay at a
time, in a thread. The console's page of objectives and rules asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import yaml
from starlette.exceptions import HTTPException
from starlette.requests import Request

from watchkeeper.hub import services
from watchkeeper.hub.runtime import Runtime
from watchkeeper.hub.samples import Queries
from watchkeeper.kit import clock, durations
from watchkeeper.model import alerts
from watchkeeper.rules import evaluate, replay, rulefile
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import Endpoint, read_json_object
from watchkeeper.web.prometheus import prometheus_form as form
from watchkeeper.web.shedding import ConcurrencyLimit

BODY_BYTES = 256 * 1024
MOST_ALERTS = 200
MOST_RULES = 20
MOST_EPISODES = 500
# A day at a step of 15 s is 5,760 questions' worth of one rule.
LONGEST_SECONDS, MOST_STEPS = 7 * 86_400.0, 11_000


@dataclass(frozen=True, slots=True)
class ListedRule:
    name: str
    group: str
    file: str
    line: int
    expr: str
    for_seconds: float
    keep_firing_seconds: float
    severity: str
    cause: str
    summary: str
    firing: int
    pending: int
    health: str
    problem: str
    evaluated_at: datetime | None
    seconds: float


@dataclass(frozen=True, slots=True)
class ListedAlert:
    name: str
    labels: Mapping[str, str]
    state: alerts.AlertState
    active_at: datetime
    fired_at: datetime | None
    value: float
    summary: str


@dataclass(frozen=True, slots=True)
class RuleList:
    now: datetime
    rules: list[ListedRule]
    alerts: list[ListedAlert]
    alerts_total: int


@dataclass(frozen=True, slots=True)
class RuleReplay:
    since: datetime
    until: datetime
    steps: int
    fired: int
    waited: int
    episodes: Sequence[replay.Episode]
    failures: Sequence[replay.Failure]


class RulesApi:
    def __init__(self, runtime: Runtime, queries: Queries, *, rules: services.RulesProtocol) -> None:
        self._runtime, self._queries, self._rules = runtime, queries, rules
        self._busy, self._places = asyncio.Lock(), ConcurrencyLimit("replays of rules")

    async def rules(self, _: Request) -> RuleList:
        return await asyncio.to_thread(self._listed)

    def _listed(self) -> RuleList:
        shown = [
            rule_line(group, rule, states.get(evaluate.rule_key(group, rule), evaluate.RuleState()))
            for group, states in self._rules.groups()
            for rule in group.rules
            if isinstance(rule, rulefile.AlertingRule)
        ]
        active = [
            one for one in self._rules.alerts() if one.state in (alerts.AlertState.PENDING, alerts.AlertState.FIRING)
        ]
        active.sort(key=lambda one: (one.state is not alerts.AlertState.FIRING, one.active_at))
        return RuleList(self._runtime.clock.now(), shown, [_alert(one) for one in active[:MOST_ALERTS]], len(active))

    async def replay(self, request: Request) -> RuleReplay:
        with self._places:
            return await self._replay(request)

    async def _replay(self, request: Request) -> RuleReplay:
        body = await read_json_object(request, BODY_BYTES)
        window = _window(body, self._runtime.clock.now())
        # A file of 256 KiB takes seconds to read.
        rule_set = await asyncio.to_thread(_rule_set, body)
        async with self._busy:
            found = await asyncio.to_thread(replay.replay, rule_set, self._queries.engine, window, appender=None)
        fired = found.fired
        waited = [one for one in found.episodes if one.fired_at is None]
        return RuleReplay(
            since=clock.from_ms(window.from_ms),
            until=clock.from_ms(window.to_ms),
            steps=found.steps,
            fired=len(fired),
            waited=len(waited),
            episodes=[*fired, *waited][:MOST_EPISODES],
            failures=found.failures,
        )


def rule_line(group: rulefile.RuleGroup, rule: rulefile.AlertingRule, state: evaluate.RuleState) -> ListedRule:
    states = [one.state for one in state.alerts.values()]
    return ListedRule(
        name=rule.name,
        group=group.name,
        file=rule.path.rsplit("/", 1)[-1],
        line=rule.line,
        expr=rule.expr,
        for_seconds=rule.hold_seconds,
        keep_firing_seconds=rule.keep_firing_seconds,
        severity=template_text(rule.labels, "severity"),
        cause=template_text(rule.labels, "cause"),
        summary=template_text(rule.annotations, "summary") or template_text(rule.annotations, "description"),
        firing=states.count(alerts.AlertState.FIRING),
        pending=states.count(alerts.AlertState.PENDING),
        health=state.health,
        problem=state.last_error,
        evaluated_at=state.evaluated_at,
        seconds=state.duration_seconds,
    )


def template_text(found: rulefile.Templates, name: str) -> str:
    template = found.get(name)
    return "" if template is None else template.text


def _alert(one: alerts.Alert) -> ListedAlert:
    return ListedAlert(
        name=one.name,
        labels=dict(one.labels.without("alertname")),
        state=one.state,
        active_at=one.active_at,
        fired_at=one.fired_at,
        value=one.value,
        summary=one.annotations.get("summary") or one.annotations.get("description", ""),
    )


def _rule_set(body: dict[str, Any]) -> rulefile.RuleSet:
    """Rules as YAML in `rules`, or one alert as `expr` and `for`."""
    text = body.get("rules")
    if text is None:
        expr, hold = body.get("expr"), body.get("for", "0s")
        if not isinstance(expr, str) or not expr.strip() or not isinstance(hold, str):
            raise HTTPException(
                400, 'the body needs a rule: {"expr": "…", "for": "5m"}, or {"rules": "YAML of a file"}'
            )
        try:
            form.parse("expr", expr)
        except form.BadParameter as error:
            raise HTTPException(400, str(error)) from error
        name = body.get("name") if isinstance(body.get("name"), str) else "Replayed"
        rule = {"alert": name, "expr": expr, "for": hold}
        text = yaml.safe_dump({"groups": [{"name": "replay", "rules": [rule]}]}, allow_unicode=True)
    if not isinstance(text, str):
        raise HTTPException(400, "`rules` must be the text of a rule file")
    try:
        found = rulefile.read_rules({"rules": text})
    except rulefile.RuleFileProblems as error:
        raise HTTPException(400, str(error)) from error
    if not 1 <= len(found.rules) <= MOST_RULES:
        raise HTTPException(400, f"{len(found.rules)} rules; from 1 to {MOST_RULES} can be replayed at once")
    return found


def _window(body: dict[str, Any], now: datetime) -> replay.ReplayWindow:
    try:
        until = clock.to_ms(now) if body.get("to") is None else form.read_time("to", str(body["to"]))
        since = until - 21_600_000 if body.get("from") is None else form.read_time("from", str(body["from"]))
        step = durations.parse_seconds(str(body.get("interval", "15s")))
    except (form.BadParameter, ValueError) as error:
        raise HTTPException(400, str(error)) from error
    until = min(until, clock.to_ms(now))
    seconds = (until - since) / 1000
    if not 0 < seconds <= LONGEST_SECONDS:
        raise HTTPException(400, f"`from` must be before `to`, by at most {LONGEST_SECONDS / 86_400:g} days")
    if step <= 0 or seconds / step > MOST_STEPS:
        least = durations.format_seconds(-(-seconds // MOST_STEPS))
        raise HTTPException(
            400, f"{seconds / max(step, 1e-3):,.0f} steps; the most is {MOST_STEPS:,}. Take {least} or longer"
        )
    return replay.ReplayWindow(since, until, step)


def endpoints(api: RulesApi) -> list[Endpoint]:
    return [
        Endpoint(
            ("GET",),
            "/api/rules",
            Role.VIEWER,
            api.rules,
            summary="Alerting rules with their state and health, and the alerts that are pending or fire",
            response=RuleList,
        ),
        Endpoint(
            ("POST",),
            "/api/rules/replay",
            Role.VIEWER,
            api.replay,
            changes=True,
            summary="When a rule would have fired over the stored samples; writes nothing and sends no notifications",
            body={"expr": str, "for": str, "name": str, "rules": str, "from": str, "to": str, "interval": str},
            response=RuleReplay,
        ),
    ]
