"""What an incident is about, as labels: the one thing that silences, routes and Alertmanager see of it.

A label may have several values, because an incident may hit several jobs and teams. Names are the ones people know
from alerts: `cluster`, `node`, `gpu` (UUID), `rack`, `leaf`, `pool`, `severity`, `cause`, `family`, `team`,
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
LONGEST_PATTERN = 1000
# An incident that hits no workload has no team to miss, and one without a node no rack.
NO_WORKLOAD, NO_NODE = "no workload", "no node"


@dataclass(frozen=True, slots=True)
class InventoryLookup:
    """What the fleet knows and an incident does not: domains and pool of a node, and the team of a workload."""

    domains: Callable[[str, str], Mapping[str, str]] = lambda _cluster, _node: {}
    team: Callable[[str], str] = lambda workload: workload.partition("/")[0] if "/" in workload else ""


def collect_labels(incident: Incident, inventory: InventoryLookup) -> IncidentLabels:
    """The labels of an incident as it is now."""
    place = incident.place
    nodes = {member.place.node for member in incident.members} | {place.node}
    found: dict[str, set[str]] = {
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
        "team": _teams(incident, inventory),
    }
    if place.domain is not None:
        kind, _, name = place.domain.partition("=")
        found.setdefault(kind, set()).add(name)
    for node in found["node"]:
        for kind, name in inventory.domains(place.cluster, node).items():
            found.setdefault(kind, set()).add(name)
    return {name: frozenset(values) for name, values in found.items() if values}


def _teams(incident: Incident, inventory: InventoryLookup) -> set[str]:
    """Whose workloads it hits; a job by its own name says nothing where its pods already say it."""
    jobs = jobs_of(incident)
    others = [workload for workload in incident.workloads if workload not in jobs]
    return {team for workload in others or incident.workloads if (team := inventory.team(workload))}


def belongs_to(incident: Incident, inventory: InventoryLookup) -> IncidentLabels:
    """Team, rack and pool of an incident for a report: each has a name, if only `unmapped`, or the word for none."""
    about = collect_labels(incident, inventory)
    nothing = {"team": incident.workloads, "rack": about.get("node"), "pool": about.get("node")}
    return {
        name: about.get(name) or frozenset({fleet.UNMAPPED if found else NO_WORKLOAD if name == "team" else NO_NODE})
        for name, found in nothing.items()
    }


def alert_names(incident: Incident) -> list[str]:
    """The rules whose alerts are a part of it, each once."""
    refs = (member.ref for member in incident.members if member.kind is MemberKind.ALERT)
    return list(dict.fromkeys(match[1] for ref in refs if (match := ALERT_NAME.search(ref)) is not None))


def check_matcher(matcher: silences.Matcher) -> None:
    """ValueError for a pattern that is not one."""
    if not matcher.is_regex:
        return
    if len(matcher.value) > LONGEST_PATTERN:
        raise ValueError(
            f"the pattern for {matcher.name} has {len(matcher.value):,} characters, the limit is {LONGEST_PATTERN:,}"
        )
    try:
        patterns.compile_pattern(matcher.value)
    except ValueError as error:
        raise ValueError(f"`{matcher.value[:80]}` is not a pattern: {error}") from error


def matches_labels(matchers: Iterable[silences.Matcher], subject: IncidentLabels) -> bool:
    """Whether all matchers accept: one of a label's values is enough, and an absent label counts as empty."""
    return all(_accepts(matcher, subject.get(matcher.name, frozenset())) for matcher in matchers)


def _accepts(matcher: silences.Matcher, values: frozenset[str]) -> bool:
    if matcher.is_regex:
        pattern = patterns.compile_pattern(matcher.value)
        found = any(pattern.fullmatch(value) is not None for value in values or ("",))
    else:
        found = matcher.value in (values or ("",))
    return found is matcher.is_equal


def place_matchers(place: fleet.Place) -> tuple[silences.Matcher, ...]:
    """What to match to silence everything at a place."""
    named = {"cluster": place.cluster, "node": place.node, "gpu": place.gpu}
    if place.domain is not None:
        kind, _, name = place.domain.partition("=")
        named[kind] = name
    return tuple(silences.Matcher(name, value) for name, value in named.items() if value)
