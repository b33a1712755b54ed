"""Evaluates DCGM's policies on the newest samples and returns the violations.

The limits are in packs/policies/dcgm.toml; `policy_limits` has those that a person set on this node. The agent
evaluates them after each round of the sampler and builds events from the violations; other packages decide what to do
about them.
"""

from __future__ import annotations

import tomllib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from watchkeeper.agent.gpus.gpu_samples import GpuSample
from watchkeeper.catalogue import pack
from watchkeeper.errors import PackError
from watchkeeper.readers.nvml.families import Cadence

FILE = "policies/dcgm.toml"
XID = "xid"
SET_SOURCE = "set on this node"
# Older samples are not evaluated.
STALE_SECONDS = 15.0
# One reading per second for the longest window; more add nothing.
MAX_READINGS = 128


@dataclass(frozen=True, slots=True)
class DcgmPolicy:
    """One policy; exactly one of `at_least`, `at_most` and `grows_by` is set, and none for Xids."""

    name: str
    bit: int
    cause: str
    measures: tuple[str, ...]
    words: str
    source: str
    at_least: float | None = None
    at_most: float | None = None
    of: str | None = None
    grows_by: float | None = None
    within_seconds: float = 60.0
    settable: tuple[float, float] | None = None
    set_measures: tuple[str, ...] = ()
    set_words: str = ""

    @property
    def limit_text(self) -> str:
        if self.grows_by is not None:
            return f"{self.grows_by:g} or more in {self.within_seconds:g} s"
        if self.at_most is not None:
            return f"{self.at_most:g} or less"
        factor = f" × {self.of}" if self.of is not None else ""
        return "any" if self.at_least is None else f"{self.at_least:g}{factor} or more"

    def with_limit(self, limit: float) -> DcgmPolicy:
        """The policy with a limit that a person set; ValueError if it has none, or if the limit is impossible."""
        if self.settable is None:
            raise ValueError(f"{self.name} has no limit: each event is a violation")
        lowest, highest = self.settable
        words = self.set_words or self.words
        if not lowest <= limit <= highest:
            raise ValueError(f"{self.name} accepts {lowest:g} to {highest:g} {words}, not {limit:g}")
        changed = replace(self, words=words, measures=self.set_measures or self.measures, source=SET_SOURCE)
        if self.grows_by is not None:
            return replace(changed, grows_by=limit)
        return replace(changed, at_least=limit, at_most=None, of=None)


@dataclass(frozen=True, slots=True)
class Violation:
    policy: DcgmPolicy
    uuid: str
    value: float
    limit: float

    @property
    def text(self) -> str:
        policy = self.policy
        direction = "less" if policy.at_most is not None else "more"
        limit = f"{self.limit:g} or {direction} is a violation"
        return f"Policy {policy.name} violated: {self.value:g} {policy.words}; {limit} ({policy.source})"


def load_policies(text: str | None = None) -> tuple[DcgmPolicy, ...]:
    """Parse the shipped policies, or those of a text in the same format."""
    try:
        rows = tomllib.loads(pack.text_of(FILE) if text is None else text)["policy"]
        return tuple(_parse_policy(name, row) for name, row in rows.items())
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise PackError(f"not a list of policies: {error}", where=f"packs/{FILE}") from error


def _parse_policy(name: str, row: Mapping[str, Any]) -> DcgmPolicy:
    policy_keys = {field.name for field in fields(DcgmPolicy)}
    if row.keys() - policy_keys:
        raise ValueError(f"policy {name} has unknown keys: {', '.join(sorted(row.keys() - policy_keys))}")
    lists = {key: tuple(row[key]) for key in ("measures", "settable", "set_measures") if key in row}
    policy = DcgmPolicy(name=name, **{**row, **lists})
    limits = [limit for limit in (policy.at_least, policy.at_most, policy.grows_by) if limit is not None]
    if len(limits) != bool(policy.measures):
        raise ValueError(f"policy {name} has {len(limits)} limits, one is needed")
    return policy


class PolicyWatch:
    """Keeps readings of counters for long enough to measure their growth."""

    def __init__(self, policies: Iterable[DcgmPolicy]) -> None:
        self._readings: dict[tuple[str, str], deque[tuple[float, float]]] = {}
        self.replace_policies(policies)

    def replace_policies(self, policies: Iterable[DcgmPolicy]) -> None:
        """Continue with other limits; readings of counters are kept."""
        self._policies = tuple(policy for policy in policies if policy.measures)

    def find_violations(self, gpus: Iterable[GpuSample], now: float) -> list[Violation]:
        """Every violation at `now`, in the clock of the samples' `read_at`."""
        gpus_by_uuid = {
            gpu.identity["uuid"]: gpu
            for gpu in gpus
            if now - gpu.read_at.get(Cadence.FAST, float("-inf")) <= STALE_SECONDS
        }
        self._readings = {key: readings for key, readings in self._readings.items() if key[0] in gpus_by_uuid}
        return [
            violation
            for uuid, gpu in gpus_by_uuid.items()
            for policy in self._policies
            if (violation := self._find_violation(policy, uuid, gpu=gpu, now=now)) is not None
        ]

    def _find_violation(self, policy: DcgmPolicy, uuid: str, *, gpu: GpuSample, now: float) -> Violation | None:
        value = _add_measures(gpu, policy.measures)
        if value is None:
            return None
        if policy.grows_by is not None:
            growth = self._measure_growth(policy, uuid, value=value, now=now)
            return Violation(policy, uuid, growth, policy.grows_by) if growth >= policy.grows_by else None
        if policy.at_most is not None:
            return Violation(policy, uuid, value, policy.at_most) if value <= policy.at_most else None
        assert policy.at_least is not None
        limit = policy.at_least
        if policy.of is not None:
            reference = _add_measures(gpu, (policy.of,))
            if not reference:
                return None
            limit *= reference
        return Violation(policy, uuid, value, limit) if value >= limit else None

    def _measure_growth(self, policy: DcgmPolicy, uuid: str, *, value: float, now: float) -> float:
        """How much the counter grew within the window; a counter reset starts it again."""
        readings = self._readings.setdefault((uuid, policy.name), deque(maxlen=MAX_READINGS))
        if readings and value < readings[-1][1]:
            readings.clear()
        # Of equal readings only the first and the last are needed.
        if len(readings) >= 2 and readings[-1][1] == readings[-2][1] == value:
            readings.pop()
        readings.append((now, value))
        while len(readings) > 1 and readings[1][0] <= now - policy.within_seconds:
            readings.popleft()
        return value - readings[0][1]


def _add_measures(gpu: GpuSample, measures: Iterable[str]) -> float | None:
    """The sum of the measures and their parts; None if the GPU reports none of them."""
    values: list[float] = []
    for name in measures:
        value = gpu.values.get(name)
        if value is not None:
            values += value.values() if isinstance(value, Mapping) else [value]
    return sum(values) if values else None
