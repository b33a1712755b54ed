"""Decides which GPUs are read, which are suspect and which faults are reported; does no I/O.

A GPU whose driver call hung or killed the reader process is suspect: the next reader process skips it, and after a
growing pause a temporary one tests it. A GPU is identified by its index in NVML's list; when the number of GPUs
changes, no GPU is suspect any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from watchkeeper.readers.nvml.families import Cadence

# NVML's error when it cannot be opened → cause id. Every other error is `unknown`.
BROKEN_CAUSES: Mapping[str, str] = {
    "DRIVER_NOT_LOADED": "driver_not_loaded",
    "LIBRARY_NOT_FOUND": "driver_not_loaded",
    "LIB_RM_VERSION_MISMATCH": "driver_library_mismatch",
    "GPU_IS_LOST": "gpu_fell_off_bus",
}
DRIVER_CALL_HUNG = "driver_call_hung"


@dataclass(frozen=True, slots=True)
class ReaderLimits:
    """Time limits of reader processes.

    An answer must come within half an interval, so that the other GPUs are read in the same interval.
    """

    interval_seconds: float = 1.0
    # Without persistence mode, the first call initialises the GPU, which takes seconds.
    start_seconds: float = 15.0
    slow_seconds: float = 10.0
    rare_seconds: float = 300.0
    # A stuck process keeps about 50 MiB and a place in the driver's queue: with four of them, no other is started.
    max_abandoned: int = 4
    first_pause_seconds: float = 10.0
    max_pause_seconds: float = 600.0
    # A new reader process finds hot-plugged GPUs and retries calls that were not supported.
    renewal_seconds: float = 3600.0
    # A lost GPU returns only for a process that opens NVML again.
    lost_renewal_seconds: float = 60.0

    @property
    def answer_seconds(self) -> float:
        # An H200 takes 130 ms when all its slow and rare calls fall into one answer.
        return max(self.interval_seconds / 2, 0.25)


@dataclass(frozen=True, slots=True)
class ReaderFault:
    """An active fault; `index` and `uuid` None: it affects the whole node."""

    cause: str
    since: float
    evidence: str
    index: int | None = None
    uuid: str | None = None


@dataclass(slots=True)
class WatchedGpu:
    uuid: str | None = None
    pci: str = ""
    # The current reader process has read this GPU's identity.
    is_identified: bool = False
    due_at: dict[Cadence, float] = field(default_factory=dict)
    lost_fault: ReaderFault | None = None
    unreadable_fault: ReaderFault | None = None
    suspect_fault: ReaderFault | None = None
    suspected_at: float = 0.0
    pause_seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.uuid} at {self.pci}" if self.uuid else "an unidentified GPU"


class ReaderWatch:
    """State of the reader processes and GPUs; methods are fast and may be called under one lock."""

    def __init__(self, limits: ReaderLimits) -> None:
        self.limits = limits
        self._gpus: list[WatchedGpu] = []
        self._pci_by_uuid: dict[str, str] = {}
        self._lost_faults: dict[str, ReaderFault] = {}
        self._missing_faults: dict[str, ReaderFault] = {}
        self._node_fault: ReaderFault | None = None
        self._opened_at: float | None = None
        self._starting_since: float | None = None
        self._has_worked = False
        # The slowest first answer of a GPU: milliseconds with persistence mode, seconds without.
        self._first_answer_seconds: float | None = None
        self._abandoned_count = 0
        self._stuck_since = 0.0
        self._start_at = 0.0
        self._start_pause_seconds = 0.0

    @property
    def count(self) -> int:
        return len(self._gpus)

    # Recording what happened.

    def record_starting(self, now: float) -> None:
        self._starting_since = now

    def record_opened(self, count: int, now: float) -> None:
        """A reader process opened NVML, which lists `count` GPUs."""
        self._starting_since, self._node_fault = None, None
        self._opened_at, self._start_pause_seconds = now, 0.0
        self._has_worked = True
        if count != len(self._gpus):
            self._gpus = [WatchedGpu() for _ in range(count)]
        for gpu in self._gpus:
            gpu.is_identified = False
        self._update_missing(now)

    def record_open_failed(self, reason: str, text: str, *, now: float) -> None:
        """NVML could not be opened; `reason` is the name of its error."""
        cause = BROKEN_CAUSES.get(reason, "unknown")
        self._record_closed(ReaderFault(cause, now, f"NVML reports {reason}: {text}"), now)

    def record_start_hung(self, call: str, waited_seconds: float, *, now: float) -> None:
        evidence = f"a new reader process was still in {call or 'its start'} after {waited_seconds:.1f} s"
        self._record_closed(ReaderFault(DRIVER_CALL_HUNG, now, evidence), now)

    def record_start_failed(self, text: str, now: float) -> None:
        self._record_closed(ReaderFault("unknown", now, text), now)

    def record_refused(self, index: int, text: str, now: float) -> None:
        """The driver answers but does not identify this GPU."""
        gpu = self._gpus[index]
        if gpu.unreadable_fault is None:
            gpu.unreadable_fault = ReaderFault("unknown", now, f"GPU {index} cannot be opened: {text}", index)

    def record_answered(
        self, index: int, *, now: float, duration_seconds: float, identity: Mapping[str, str] | None, lost: str | None
    ) -> None:
        gpu = self._gpus[index]
        gpu.suspect_fault = gpu.unreadable_fault = None
        if identity is not None:
            gpu.uuid, gpu.pci, gpu.is_identified = identity["uuid"], identity["pci"], True
            self._pci_by_uuid[gpu.uuid] = gpu.pci
            self._first_answer_seconds = max(duration_seconds, self._first_answer_seconds or 0.0)
        if lost is None:
            gpu.lost_fault = None
            self._lost_faults.pop(gpu.uuid or "", None)
        elif gpu.lost_fault is None:
            evidence = f"{lost} reports {gpu.name} as lost (NVML_ERROR_GPU_IS_LOST)"
            gpu.lost_fault = ReaderFault("gpu_fell_off_bus", now, evidence, index, gpu.uuid)
            self._lost_faults[gpu.uuid or ""] = gpu.lost_fault
        if now - gpu.suspected_at > self.limits.max_pause_seconds:
            gpu.pause_seconds = 0.0
        self._update_missing(now)

    def record_hung(self, index: int, call: str, *, waited_seconds: float, now: float) -> None:
        evidence = f"{call} on {self._gpus[index].name} did not return in {waited_seconds:.1f} s"
        self._mark_suspect(index, DRIVER_CALL_HUNG, now=now, evidence=evidence)

    def record_died(self, index: int, text: str, *, now: float) -> None:
        self._mark_suspect(index, "unknown", now=now, evidence=f"{text} while it read {self._gpus[index].name}")

    def record_probed(self, index: int, *, succeeded: bool, now: float) -> None:
        """Record the result of a probe; a GPU that answered is read again."""
        if index >= len(self._gpus) or (suspect_fault := self._gpus[index].suspect_fault) is None:
            return
        if succeeded:
            self._gpus[index].suspect_fault = None
        else:
            self._mark_suspect(index, suspect_fault.cause, now=now, evidence=suspect_fault.evidence)

    def record_abandoned(self, alive: int, now: float) -> None:
        if alive >= self.limits.max_abandoned > self._abandoned_count:
            self._stuck_since = now
        self._abandoned_count = alive

    # Decisions.

    def may_start(self, now: float) -> bool:
        return self._abandoned_count < self.limits.max_abandoned and now >= self._start_at

    def gpus_to_read(self) -> list[int]:
        return [index for index, gpu in enumerate(self._gpus) if gpu.suspect_fault is None]

    def due_cadences(self, index: int, now: float) -> list[Cadence]:
        """The cadences to read from this GPU now; slow calls of different GPUs fall into different rounds."""
        gpu, due_cadences = self._gpus[index], [Cadence.FAST, Cadence.PROFILE]
        for cadence, seconds in ((Cadence.SLOW, self.limits.slow_seconds), (Cadence.RARE, self.limits.rare_seconds)):
            due_at = gpu.due_at.get(cadence)
            if due_at is None:
                gpu.due_at[cadence] = now + seconds * (index + 1) / len(self._gpus)
            elif now >= due_at:
                gpu.due_at[cadence] = now + seconds
            if due_at is None or now >= due_at:
                due_cadences.append(cadence)
        return due_cadences

    def answer_seconds(self, index: int) -> float:
        """How long to wait for an answer; the first answer to a reader process may take as long as earlier ones."""
        if self._gpus[index].is_identified:
            return self.limits.answer_seconds
        if self._first_answer_seconds is None:
            return self.limits.start_seconds
        return max(self.limits.answer_seconds, min(self.limits.start_seconds, 4 * self._first_answer_seconds))

    def next_suspect(self, now: float) -> int | None:
        """A suspect GPU whose pause is over, if another stuck process would still leave room for a reader."""
        if self._abandoned_count >= self.limits.max_abandoned - 1:
            return None
        due_indices = (
            index
            for index, gpu in enumerate(self._gpus)
            if gpu.suspect_fault is not None and now >= gpu.suspected_at + gpu.pause_seconds
        )
        return next(due_indices, None)

    def is_renewal_due(self, now: float) -> bool:
        if self._opened_at is None or self._abandoned_count:
            return False
        has_lost = bool(self._missing_faults) or any(gpu.lost_fault is not None for gpu in self._gpus)
        return now - self._opened_at >= (self.limits.lost_renewal_seconds if has_lost else self.limits.renewal_seconds)

    def postpone_renewal(self, now: float) -> None:
        """Keep the working reader process for another period, because its replacement could not be opened."""
        self._opened_at = now

    def faults(self, now: float) -> tuple[ReaderFault, ...]:
        faults = [
            fault
            for gpu in self._gpus
            for fault in (gpu.lost_fault, gpu.unreadable_fault, gpu.suspect_fault)
            if fault is not None
        ]
        faults += self._missing_faults.values()
        suspects = [gpu.suspect_fault for gpu in self._gpus if gpu.suspect_fault is not None]
        if self._node_fault is not None:
            faults.append(self._node_fault)
        elif self._gpus and len(suspects) == len(self._gpus) > 1:
            evidence = f"none of {len(self._gpus)} GPUs answers; the last: {suspects[-1].evidence}"
            faults.append(ReaderFault(suspects[-1].cause, suspects[-1].since, evidence))
        elif self._has_worked and (since := self._starting_since) and now - since > 2 * self.limits.interval_seconds:
            evidence = f"no reader process answers; the new one has been starting for {now - since:.1f} s"
            faults.append(ReaderFault(DRIVER_CALL_HUNG, since, evidence))
        if self._abandoned_count >= self.limits.max_abandoned:
            evidence = (
                f"{self._abandoned_count} reader processes are stuck in the driver, "
                f"the limit is {self.limits.max_abandoned}; no more are started until one exits"
            )
            faults.append(ReaderFault(DRIVER_CALL_HUNG, self._stuck_since, evidence))
        return tuple(faults)

    def _record_closed(self, fault: ReaderFault, now: float) -> None:
        """No reader process is open. A repeated fault keeps its start time."""
        before = self._node_fault
        self._node_fault = fault if before is None or before.cause != fault.cause else before
        self._opened_at = self._starting_since = None
        interval = self.limits.interval_seconds
        self._start_pause_seconds = min(max(2 * self._start_pause_seconds, interval), self.limits.max_pause_seconds)
        self._start_at = now + min(self._start_pause_seconds, 30 * interval)

    def _mark_suspect(self, index: int, cause: str, *, now: float, evidence: str) -> None:
        gpu = self._gpus[index]
        since = now if gpu.suspect_fault is None else gpu.suspect_fault.since
        gpu.suspect_fault = ReaderFault(cause, since, evidence, index, gpu.uuid)
        pause_seconds = max(2 * gpu.pause_seconds, self.limits.first_pause_seconds)
        gpu.pause_seconds = min(pause_seconds, self.limits.max_pause_seconds)
        gpu.suspected_at = now

    def _update_missing(self, now: float) -> None:
        """Update the faults of GPUs that were read before and that NVML no longer lists."""
        if not all(gpu.is_identified or gpu.suspect_fault for gpu in self._gpus):
            return
        listed_uuids = {gpu.uuid for gpu in self._gpus}
        for uuid, pci in self._pci_by_uuid.items():
            if uuid in listed_uuids:
                self._missing_faults.pop(uuid, None)
            elif uuid not in self._missing_faults:
                evidence = f"NVML lists {len(self._gpus)} GPUs; {uuid} at {pci} is missing"
                lost_fault = self._lost_faults.get(uuid)
                if lost_fault is None:
                    self._missing_faults[uuid] = ReaderFault("gpu_missing", now, evidence, None, uuid)
                else:
                    evidence = f"{lost_fault.evidence}; {evidence}"
                    self._missing_faults[uuid] = replace(lost_fault, evidence=evidence, index=None)
