"""Who is asked, who is suspect, and what is said about it: the decisions behind the sampler, without any I/O.

The sampler tells what happened (`opened`, `answered`, `hung` …) and asks what follows (`asks`, `may_start`,
`retry_due`, `troubles`). Times are seconds of a clock that never jumps. A GPU on which a call hung or killed
the reader is a suspect: the next reader leaves it out, and after a growing pause a disposable one tries it.
A GPU is known by its index within one enumeration; when the count changes, suspicions start anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from watchkeeper.readers.nvml.families import Cadence

# What NVML says when it cannot be opened, as the cause that people know. Anything else is `unknown`.
BROKEN_CAUSES: Mapping[str, str] = {
    "DRIVER_NOT_LOADED": "driver_not_loaded",
    "LIBRARY_NOT_FOUND": "driver_not_loaded",
    "LIB_RM_VERSION_MISMATCH": "driver_library_mismatch",
    "GPU_IS_LOST": "gpu_fell_off_bus",
}
HUNG = "driver_call_hung"


@dataclass(frozen=True, slots=True)
class ReaderLimits:
    """How long is too long. An answer must come in half an interval, so that the others still get theirs in it."""

    interval: float = 1.0
    # Without persistence mode the first touch of a GPU initialises it, which takes seconds.
    start: float = 15.0
    slow: float = 10.0
    rare: float = 300.0
    # A stuck child keeps some 50 MiB and a place in the driver's queue: four, then nobody is sent after them.
    max_abandoned: int = 4
    first_pause: float = 10.0
    longest_pause: float = 600.0
    # A fresh reader sees hot-plugged GPUs and asks once more for what was unsupported.
    renewal: float = 3600.0
    # A lost GPU only comes back for a reader that opens NVML anew.
    lost_renewal: float = 60.0

    @property
    def answer(self) -> float:
        # An H200 takes 130 ms when every slow and rare call of it falls into one answer.
        return max(self.interval / 2, 0.25)


@dataclass(frozen=True, slots=True)
class ReaderFault:
    """One named fault. `index` and `uuid` None: the whole node."""

    cause: str
    since: float
    evidence: str
    index: int | None = None
    uuid: str | None = None


@dataclass(slots=True)
class WatchedGpu:
    """What is known about the GPU at one index."""

    uuid: str | None = None
    pci: str = ""
    # The reader that is open now has found out who sits here.
    is_identified: bool = False
    due: dict[Cadence, float] = field(default_factory=dict)
    lost: ReaderFault | None = None
    unreadable: ReaderFault | None = None
    suspect: ReaderFault | None = None
    suspected_at: float = 0.0
    pause: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.uuid} at {self.pci}" if self.uuid else "a GPU that has not said its name"


class ReaderWatch:
    """The memory of the decisions; every method is quick and may be called under one lock."""

    def __init__(self, limits: ReaderLimits) -> None:
        self.limits = limits
        self._gpus: list[WatchedGpu] = []
        self._seen: dict[str, str] = {}
        self._lost: dict[str, ReaderFault] = {}
        self._missing: dict[str, ReaderFault] = {}
        self._node: ReaderFault | None = None
        self._opened_at: float | None = None
        self._starting_since: float | None = None
        self._has_worked = False
        # The longest that a first answer took: milliseconds with persistence mode, seconds without.
        self._attach: float | None = None
        self._abandoned = 0
        self._stuck_since = 0.0
        self._start_at = 0.0
        self._start_pause = 0.0

    @property
    def count(self) -> int:
        return len(self._gpus)

    # What happened.

    def starting(self, now: float) -> None:
        self._starting_since = now

    def opened(self, count: int, now: float) -> None:
        """A reader has opened NVML and found this many GPUs."""
        self._starting_since, self._node = None, None
        self._opened_at, self._start_pause = now, 0.0
        self._has_worked = True
        if count != len(self._gpus):
            self._gpus = [WatchedGpu() for _ in range(count)]
        for gpu in self._gpus:
            gpu.is_identified = False
        self._look_for_missing(now)

    def open_failed(self, reason: str, text: str, *, now: float) -> None:
        """NVML cannot be opened."""
        cause = BROKEN_CAUSES.get(reason, "unknown")
        self._closed(ReaderFault(cause, now, f"NVML says {reason}: {text}"), now)

    def start_hung(self, call: str, waited: float, *, now: float) -> None:
        evidence = f"a new reader did not get beyond {call or 'its start'} in {waited:.1f} s"
        self._closed(ReaderFault(HUNG, now, evidence), now)

    def start_failed(self, text: str, now: float) -> None:
        self._closed(ReaderFault("unknown", now, text), now)

    def refused(self, index: int, text: str, now: float) -> None:
        """The driver answers, but does not even say who this GPU is."""
        gpu = self._gpus[index]
        if gpu.unreadable is None:
            gpu.unreadable = ReaderFault("unknown", now, f"GPU {index} cannot be opened: {text}", index)

    def answered(
        self, index: int, *, now: float, took: float, identity: Mapping[str, str] | None, lost: str | None
    ) -> None:
        gpu = self._gpus[index]
        gpu.suspect = gpu.unreadable = None
        if identity is not None:
            gpu.uuid, gpu.pci, gpu.is_identified = identity["uuid"], identity["pci"], True
            self._seen[gpu.uuid] = gpu.pci
            self._attach = max(took, self._attach or 0.0)
        if lost is None:
            gpu.lost = None
            self._lost.pop(gpu.uuid or "", None)
        elif gpu.lost is None:
            evidence = f"{lost} says that {gpu.name} is lost (NVML_ERROR_GPU_IS_LOST)"
            gpu.lost = self._lost[gpu.uuid or ""] = ReaderFault("gpu_fell_off_bus", now, evidence, index, gpu.uuid)
        if now - gpu.suspected_at > self.limits.longest_pause:
            gpu.pause = 0.0
        self._look_for_missing(now)

    def hung(self, index: int, call: str, *, waited: float, now: float) -> None:
        gpu = self._gpus[index]
        self._suspect(index, HUNG, now=now, evidence=f"{call} on {gpu.name} did not return in {waited:.1f} s")

    def died(self, index: int, text: str, *, now: float) -> None:
        self._suspect(index, "unknown", now=now, evidence=f"{text} while it read {self._gpus[index].name}")

    def retried(self, index: int, *, succeeded: bool, now: float) -> None:
        """What the disposable reader found; a GPU that answers is asked again like the others."""
        if index >= len(self._gpus) or (suspect := self._gpus[index].suspect) is None:
            return
        if succeeded:
            self._gpus[index].suspect = None
        else:
            self._suspect(index, suspect.cause, now=now, evidence=suspect.evidence)

    def abandoned(self, alive: int, now: float) -> None:
        """How many children that were given up still exist."""
        if alive >= self.limits.max_abandoned > self._abandoned:
            self._stuck_since = now
        self._abandoned = alive

    # What follows.

    def may_start(self, now: float) -> bool:
        return self._abandoned < self.limits.max_abandoned and now >= self._start_at

    def gpus_to_read(self) -> list[int]:
        """The GPUs to ask in this round."""
        return [index for index, gpu in enumerate(self._gpus) if gpu.suspect is None]

    def cadences(self, index: int, now: float) -> list[Cadence]:
        """What to ask this GPU for now; slow calls of different GPUs fall into different rounds."""
        gpu, found = self._gpus[index], [Cadence.FAST, Cadence.PROFILE]
        for cadence, seconds in ((Cadence.SLOW, self.limits.slow), (Cadence.RARE, self.limits.rare)):
            due = gpu.due.get(cadence)
            if due is None:
                gpu.due[cadence] = now + seconds * (index + 1) / len(self._gpus)
            elif now >= due:
                gpu.due[cadence] = now + seconds
            if due is None or now >= due:
                found.append(cadence)
        return found

    def answer_seconds(self, index: int) -> float:
        """How long to wait for an answer; a reader's first touch of a GPU may take as long as it took before."""
        if self._gpus[index].is_identified:
            return self.limits.answer
        if self._attach is None:
            return self.limits.start
        return max(self.limits.answer, min(self.limits.start, 4 * self._attach))

    def retry_due(self, now: float) -> int | None:
        """A suspect whose pause is over, if one more stuck child would still leave room for a reader."""
        if self._abandoned >= self.limits.max_abandoned - 1:
            return None
        due = (
            index
            for index, gpu in enumerate(self._gpus)
            if gpu.suspect is not None and now >= gpu.suspected_at + gpu.pause
        )
        return next(due, None)

    def renewal_due(self, now: float) -> bool:
        if self._opened_at is None or self._abandoned:
            return False
        has_lost = bool(self._missing) or any(gpu.lost is not None for gpu in self._gpus)
        return now - self._opened_at >= (self.limits.lost_renewal if has_lost else self.limits.renewal)

    def postpone_renewal(self, now: float) -> None:
        """A replacement could not be opened; the reader that works stays for another term."""
        self._opened_at = now

    def faults(self, now: float) -> tuple[ReaderFault, ...]:
        """Every named fault that holds now."""
        found = [
            trouble for gpu in self._gpus for trouble in (gpu.lost, gpu.unreadable, gpu.suspect) if trouble is not None
        ]
        found += self._missing.values()
        suspects = [gpu.suspect for gpu in self._gpus if gpu.suspect is not None]
        if self._node is not None:
            found.append(self._node)
        elif self._gpus and len(suspects) == len(self._gpus) > 1:
            evidence = f"none of {len(self._gpus)} GPUs answers; the last: {suspects[-1].evidence}"
            found.append(ReaderFault(suspects[-1].cause, suspects[-1].since, evidence))
        elif self._has_worked and (since := self._starting_since) and now - since > 2 * self.limits.interval:
            found.append(
                ReaderFault(HUNG, since, f"no reader answers; the new one is starting for {now - since:.1f} s")
            )
        if self._abandoned >= self.limits.max_abandoned:
            evidence = (
                f"{self._abandoned} readers are stuck in the driver, the limit is {self.limits.max_abandoned}; "
                "no other is started until one of them ends"
            )
            found.append(ReaderFault(HUNG, self._stuck_since, evidence))
        return tuple(found)

    def _closed(self, trouble: ReaderFault, now: float) -> None:
        """There is no reader. The same trouble keeps the time at which it began."""
        before = self._node
        self._node = trouble if before is None or before.cause != trouble.cause else before
        self._opened_at = self._starting_since = None
        self._start_pause = min(max(2 * self._start_pause, self.limits.interval), self.limits.longest_pause)
        self._start_at = now + min(self._start_pause, 30 * self.limits.interval)

    def _suspect(self, index: int, cause: str, *, now: float, evidence: str) -> None:
        gpu = self._gpus[index]
        since = now if gpu.suspect is None else gpu.suspect.since
        gpu.suspect = ReaderFault(cause, since, evidence, index, gpu.uuid)
        gpu.pause = min(max(2 * gpu.pause, self.limits.first_pause), self.limits.longest_pause)
        gpu.suspected_at = now

    def _look_for_missing(self, now: float) -> None:
        """A GPU that this agent has seen and that no longer stands in NVML's list."""
        if not all(gpu.is_identified or gpu.suspect for gpu in self._gpus):
            return
        here = {gpu.uuid for gpu in self._gpus}
        for uuid, pci in self._seen.items():
            if uuid in here:
                self._missing.pop(uuid, None)
            elif uuid not in self._missing:
                evidence = f"NVML lists {len(self._gpus)} GPUs and no longer {uuid} at {pci}"
                known = self._lost.get(uuid)
                self._missing[uuid] = (
                    ReaderFault("gpu_missing", now, evidence, None, uuid)
                    if known is None
                    else ReaderFault(known.cause, known.since, f"{known.evidence}; {evidence}", None, uuid)
                )
