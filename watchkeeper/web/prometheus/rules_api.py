"""GET /api/rules and POST /api/rules/replay: list alerting rules with their states, and test rules on stored samples.

A replay queries the hub's samples and writes nothing: the results of recording rules are dropped, so a rule reads only
what the hub recorded. One replay runs at a time, in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

import yaml
from starlette.exceptions import HTTPException
from starlette.requests import Request

from watchkeeper.hub import services
from watchkeeper.kit import clock, durations
from watchkeeper.model import alerts
from watchkeeper.rules import evaluate, replay, rulefile
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import get, post, read_json_object
from watchkeeper.web.prometheus import prometheus_params as form
from watchkeeper.web.prometheus import prometheus_status
from watchkeeper.web.shedding import replay_limit

MAX_BODY_BYTES = 256 * 1024
MAX_ALERTS = 200
MAX_RULES = 20
MAX_EPISODES = 500
# One rule over a day at a step of 15 s takes 5,760 evaluations.
MAX_WINDOW_SECONDS, MAX_STEPS = 7 * 86_400.0, 11_000


class ListedRule(TypedDict):
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


class ListedAlert(TypedDict):
    name: str
    labels: Mapping[str, str]
    state: alerts.AlertState
    active_at: datetime
    fired_at: datetime | None
    value: float
    summary: str


class RuleList(TypedDict):
    now: datetime
    rules: list[ListedRule]
    alerts: list[ListedAlert]
    alerts_total: int


class RuleReplay(TypedDict):
    since: datetime
    until: datetime
    steps: int
    fired: int
    waited: int
    episodes: Sequence[replay.Episode]
    failures: Sequence[replay.Failure]


class RulesApi:
    def __init__(self, hub: services.Services) -> None:
        self._runtime, self._queries, self._rules = hub.runtime, hub.queries, hub.rules
        self._replay_lock, self._limit = asyncio.Lock(), replay_limit("rule replays")

    @get("/api/rules")
    async def list_rules(self, _: Request) -> RuleList:
        """List alerting rules with their state and health, and pending and firing alerts."""
        return await asyncio.to_thread(self._collect_rules)

    def _collect_rules(self) -> RuleList:
        rules = [
            listed_rule(group, rule, states.get(evaluate.rule_key(group, rule), evaluate.RuleState()))
            for group, states in self._rules.groups()
            for rule in group.rules
            if isinstance(rule, rulefile.AlertingRule)
        ]
        active = [alert for alert in self._rules.alerts() if prometheus_status.is_active(alert)]
        active.sort(key=lambda alert: (alert.state is not alerts.AlertState.FIRING, alert.active_at))
        listed = [
            ListedAlert(
                name=alert.name,
                labels=dict(alert.labels.without("alertname")),
                state=alert.state,
                active_at=alert.active_at,
                fired_at=alert.fired_at,
                value=alert.value,
                summary=alert.annotations.get("summary") or alert.annotations.get("description", ""),
            )
            for alert in active[:MAX_ALERTS]
        ]
        return RuleList(now=self._runtime.clock.now(), rules=rules, alerts=listed, alerts_total=len(active))

    @post(
        "/api/rules/replay",
        role=Role.VIEWER,
        body={"expr": str, "for": str, "name": str, "rules": str, "from": str, "to": str, "interval": str},
    )
    async def replay_rules(self, request: Request) -> RuleReplay:
        """Replay rules on stored samples to see when they would have fired; stores and sends nothing."""
        with self._limit:
            body = await read_json_object(request, MAX_BODY_BYTES)
            window = _read_window(body, self._runtime.clock.now())
            # Parsing a file of 256 KiB takes seconds.
            rule_set = await asyncio.to_thread(_read_rules, body)
            async with self._replay_lock:
                replayed = await asyncio.to_thread(replay.replay, rule_set, self._queries.engine, window, appender=None)
        fired = replayed.fired
        only_pending = [episode for episode in replayed.episodes if episode.fired_at is None]
        return RuleReplay(
            since=clock.from_ms(window.from_ms),
            until=clock.from_ms(window.to_ms),
            steps=replayed.steps,
            fired=len(fired),
            waited=len(only_pending),
            episodes=[*fired, *only_pending][:MAX_EPISODES],
            failures=replayed.failures,
        )


def listed_rule(group: rulefile.RuleGroup, rule: rulefile.AlertingRule, state: evaluate.RuleState) -> ListedRule:
    states = [alert.state for alert in state.alerts.values()]
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


def template_text(templates: rulefile.Templates, name: str) -> str:
    template = templates.get(name)
    return "" if template is None else template.text


def _read_rules(body: dict[str, Any]) -> rulefile.RuleSet:
    """Parse the body: rules as YAML in `rules`, or one alerting rule as `expr` and `for`."""
    text = body.get("rules")
    if text is None:
        expr, hold = body.get("expr"), body.get("for", "0s")
        if not isinstance(expr, str) or not expr.strip() or not isinstance(hold, str):
            problem = 'the rule is missing; send {"expr": "…", "for": "5m"} or {"rules": "YAML of a rule file"}'
            raise HTTPException(400, problem)
        form.parse("expr", expr)
        name = body.get("name") if isinstance(body.get("name"), str) else "Replayed"
        rule = {"alert": name, "expr": expr, "for": hold}
        text = yaml.safe_dump({"groups": [{"name": "replay", "rules": [rule]}]}, allow_unicode=True)
    if not isinstance(text, str):
        raise HTTPException(400, "`rules` must be the text of a rule file")
    try:
        rule_set = rulefile.read_rules({"rules": text})
    except rulefile.RuleFileProblems as error:
        raise HTTPException(400, str(error)) from error
    if not 1 <= len(rule_set.rules) <= MAX_RULES:
        raise HTTPException(400, f"{len(rule_set.rules)} rules; a replay needs 1 to {MAX_RULES}")
    return rule_set


def _read_window(body: dict[str, Any], now: datetime) -> replay.ReplayWindow:
    until = clock.to_ms(now) if body.get("to") is None else form.read_time("to", str(body["to"]))
    since = until - 21_600_000 if body.get("from") is None else form.read_time("from", str(body["from"]))
    try:
        step = durations.parse_seconds(str(body.get("interval", "15s")))
    except ValueError as error:
        raise HTTPException(400, str(error)) from error
    until = min(until, clock.to_ms(now))
    seconds = (until - since) / 1000
    if not 0 < seconds <= MAX_WINDOW_SECONDS:
        raise HTTPException(400, f"`from` must be before `to`, by at most {MAX_WINDOW_SECONDS / 86_400:g} days")
    if step <= 0 or seconds / step > MAX_STEPS:
        shortest = durations.format_seconds(-(-seconds // MAX_STEPS))
        raise HTTPException(
            400,
            f"{seconds / max(step, 1e-3):,.0f} steps, the limit is {MAX_STEPS:,}; set `interval` to {shortest} or more",
        )
    return replay.ReplayWindow(since, until, step)
