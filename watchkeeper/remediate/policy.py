"""The policy: for each cause the ordered steps, read from packs/policies/*.toml and a file of the user's own.

`hub.py` loads it once; `plan.make_plan` looks a cause up. The user's file replaces what it names, for a cause
everywhere or in one pool, and leaves the rest. A mistake in a file is an error with file and key, and no part of that
file is used.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path

from watchkeeper.catalogue import causes
from watchkeeper.errors import SettingsError, WireError
from watchkeeper.kit import durations, wire
from watchkeeper.model import actions, diagnosis
from watchkeeper.model.repairs import RECLAIMS
from watchkeeper.remediate.drivers.cluster_driver import RECLAIM_WAYS
from watchkeeper.remediate.validation import AFTER_HARDWARE, CHECKS, NODE_CHECKS

# What only hardware needs; a fault of a workload must never lead to one of these.
HARDWARE_ACTIONS = frozenset(
    {
        actions.ActionKind.CORDON,
        actions.ActionKind.DRAIN,
        actions.ActionKind.RESET_GPU,
        actions.ActionKind.REBOOT,
        actions.ActionKind.APPLY_MIG,
        actions.ActionKind.LOWER_POWER,
        actions.ActionKind.RESTART_SERVICE,
        actions.ActionKind.HAND_OVER,
    }
)
# What each kind of step may be told beyond its name.
ARGUMENTS: Mapping[actions.ActionKind, frozenset[str]] = {
    actions.ActionKind.RESTART_SERVICE: frozenset({"service"}),
    actions.ActionKind.LOWER_POWER: frozenset({"percent", "watts"}),
    actions.ActionKind.APPLY_MIG: frozenset({"layout"}),
    actions.ActionKind.DRAIN: frozenset({"scope", "running_jobs"}),
    actions.ActionKind.REBOOT: frozenset({"how"}),
    actions.ActionKind.WARN_OWNER: frozenset({"wait"}),
    actions.ActionKind.RECLAIM: frozenset({"how"}),
}
# What is held without use is the only thing that is taken from anybody.
WASTE = "waste"
# A step that neither the policy nor its table of limits knows may take this long.
USUAL_LIMIT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class PolicyStep:
    """`limit` is how long the step may take, `checks` are what a `validate` asks."""

    action: actions.ActionKind
    why: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    limit: str | None = None
    checks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CausePolicy:
    """`hardware` says whether the machine is at fault, where the catalogue's scope does not."""

    steps: tuple[PolicyStep, ...]
    hardware: bool | None = None


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    cause: Mapping[str, CausePolicy]


@dataclass(frozen=True, slots=True)
class RepairPolicy:
    cause: Mapping[str, CausePolicy]
    pool: Mapping[str, PoolPolicy] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)

    def entry(self, cause: str, pool: str = "") -> tuple[str, CausePolicy]:
        """The steps for a cause in a pool, and the key they stand under; what is not named is treated as unknown."""
        there = self.pool.get(pool)
        if there is not None and cause in there.cause:
            return f"pool.{pool}.cause.{cause}", there.cause[cause]
        known = cause if cause in self.cause else diagnosis.UNKNOWN_CAUSE
        return f"cause.{known}", self.cause[known]

    def steps(self, cause: str, pool: str = "") -> tuple[PolicyStep, ...]:
        return self.entry(cause, pool)[1].steps

    def is_hardware(self, cause: str, pool: str = "") -> bool:
        """Whether a node must pass the tests for hardware before it is given back."""
        said = self.entry(cause, pool)[1].hardware
        return causes.lookup(cause).is_hardware if said is None else said

    def limit_seconds(self, step: PolicyStep) -> float:
        text = step.limit or self.limits.get(step.action)
        # The time that an owner has is not the time that a call may take.
        waits = durations.parse_seconds(step.arguments["wait"]) if "wait" in step.arguments else 0.0
        return waits + (USUAL_LIMIT_SECONDS if text is None else durations.parse_seconds(text))


def load(path: Path | None = None, *, reclaim: bool = False) -> RepairPolicy:
    """The shipped policy, with what the file at `path` says instead; with `reclaim` also what takes GPUs back."""
    shipped = _shipped("default")
    if reclaim:
        shipped = _shipped("reclaim", over=shipped)
    if path is None:
        return shipped
    try:
        return parse(path.read_text(encoding="utf-8"), where=str(path), over=shipped)
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingsError(f"the policy cannot be read: {what}", where=str(path)) from error


