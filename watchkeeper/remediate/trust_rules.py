"""Decide the mode of repairs (observe, suggest, ask or act) for a cause in a pool, and name the rule that sets it.

A rule of `[[remediate.trust]]` names a cause, a pool or both. A rule with both overrides a rule with one, which
overrides `remediate.mode`; of two equally specific rules the safer mode is used. The hub decides once per plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from watchkeeper.model import trust

MODE_ORDER = tuple(trust.Mode)
# In these modes no machine is changed.
MODES_WITHOUT_CHANGES = frozenset({trust.Mode.OBSERVE, trust.Mode.SUGGEST})


@dataclass(frozen=True, slots=True)
class TrustRule:
    """One entry of `[[remediate.trust]]`; None matches every cause or pool."""

    mode: trust.Mode
    cause: str | None = None
    pool: str | None = None

    def matches(self, cause: str, pool: str) -> bool:
        return self.cause in (None, cause) and self.pool in (None, pool)

    @property
    def specificity(self) -> int:
        return (self.cause is not None) + (self.pool is not None)

    def __str__(self) -> str:
        conditions = [f"cause {self.cause}"] if self.cause is not None else []
        conditions += [f"pool {self.pool or '(unnamed)'}"] if self.pool is not None else []
        return f"[[remediate.trust]] for {' and '.join(conditions) or 'all causes and pools'}"


@dataclass(frozen=True, slots=True)
class ModeDecision:
    mode: trust.Mode
    why: str

    def is_below(self, mode: trust.Mode) -> bool:
        return MODE_ORDER.index(self.mode) < MODE_ORDER.index(mode)


@dataclass(frozen=True, slots=True)
class TrustRules:
    default: trust.Mode = trust.Mode.OBSERVE
    rules: tuple[TrustRule, ...] = ()

    def decide_mode(self, cause: str, pool: str) -> ModeDecision:
        matching = [rule for rule in self.rules if rule.matches(cause, pool)]
        if not matching:
            why = f"mode {self.default}, set by remediate.mode; no [[remediate.trust]] entry matches"
            return ModeDecision(self.default, why)
        highest = max(rule.specificity for rule in matching)
        most_specific = [rule for rule in matching if rule.specificity == highest]
        chosen = min(most_specific, key=lambda rule: MODE_ORDER.index(rule.mode))
        precedence = ", the most specific rule" if len(matching) > 1 else ""
        if len(most_specific) > 1:
            precedence = ", the safer of the most specific rules"
        return ModeDecision(chosen.mode, f"mode {chosen.mode}, set by {chosen}{precedence}")
