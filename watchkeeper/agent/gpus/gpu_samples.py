"""The newest sample of each GPU, updated with every answer of the reader process.

`merge` updates a sample with an answer: the cadences that were read get new values, the others keep their values and
the time of their reading. The sampler passes all samples to the page as a `Snapshot`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from watchkeeper.readers.nvml.families import Cadence

Value = float | Mapping[str, float]
# Xid codes and errors that are counted for each GPU; NVIDIA's catalogue has about 170 Xids.
MAX_CODES = 256
Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class MigInstanceSample:
    id: int
    profile: str
    values: Mapping[str, Value]
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class Program:
    """A process with a context on a GPU; `busy_percent` None: it is the only one, or the GPU does not report it."""

    pid: int
    instance_id: int | None = None
    busy_percent: int | None = None


@dataclass(frozen=True, slots=True)
class GpuSample:
    """The newest sample of one GPU; `read_at` has the time of each cadence."""

    index: int
    identity: Mapping[str, str]
    read_at: Mapping[Cadence, float]
    values: Mapping[str, Value]
    mig_instances: tuple[MigInstanceSample, ...] = ()
    # None: unknown, because this GPU reports no events. 0: no Xid.
    last_xid: int | None = None
    xids: Mapping[int, int] = field(default_factory=dict)
    errors: Mapping[tuple[str, str], int] = field(default_factory=dict)
    # None: the GPU does not report its processes.
    programs: tuple[Program, ...] | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything on the page; `faults` are pairs of cause and UUID (None: the whole node)."""

    gpus: tuple[GpuSample, ...] = ()
    faults: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class SampleMerger:
    """Merges answers into samples; `cadence_by_family` says how often each family is read."""

    cadence_by_family: Mapping[str, Cadence]

    def merge(
        self, before: GpuSample, answer: Mapping[str, Any], *, cadences: Collection[Cadence], read_at: float
    ) -> GpuSample:
        """The sample after an answer; a lost GPU keeps its identity and counts, and has no values."""
        errors = before.errors
        for failure in answer.get("errors", {}).items():
            errors = increment(errors, failure)
        if answer.get("lost"):
            return replace(before, read_at={}, values={}, mig_instances=(), errors=errors, programs=None)
        replaced_cadences = set(cadences)
        if not answer.get("is_profiled"):
            # A new reader process has no profiling values yet: the previous ones stay until they expire.
            replaced_cadences.discard(Cadence.PROFILE)
        previous_values = {instance.id: instance.values for instance in before.mig_instances}
        mig_instances = tuple(
            MigInstanceSample(
                instance["id"],
                instance["profile"],
                self._keep_others(previous_values.get(instance["id"], {}), replaced_cadences) | instance["values"],
                instance.get("uuid", ""),
            )
            for instance in answer.get("slices", ())
        )
        programs = before.programs
        if Cadence.FAST in replaced_cadences:
            rows = answer.get("programs")
            programs = None if rows is None else tuple(Program(*row) for row in rows)
        return replace(
            before,
            read_at={**before.read_at, **dict.fromkeys(replaced_cadences, read_at)},
            values=self._keep_others(before.values, replaced_cadences) | answer.get("values", {}),
            mig_instances=mig_instances,
            errors=errors,
            programs=programs,
        )

    def _keep_others(self, values: Mapping[str, Value], replaced_cadences: set[Cadence]) -> dict[str, Value]:
        cadence_by_family = self.cadence_by_family
        return {name: value for name, value in values.items() if cadence_by_family[name] not in replaced_cadences}


def add_xid(gpu: GpuSample, code: int) -> GpuSample:
    return replace(gpu, last_xid=code, xids=increment(gpu.xids, code))


def increment(counts: Mapping[Key, int], key: Key) -> Mapping[Key, int]:
    """Add 1 to the count of `key`; a new key beyond MAX_CODES is ignored."""
    if key not in counts and len(counts) >= MAX_CODES:
        return counts
    return {**counts, key: counts.get(key, 0) + 1}