def _shipped(name: str, over: RepairPolicy | None = None) -> RepairPolicy:
    text = (resources.files("watchkeeper.packs") / "policies" / f"{name}.toml").read_text(encoding="utf-8")
    return parse(text, where=f"packs/policies/{name}.toml", over=over)


def parse(text: str, *, where: str, over: RepairPolicy | None = None) -> RepairPolicy:
    """A policy from TOML; what it does not name is taken from `over`, where there is one."""
    try:
        plain = tomllib.loads(text)
        policy = wire.from_plain(RepairPolicy, {"cause": {}, **plain} if over is not None else plain)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"not TOML: {error}", where=where) from error
    except WireError as error:
        raise SettingsError("the policy has mistakes", problems=error.problems, where=where) from error
    problems = tuple(_problems(policy, is_whole=over is None))
    if problems:
        raise SettingsError("the policy has mistakes", problems=problems, where=where)
    return policy if over is None else _overlay(over, policy)


def with_checks(policy: RepairPolicy, more: Sequence[str]) -> RepairPolicy:
    """The policy, where each validation asks these as well; what needs full load only after a fault of hardware."""
    if unknown := [name for name in more if name not in NODE_CHECKS]:
        known = ", ".join(NODE_CHECKS)
        raise SettingsError(f"unknown check {', '.join(unknown)}; known: {known}", where="remediate.node_checks")

    def added(cause: str, entry: CausePolicy, pool: str) -> CausePolicy:
        names = [name for name in more if name not in AFTER_HARDWARE or policy.is_hardware(cause, pool)]
        return replace(entry, steps=tuple(_checked(step, names) for step in entry.steps))

    return _mapped(policy, added)


def with_wait(policy: RepairPolicy, wait: str | None) -> RepairPolicy:
    """The policy, where an owner who is warned has this long unless a step says otherwise; None: nobody is warned."""
    entries = [(f"cause.{cause}", entry) for cause, entry in policy.cause.items()]
    entries += [
        (f"pool.{pool}.cause.{c}", entry) for pool, inner in policy.pool.items() for c, entry in inner.cause.items()
    ]
    taking = [key for key, entry in entries if any(step.action in RECLAIMS for step in entry.steps)]
    if wait is None and taking:
        raise SettingsError(
            f"{taking[0]} takes GPUs from their owners, which is switched off",
            where="remediate.reclaim",
            remedy="Set remediate.reclaim = true, or take the steps out of the policy",
        )

    def told(step: PolicyStep) -> PolicyStep:
        if wait is None or step.action is not actions.ActionKind.WARN_OWNER:
            return step
        return replace(step, arguments={"wait": wait, **step.arguments})

    return _mapped(policy, lambda _, entry, __: replace(entry, steps=tuple(map(told, entry.steps))))


def _mapped(policy: RepairPolicy, change: Callable[[str, CausePolicy, str], CausePolicy]) -> RepairPolicy:
    """The policy with each entry changed, by its cause and its pool, which is empty for every pool."""
    return replace(
        policy,
        cause={cause: change(cause, entry, "") for cause, entry in policy.cause.items()},
        pool={
            pool: PoolPolicy({cause: change(cause, entry, pool) for cause, entry in inner.cause.items()})
            for pool, inner in policy.pool.items()
        },
    )


def _checked(step: PolicyStep, names: Sequence[str]) -> PolicyStep:
    if step.action is not actions.ActionKind.VALIDATE or not names:
        return step
    # A step that names none asks all that the hub itself can make.
    return replace(step, checks=tuple(dict.fromkeys((*(step.checks or CHECKS), *names))))


def _overlay(under: RepairPolicy, top: RepairPolicy) -> RepairPolicy:
    pools = {
        name: PoolPolicy({**(under.pool[name].cause if name in under.pool else {}), **entry.cause})
        for name, entry in top.pool.items()
    }
    return RepairPolicy({**under.cause, **top.cause}, {**under.pool, **pools}, {**under.limits, **top.limits})


