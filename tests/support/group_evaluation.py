"""Evaluate a whole rule group at once, without an appender."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from watchkeeper.model.alerts import Alert
from watchkeeper.query import engine as engines
from watchkeeper.rules import evaluate, rulefile
from watchkeeper.store import interfaces


@dataclass(frozen=True, slots=True)
class GroupResult:
    results: tuple[evaluate.RuleResult, ...]
    state: evaluate.RuleStates

    @property
    def samples(self) -> tuple[interfaces.AnySample, ...]:
        return tuple(sample for result in self.results for sample in result.samples)

    @property
    def changes(self) -> tuple[Alert, ...]:
        return tuple(change for result in self.results for change in result.changes)


def evaluate_group(
    group: rulefile.RuleGroup, engine: engines.InstantEngine, state: evaluate.RuleStates, *, now: datetime
) -> GroupResult:
    """Evaluate a whole group; its rules do not see what this evaluation records."""
    results = tuple(evaluate.evaluate_each(group, engine, state, now=now))
    return GroupResult(results, {**state, **{result.key: result.state for result in results}})
