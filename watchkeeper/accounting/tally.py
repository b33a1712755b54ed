"""Sum time slots of usage into a table, and add the unknown hours.

A cluster counts from its first slot on: unrecorded minutes and missing slots count as unknown, with the number of GPUs
that the cluster had when it was last recorded. The time before the first slot is excluded, with a note.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from watchkeeper.accounting import time_ranges, usage

HOUR = 3600.0
# A shorter gap is clock jitter.
MIN_GAP_SECONDS = 30.0
POOL, MODEL = (usage.DIMENSIONS.index(name) for name in ("pool", "model"))


@dataclass(frozen=True, slots=True)
class UsageSlot:
    """One cluster in a time range: the recorded share of the range, and the GPU-hours."""

    start: float
    end: float
    recorded_share: float
    gpu_hours: float

    @property
    def gpus(self) -> float | None:
        """GPUs in service while the slot was recorded."""
        hours = (self.end - self.start) / HOUR * self.recorded_share
        return self.gpu_hours / hours if hours > 0 else None


@dataclass(slots=True)
class UsageTally:
    """The sums of a window; `period_start` is the start of the longer period that the window is a part of."""

    since: float
    until: float
    period_start: float | None = None
    notes: list[str] = field(default_factory=list)
    _key_indexes: dict[usage.Key, int] = field(default_factory=dict)
    _row_batches: list[tuple[npt.NDArray[np.int64], usage.Amounts]] = field(default_factory=list)
    _slots: dict[str, list[UsageSlot]] = field(default_factory=dict)

    def add(self, keys: Sequence[usage.Key], amounts: usage.Amounts) -> None:
        indexes = self._key_indexes
        row_keys = np.array([indexes.setdefault(key, len(indexes)) for key in keys], dtype=np.int64)
        self._row_batches.append((row_keys, amounts))

    def add_slot(self, cluster: str, slot: UsageSlot) -> None:
        self._slots.setdefault(cluster, []).append(slot)

    def continue_from(self, previous: UsageTally) -> None:
        """Add the last earlier slot of each cluster without a record at the start of the window."""
        # The unrecorded time then counts as unknown. A cluster without an earlier slot starts with its first record.
        for cluster, slots in previous._slots.items():
            first_start = min((slot.start for slot in self._slots.get(cluster, ())), default=math.inf)
            # A day of the ledger adds all of its slots, including those after the end of the window.
            sized_slots = [slot for slot in slots if slot.start < self.since and slot.gpus is not None]
            if sized_slots and first_start > self.since + MIN_GAP_SECONDS:
                self.add_slot(cluster, max(sized_slots, key=lambda slot: slot.start))

    def merge(self, part: UsageTally) -> None:
        keys = list(part._key_indexes)
        for row_keys, amounts in part._row_batches:
            self.add([keys[index] for index in row_keys.tolist()], amounts)
        for cluster, slots in part._slots.items():
            self._slots.setdefault(cluster, []).extend(slots)
        self.notes += part.notes

    def build_table(self) -> usage.UsageTable:
        for cluster, slots in sorted(self._slots.items()):
            self._add_unknown_hours(cluster, slots)
        amounts = np.zeros((len(self._key_indexes), len(usage.PARTS)))
        for row_keys, batch in self._row_batches:
            np.add.at(amounts, row_keys, batch)
        first = min((slots[0].start for slots in self._slots.values()), default=None)
        return usage.UsageTable(self.since, self.until, tuple(self._key_indexes), amounts, tuple(self.notes), first)

    def _add_unknown_hours(self, cluster: str, slots: list[UsageSlot]) -> None:
        # An hour that is both in the ledger and in the engine counts once.
        slots[:] = sorted({slot.start: slot for slot in slots}.values(), key=lambda slot: slot.start)
        earliest = slots[0]
        is_partial = earliest.end - earliest.start == HOUR and 0 < earliest.recorded_share < 1
        if is_partial and earliest.start > self.since + MIN_GAP_SECONDS:
            # The unrecorded part of the first recorded hour lies before the records start.
            start = earliest.end - HOUR * earliest.recorded_share
            slots[0] = UsageSlot(start, earliest.end, 1.0, earliest.gpu_hours)
        first = max(slots[0].start, self.since)
        if first - self.since > MIN_GAP_SECONDS:
            period_start = self.since if self.period_start is None else self.period_start
            self.notes.append(
                f"cluster {usage.display_value(cluster)}: records start at {format_time(first)}; the "
                f"{(first - period_start) / HOUR:,.1f} hours before are excluded"
            )
        unknown = 0.0
        # A slot ends at the latest where the next one starts.
        for slot, next_start in zip(slots, [*(slot.start for slot in slots[1:]), math.inf], strict=True):
            seconds = min(slot.end, self.until, next_start) - max(slot.start, self.since)
            if slot.gpus is not None and seconds > 0:
                unknown += slot.gpus * seconds / HOUR * (1 - slot.recorded_share)
        gaps = time_ranges.find_gaps([(slot.start, slot.end) for slot in slots], since=first, until=self.until)
        missing = [(start, end) for start, end in gaps if end - start > MIN_GAP_SECONDS]
        gap_hours = sum(end - start for start, end in missing) / HOUR
        gpu_counts = [(slot.end, slot.gpus) for slot in slots if slot.gpus is not None]
        ends = [end for end, _ in gpu_counts]
        for start, end in missing if gpu_counts else ():
            previous_index = bisect.bisect_right(ends, start + MIN_GAP_SECONDS) - 1
            unknown += gpu_counts[max(previous_index, 0)][1] * (end - start) / HOUR
        if gap_hours:
            where = f"from {format_time(missing[0][0])}" + (f", in {len(missing)} gaps" if len(missing) > 1 else "")
            length = f"{gap_hours:,.1f} hours" if gap_hours >= 1 else f"{math.ceil(gap_hours * 60)} min"
            name = usage.display_value(cluster)
            self.notes.append(f"cluster {name}: no records for {length} ({where}); its GPUs count as unknown")
        if unknown > 0:
            row = np.zeros((1, len(usage.PARTS)))
            row[0, usage.UNKNOWN] = unknown
            self.add([unowned_key(cluster=cluster, **self._shared_dimensions(cluster))], row)

    def _shared_dimensions(self, cluster: str) -> dict[str, str]:
        """Pool and model of unrecorded GPUs, if all recorded GPUs of the cluster have the same."""
        keys = [key for key in self._key_indexes if key[0] == cluster]
        candidates = {name: {key[index] for key in keys} for name, index in (("pool", POOL), ("model", MODEL))}
        return {name: values.pop() for name, values in candidates.items() if len(values) == 1}


def unowned_key(**dimensions: str) -> usage.Key:
    owner = dict.fromkeys(("team", "project", "namespace", "user", "kind", "job"), usage.UNOWNED)
    return usage.make_key(**{**owner, **dimensions})


def format_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%MZ")
