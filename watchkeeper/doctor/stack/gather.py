"""Facts about a running set-up, through two functions that ask: the Prometheus API and the Kubernetes API.

The caller owns the connections; each function takes a path and returns the plain JSON, or raises a WatchkeeperError.
Bounded: the label names of at most 300 metrics are asked for, the rest counts as having every label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any
from urllib.parse import quote

from watchkeeper.doctor.stack import rule_checks
from watchkeeper.doctor.stack.facts import KubernetesObjects, Panel, Prometheus, Raw, Rule, RuleGroup, Stack, Target
from watchkeeper.errors import StoreError, WatchkeeperError
from watchkeeper.errors import quote as quoted
from watchkeeper.kit import durations
from watchkeeper.readers import json_facts as facts

Ask = Callable[[str], Any]

MOST_NAMES = 300
# A series that has had no sample for so long is gone.
RECENT_SECONDS = 3600
GPUS_BY_TARGET = 'group by (job, instance) ({__name__=~"DCGM_FI_DEV_.+"})'
DOUBLED = "count(count by (UUID) (group by (UUID, job, instance) (DCGM_FI_DEV_GPU_TEMP)) > 1)"
# Kind of fact, path of the list.
KINDS = {
    "pods": "/api/v1/{ns}pods",
    "services": "/api/v1/{ns}services",
    "nodes": "/api/v1/nodes",
    "daemon_sets": "/apis/apps/v1/{ns}daemonsets",
    "service_monitors": "/apis/monitoring.coreos.com/v1/{ns}servicemonitors",
    "pod_monitors": "/apis/monitoring.coreos.com/v1/{ns}podmonitors",
    "prometheuses": "/apis/monitoring.coreos.com/v1/prometheuses",
}


def gather_prometheus(ask: Ask, url: str, panels: Iterable[Panel], *, now: datetime) -> Stack:
    """Everything the checks want of one server, and the panels that were asked about it.

    The names of its series must be had; of the rest, VictoriaMetrics, Thanos and others answer only some.
    """
    since = f"start={now.timestamp() - RECENT_SECONDS:.0f}"
    names = _names(ask, f"/api/v1/label/__name__/values?{since}", url=url)
    unread: dict[str, str] = {}

    def listed(path: str, key: str) -> list[Mapping[str, Any]] | None:
        try:
            return [facts.mapping(item) for item in facts.items(facts.mapping(ask(path)), key)]
        except WatchkeeperError as error:
            unread[path.partition("?")[0]] = error.problem.removeprefix(f"{path} ")
            return None

    groups = listed("/api/v1/rules", "groups") or []
    alertmanagers = listed("/api/v1/alertmanagers", "activeAlertmanagers")
    server = Prometheus(
        url,
        targets=tuple(map(_target, listed("/api/v1/targets?state=active", "activeTargets") or [])),
        rules=tuple(_rule(group, facts.mapping(item)) for group in groups for item in facts.items(group, "rules")),
        groups=tuple(_group(group) for group in groups),
        names=names,
        alertmanagers=None if alertmanagers is None else len(alertmanagers),
        with_gpus=frozenset((str(item.get("job")), str(item.get("instance"))) for item in _labels(ask, GPUS_BY_TARGET)),
        doubled_gpus=_number(ask, DOUBLED),
        unread=unread,
    )
    stack = Stack(prometheus=server, panels=tuple(panels))
    queried_names = sorted(rule_checks.names_needing_labels(stack))[:MOST_NAMES]
    labels = {name: _names(ask, f"/api/v1/labels?match[]={quote(name)}&{since}", url=url) for name in queried_names}
    return replace(stack, prometheus=replace(server, labels=labels))


def gather_kubernetes(ask: Ask, namespace: str | None) -> KubernetesObjects:
    """The objects of a cluster, or of one of its namespaces; a kind that cannot be listed is named with the reason."""
    objects: dict[str, tuple[Raw, ...]] = {}
    unread: dict[str, str] = {}
    inside = f"namespaces/{namespace}/" if namespace else ""
    for kind, path in KINDS.items():
        path = path.format(ns=inside)
        try:
            objects[kind] = tuple(_pages(ask, path))
        except WatchkeeperError as error:
            unread[path] = error.problem
    return KubernetesObjects(**objects, unread=unread)


def _pages(ask: Ask, path: str) -> Iterable[Raw]:
    after = ""
    while True:
        page = facts.mapping(ask(f"{path}?limit=500" + (f"&continue={quote(after)}" if after else "")))
        yield from (facts.mapping(item) for item in facts.items(page, "items"))
        after = facts.text(facts.mapping(page, "metadata"), "continue")
        if not after:
            return


def _target(raw: Mapping[str, Any]) -> Target:
    labels = facts.mapping(raw, "labels")
    return Target(
        job=facts.text(labels, "job"),
        instance=facts.text(labels, "instance"),
        url=facts.text(raw, "scrapeUrl"),
        is_up=raw.get("health") == "up",
        error=facts.text(raw, "lastError", intern_it=False),
        seconds=_float(raw.get("lastScrapeDuration")),
        timeout_seconds=_seconds(facts.text(raw, "scrapeTimeout")),
        discovered={key: str(value) for key, value in facts.mapping(raw, "discoveredLabels").items()},
    )


def _seconds(text: str) -> float | None:
    try:
        return durations.parse_seconds(text)
    except ValueError:
        return None


def _rule(group: Mapping[str, Any], raw: Mapping[str, Any]) -> Rule:
    return Rule(
        group=facts.text(group, "name"),
        name=facts.text(raw, "name"),
        expr=facts.text(raw, "query", intern_it=False),
        is_alert=raw.get("type") == "alerting",
        health=facts.text(raw, "health"),
        error=facts.text(raw, "lastError", intern_it=False),
    )


def _group(raw: Mapping[str, Any]) -> RuleGroup:
    return RuleGroup(facts.text(raw, "name"), _float(raw.get("interval")), _float(raw.get("evaluationTime")))


def _float(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _names(ask: Ask, path: str, *, url: str) -> frozenset[str]:
    """StoreError where there is no list: that a server has no series must not be read out of another answer."""
    answer = ask(path)
    if not isinstance(answer, list):
        raise StoreError(f"{path.partition('?')[0]} answered no list of names: is this a Prometheus?", where=url)
    return frozenset(map(str, answer))


def _labels(ask: Ask, expr: str) -> list[Mapping[str, Any]]:
    answer = facts.mapping(ask(f"/api/v1/query?query={quote(expr)}"))
    return [facts.mapping(item, "metric") for item in facts.items(answer, "result")]


def _number(ask: Ask, expr: str) -> int:
    answer = facts.mapping(ask(f"/api/v1/query?query={quote(expr)}"))
    for item in facts.items(answer, "result"):
        try:
            return int(float(item["value"][1]))
        except (TypeError, KeyError, IndexError, ValueError) as error:
            raise StoreError(f"/api/v1/query answered no number: is this a Prometheus? ({quoted(item)})") from error
    return 0
