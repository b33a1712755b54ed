"""DCGM's policies over what was last read of each GPU: which of them are violated now.

The limits are packs/policies/dcgm.toml. The agent asks after each round of the sampler and makes events of the
violations; what is done about them is decided elsewhere.
"""

from __future__ import annotations

import tomllib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from watchkeeper.agent.gpus.gpu_samples import GpuSample
from watchkeeper.catalogue import pack
from watchkeeper.errors import PackError
from watchkeeper.readers.nvml.families import Cadence

FILE = "policies/dcgm.toml"
XID = "xid"
# Numbers of a GPU that has not answered for this long are not judged.
STALE_SECONDS = 15.0
# One reading a second for the longest window; more often than that adds nothing.
MAX_READINGS = 128


@dataclass(frozen=True, slots=True)
class DcgmPolicy:
    """One condition; exactly one of `at_least`, `at_most` and `grows_by` is set, none for Xids."""

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


@dataclass(frozen=True, slots=True)
class Violation:
    """A policy that a GPU breaks now, with both numbers."""

    policy: DcgmPolicy
    uuid: str
    value: float
    limit: float

    @property
    def text(self) -> str:
        than = "at most" if self.policy.at_most is not None else "at least"
        return (
            f"Policy {self.policy.name}: {self.value:g} {self.policy.words}; {than} {self.limit:g} violates it "
            f"({self.policy.source})"
        )


def load_policies(text: str | None = None) -> tuple[DcgmPolicy, ...]:
    """The shipped policies, or those of a text of the same shape."""
    if text is None:
        text = pack.text_of(FILE)
    try:
        rows = tomllib.loads(text)["policy"]
        return tuple(_policy(name, row) for name, row in rows.items())
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise PackError(f"not a list of policies: {error}", where=f"packs/{FILE}") from error


def _policy(name: str, row: Mapping[str, Any]) -> DcgmPolicy:
    known = {field.name for field in fields(DcgmPolicy)}
    if row.keys() - known:
        raise ValueError(f"policy {name} has unknown keys: {', '.join(sorted(row.keys() - known))}")
    policy = DcgmPolicy(name=name, **{**row, "measures": tuple(row["measures"])})
    limits = [limit for limit in (policy.at_least, policy.at_most, policy.grows_by) if limit is not None]
    if len(limits) != bool(policy.measures):
        raise ValueError(f"policy {name} has {len(limits)} limits, one is needed")
    return policy


class PolicyWatch:
    """Remembers counters long enough to say how fast they grow."""

    def __init__(self, policies: Iterable[DcgmPolicy]) -> None:
        self._policies = tuple(policy for policy in policies if policy.measures)
        self._seen: dict[tuple[str, str], deque[tuple[float, float]]] = {}

    def violations(self, gpus: Iterable[GpuSample], now: float) -> list[Violation]:
        """Every violation at `now`, a time of the clock that the samples were read by."""
        present = {}
        for gpu in gpus:
            if now - gpu.read_at.get(Cadence.FAST, float("-inf")) <= STALE_SECONDS:
                present[gpu.identity["uuid"]] = gpu
        self._seen = {key: readings for key, readings in self._seen.items() if key[0] in present}
        found = []
        for uuid, gpu in present.items():
            for policy in self._policies:
                violation = self._judge(policy, uuid, gpu=gpu, now=now)
                if violation is not None:
                    found.append(violation)
        return found

    def _judge(self, policy: DcgmPolicy, uuid: str, *, gpu: GpuSample, now: float) -> Violation | None:
        value = _sum(gpu, policy.measures)
        if value is None:
            return None
        if policy.grows_by is not None:
            grown = self._growth(policy, uuid, value=value, now=now)
            return Violation(policy, uuid, grown, policy.grows_by) if grown >= policy.grows_by else None
        if policy.at_most is not None:
            return Violation(policy, uuid, value, policy.at_most) if value <= policy.at_most else None
        assert policy.at_least is not None
        limit = policy.at_least
        if policy.of is not None:
            other = _sum(gpu, (policy.of,))
            if not other:
                return None
            limit *= other
        return Violation(policy, uuid, value, limit) if value >= limit else None

    def _growth(self, policy: DcgmPolicy, uuid: str, *, value: float, now: float) -> float:
        """How much the counter rose within the window; after a reset it starts anew."""
        readings = self._seen.setdefault((uuid, policy.name), deque(maxlen=MAX_READINGS))
        if readings and value < readings[-1][1]:
            readings.clear()
        # Of equal numbers the first and the last reading tell everything.
        if len(readings) >= 2 and readings[-1][1] == readings[-2][1] == value:
            readings.pop()
        readings.append((now, value))
        while len(readings) > 1 and readings[1][0] <= now - policy.within_seconds:
            readings.popleft()
        return value - readings[0][1]


def _sum(gpu: GpuSample, measures: Iterable[str]) -> float | None:
    """The measures added up, parts included; None if the GPU gives none of them."""
    numbers: list[float] = []
    for name in measures:
        value = gpu.values.get(name)
        if value is not None:
            numbers += value.values() if isinstance(value, Mapping) else [value]
    return sum(numbers) if numbers else None