def _problems(policy: RepairPolicy, *, is_whole: bool) -> Iterator[str]:
    if is_whole and diagnosis.UNKNOWN_CAUSE not in policy.cause:
        yield "cause.unknown: is missing; it is used for every cause that is not named"
    for kind, limit in policy.limits.items():
        if kind not in list(actions.ActionKind):
            yield f"limits.{kind}: unknown action; known: {', '.join(actions.ActionKind)}"
        yield from _limit_problems(f"limits.{kind}", limit)
    for cause, entry in policy.cause.items():
        yield from _entry_problems(f"cause.{cause}", cause, entry)
    for pool, inner in policy.pool.items():
        for cause, entry in inner.cause.items():
            yield from _entry_problems(f"pool.{pool}.cause.{cause}", cause, entry)


def _entry_problems(key: str, cause: str, entry: CausePolicy) -> Iterator[str]:
    known = {row.cause: row for row in causes.all_causes()}
    if cause not in known:
        yield f"{key}: unknown cause; the known ones are in packs/causes.csv"
        return
    if not entry.steps:
        yield f"{key}.steps: is empty; the least is an `inspect`"
    elif known[cause].scope == "workload" or cause == diagnosis.UNKNOWN_CAUSE:
        hard = sorted({step.action for step in entry.steps} & HARDWARE_ACTIONS)
        if hard:
            yield f"{key}.steps: {', '.join(hard)} on hardware that is not known to be at fault"
    kinds = [step.action for step in entry.steps]
    if actions.ActionKind.UNCORDON in kinds and actions.ActionKind.VALIDATE not in kinds:
        yield f"{key}.steps: has an uncordon without a validate; a node is given back only after it passed"
    if actions.ActionKind.RECLAIM in kinds:
        yield from _reclaim_problems(f"{key}.steps", kinds, known[cause].family)
    for at, step in enumerate(entry.steps):
        yield from _step_problems(f"{key}.steps[{at}]", step)
        is_of_node = step.action is actions.ActionKind.DRAIN and step.arguments.get("scope") != "gpu"
        if is_of_node and actions.ActionKind.CORDON not in kinds[:at]:
            yield f"{key}.steps[{at}]: drains a node that was not cordoned, so new work would come; add a cordon before"


def _reclaim_problems(key: str, kinds: Sequence[actions.ActionKind], family: str) -> Iterator[str]:
    if family != WASTE:
        yield f"{key}: a reclaim is for what is held without use, and this cause is of the family {family}"
    if actions.ActionKind.WARN_OWNER not in kinds[: kinds.index(actions.ActionKind.RECLAIM)]:
        yield f"{key}: takes a GPU from an owner who was not told; add a warn_owner before"
    if hard := sorted(HARDWARE_ACTIONS.intersection(kinds)):
        yield f"{key}: has a reclaim beside {', '.join(hard)}, and nothing is broken"


def _step_problems(key: str, step: PolicyStep) -> Iterator[str]:
    if strange := set(step.arguments) - ARGUMENTS.get(step.action, frozenset()):
        allowed = ", ".join(sorted(ARGUMENTS.get(step.action, ()))) or "none"
        yield f"{key}.arguments: {step.action} has no {', '.join(sorted(strange))}; known: {allowed}"
    if step.checks and step.action is not actions.ActionKind.VALIDATE:
        yield f"{key}.checks: only a validate has checks"
    if unknown := [name for name in step.checks if name not in {**CHECKS, **NODE_CHECKS}]:
        yield f"{key}.checks: unknown check {', '.join(unknown)}; known: {', '.join((*CHECKS, *NODE_CHECKS))}"
    if step.limit is not None:
        yield from _limit_problems(f"{key}.limit", step.limit)
    if "wait" in step.arguments:
        yield from _limit_problems(f"{key}.arguments.wait", step.arguments["wait"])
    if step.action is actions.ActionKind.RECLAIM and step.arguments.get("how", RECLAIM_WAYS[0]) not in RECLAIM_WAYS:
        yield f"{key}.arguments.how: `{step.arguments['how']}` is none of {', '.join(RECLAIM_WAYS)}"


def _limit_problems(key: str, text: str) -> Iterator[str]:
    try:
        if durations.parse_ms(text) == 0:
            yield f"{key}: `{text}` must be longer than 0s"
    except ValueError as error:
        yield f"{key}: {error}"
