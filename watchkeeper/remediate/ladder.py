"""The trust ladder: how far Watchkeeper may go for one cause in one pool, and which rule says so.

`[[remediate.trust]]` names a cause, a pool or both. A rule that names both beats one that names one, which beats
`remediate.mode`; where two are equally exact, the more careful one holds. The hub asks once for each plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from watchkeeper.model import trust

ORDER = tuple(trust.Mode)
# In these a machine is not touched.
MODES_WITHOUT_CHANGES = frozenset({trust.Mode.OBSERVE, trust.Mode.SUGGEST})


@dataclass(frozen=True, slots=True)
class TrustRule:
    """One rule; None fits everything."""

    mode: trust.Mode
    cause: str | None = None
    pool: str | None = None

    def fits(self, cause: str, pool: str) -> bool:
        return self.cause in (None, cause) and self.pool in (None, pool)

    @property
    def exactness(self) -> int:
        return (self.cause is not None) + (self.pool is not None)

    def __str__(self) -> str:
        named = [f"cause {self.cause}"] if self.cause is not None else []
        named += [f"pool {self.pool or '(without a name)'}"] if self.pool is not None else []
        return f"[[remediate.trust]] for {' and '.join(named) or 'everything'}"


@dataclass(frozen=True, slots=True)
class ModeDecision:
    mode: trust.Mode
    why: str

    def is_below(self, mode: trust.Mode) -> bool:
        return ORDER.index(self.mode) < ORDER.index(mode)


@dataclass(frozen=True, slots=True)
class TrustLadder:
    default: trust.Mode = trust.Mode.OBSERVE
    rules: tuple[TrustRule, ...] = ()

    def decide_mode(self, cause: str, pool: str) -> ModeDecision:
        fitting = [rule for rule in self.rules if rule.fits(cause, pool)]
        if not fitting:
            return ModeDecision(
                self.default, f"mode {self.default} by remediate.mode; no [[remediate.trust]] is about this"
            )
        exact = max(rule.exactness for rule in fitting)
        chosen = min((rule for rule in fitting if rule.exactness == exact), key=lambda rule: ORDER.index(rule.mode))
        return ModeDecision(chosen.mode, f"mode {chosen.mode} by {chosen}{_beaten(chosen, fitting)}")


def _beaten(chosen: TrustRule, fitting: Sequence[TrustRule]) -> str:
    others = [rule for rule in fitting if rule is not chosen]
    if not others:
        return ""
    equal = any(rule.exactness == chosen.exactness for rule in others)
    return ", the more careful of those that fit best" if equal else ", the most exact of those that fit"
