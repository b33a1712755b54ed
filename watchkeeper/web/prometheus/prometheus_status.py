"""Serve targets, rules, alerts and the status of the hub in the formats of Prometheus' HTTP API.

`StatusPages` reads the parameters and selects; the `write_` functions write one object each. Fields
that only a Go program has (goroutines, GOGC) are empty.
"""

from __future__ import annotations

import os
import platform
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import yaml

from watchkeeper.hub import services
from watchkeeper.kit import clock, durations, wire
from watchkeeper.model import alerts
from watchkeeper.query.promql import patterns
from watchkeeper.rules import evaluate, rulefile
from watchkeeper.scrape import scrape
from watchkeeper.web.endpoint import QueryParam
from watchkeeper.web.prometheus.prometheus_json import write_value
from watchkeeper.web.prometheus.prometheus_params import LIMIT, MATCH, BadParameter, Form, prometheus_get, read_matchers

NEVER = "0001-01-01T00:00:00Z"
DEFAULT_TSDB_LIMIT = 10
MAX_TSDB_LIMIT = 10_000
RULE_TYPES = {"": "", "alert": "alerting", "record": "recording"}


class StatusPages:
    """One method for each page; each takes the parameters and returns `data`."""

    def __init__(self, hub: services.Services) -> None:
        self._runtime, self._queries, self._rules, self._targets = hub.runtime, hub.queries, hub.rules, hub.targets
        self._started_at = hub.runtime.clock.now()

    @prometheus_get(
        "/api/v1/targets",
        QueryParam("state", "Return only targets in this state: any, active or dropped. Default: any."),
        QueryParam("scrapePool", "Return only targets of this scrape pool."),
    )
    def targets(self, params: Form) -> dict[str, Any]:
        """List scrape targets with the result of their last scrape."""
        selection, pool = (params.first("state") or "any").lower(), params.first("scrapePool")
        if selection not in ("any", "active", "dropped"):
            raise BadParameter(f'invalid parameter "state": "{selection[:80]}" is not any, active or dropped')
        scraped = [state for state in self._targets.targets() if pool in (None, "", state.target.job_name)]
        dropped = [target for target in self._targets.dropped_targets() if pool in (None, "", target.job_name)]
        return {
            "activeTargets": [self._target_with_intervals(state) for state in scraped]
            if selection != "dropped"
            else [],
            "droppedTargets": [
                {"discoveredLabels": dict(target.discovered), "scrapePool": target.job_name}
                for target in (dropped if selection != "active" else ())
            ],
            "droppedTargetCounts": dict(Counter(target.job_name for target in dropped)),
        }

    def _target_with_intervals(self, state: scrape.TargetState) -> dict[str, Any]:
        defaults, scrape_target = self._runtime.settings.fleet, state.target
        interval, timeout = scrape_target.interval_seconds, scrape_target.timeout_seconds
        intervals = {
            "scrapeInterval": defaults.scrape_interval if interval is None else durations.format_seconds(interval),
            "scrapeTimeout": durations.format_seconds(defaults.scrape_timeout_seconds if timeout is None else timeout),
        }
        return write_target(state) | intervals

    @prometheus_get(
        "/api/v1/targets/metadata",
        QueryParam("match_target", "Return only targets whose labels match this selector."),
        QueryParam("metric", "Return only this metric."),
        LIMIT,
    )
    def target_metadata(self, params: Form) -> list[dict[str, Any]]:
        """Metric metadata by scrape target."""
        is_selected = _label_filter(params.first("match_target") or None, name="match_target")
        metric, limit = params.first("metric"), params.metadata_limit()
        rows: list[dict[str, Any]] = []
        for state in self._targets.targets():
            if not is_selected(state.target.labels):
                continue
            names = sorted(state.families) if not metric else [metric] if metric in state.families else []
            for name in names:
                if limit is not None and len(rows) >= limit:
                    return rows
                family = state.families[name]
                metadata = write_metadata((family.type, family.help, family.unit))
                rows.append({"target": dict(state.target.labels), "metric": name, **metadata})
        return rows

    @prometheus_get("/api/v1/scrape_pools")
    def pools(self, _: Form) -> dict[str, Any]:
        """List scrape pools."""
        names = {state.target.job_name for state in self._targets.targets()}
        names |= {target.job_name for target in self._targets.dropped_targets()}
        return {"scrapePools": sorted(names)}

    @prometheus_get(
        "/api/v1/rules",
        QueryParam("type", "Return only rules of this type: alert or record."),
        QueryParam("rule_name[]", "Return only rules with this name; repeat it for several.", list[str]),
        QueryParam("rule_group[]", "Return only groups with this name; repeat it for several.", list[str]),
        QueryParam("file[]", "Return only rules of this file; repeat it for several.", list[str]),
        replace(MATCH, description="Return only rules whose labels match this selector; repeat it for several."),
        QueryParam("exclude_alerts", "true: omit active alerts."),
        QueryParam("group_limit", "Number of groups per page.", int),
        QueryParam("group_next_token", "`groupNextToken` of the previous page."),
    )
    def rules(self, params: Form) -> dict[str, Any]:
        """List rule groups with their rules and alerts."""
        kind = (params.first("type") or "").lower()
        if kind not in RULE_TYPES:
            raise BadParameter(f'invalid parameter "type": not supported value "{kind[:80]}"')
        names, groups, files = (params.all(f"{part}[]") for part in ("rule_name", "rule_group", "file"))
        is_selected = _label_filter(*params.all("match[]"))
        default_seconds = self._runtime.settings.rules.interval_seconds
        with_alerts = not params.is_true("exclude_alerts")
        groups_json = []
        for group, states in self._rules.groups():
            if (groups and group.name not in groups) or (files and group.path not in files):
                continue
            group_json = write_group(group, states, default_seconds=default_seconds)
            group_json["rules"] = [
                rule
                for rule in group_json["rules"]
                if rule["type"].startswith(RULE_TYPES[kind])
                and (not names or rule["name"] in names)
                and is_selected(rule["labels"])
            ]
            if not with_alerts:
                for rule in group_json["rules"]:
                    rule.update(dict.fromkeys(rule.keys() & {"alerts"}))
            if group_json["rules"] or not (names or kind or params.all("match[]")):
                groups_json.append(group_json)
        return _paginate(groups_json, params)

    @prometheus_get("/api/v1/alerts")
    def alerts(self, _: Form) -> dict[str, Any]:
        """List pending and firing alerts."""
        return {"alerts": [write_alert(alert) for alert in self._rules.alerts() if is_active(alert)]}

    @prometheus_get("/api/v1/alertmanagers")
    def alertmanagers(self, _: Form) -> dict[str, Any]:
        """Alertmanagers; always empty, because the hub sends notifications itself."""
        return {"activeAlertmanagers": [], "droppedAlertmanagers": []}

    @prometheus_get("/api/v1/status/buildinfo")
    def build(self, _: Form) -> dict[str, Any]:
        """Version of the hub."""
        empty = dict.fromkeys(("revision", "branch", "buildUser", "buildDate", "goVersion"), "")
        return {"version": self._runtime.version, **empty, "application": "watchkeeper"}

    @prometheus_get("/api/v1/status/config")
    def config(self, _: Form) -> dict[str, str]:
        """Active configuration as YAML."""
        # Prometheus' `global` section for its clients, then the hub's settings.
        fleet, rules = self._runtime.settings.fleet, self._runtime.settings.rules
        prometheus = {
            "scrape_interval": fleet.scrape_interval,
            "scrape_timeout": fleet.scrape_timeout,
            "evaluation_interval": rules.interval,
        }
        plain = {"global": prometheus, "watchkeeper": wire.to_plain(self._runtime.settings)}
        return {"yaml": yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)}

    @prometheus_get("/api/v1/status/flags")
    def flags(self, _: Form) -> dict[str, str]:
        """Settings of the hub under the names of Prometheus' flags."""
        limits, settings = self._queries.engine.limits(), self._runtime.settings
        return {
            "query.lookback-delta": durations.format_ms(limits.lookback_ms),
            "query.max-samples": str(limits.max_samples or 0),
            "storage.tsdb.path": settings.hub.data,
            "storage.tsdb.retention.time": settings.query.retention,
            "web.enable-remote-write-receiver": "true",
            "web.listen-address": f"{settings.hub.host}:{settings.hub.port}",
        }

    @prometheus_get("/api/v1/status/runtimeinfo")
    def runtime(self, _: Form) -> dict[str, Any]:
        """Start time, last rule reload and retention of the hub."""
        started = wire.format_time(self._started_at)
        return {
            "startTime": started,
            "CWD": os.getcwd(),
            "hostname": platform.node(),
            "serverTime": wire.format_time(self._runtime.clock.now()),
            "reloadConfigSuccess": self._rules.last_reload.is_successful,
            "lastConfigTime": wire.format_time(self._rules.last_reload.in_force_since),
            "corruptionCount": 0,
            "goroutineCount": threading.active_count(),
            "GOMAXPROCS": os.cpu_count() or 1,
            "GOMEMLIMIT": 0,
            "GOGC": "",
            "GODEBUG": "",
            "storageRetention": self._runtime.settings.query.retention,
        }

    @prometheus_get(
        "/api/v1/status/tsdb",
        replace(LIMIT, description="Number of entries in each list, at most 10,000. Default: 10."),
    )
    def tsdb(self, params: Form) -> dict[str, Any]:
        """Cardinality: the metrics and labels with the most series."""
        limit = min(params.limit(minimum=1) or DEFAULT_TSDB_LIMIT, MAX_TSDB_LIMIT)
        local = self._queries.engine.local
        if local is None:
            raise BadParameter("this hub uses a remote query engine; call /api/v1/status/tsdb there")
        cardinality, newest = local.head.cardinality(limit), local.head.newest_ms
        tables = {
            "seriesCountByMetricName": cardinality.by_metric,
            "labelValueCountByLabelName": cardinality.values_by_label,
            "memoryInBytesByLabelName": cardinality.bytes_by_label,
            "seriesCountByLabelValuePair": cardinality.by_pair,
        }
        return {
            "headStats": {
                "numSeries": cardinality.series,
                "numLabelPairs": cardinality.pairs,
                "chunkCount": 0,
                "minTime": 0 if newest is None else newest - local.head.retention_ms,
                "maxTime": newest or 0,
            },
            **{key: [{"name": name, "value": value} for name, value in rows] for key, rows in tables.items()},
        }

    @prometheus_get("/api/v1/status/walreplay")
    def replay(self, _: Form) -> dict[str, int]:
        """WAL replay; always done, because the hub serves requests only after it."""
        return {"min": 0, "max": 0, "current": 0}

    @prometheus_get("/api/v1/notifications")
    def notifications(self, _: Form) -> list[Any]:
        """Notifications of Prometheus' own pages; always empty."""
        return []


