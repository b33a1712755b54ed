"""Gather the facts about a monitoring stack from the Prometheus API and the Kubernetes API.

The caller owns the connections: its function takes a path and returns JSON, or raises a WatchkeeperError. The label
names of at most 300 metrics are queried; all others count as having every label.
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

ApiGet = Callable[[str], Any]

MAX_NAMES = 300
# A series without a sample for this long does not exist any more.
RECENT_SECONDS = 3600
GPUS_BY_TARGET = 'group by (job, instance) ({__name__=~"DCGM_FI_DEV_.+"})'
DOUBLED_GPUS = "count(count by (UUID) (group by (UUID, job, instance) (DCGM_FI_DEV_GPU_TEMP)) > 1)"
# The API path by field of KubernetesObjects.
KINDS = {
    "pods": "/api/v1/{ns}pods",
    "services": "/api/v1/{ns}services",
    "nodes": "/api/v1/nodes",
    "daemon_sets": "/apis/apps/v1/{ns}daemonsets",
    "service_monitors": "/apis/monitoring.coreos.com/v1/{ns}servicemonitors",
    "pod_monitors": "/apis/monitoring.coreos.com/v1/{ns}podmonitors",
    "prometheuses": "/apis/monitoring.coreos.com/v1/prometheuses",
}


def gather_prometheus(get: ApiGet, url: str, panels: Iterable[Panel], *, now: datetime) -> Stack:
    """Gather all facts of one server.

    The list of metric names is required. VictoriaMetrics, Thanos and others do not have all other paths.
    """
    since = f"start={now.timestamp() - RECENT_SECONDS:.0f}"
    names = _names(get, f"/api/v1/label/__name__/values?{since}", url=url)
    unread: dict[str, str] = {}

    def list_items(path: str, key: str) -> list[Mapping[str, Any]] | None:
        try:
            return [facts.mapping(item) for item in facts.items(facts.mapping(get(path)), key)]
        except WatchkeeperError as error:
            unread[path.partition("?")[0]] = error.problem.removeprefix(f"{path} ")
            return None

    groups = list_items("/api/v1/rules", "groups") or []
    alertmanagers = list_items("/api/v1/alertmanagers", "activeAlertmanagers")
    gpu_rows = [facts.mapping(item, "metric") for item in _query(get, GPUS_BY_TARGET)]
    server = Prometheus(
        url,
        targets=tuple(map(_read_target, list_items("/api/v1/targets?state=active", "activeTargets") or [])),
        rules=tuple(_read_rule(group, facts.mapping(item)) for group in groups for item in facts.items(group, "rules")),
        groups=tuple(_read_group(group) for group in groups),
        names=names,
        alertmanagers=None if alertmanagers is None else len(alertmanagers),
        with_gpus=frozenset((str(row.get("job")), str(row.get("instance"))) for row in gpu_rows),
        doubled_gpus=_query_number(get, DOUBLED_GPUS),
        unread=unread,
    )
    stack = Stack(prometheus=server, panels=tuple(panels))
    queried_names = sorted(rule_checks.names_needing_labels(stack))[:MAX_NAMES]
    labels = {name: _names(get, f"/api/v1/labels?match[]={quote(name)}&{since}", url=url) for name in queried_names}
    return replace(stack, prometheus=replace(server, labels=labels))


def gather_kubernetes(get: ApiGet, namespace: str | None) -> KubernetesObjects:
    """Gather the objects of a cluster or a namespace; a kind that cannot be listed is in `unread` with the reason."""
    objects: dict[str, tuple[Raw, ...]] = {}
    unread: dict[str, str] = {}
    namespace_path = f"namespaces/{namespace}/" if namespace else ""
    for kind, path in KINDS.items():
        path = path.format(ns=namespace_path)
        try:
            objects[kind] = tuple(_list_pages(get, path))
        except WatchkeeperError as error:
            unread[path] = error.problem
    return KubernetesObjects(**objects, unread=unread, namespace=namespace or "")


def _list_pages(get: ApiGet, path: str) -> Iterable[Raw]:
    token = ""
    while True:
        page = facts.mapping(get(f"{path}?limit=500" + (f"&continue={quote(token)}" if token else "")))
        yield from (facts.mapping(item) for item in facts.items(page, "items"))
        token = facts.text(facts.mapping(page, "metadata"), "continue")
        if not token:
            return


def _read_target(raw: Mapping[str, Any]) -> Target:
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


def _read_rule(group: Mapping[str, Any], raw: Mapping[str, Any]) -> Rule:
    return Rule(
        group=facts.text(group, "name"),
        name=facts.text(raw, "name"),
        expr=facts.text(raw, "query", intern_it=False),
        is_alert=raw.get("type") == "alerting",
        health=facts.text(raw, "health"),
        error=facts.text(raw, "lastError", intern_it=False),
    )


def _read_group(raw: Mapping[str, Any]) -> RuleGroup:
    return RuleGroup(facts.text(raw, "name"), _float(raw.get("interval")), _float(raw.get("evaluationTime")))


def _float(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _names(get: ApiGet, path: str, *, url: str) -> frozenset[str]:
    """A list of names; raises StoreError for any other response, which must not count as no names."""
    response = get(path)
    if not isinstance(response, list):
        problem = f"{path.partition('?')[0]} did not return a list of names: is this a Prometheus server?"
        raise StoreError(problem, where=url)
    return frozenset(map(str, response))


def _query(get: ApiGet, expr: str) -> Iterable[Any]:
    return facts.items(facts.mapping(get(f"/api/v1/query?query={quote(expr)}")), "result")


def _query_number(get: ApiGet, expr: str) -> int:
    for item in _query(get, expr):
        try:
            return int(float(item["value"][1]))
        except (TypeError, KeyError, IndexError, ValueError) as error:
            problem = f"/api/v1/query did not return a number: is this a Prometheus server? ({quoted(item)})"
            raise StoreError(problem) from error
    return 0
