"""Targets, rules, alerts and the hub itself in the shapes of Prometheus' HTTP API.

`StatusPages` reads the parameters and picks; the functions below it write one thing each.
`prometheus_api` puts the pages into its table. What only a Go program has (goroutines, GOGC) is empty.
"""

from __future__ import annotations

import os
import platform
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import yaml

from watchkeeper.hub import services
from watchkeeper.hub.runtime import Runtime
from watchkeeper.hub.samples import Queries
from watchkeeper.kit import clock, durations, wire
from watchkeeper.model import alerts
from watchkeeper.query.promql import patterns
from watchkeeper.rules import evaluate, rulefile
from watchkeeper.scrape import scrape
from watchkeeper.web.prometheus.prometheus_form import BadParameter, Form, matchers, write_value

NEVER = "0001-01-01T00:00:00Z"
TOP_TEN = 10
MOST_CARDINALITY = 10_000
RULE_TYPES = {"": "", "alert": "alerting", "record": "recording"}


class StatusPages:
    """One method per page; each takes the form and returns `data`."""

    def __init__(
        self, runtime: Runtime, queries: Queries, *, rules: services.RulesProtocol, targets: services.TargetsProtocol
    ) -> None:
        self._runtime, self._queries, self._rules = runtime, queries, rules
        self._targets = targets
        self._started_at = runtime.clock.now()

    def table(self) -> list[tuple[str, Callable[[Form], Any]]]:
        return [
            ("targets", self.targets),
            ("targets/metadata", self.target_metadata),
            ("scrape_pools", self.pools),
            ("rules", self.rules),
            ("alerts", self.alerts),
            ("alertmanagers", self.alertmanagers),
            ("status/buildinfo", self.build),
            ("status/config", self.config),
            ("status/flags", self.flags),
            ("status/runtimeinfo", self.runtime),
            ("status/tsdb", self.tsdb),
            ("status/walreplay", self.replay),
            ("notifications", self.notifications),
        ]

    def targets(self, asked: Form) -> dict[str, Any]:
        state, pool = (asked.one("state") or "any").lower(), asked.one("scrapePool")
        if state not in ("any", "active", "dropped"):
            raise BadParameter(f'invalid parameter "state": "{state[:80]}" is not any, active or dropped')
        active = [self._target(one) for one in self._targets.targets() if pool in (None, "", one.target.job_name)]
        dropped = [one for one in self._targets.dropped_targets() if pool in (None, "", one.job_name)]
        return {
            "activeTargets": active if state != "dropped" else [],
            "droppedTargets": [
                {"discoveredLabels": dict(one.discovered), "scrapePool": one.job_name}
                for one in (dropped if state != "active" else ())
            ],
            "droppedTargetCounts": dict(Counter(one.job_name for one in dropped)),
        }

    def _target(self, state: scrape.TargetState) -> dict[str, Any]:
        usual, own = self._runtime.settings.fleet, state.target
        every, most = own.interval_seconds, own.timeout_seconds
        pace = {
            "scrapeInterval": usual.scrape_interval if every is None else durations.format_seconds(every),
            "scrapeTimeout": durations.format_seconds(usual.scrape_timeout_seconds if most is None else most),
        }
        return target(state) | pace

    def target_metadata(self, asked: Form) -> list[dict[str, Any]]:
        wanted = _selector(asked.one("match_target") or None, name="match_target")
        metric, most = asked.one("metric"), asked.metadata_limit()
        found: list[dict[str, Any]] = []
        for state in self._targets.targets():
            if not wanted(state.target.labels):
                continue
            names = sorted(state.families) if not metric else [metric] if metric in state.families else []
            for name in names:
                if most is not None and len(found) >= most:
                    return found
                family = state.families[name]
                said = described((family.type, family.help, family.unit))
                found.append({"target": dict(state.target.labels), "metric": name, **said})
        return found

    def pools(self, _: Form) -> dict[str, Any]:
        names = {one.target.job_name for one in self._targets.targets()}
        names |= {one.job_name for one in self._targets.dropped_targets()}
        return {"scrapePools": sorted(names)}

    def rules(self, asked: Form) -> dict[str, Any]:
        kind = (asked.one("type") or "").lower()
        if kind not in RULE_TYPES:
            raise BadParameter(f'invalid parameter "type": not supported value "{kind[:80]}"')
        names, groups, files = (asked.all(f"{part}[]") for part in ("rule_name", "rule_group", "file"))
        wanted = _selector(*asked.all("match[]"))
        every, with_alerts = self._runtime.settings.rules.interval_seconds, not asked.is_true("exclude_alerts")
        shown = []
        for found, states in self._rules.groups():
            if (groups and found.name not in groups) or (files and found.path not in files):
                continue
            one = group(found, states, default_seconds=every)
            one["rules"] = [
                rule
                for rule in one["rules"]
                if rule["type"].startswith(RULE_TYPES[kind])
                and (not names or rule["name"] in names)
                and wanted(rule["labels"])
            ]
            if not with_alerts:
                for rule in one["rules"]:
                    rule.update(dict.fromkeys(rule.keys() & {"alerts"}))
            if one["rules"] or not (names or kind or asked.all("match[]")):
                shown.append(one)
        return _page(shown, asked)

    def alerts(self, _: Form) -> dict[str, Any]:
        return {"alerts": [alert(one) for one in self._rules.alerts() if is_active(one)]}

    def alertmanagers(self, _: Form) -> dict[str, Any]:
        return {"activeAlertmanagers": [], "droppedAlertmanagers": []}

    def build(self, _: Form) -> dict[str, Any]:
        empty = dict.fromkeys(("revision", "branch", "buildUser", "buildDate", "goVersion"), "")
        return {"version": self._runtime.version, **empty, "application": "watchkeeper"}

    def config(self, _: Form) -> dict[str, str]:
        """What is in force, as YAML: Prometheus' `global` for its clients, then our own settings."""
        fleet, rules = self._runtime.settings.fleet, self._runtime.settings.rules
        prometheus = {
            "scrape_interval": fleet.scrape_interval,
            "scrape_timeout": fleet.scrape_timeout,
            "evaluation_interval": rules.interval,
        }
        plain = {"global": prometheus, "watchkeeper": wire.to_plain(self._runtime.settings)}
        return {"yaml": yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)}

    def flags(self, _: Form) -> dict[str, str]:
        """The settings that Prometheus has as flags, under its names."""
        limits, settings = self._queries.engine.limits(), self._runtime.settings
        return {
            "query.lookback-delta": durations.format_ms(limits.lookback_ms),
            "query.max-samples": str(limits.max_samples or 0),
            "storage.tsdb.path": settings.hub.data,
            "storage.tsdb.retention.time": settings.query.retention,
            "web.enable-remote-write-receiver": "true",
            "web.listen-address": f"{settings.hub.host}:{settings.hub.port}",
        }

    def runtime(self, _: Form) -> dict[str, Any]:
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

    def replay(self, _: Form) -> dict[str, int]:
        """Nothing is left to replay: whoever is answered asks a hub that has read its log."""
        return {"min": 0, "max": 0, "current": 0}

    def notifications(self, _: Form) -> list[Any]:
        """What Prometheus tells the users of its own pages; ours are told by the console."""
        return []

    def tsdb(self, asked: Form) -> dict[str, Any]:
        most = min(asked.limit(least=1) or TOP_TEN, MOST_CARDINALITY)
        local = self._queries.engine.local
        if local is None:
            raise BadParameter("the samples are kept by a server; ask it for its /api/v1/status/tsdb")
        found, newest = local.head.cardinality(most), local.head.newest_ms
        return {
            "headStats": {
                "numSeries": found.series,
                "numLabelPairs": found.pairs,
                "chunkCount": 0,
                "minTime": 0 if newest is None else newest - local.head.retention_ms,
                "maxTime": newest or 0,
            },
            "seriesCountByMetricName": _counts(found.by_metric),
            "labelValueCountByLabelName": _counts(found.values_by_label),
            "memoryInBytesByLabelName": _counts(found.bytes_by_label),
            "seriesCountByLabelValuePair": _counts(found.by_pair),
        }