def _paginate(groups: list[dict[str, Any]], params: Form) -> dict[str, Any]:
    """All groups, or a page of `group_limit` groups from `group_next_token` on, which is `file;name` of a group."""
    token, limit = params.first("group_next_token"), params.limit("group_limit", minimum=1)
    keys = [f"{group_json['file']};{group_json['name']}" for group_json in groups]
    if token and token not in keys:
        raise BadParameter(f'invalid parameter "group_next_token": group {token[:80]} not found')
    groups = groups[keys.index(token) if token else 0 :]
    if limit is None or len(groups) <= limit:
        return {"groups": groups}
    return {"groups": groups[:limit], "groupNextToken": f"{groups[limit]['file']};{groups[limit]['name']}"}


def _label_filter(*texts: str | None, name: str = "match[]") -> Callable[[Mapping[str, str]], bool]:
    """A test whether labels match one of the selectors; without selectors all match."""
    selectors = [read_matchers(name, text) for text in texts if text is not None]

    def is_selected(labels: Mapping[str, str]) -> bool:
        return not selectors or any(
            all(patterns.matches(matcher, labels.get(matcher.name, "")) for matcher in selector)
            for selector in selectors
        )

    return is_selected


def write_metadata(family: tuple[str, str, str]) -> dict[str, str]:
    return dict(zip(("type", "help", "unit"), family, strict=True))


