"""Targets, rules and alerts in the shapes of Prometheus' HTTP API; `prometheus_api` answers with them."""

from __future__ import annotations

from typing import Any

from watchkeeper.collect import scrape
from watchkeeper.kit import clock, wire
from watchkeeper.model import alerts
from watchkeeper.rules import evaluate, rulefile
from watchkeeper.web.prometheus_form import write_value

NEVER = "0001-01-01T00:00:00Z"


def target(state: scrape.TargetState) -> dict[str, Any]:
    at = state.last_scrape_ms
    return {
        "discoveredLabels": dict(state.target.discovered),
        "labels": dict(state.target.labels),
        "scrapePool": state.target.labels.get("job", ""),
        "scrapeUrl": state.target.url,
        "globalUrl": state.target.url,
        "lastError": state.error or "",
        "lastScrape": NEVER if at is None else wire.format_time(clock.from_ms(at)),
        "lastScrapeDuration": state.duration_seconds or 0,
        "health": state.health.value,
    }


def group(found: rulefile.Group, states: evaluate.State, *, default_seconds: float) -> dict[str, Any]:
    known = [(each, states.get(evaluate.rule_key(found, each), evaluate.RuleState())) for each in found.rules]
    times = [state.evaluated_at for _, state in known if state.evaluated_at is not None]
    return {
        "name": found.name,
        "file": found.path,
        "interval": default_seconds if found.interval_seconds is None else found.interval_seconds,
        "limit": found.limit,
        "rules": [rule(each, state) for each, state in known],
        "evaluationTime": sum(state.duration_seconds for _, state in known),
        "lastEvaluation": wire.format_time(max(times)) if times else NEVER,
    }


def rule(found: rulefile.Rule, state: evaluate.RuleState) -> dict[str, Any]:
    shared = {
        "name": found.name,
        "query": found.expr,
        "health": state.health.value,
        "lastError": state.last_error,
        "evaluationTime": state.duration_seconds,
        "lastEvaluation": NEVER if state.evaluated_at is None else wire.format_time(state.evaluated_at),
    }
    if isinstance(found, rulefile.RecordingRule):
        return {"type": "recording", "labels": dict(found.labels), **shared}
    active = [one for one in state.alerts.values() if is_active(one)]
    return {
        "type": "alerting",
        "state": _worst(active),
        "duration": found.hold_seconds,
        "keepFiringFor": found.keep_firing_seconds,
        "labels": {name: template.text for name, template in found.labels.items()},
        "annotations": {name: template.text for name, template in found.annotations.items()},
        "alerts": [alert(one) for one in active],
        **shared,
    }


def _worst(active: list[alerts.Alert]) -> str:
    """Prometheus' word for a whole rule: firing if one alert fires, else pending, else inactive."""
    states = {one.state for one in active}
    for state in (alerts.AlertState.FIRING, alerts.AlertState.PENDING):
        if state in states:
            return state.value
    return "inactive"


def is_active(one: alerts.Alert) -> bool:
    return one.state in (alerts.AlertState.PENDING, alerts.AlertState.FIRING)


def alert(one: alerts.Alert) -> dict[str, Any]:
    return {
        "labels": dict(one.labels),
        "annotations": dict(one.annotations),
        "state": one.state.value,
        "activeAt": wire.format_time(one.active_at),
        "value": write_value(one.value),
    }
