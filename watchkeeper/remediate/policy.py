"""Load the repair policy: the steps for each cause, from packs/policies/*.toml and an optional file of the user.

The hub loads it once; `plan.make_plan` looks up causes. The user's file overrides causes, everywhere or in one pool,
and keeps the rest. An error in a file names file and key, and the file is not used.
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
from watchkeeper.model import actions, diagnosis, fleet
from watchkeeper.model.repairs import DOMAIN_KINDS, MANUAL_KINDS, RECLAIM_KINDS
from watchkeeper.remediate.drivers.cluster_driver import RECLAIM_METHODS
from watchkeeper.remediate.validation import AFTER_HARDWARE, CHECKS, NODE_CHECKS

# Actions for faulty hardware; a fault of a workload must never lead to one of these.
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
# The arguments that each kind of step accepts.
ARGUMENTS: Mapping[actions.ActionKind, frozenset[str]] = {
    actions.ActionKind.RESTART_SERVICE: frozenset({"service"}),
    actions.ActionKind.LOWER_POWER: frozenset({"percent", "watts"}),
    actions.ActionKind.APPLY_MIG: frozenset({"layout"}),
    actions.ActionKind.DRAIN: frozenset({"scope", "running_jobs"}),
    actions.ActionKind.REBOOT: frozenset({"how"}),
    actions.ActionKind.WARN_OWNER: frozenset({"wait"}),
    actions.ActionKind.RECLAIM: frozenset({"how"}),
}
# Only causes of this family may have a reclaim.
WASTE_FAMILY = "waste"
# The time limit of a step without `limit` and without an entry in `limits`.
DEFAULT_LIMIT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class PolicyStep:
    """A step of the policy; `limit` is its time limit, `checks` are those of a `validate`."""

    action: actions.ActionKind
    why: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    limit: str | None = None
    checks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CausePolicy:
    """The steps for a cause; `hardware` overrides the catalogue on whether the hardware is at fault.

    `domain_steps` replace `steps` if a whole rack or another failure domain has the cause. They change every node of
    it, so each action is manual or one of `repairs.DOMAIN_KINDS`.
    """

    steps: tuple[PolicyStep, ...]
    hardware: bool | None = None
    domain_steps: tuple[PolicyStep, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    cause: Mapping[str, CausePolicy]


@dataclass(frozen=True, slots=True)
class RepairPolicy:
    cause: Mapping[str, CausePolicy]
    pool: Mapping[str, PoolPolicy] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)

    def entry(self, cause: str, pool: str = "") -> tuple[str, CausePolicy]:
        """Return the key and the steps for a cause in a pool; a cause without steps gets those of `unknown`."""
        pool_policy = self.pool.get(pool)
        if pool_policy is not None and cause in pool_policy.cause:
            return f"pool.{pool}.cause.{cause}", pool_policy.cause[cause]
        key = cause if cause in self.cause else diagnosis.UNKNOWN_CAUSE
        return f"cause.{key}", self.cause[key]

    def steps(self, cause: str, pool: str = "", place: fleet.Place | None = None) -> tuple[PolicyStep, ...]:
        entry = self.entry(cause, pool)[1]
        return (entry.domain_steps or entry.steps) if place is not None and place.domain else entry.steps

    def is_hardware(self, cause: str, pool: str = "") -> bool:
        """Whether a node must pass the hardware tests before it is uncordoned."""
        declared = self.entry(cause, pool)[1].hardware
        return causes.lookup(cause).is_hardware if declared is None else declared

    def limit_seconds(self, step: PolicyStep) -> float:
        text = step.limit or self.limits.get(step.action)
        # The owner's wait is added to the time limit of the call.
        owner_seconds = durations.parse_seconds(step.arguments["wait"]) if "wait" in step.arguments else 0.0
        return owner_seconds + (DEFAULT_LIMIT_SECONDS if text is None else durations.parse_seconds(text))


def load(path: Path | None = None, *, reclaim: bool = False) -> RepairPolicy:
    """Return the shipped policy with the overrides of `path`; `reclaim` adds the steps that reclaim idle GPUs."""
    shipped = _load_shipped("default")
    if reclaim:
        shipped = _load_shipped("reclaim", base=shipped)
    if path is None:
        return shipped
    try:
        return parse(path.read_text(encoding="utf-8"), where=str(path), base=shipped)
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingsError(f"cannot read the policy: {problem}", where=str(path)) from error


def _load_shipped(name: str, base: RepairPolicy | None = None) -> RepairPolicy:
    text = (resources.files("watchkeeper.packs") / "policies" / f"{name}.toml").read_text(encoding="utf-8")
    return parse(text, where=f"packs/policies/{name}.toml", base=base)


def parse(text: str, *, where: str, base: RepairPolicy | None = None) -> RepairPolicy:
    """Parse a policy from TOML; `base` has the entries that the text does not override."""
    try:
        parsed = tomllib.loads(text)
        policy = wire.from_plain(RepairPolicy, {"cause": {}, **parsed} if base is not None else parsed)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"not TOML: {error}", where=where) from error
    except WireError as error:
        raise SettingsError("the policy has errors", problems=error.problems, where=where) from error
    problems = tuple(_find_problems(policy, is_complete=base is None))
    if problems:
        raise SettingsError("the policy has errors", problems=problems, where=where)
    return policy if base is None else _overlay(base, policy)


def add_checks(policy: RepairPolicy, names: Sequence[str]) -> RepairPolicy:
    """Add node checks to each validation; those with full load only for hardware causes."""
    if unknown := [name for name in names if name not in NODE_CHECKS]:
        allowed = ", ".join(NODE_CHECKS)
        raise SettingsError(f"unknown check {', '.join(unknown)}; use {allowed}", where="remediate.node_checks")

    def add_to_entry(cause: str, entry: CausePolicy, pool: str) -> CausePolicy:
        entry_checks = [name for name in names if name not in AFTER_HARDWARE or policy.is_hardware(cause, pool)]
        # A step that names no checks runs all checks of the hub.
        return replace(
            entry,
            steps=tuple(
                replace(step, checks=tuple(dict.fromkeys((*(step.checks or CHECKS), *entry_checks))))
                if step.action is actions.ActionKind.VALIDATE and entry_checks
                else step
                for step in entry.steps
            ),
        )

    return _map_entries(policy, add_to_entry)


def set_owner_wait(policy: RepairPolicy, wait: str | None) -> RepairPolicy:
    """Set the default wait of `warn_owner` steps; None: reclaiming is off, and a policy with it is an error."""
    for key, _, entry in _list_entries(policy) if wait is None else ():
        if any(step.action in RECLAIM_KINDS for step in entry.steps):
            remedy = "Set remediate.reclaim = true, or remove the steps from the policy"
            raise SettingsError(f"{key} reclaims GPUs, but reclaiming is off", where="remediate.reclaim", remedy=remedy)

    def set_wait(step: PolicyStep) -> PolicyStep:
        if wait is None or step.action is not actions.ActionKind.WARN_OWNER:
            return step
        return replace(step, arguments={"wait": wait, **step.arguments})

    return _map_entries(policy, lambda _, entry, __: replace(entry, steps=tuple(map(set_wait, entry.steps))))


def _list_entries(policy: RepairPolicy) -> Iterator[tuple[str, str, CausePolicy]]:
    """Yield each entry with its key and its cause."""
    for cause, entry in policy.cause.items():
        yield f"cause.{cause}", cause, entry
    for pool, pool_policy in policy.pool.items():
        for cause, entry in pool_policy.cause.items():
            yield f"pool.{pool}.cause.{cause}", cause, entry


def _map_entries(policy: RepairPolicy, change: Callable[[str, CausePolicy, str], CausePolicy]) -> RepairPolicy:
    """Apply `change` to each entry, with its cause and its pool (empty: all pools)."""
    return replace(
        policy,
        cause={cause: change(cause, entry, "") for cause, entry in policy.cause.items()},
        pool={
            pool: PoolPolicy({cause: change(cause, entry, pool) for cause, entry in inner.cause.items()})
            for pool, inner in policy.pool.items()
        },
    )


def _overlay(base: RepairPolicy, override: RepairPolicy) -> RepairPolicy:
    pools, none = base.pool, PoolPolicy({})
    pools = {name: PoolPolicy({**pools.get(name, none).cause, **pool.cause}) for name, pool in override.pool.items()}
    return RepairPolicy({**base.cause, **override.cause}, {**base.pool, **pools}, {**base.limits, **override.limits})


def _find_problems(policy: RepairPolicy, *, is_complete: bool) -> Iterator[str]:
    if is_complete and diagnosis.UNKNOWN_CAUSE not in policy.cause:
        yield "cause.unknown: is missing; it applies to every cause without an entry"
    for kind, limit in policy.limits.items():
        if kind not in list(actions.ActionKind):
            yield f"limits.{kind}: unknown action; use one of {', '.join(actions.ActionKind)}"
        yield from _find_limit_problems(f"limits.{kind}", limit)
    for key, cause, entry in _list_entries(policy):
        yield from _find_entry_problems(key, cause, entry)


def _find_entry_problems(key: str, cause: str, entry: CausePolicy) -> Iterator[str]:
    catalogue = {row.cause: row for row in causes.all_causes()}
    if cause not in catalogue:
        yield f"{key}: unknown cause; packs/causes.csv lists all causes"
        return
    if not entry.steps:
        yield f"{key}.steps: is empty; add at least an `inspect`"
    elif catalogue[cause].scope == "workload" or cause == diagnosis.UNKNOWN_CAUSE:
        hardware_actions = sorted({step.action for step in entry.steps} & HARDWARE_ACTIONS)
        if hardware_actions:
            yield f"{key}.steps: {', '.join(hardware_actions)} needs a hardware fault, and this cause is not one"
    kinds = [step.action for step in entry.steps]
    if actions.ActionKind.UNCORDON in kinds and actions.ActionKind.VALIDATE not in kinds:
        yield f"{key}.steps: has an uncordon without a validate; add a validate before it"
    if actions.ActionKind.RECLAIM in kinds:
        yield from _find_reclaim_problems(f"{key}.steps", kinds, catalogue[cause].family)
    yield from _find_domain_problems(f"{key}.domain_steps", entry.domain_steps)
    for at, step in enumerate(entry.steps):
        yield from _find_step_problems(f"{key}.steps[{at}]", step)
        is_node_drain = step.action is actions.ActionKind.DRAIN and step.arguments.get("scope") != "gpu"
        if is_node_drain and actions.ActionKind.CORDON not in kinds[:at]:
            yield f"{key}.steps[{at}]: drains a node that still accepts new workloads; add a cordon before it"


def _find_domain_problems(key: str, steps: Sequence[PolicyStep]) -> Iterator[str]:
    for at, step in enumerate(steps):
        yield from _find_step_problems(f"{key}[{at}]", step)
        if step.action not in DOMAIN_KINDS | MANUAL_KINDS:
            allowed = ", ".join(sorted(DOMAIN_KINDS | MANUAL_KINDS))
            yield f"{key}[{at}]: {step.action} is not for every node of a domain; use one of {allowed}"
        is_uncordoned = at == 0 or steps[at - 1].action is not actions.ActionKind.CORDON
        if step.action is actions.ActionKind.DRAIN and is_uncordoned:
            yield f"{key}[{at}]: drains nodes that still accept new workloads; add a cordon directly before it"


def _find_reclaim_problems(key: str, kinds: Sequence[actions.ActionKind], family: str) -> Iterator[str]:
    if family != WASTE_FAMILY:
        yield f"{key}: a reclaim needs a cause of the family {WASTE_FAMILY}, and this cause is of the family {family}"
    if actions.ActionKind.WARN_OWNER not in kinds[: kinds.index(actions.ActionKind.RECLAIM)]:
        yield f"{key}: reclaims a GPU without a warning; add a warn_owner before it"
    if hardware_actions := sorted(HARDWARE_ACTIONS.intersection(kinds)):
        yield f"{key}: combines a reclaim with {', '.join(hardware_actions)}, which are for faulty hardware"


def _find_step_problems(key: str, step: PolicyStep) -> Iterator[str]:
    if unknown_arguments := set(step.arguments) - ARGUMENTS.get(step.action, frozenset()):
        allowed = ", ".join(sorted(ARGUMENTS.get(step.action, ()))) or "none"
        yield f"{key}.arguments: {step.action} has no {', '.join(sorted(unknown_arguments))}; allowed: {allowed}"
    if step.checks and step.action is not actions.ActionKind.VALIDATE:
        yield f"{key}.checks: only a validate has checks"
    if unknown_checks := [name for name in step.checks if name not in {**CHECKS, **NODE_CHECKS}]:
        yield f"{key}.checks: unknown check {', '.join(unknown_checks)}; use {', '.join((*CHECKS, *NODE_CHECKS))}"
    if step.limit is not None:
        yield from _find_limit_problems(f"{key}.limit", step.limit)
    if "wait" in step.arguments:
        yield from _find_limit_problems(f"{key}.arguments.wait", step.arguments["wait"])
    method = step.arguments.get("how", RECLAIM_METHODS[0])
    if step.action is actions.ActionKind.RECLAIM and method not in RECLAIM_METHODS:
        yield f"{key}.arguments.how: `{method}` is unknown; use one of {', '.join(RECLAIM_METHODS)}"


def _find_limit_problems(key: str, text: str) -> Iterator[str]:
    try:
        if durations.parse_ms(text) == 0:
            yield f"{key}: `{text}` must be longer than 0s"
    except ValueError as error:
        yield f"{key}: {error}"
