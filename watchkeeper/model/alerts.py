"""An alert: one rule and one label set, with the states of Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from watchkeeper.model.labels import Labels


class Severity(StrEnum):
    """Three levels: page, ticket, information. The same words as in rule files."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"

    @property
    def rank(self) -> int:
        """Higher is worse."""
        return {Severity.INFO: 0, Severity.WARNING: 1, Severity.CRITICAL: 2}[self]


class AlertState(StrEnum):
    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule, one label set. `labels` includes `alertname`; `value` is the expression's value at the last evaluation.

    `kept_since` is when the expression stopped returning a value while `keep_firing_for` keeps the alert firing.
    """

    labels: Labels
    state: AlertState
    active_at: datetime
    value: float
    annotations: Mapping[str, str] = field(default_factory=dict)
    fired_at: datetime | None = None
    resolved_at: datetime | None = None
    kept_since: datetime | None = None

    @property
    def name(self) -> str:
        return self.labels.get("alertname", "")

    @property
    def severity(self) -> Severity:
        """The rule's `severity` label; a rule without a valid one counts as a warning."""
        text = self.labels.get("severity", "")
        return Severity(text) if text in set(Severity) else Severity.WARNING
