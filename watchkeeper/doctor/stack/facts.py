"""The facts about a monitoring stack, which are the only input of the checks.

`gather` fills them. Facts that were not queried or not answered are None, and a check that needs them returns nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from watchkeeper.readers.node.kubernetes_node import KubernetesNode

Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """A target from /api/v1/targets; `discovered` are its labels before relabelling."""

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
    """A Prometheus server; `names` are its current metrics, `labels` the label names of metrics in rules and panels."""

    url: str
    targets: tuple[Target, ...] = ()
    rules: tuple[Rule, ...] = ()
    groups: tuple[RuleGroup, ...] = ()
    names: frozenset[str] = frozenset()
    labels: Mapping[str, frozenset[str]] = field(default_factory=dict)
    alertmanagers: int | None = None
    # Targets with GPU series, by their labels job and instance.
    with_gpus: frozenset[tuple[str, str]] = frozenset()
    # Number of GPUs whose temperature comes from more than one target.
    doubled_gpus: int = 0
    # API paths that failed, with the reason: not every server with a Prometheus API has all of them.
    unread: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KubernetesObjects:
    """Kubernetes objects as JSON; a kind that could not be listed is in `unread` with the reason."""

    pods: tuple[Raw, ...] = ()
    services: tuple[Raw, ...] = ()
    nodes: tuple[Raw, ...] = ()
    daemon_sets: tuple[Raw, ...] = ()
    service_monitors: tuple[Raw, ...] = ()
    pod_monitors: tuple[Raw, ...] = ()
    prometheuses: tuple[Raw, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)
    # The only namespace that was read; empty for all.
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """A query of a dashboard, with Grafana's variables filled in."""

    dashboard: str
    panel: str
    expr: str


@dataclass(frozen=True, slots=True)
class Stack:
    prometheus: Prometheus | None = None
    kubernetes: KubernetesObjects | None = None
    panels: tuple[Panel, ...] = ()
    # The machine that runs the command.
    node: KubernetesNode | None = None


class StepState(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"


class StepResult(NamedTuple):
    """The state of a step, and what is true now."""

    state: StepState
    now: str

    @property
    def is_passed(self) -> bool:
        return self.state is StepState.PASSED


def passed(now: str) -> StepResult:
    return StepResult(StepState.PASSED, now)


def failed(now: str) -> StepResult:
    return StepResult(StepState.FAILED, now)


def unknown(now: str) -> StepResult:
    return StepResult(StepState.UNKNOWN, now)


@dataclass(frozen=True, slots=True)
class StackFinding:
    check: str
    title: str
    evidence: tuple[str, ...]
    fix: str
