"""What was last read of each GPU: one sample, kept up with every answer of the reader.

`merge` folds an answer into the sample before it: what was asked for is replaced, what is asked for more
rarely stays with the time at which it was read. The sampler keeps the samples and hands them, as a
`Snapshot`, to the page.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from watchkeeper.readers.nvml.families import Cadence

Value = float | Mapping[str, float]
# Xid codes and errors remembered for each GPU; NVIDIA's catalogue has some 170 Xids.
MAX_CODES = 256
Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class SliceSample:
    """One MIG slice of a GPU."""

    id: int
    profile: str
    values: Mapping[str, Value]
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class Program:
    """A program with a context on a GPU; `busy_percent` None: it is alone, or the GPU cannot tell."""

    pid: int
    slice_id: int | None = None
    busy_percent: int | None = None


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU as it was last read; `read_at` says when each cadence was."""

    index: int
    identity: Mapping[str, str]
    read_at: Mapping[Cadence, float]
    values: Mapping[str, Value]
    slices: tuple[SliceSample, ...] = ()
    # None: this GPU reports no events, so nobody knows. 0: there has been no Xid.
    last_xid: int | None = None
    xids: Mapping[int, int] = field(default_factory=dict)
    errors: Mapping[tuple[str, str], int] = field(default_factory=dict)
    # None: the GPU does not tell which programs use it.
    programs: tuple[Program, ...] | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a page shows. `faults` are cause and UUID, None for the whole node."""

    gpus: tuple[GpuSample, ...] = ()
    faults: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class SampleMerger:
    """Knows how often each family is asked for."""

    cadence_of: Mapping[str, Cadence]

    def merge(
        self, before: GpuSample, answer: Mapping[str, Any], *, cadences: Collection[Cadence], at: float
    ) -> GpuSample:
        """The sample after an answer. A lost GPU keeps its name and its counts, and no numbers."""
        errors = before.errors
        for failure in answer.get("errors", {}).items():
            errors = incremented(errors, failure)
        if answer.get("lost"):
            return replace(before, read_at={}, values={}, slices=(), errors=errors, programs=None)
        replaced = set(cadences)
        if not answer.get("is_profiled"):
            # The first sample of a new reader: what the last one measured holds until it is too old.
            replaced.discard(Cadence.PROFILE)
        known = {part.id: part.values for part in before.slices}
        slices = tuple(
            SliceSample(
                part["id"],
                part["profile"],
                self._kept(known.get(part["id"], {}), replaced) | part["values"],
                part.get("uuid", ""),
            )
            for part in answer.get("slices", ())
        )
        return replace(
            before,
            read_at={**before.read_at, **dict.fromkeys(replaced, at)},
            values=self._kept(before.values, replaced) | answer.get("values", {}),
            slices=slices,
            errors=errors,
            programs=_programs(answer) if Cadence.FAST in replaced else before.programs,
        )

    def _kept(self, values: Mapping[str, Value], replaced: set[Cadence]) -> dict[str, Value]:
        cadence_of = self.cadence_of
        return {name: value for name, value in values.items() if cadence_of[name] not in replaced}


def _programs(answer: Mapping[str, Any]) -> tuple[Program, ...] | None:
    rows = answer.get("programs")
    return None if rows is None else tuple(Program(*row) for row in rows)


def with_xid(gpu: GpuSample, code: int) -> GpuSample:
    return replace(gpu, last_xid=code, xids=incremented(gpu.xids, code))


def incremented(counts: Mapping[Key, int], key: Key) -> Mapping[Key, int]:
    """One more of `key`; a key beyond the bound is not remembered."""
    if key not in counts and len(counts) >= MAX_CODES:
        return counts
    return {**counts, key: counts.get(key, 0) + 1}
