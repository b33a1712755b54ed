"""Check rules and dashboards: series exist, evaluations are in time, and alerts have an Alertmanager."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from watchkeeper.catalogue import series
from watchkeeper.doctor.stack import answers
from watchkeeper.doctor.stack.facts import Prometheus, Rule, Stack, StackFinding
from watchkeeper.errors import QueryError
from watchkeeper.query.promql import ast, parser, walk

SHOWN = 10
# A hub or agent that is scraped always has series with these prefixes.
PAGE_PREFIXES = {series.SeriesSource.HUB: "watchkeeper_node_", series.SeriesSource.AGENT: "watchkeeper_agent_"}
NO_SERIES = "there is no series "
# Prometheus creates these series while an alert is pending or firing.
ALERT_SERIES = frozenset({"ALERTS", "ALERTS_FOR_STATE"})


def rules_that_never_fire(stack: Stack) -> Iterator[StackFinding]:
    """Alerting rules whose series do not exist: they look healthy and never fire."""
    dead_alerts = [(rule.name, reasons) for rule, reasons in _dead_rules(stack) if rule.is_alert]
    if dead_alerts:
        alerts = sum(rule.is_alert for rule in _rules(stack))
        title = f"{len(dead_alerts)} of {alerts} alerting rules can never fire: their series do not exist"
        yield _dead_rules_finding("rules_that_never_fire", title, dead_alerts)


def recordings_without_input(stack: Stack) -> Iterator[StackFinding]:
    """Recording rules that record nothing, which breaks the rules and panels that use them."""
    dead_recordings = [(rule.name, reasons) for rule, reasons in _dead_rules(stack) if not rule.is_alert]
    if dead_recordings:
        title = f"{len(dead_recordings)} recording rules record nothing: their series do not exist"
        yield _dead_rules_finding("recordings_without_input", title, dead_recordings)


def _dead_rules_finding(check: str, title: str, dead_rules: Sequence[tuple[str, list[str]]]) -> StackFinding:
    """The evidence is a line for each missing series with the rules that need it, the most needed first."""
    rules_by_reason: dict[str, list[str]] = defaultdict(list)
    for name, lacks in dead_rules:
        rules_by_reason[lacks[0]].append(name)
    by_count = sorted(rules_by_reason.items(), key=lambda pair: -len(pair[1]))
    evidence = _evidence_lines({lack: ", ".join(dict.fromkeys(names)) for lack, names in by_count})
    return StackFinding(check, title, evidence, _fix([lack for _, lacks in dead_rules for lack in lacks]))


def broken_rules(stack: Stack) -> Iterator[StackFinding]:
    broken = {f"{rule.group}/{rule.name}": rule.error or rule.health for rule in _rules(stack) if rule.health == "err"}
    if broken:
        yield StackFinding(
            "broken_rules",
            f"{len(broken)} rules cannot be evaluated",
            _evidence_lines(broken),
            "Correct and check them: promtool check rules FILE, `watchkeeper rules check FILE`",
        )


def slow_groups(stack: Stack) -> Iterator[StackFinding]:
    groups = stack.prometheus.groups if stack.prometheus is not None else ()
    slow = {
        group.name: f"{group.seconds:.2f} s every {group.interval_seconds:g} s"
        for group in groups
        if group.interval_seconds and group.seconds > group.interval_seconds
    }
    if slow:
        yield StackFinding(
            "slow_groups",
            f"{len(slow)} rule groups take longer than their interval, so evaluations are skipped",
            _evidence_lines(slow),
            "Split the group, record expressions that several rules share, or increase its interval",
        )


def no_alertmanager(stack: Stack) -> Iterator[StackFinding]:
    server = stack.prometheus
    if server is None or server.alertmanagers != 0 or not any(rule.is_alert for rule in server.rules):
        return
    yield StackFinding(
        "nobody_hears",
        "Prometheus has alerting rules but no Alertmanager: alerts send no notifications",
        ("/api/v1/alertmanagers lists no active Alertmanager",),
        'Configure alerting.alertmanagers, or let the hub read the alerts: [rules] owner = "server"',
    )


def dead_panels(stack: Stack) -> Iterator[StackFinding]:
    server = stack.prometheus
    if server is None or not server.names:
        return
    existing = _existing_series(stack, server)
    root_reasons = _root_reasons(server, existing)
    dead: dict[str, dict[str, str]] = defaultdict(dict)
    for panel in stack.panels:
        if reasons := root_reasons(_missing_reasons(panel.expr, existing)):
            dead[panel.dashboard][panel.panel] = reasons[0]
    for dashboard, panels in dead.items():
        panel_count = len({panel.panel for panel in stack.panels if panel.dashboard == dashboard})
        yield StackFinding(
            "dead_panels",
            f"{len(panels)} of {panel_count} panels of the dashboard {dashboard} are empty: their series do not exist",
            _evidence_lines(panels),
            _fix(list(panels.values())),
        )


def _dead_rules(stack: Stack) -> list[tuple[Rule, list[str]]]:
    """Rules that cannot return a result, with the root reasons.

    A server without any series has just started or scrapes nothing: another check reports that.
    """
    server = stack.prometheus
    if server is None or not server.names:
        return []
    existing = _existing_series(stack, server)
    root_reasons = _root_reasons(server, existing)
    return [(rule, root_reasons(lacks)) for rule in server.rules if (lacks := _missing_reasons(rule.expr, existing))]


def _root_reasons(server: Prometheus, existing: answers.ExistingSeries) -> Callable[[list[str]], list[str]]:
    """Return a function that replaces a missing recorded series by the reasons why its rule records nothing."""
    recorded: dict[str, list[str]] = defaultdict(list)
    for rule in server.rules:
        if not rule.is_alert:
            recorded[f"{NO_SERIES}{rule.name}"] += _missing_reasons(rule.expr, existing)

    def find_roots(reason: str, visited: frozenset[str]) -> list[str]:
        deeper_reasons = [] if reason in visited else recorded.get(reason, [])
        return [cause for deeper in deeper_reasons for cause in find_roots(deeper, visited | {reason})] or [reason]

    return lambda reasons: list(dict.fromkeys(root for reason in reasons for root in find_roots(reason, frozenset())))


def _existing_series(stack: Stack, server: Prometheus) -> answers.ExistingSeries:
    """Existing series, those that working rules will record, and own series that exist only during a fault."""
    queried = {name for expr in _expressions(stack) for name in walk.metric_names(expr)}
    pages = {page for page in PAGE_PREFIXES.values() if any(name.startswith(page) for name in server.names)}
    own_series = frozenset(
        name
        for name in queried
        if name.startswith(series.OWN_PREFIX) and PAGE_PREFIXES[series.origin(name).source] in pages
    )
    existing = answers.ExistingSeries(server.names | own_series | ALERT_SERIES, server.labels)
    pending_rules = [rule for rule in server.rules if not rule.is_alert and rule.name not in existing.names]
    while recorded := {rule.name for rule in pending_rules if not _missing_reasons(rule.expr, existing)}:
        existing = answers.ExistingSeries(existing.names | recorded, existing.labels)
        pending_rules = [rule for rule in pending_rules if rule.name not in recorded]
    return existing


def _rules(stack: Stack) -> tuple[Rule, ...]:
    return stack.prometheus.rules if stack.prometheus is not None else ()


def _expressions(stack: Stack) -> list[ast.Expr]:
    """The expressions of rules and panels, without those that are not PromQL."""
    texts = [*(rule.expr for rule in _rules(stack)), *(panel.expr for panel in stack.panels)]
    return [expr for expr in map(_parse, texts) if expr is not None]


def _missing_reasons(text: str, existing: answers.ExistingSeries) -> list[str]:
    """Why an expression cannot return a result; empty for an expression that is not PromQL."""
    expr = _parse(text)
    return [] if expr is None else answers.missing_reasons(expr, existing)


# Several checks parse the same expression, some more than once.
@functools.lru_cache(maxsize=4096)
def _parse(text: str) -> ast.Expr | None:
    try:
        return parser.parse(text)
    except QueryError:
        return None


def _fix(reasons: list[str]) -> str:
    """What to do about the series that are missing most, depending on where they come from."""
    hints: dict[str, None] = {}
    for reason in reasons:
        name = reason.removeprefix(NO_SERIES)
        if name == reason:
            hints["check the labels of the series: count by (LABEL) (NAME)"] = None
            continue
        origin = series.origin(name)
        match origin.source:
            case series.SeriesSource.RENAMED | series.SeriesSource.ALIAS:
                hints[f"{name} has the name {origin.replacement} in other versions"] = None
            case series.SeriesSource.UNKNOWN_FIELD:
                hints[f"NVML has no field {name}" + (f"; similar: {origin.exporter}" if origin.exporter else "")] = None
            case series.SeriesSource.OTHER:
                hints[f"{name} comes from {origin.exporter}: scrape it, or remove the rule"] = None
            case series.SeriesSource.HUB:
                hints[f"{name} comes from the hub: scrape it (`watchkeeper render prometheus`)"] = None
            case series.SeriesSource.RULE:
                hints[f"{name} is recorded by a rule: load the rule (`watchkeeper render prometheus`)"] = None
            case _ if name.startswith(series.OWN_PREFIX):
                hints[f"{name} comes from `watchkeeper agent`: scrape it"] = None
            case _:
                hints[f"enable {name} in the exporter's counters file, or run `watchkeeper agent`"] = None
    return "; ".join([*list(hints)[:3], *(["and more"] if len(hints) > 3 else [])])


def _evidence_lines(reasons: dict[str, str]) -> tuple[str, ...]:
    lines = [f"{name}: {why}" for name, why in reasons.items()]
    more = len(lines) - SHOWN
    return (*lines[:SHOWN], *((f"and {more} more",) if more > 0 else ()))


def names_needing_labels(stack: Stack) -> frozenset[str]:
    """The metrics whose label names `gather` queries, because an expression depends on them."""
    server = stack.prometheus
    if server is None:
        return frozenset()
    names = {"DCGM_FI_DEV_GPU_UTIL"}.union(*map(answers.names_with_labels, _expressions(stack)))
    return frozenset(names & server.names)
