"""The labels of an incident, which silences, routes and Alertmanager match.

A label may have several values, because an incident may affect several jobs and teams. The names are those of
alerts: `cluster`, `node`, `gpu` (UUID), `rack`, `leaf`, `pool`, `severity`, `cause`, `family`, `team`,
`namespace`, `workload`, `alertname`, `incident`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from watchkeeper.incidents.footprint import jobs_of
from watchkeeper.model import fleet, silences
from watchkeeper.model.incidents import Incident, MemberKind
from watchkeeper.query.promql import patterns

IncidentLabels = Mapping[str, frozenset[str]]

# An alert member's ref is its label set as text: {alertname="GPUMissing", node="n1"}
ALERT_NAME = re.compile(r'[{ ]alertname="([^"]*)"')
MAX_PATTERN_LENGTH = 1000
# An incident without a workload has no team, and one without a node has no rack: this is not `unmapped`.
NO_WORKLOAD, NO_NODE = "no workload", "no node"


@dataclass(frozen=True, slots=True)
class InventoryLookup:
    """Failure domains and pool of a node, and the team of a workload: an incident does not include them."""

    domains: Callable[[str, str], Mapping[str, str]] = lambda _cluster, _node: {}
    team: Callable[[str], str] = lambda workload: workload.partition("/")[0] if "/" in workload else ""


def collect_labels(incident: Incident, inventory: InventoryLookup) -> IncidentLabels:
    place = incident.place
    nodes = {member.place.node for member in incident.members} | {place.node}
    # A job counts for its team only if there are no pods or Slurm jobs.
    jobs = jobs_of(incident)
    workloads = [name for name in incident.workloads if name not in jobs]
    labels: dict[str, set[str]] = {
        "cluster": {place.cluster},
        "incident": {incident.id},
        "severity": {incident.severity.value},
        "cause": {incident.cause},
        "family": {incident.family},
        "node": {node for node in nodes if node},
        "gpu": {member.place.gpu for member in incident.members if member.place.gpu},
        "alertname": set(alert_names(incident)),
        "workload": set(incident.workloads),
        "namespace": {workload.partition("/")[0] for workload in incident.workloads if "/" in workload},
        "team": {team for name in workloads or incident.workloads if (team := inventory.team(name))},
    }
    if place.domain is not None:
        kind, _, name = place.domain.partition("=")
        labels.setdefault(kind, set()).add(name)
    for node in labels["node"]:
        for kind, name in inventory.domains(place.cluster, node).items():
            labels.setdefault(kind, set()).add(name)
    return {name: frozenset(values) for name, values in labels.items() if values}


def report_labels(incident: Incident, inventory: InventoryLookup) -> IncidentLabels:
    """Team, rack and pool of an incident for a report; never empty: `unmapped`, or why it has none."""
    labels = collect_labels(incident, inventory)
    no_team = fleet.UNMAPPED if incident.workloads else NO_WORKLOAD
    no_domain = fleet.UNMAPPED if labels.get("node") else NO_NODE
    defaults = {"team": no_team, "rack": no_domain, "pool": no_domain}
    return {name: labels.get(name) or frozenset({default}) for name, default in defaults.items()}


def alert_names(incident: Incident) -> list[str]:
    refs = (member.ref for member in incident.members if member.kind is MemberKind.ALERT)
    return list(dict.fromkeys(match[1] for ref in refs if (match := ALERT_NAME.search(ref)) is not None))


def check_matcher(matcher: silences.Matcher) -> None:
    """Raise ValueError if the pattern of a matcher is too long or not a regular expression."""
    if not matcher.is_regex:
        return
    if len(matcher.value) > MAX_PATTERN_LENGTH:
        raise ValueError(
            f"the pattern for {matcher.name} has {len(matcher.value):,} characters, the limit is {MAX_PATTERN_LENGTH:,}"
        )
    try:
        patterns.compile_pattern(matcher.value)
    except ValueError as error:
        raise ValueError(f"`{matcher.value[:80]}` is not a regular expression: {error}") from error


def matches_labels(matchers: Iterable[silences.Matcher], subject: IncidentLabels) -> bool:
    """Whether all matchers match: one value of a label is enough, and a missing label counts as empty."""
    for matcher in matchers:
        values = subject.get(matcher.name) or ("",)
        matches = matcher.value in values
        if matcher.is_regex:
            pattern = patterns.compile_pattern(matcher.value)
            matches = any(pattern.fullmatch(value) is not None for value in values)
        if matches is not matcher.is_equal:
            return False
    return True


def place_matchers(place: fleet.Place) -> tuple[silences.Matcher, ...]:
    values = {"cluster": place.cluster, "node": place.node, "gpu": place.gpu}
    if place.domain is not None:
        kind, _, name = place.domain.partition("=")
        values[kind] = name
    return tuple(silences.Matcher(name, value) for name, value in values.items() if value)
