"""The policy: for each cause the ordered steps, read from packs/policies/*.toml.

`hub.py` loads it once; `plan.make_plan` looks a cause up. A mistake in a file is an error with file
and key, and no part of that file is used.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from watchkeeper.catalogue import causes
from watchkeeper.errors import SettingsError, WireError
from watchkeeper.kit import wire
from watchkeeper.model import actions, diagnosis

# What only hardware needs; a fault of a workload must never lead to one of these.
HARDWARE_ACTIONS = frozenset(
    {
        actions.ActionKind.CORDON,
        actions.ActionKind.DRAIN,
        actions.ActionKind.RESET_GPU,
        actions.ActionKind.REBOOT,
    }
)


@dataclass(frozen=True, slots=True)
class PolicyStep:
    action: actions.ActionKind
    why: str


@dataclass(frozen=True, slots=True)
class CausePolicy:
    steps: tuple[PolicyStep, ...]


@dataclass(frozen=True, slots=True)
class Policy:
    cause: Mapping[str, CausePolicy]

    def steps(self, cause: str) -> tuple[PolicyStep, ...]:
        """The steps of a cause; one that the policy does not name is treated as unknown."""
        return (self.cause.get(cause) or self.cause[diagnosis.UNKNOWN_CAUSE]).steps


def load(path: Path | None = None) -> Policy:
    """The policy of a file, or the shipped one."""
    where = "packs/policies/default.toml" if path is None else str(path)
    try:
        shipped = resources.files("watchkeeper.packs") / "policies" / "default.toml"
        return parse((shipped if path is None else path).read_text(encoding="utf-8"), where=where)
    except OSError as error:
        raise SettingsError(f"the policy cannot be read: {error.strerror}", where=where) from error


def parse(text: str, *, where: str) -> Policy:
    try:
        policy = wire.from_plain(Policy, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"not TOML: {error}", where=where) from error
    except WireError as error:
        raise SettingsError("the policy has mistakes", problems=error.problems, where=where) from error
    problems = tuple(_problems(policy))
    if problems:
        raise SettingsError("the policy has mistakes", problems=problems, where=where)
    return policy


def _problems(policy: Policy) -> list[str]:
    known = {row.cause: row for row in causes.all()}
    problems = []
    if diagnosis.UNKNOWN_CAUSE not in policy.cause:
        problems.append("cause.unknown: is missing; it is used for every cause that is not named")
    for cause, entry in policy.cause.items():
        if cause not in known:
            problems.append(f"cause.{cause}: unknown cause; the known ones are in packs/causes.csv")
        elif not entry.steps:
            problems.append(f"cause.{cause}.steps: is empty; the least is an `inspect`")
        elif known[cause].scope == "workload" or cause == diagnosis.UNKNOWN_CAUSE:
            hard = sorted({step.action for step in entry.steps} & HARDWARE_ACTIONS)
            if hard:
                problems.append(f"cause.{cause}.steps: {', '.join(hard)} on hardware that is not known to be at fault")
    return problems
