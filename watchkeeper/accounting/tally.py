"""Adding slots of usage up to a table, with a line for what nobody could say.

`recorded`, `ledger` and `job_files` put in slots; `table` closes the books of a window. A cluster's GPUs are in service
from its first slot on: minutes of a slot that were not seen, and slots that are not there, count as unknown at the size
that the cluster had when it was last seen. What lies before the first slot is excluded, and a note says so.
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
# A gap below this is the jitter of clocks, not an absence.
LEAST_GAP_SECONDS = 30.0
POOL, MODEL = (usage.DIMENSIONS.index(name) for name in ("pool", "model"))


@dataclass(frozen=True, slots=True)
class UsageSlot:
    """What is known of one cluster in a stretch of time: the share of it that was seen, and its GPU-hours."""

    start: float
    end: float
    seen: float
    gpu_hours: float

    @property
    def gpus(self) -> float | None:
        """GPUs in service while it was seen."""
        hours = (self.end - self.start) / HOUR * self.seen
        return self.gpu_hours / hours if hours > 0 else None


@dataclass(slots=True)
class UsageTally:
    """Books of a window; `opens` is where the time begins that the window is a piece of."""

    since: float
    until: float
    opens: float | None = None
    notes: list[str] = field(default_factory=list)
    _places: dict[usage.Key, int] = field(default_factory=dict)
    _pieces: list[tuple[npt.NDArray[np.int64], usage.Amounts]] = field(default_factory=list)
    _slots: dict[str, list[UsageSlot]] = field(default_factory=dict)

    def add(self, keys: Sequence[usage.Key], amounts: usage.Amounts) -> None:
        places = self._places
        at = np.fromiter((places.setdefault(one, len(places)) for one in keys), dtype=np.int64, count=len(keys))
        self._pieces.append((at, amounts))

    def saw(self, cluster: str, slot: UsageSlot) -> None:
        self._slots.setdefault(cluster, []).append(slot)

    def follow(self, before: UsageTally) -> None:
        """Clusters of which nothing is known where the window begins go on from what they were in the time before.

        One that was not there then begins here.
        """
        for cluster, slots in before._slots.items():
            begins = min((slot.start for slot in self._slots.get(cluster, ())), default=math.inf)
            # A day of the ledger brings all of its slots, also those after a window that ends in it.
            sized = [slot for slot in slots if slot.start < self.since and slot.gpus is not None]
            if sized and begins > self.since + LEAST_GAP_SECONDS:
                self.saw(cluster, max(sized, key=lambda slot: slot.start))

    def take(self, piece: UsageTally) -> None:
        """Everything that was put into a piece of this window."""
        keys = list(piece._places)
        for at, amounts in piece._pieces:
            self.add([keys[one] for one in at.tolist()], amounts)
        for cluster, slots in piece._slots.items():
            self._slots.setdefault(cluster, []).extend(slots)
        self.notes += piece.notes

    def table(self) -> usage.UsageTable:
        for cluster, slots in sorted(self._slots.items()):
            self._fill(cluster, slots)
        amounts = np.zeros((len(self._places), len(usage.PARTS)))
        for at, piece in self._pieces:
            np.add.at(amounts, at, piece)
        first = min((slots[0].start for slots in self._slots.values()), default=None)
        return usage.UsageTable(self.since, self.until, tuple(self._places), amounts, tuple(self.notes), first)

    def _fill(self, cluster: str, slots: list[UsageSlot]) -> None:
        # An hour that the ledger has kept and the engine still knows is one hour.
        slots[:] = sorted({slot.start: slot for slot in slots}.values(), key=lambda slot: slot.start)
        if slots[0].start > self.since + LEAST_GAP_SECONDS:
            slots[0] = _begun_late(slots[0])
        first = max(slots[0].start, self.since)
        if first - self.since > LEAST_GAP_SECONDS:
            opens = self.since if self.opens is None else self.opens
            self.notes.append(
                f"cluster {usage.shown(cluster)}: records begin at {format_time(first)}; the "
                f"{(first - opens) / HOUR:,.1f} hours before are excluded"
            )
        following = [*(slot.start for slot in slots[1:]), math.inf]
        unknown = sum(self._unseen(slot, before=start) for slot, start in zip(slots, following, strict=True))
        missing = [
            (start, end)
            for start, end in time_ranges.gaps(
                [(slot.start, slot.end) for slot in slots], since=first, until=self.until
            )
            if end - start > LEAST_GAP_SECONDS
        ]
        gap_hours = sum(end - start for start, end in missing) / HOUR
        sized = [(slot.end, slot.gpus) for slot in slots if slot.gpus is not None]
        ends = [end for end, _ in sized]
        for start, end in missing if sized else ():
            before = bisect.bisect_right(ends, start + LEAST_GAP_SECONDS) - 1
            unknown += sized[max(before, 0)][1] * (end - start) / HOUR
        if gap_hours:
            where = f"from {format_time(missing[0][0])}" + (f", in {len(missing)} pieces" if len(missing) > 1 else "")
            self.notes.append(
                f"cluster {usage.shown(cluster)}: nothing was recorded for {_lasting(gap_hours)} ({where}); its GPUs "
                "count as unknown"
            )
        if unknown > 0:
            row = np.zeros((1, len(usage.PARTS)))
            row[0, usage.UNKNOWN] = unknown
            self.add([unowned_key(cluster=cluster, **self._alike(cluster))], row)

    def _alike(self, cluster: str) -> dict[str, str]:
        """Pool and model of GPUs that nobody saw, where all of the cluster's have the same."""
        places = {(key[POOL], key[MODEL]) for key in self._places if key[0] == cluster}
        pools, models = ({place[at] for place in places} for at in (0, 1))
        alike = (("pool", pools), ("model", models))
        return {name: next(iter(values)) for name, values in alike if len(values) == 1}

    def _unseen(self, slot: UsageSlot, *, before: float) -> float:
        """GPU-hours of the part of a slot in which nobody looked; like its own hours it ends where the next begins."""
        inside = min(slot.end, self.until, before) - max(slot.start, self.since)
        gpus = slot.gpus
        return 0.0 if gpus is None or inside <= 0 else gpus * inside / HOUR * (1 - slot.seen)


def _begun_late(slot: UsageSlot) -> UsageSlot:
    """The first hour of all records: what was not seen of it lies before they begin."""
    if slot.end - slot.start != HOUR or not 0 < slot.seen < 1:
        return slot
    return UsageSlot(slot.end - HOUR * slot.seen, slot.end, 1.0, slot.gpu_hours)


def unowned_key(**named: str) -> usage.Key:
    """The key of hours that no workload had."""
    owner = dict.fromkeys(("team", "project", "namespace", "user", "kind", "job"), usage.NOBODY)
    return usage.key(**{**owner, **named})


def _lasting(hours: float) -> str:
    return f"{hours:,.1f} hours" if hours >= 1 else f"{math.ceil(hours * 60)} min"


def format_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%MZ")