def write_target(state: scrape.TargetState) -> dict[str, Any]:
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


def write_group(group: rulefile.RuleGroup, states: evaluate.RuleStates, *, default_seconds: float) -> dict[str, Any]:
    rules_with_state = [
        (rule, states.get(evaluate.rule_key(group, rule), evaluate.RuleState())) for rule in group.rules
    ]
    times = [state.evaluated_at for _, state in rules_with_state if state.evaluated_at is not None]
    return {
        "name": group.name,
        "file": group.path,
        "interval": default_seconds if group.interval_seconds is None else group.interval_seconds,
        "limit": group.limit,
        "rules": [write_rule(rule, state) for rule, state in rules_with_state],
        "evaluationTime": sum(state.duration_seconds for _, state in rules_with_state),
        "lastEvaluation": wire.format_time(max(times)) if times else NEVER,
    }


def write_rule(rule: rulefile.Rule, state: evaluate.RuleState) -> dict[str, Any]:
    shared = {
        "name": rule.name,
        "query": rule.expr,
        "health": state.health.value,
        "lastError": state.last_error,
        "evaluationTime": state.duration_seconds,
        "lastEvaluation": NEVER if state.evaluated_at is None else wire.format_time(state.evaluated_at),
    }
    if isinstance(rule, rulefile.RecordingRule):
        return {"type": "recording", "labels": dict(rule.labels), **shared}
    active = [alert for alert in state.alerts.values() if is_active(alert)]
    states = {alert.state.value for alert in active}
    return {
        "type": "alerting",
        "state": next((state for state in ("firing", "pending") if state in states), "inactive"),
        "duration": rule.hold_seconds,
        "keepFiringFor": rule.keep_firing_seconds,
        "labels": {name: template.text for name, template in rule.labels.items()},
        "annotations": {name: template.text for name, template in rule.annotations.items()},
        "alerts": [write_alert(alert) for alert in active],
        **shared,
    }


def is_active(alert: alerts.Alert) -> bool:
    return alert.state in (alerts.AlertState.PENDING, alerts.AlertState.FIRING)


def write_alert(alert: alerts.Alert) -> dict[str, Any]:
    return {
        "labels": dict(alert.labels),
        "annotations": dict(alert.annotations),
        "state": alert.state.value,
        "activeAt": wire.format_time(alert.active_at),
        "value": write_value(alert.value),
    }
