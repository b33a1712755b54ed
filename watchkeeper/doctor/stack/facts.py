"""What is known about somebody's monitoring, as values: the one thing that the checks see.

`gather` fills them. What was not asked or not answered is None, and a check that needs it says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """A target as /api/v1/targets has it; `discovered` are its labels before relabelling."""

    job: str
    instance: str
    url: str
    is_up: bool
    error: str = ""
    seconds: float = 0.0
    timeout_seconds: float | None = None
    discovered: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule as /api/v1/rules has it."""

    group: str
    name: str
    expr: str
    is_alert: bool
    health: str = "ok"
    error: str = ""


@dataclass(frozen=True, slots=True)
class RuleGroup:
    name: str
    interval_seconds: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Prometheus:
    """`names` are the metrics that have samples now; `labels` the label names of those that rules or panels ask for."""

    url: str
    targets: tuple[Target, ...] = ()
    rules: tuple[Rule, ...] = ()
    groups: tuple[RuleGroup, ...] = ()
    names: frozenset[str] = frozenset()
    labels: Mapping[str, frozenset[str]] = field(default_factory=dict)
    alertmanagers: int | None = None
    # Targets that answer with GPU series, by their labels job and instance.
    with_gpus: frozenset[tuple[str, str]] = frozenset()
    # GPUs whose temperature comes from more than one target.
    doubled_gpus: int = 0
    # What the server did not answer, with the reason: not every server with Prometheus' API has all of it.
    unread: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KubernetesObjects:
    """Objects as the API server wrote them; a kind that could not be listed is in `unread` with the reason."""

    pods: tuple[Raw, ...] = ()
    services: tuple[Raw, ...] = ()
    nodes: tuple[Raw, ...] = ()
    daemon_sets: tuple[Raw, ...] = ()
    service_monitors: tuple[Raw, ...] = ()
    pod_monitors: tuple[Raw, ...] = ()
    prometheuses: tuple[Raw, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Panel:
    """One question of a dashboard, with Grafana's variables filled in."""

    dashboard: str
    panel: str
    expr: str


@dataclass(frozen=True, slots=True)
class Stack:
    prometheus: Prometheus | None = None
    kubernetes: KubernetesObjects | None = None
    panels: tuple[Panel, ...] = ()


@dataclass(frozen=True, slots=True)
class StackFinding:
    """One thing that is wrong: what, by which evidence, and what to do about it."""

    check: str
    title: str
    evidence: tuple[str, ...]
    fix: str
