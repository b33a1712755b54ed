"""Do the rules and dashboards ask for what is there, in time, and does anybody hear of an alert?"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator

from watchkeeper.catalogue import series
from watchkeeper.doctor.stack import answers
from watchkeeper.doctor.stack.facts import Prometheus, Rule, Stack, StackFinding
from watchkeeper.errors import QueryError
from watchkeeper.query.promql import ast, parser, walk

SHOWN = 10
# The beginning of series that are always there where others of the same maker can be.
PAGES = {series.SeriesSource.HUB: "watchkeeper_node_", series.SeriesSource.AGENT: "watchkeeper_agent_"}
NO_SERIES = "there is no series "
# Prometheus makes them while an alert waits or fires.
OF_ALERTS = frozenset({"ALERTS", "ALERTS_FOR_STATE"})


def rules_that_never_fire(stack: Stack) -> Iterator[StackFinding]:
    """Alerting rules whose series do not exist: they look healthy for ever."""
    lost = [(rule.name, lacks) for rule, lacks in _dead_rules(stack) if rule.is_alert]
    if lost and stack.prometheus is not None:
        alerts = sum(rule.is_alert for rule in stack.prometheus.rules)
        yield StackFinding(
            "rules_that_never_fire",
            f"{len(lost)} of {alerts} alerting rules can never fire: what they ask for does not exist",
            _by_lack(lost),
            _fix([lack for _, lacks in lost for lack in lacks]),
        )


def recordings_without_input(stack: Stack) -> Iterator[StackFinding]:
    """Recording rules that make nothing, and so starve whatever reads them."""
    lost = [(rule.name, lacks) for rule, lacks in _dead_rules(stack) if not rule.is_alert]
    if lost:
        yield StackFinding(
            "recordings_without_input",
            f"{len(lost)} recording rules make no series, because what they read does not exist",
            _by_lack(lost),
            _fix([lack for _, lacks in lost for lack in lacks]),
        )


def broken_rules(stack: Stack) -> Iterator[StackFinding]:
    """Rules that Prometheus itself cannot evaluate."""
    rules = stack.prometheus.rules if stack.prometheus is not None else ()
    broken = {f"{rule.group}/{rule.name}": rule.error or rule.health for rule in rules if rule.health == "err"}
    if broken:
        yield StackFinding(
            "broken_rules",
            f"{len(broken)} rules cannot be evaluated",
            _listed(broken),
            "Correct them and try them: promtool check rules FILE, `watchkeeper rules check FILE`",
        )


def slow_groups(stack: Stack) -> Iterator[StackFinding]:
    """Rule groups that take longer than the time between two evaluations."""
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
            _listed(slow),
            "Split the group, record what several rules share, or raise its interval",
        )


def no_alertmanager(stack: Stack) -> Iterator[StackFinding]:
    """Alerting rules, and no Alertmanager to tell."""
    server = stack.prometheus
    if server is None or server.alertmanagers != 0 or not any(rule.is_alert for rule in server.rules):
        return
    yield StackFinding(
        "nobody_hears",
        "Prometheus has alerting rules and no Alertmanager to tell",
        ("/api/v1/alertmanagers lists none that is active",),
        'Name one under alerting.alertmanagers, or let the hub follow: [rules] owner = "server"',
    )


def dead_panels(stack: Stack) -> Iterator[StackFinding]:
    """Questions of dashboards that cannot have an answer."""
    server = stack.prometheus
    if server is None or not server.names:
        return
    existing = _existing_series(stack, server)
    roots = _roots(server, existing)
    dead: dict[str, dict[str, str]] = defaultdict(dict)
    for panel in stack.panels:
        lacks = roots(_lacks(panel.expr, existing))
        if lacks:
            dead[panel.dashboard][panel.panel] = lacks[0]
    for dashboard, panels in dead.items():
        panel_count = len({panel.panel for panel in stack.panels if panel.dashboard == dashboard})
        yield StackFinding(
            "dead_panels",
            f"{len(panels)} of {panel_count} panels of the dashboard {dashboard} are empty: their series do not exist",
            _listed(panels),
            _fix(list(panels.values())),
        )


def _dead_rules(stack: Stack) -> list[tuple[Rule, list[str]]]:
    """Rules that cannot answer, with what they lack at the root.

    A server that has no series at all has just started, or scrapes nothing: that is said elsewhere.
    """
    server = stack.prometheus
    if server is None or not server.names:
        return []
    existing = _existing_series(stack, server)
    roots = _roots(server, existing)
    return [(rule, roots(lacks)) for rule in server.rules if (lacks := _lacks(rule.expr, existing))]


def _roots(server: Prometheus, existing: answers.KnownSeries) -> Callable[[list[str]], list[str]]:
    """A function that puts in place of a series which a rule fails to record what that rule lacks."""
    recorded: dict[str, list[str]] = defaultdict(list)
    for rule in server.rules:
        if not rule.is_alert:
            recorded[f"{NO_SERIES}{rule.name}"] += _lacks(rule.expr, existing)

    def root(lack: str, visited: frozenset[str]) -> list[str]:
        deeper = [] if lack in visited else recorded.get(lack, [])
        return [cause for under in deeper for cause in root(under, visited | {lack})] or [lack]

    return lambda lacks: list(dict.fromkeys(cause for lack in lacks for cause in root(lack, frozenset())))


def _by_lack(lost: list[tuple[str, list[str]]]) -> tuple[str, ...]:
    """One line for each thing that is missing, with the rules that wait for it; what most wait for comes first."""
    waiting: dict[str, list[str]] = defaultdict(list)
    for name, lacks in lost:
        waiting[lacks[0]].append(name)
    by_count = sorted(waiting.items(), key=lambda pair: -len(pair[1]))
    return _listed({lack: ", ".join(dict.fromkeys(names)) for lack, names in by_count})


def _existing_series(stack: Stack, server: Prometheus) -> answers.KnownSeries:
    """What is there, what living recording rules will make, and what our agent shows only while something is wrong."""
    queried = {name for text in _texts(stack) if (expr := _parsed(text)) is not None for name in walk.names(expr)}
    pages = {page for page in PAGES.values() if any(name.startswith(page) for name in server.names)}
    ours = frozenset(
        name for name in queried if name.startswith(series.OWN_PREFIX) and PAGES[series.origin(name).maker] in pages
    )
    existing = answers.KnownSeries(server.names | ours | OF_ALERTS, server.labels)
    waiting = [rule for rule in server.rules if not rule.is_alert and rule.name not in existing.names]
    while recorded := {rule.name for rule in waiting if not _lacks(rule.expr, existing)}:
        existing = answers.KnownSeries(existing.names | recorded, existing.labels)
        waiting = [rule for rule in waiting if rule.name not in recorded]
    return existing


def _texts(stack: Stack) -> list[str]:
    rules = stack.prometheus.rules if stack.prometheus is not None else ()
    return [*(rule.expr for rule in rules), *(panel.expr for panel in stack.panels)]


def _lacks(text: str, existing: answers.KnownSeries) -> list[str]:
    """Why an expression cannot answer; one that is not PromQL is not ours to judge."""
    expr = _parsed(text)
    return [] if expr is None else answers.missing(expr, existing)


# The same expression is looked at by several checks, and more than once by some.
@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> ast.Expr | None:
    try:
        return parser.parse(text)
    except QueryError:
        return None


def _fix(lacks: list[str]) -> str:
    """What to do about the names that are missing most: ours, an exporter's, or nobody's."""
    hints: dict[str, None] = {}
    for lack in lacks:
        name = lack.removeprefix(NO_SERIES)
        if name == lack:
            hints["Look at the labels that the series have: count by (LABEL) (NAME)"] = None
            continue
        origin = series.origin(name)
        match origin.maker:
            case series.SeriesSource.RENAMED | series.SeriesSource.ALIAS:
                hints[f"{name} is called {origin.instead} elsewhere"] = None
            case series.SeriesSource.NOT_A_FIELD:
                hints[f"no field of NVML is called {name}" + (f"; near it: {origin.who}" if origin.who else "")] = None
            case series.SeriesSource.OTHER:
                hints[f"{name} comes from {origin.who}: scrape it, or drop the rule"] = None
            case series.SeriesSource.HUB:
                hints[f"{name} comes from the hub: scrape it as `watchkeeper render prometheus` does"] = None
            case series.SeriesSource.RULE:
                hints[f"{name} is recorded by a rule: load it (`watchkeeper render prometheus`)"] = None
            case _ if name.startswith(series.OWN_PREFIX):
                hints[f"{name} is on the page of `watchkeeper agent`: scrape one"] = None
            case _:
                hints[f"turn {name} on in the exporter's counters file, or run `watchkeeper agent`"] = None
    return "; ".join([*list(hints)[:3], *(["and more of the same"] if len(hints) > 3 else [])])


def _listed(reasons: dict[str, str]) -> tuple[str, ...]:
    lines = [f"{name}: {why}" for name, why in reasons.items()]
    more = len(lines) - SHOWN
    return (*lines[:SHOWN], *((f"and {more} more",) if more > 0 else ()))


def names_needing_labels(stack: Stack) -> frozenset[str]:
    """Metrics whose label names `gather` should fetch, because an expression needs one of them."""
    server = stack.prometheus
    if server is None:
        return frozenset()
    parsed = [expr for text in _texts(stack) if (expr := _parsed(text)) is not None]
    names = {"DCGM_FI_DEV_GPU_UTIL", *(name for expr in parsed for name in answers.names_with_labels(expr))}
    return frozenset(names & server.names)