def _page(groups: list[dict[str, Any]], asked: Form) -> dict[str, Any]:
    """All groups, or `group_limit` of them from `group_next_token` on; the token is file and name of a group."""
    token, most = asked.one("group_next_token"), asked.limit("group_limit", least=1)
    keys = [f"{one['file']};{one['name']}" for one in groups]
    if token and token not in keys:
        raise BadParameter(f'invalid parameter "group_next_token": there is no group {token[:80]}')
    groups = groups[keys.index(token) if token else 0 :]
    if most is None or len(groups) <= most:
        return {"groups": groups}
    return {"groups": groups[:most], "groupNextToken": f"{groups[most]['file']};{groups[most]['name']}"}


def _selector(*texts: str | None, name: str = "match[]") -> Callable[[Mapping[str, str]], bool]:
    """Whether labels satisfy one of the selectors; without a selector all do."""
    selectors = [matchers(name, text) for text in texts if text is not None]

    def wanted(labels: Mapping[str, str]) -> bool:
        return not selectors or any(
            all(patterns.matches(each, labels.get(each.name, "")) for each in one) for one in selectors
        )

    return wanted


def _counts(found: Iterable[tuple[str, int]]) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in found]


def described(family: tuple[str, str, str]) -> dict[str, str]:
    return dict(zip(("type", "help", "unit"), family, strict=True))


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


def group(found: rulefile.RuleGroup, states: evaluate.RuleStates, *, default_seconds: float) -> dict[str, Any]:
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
