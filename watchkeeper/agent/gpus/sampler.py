"""Reads every GPU of this node at an interval and keeps the newest sample of each for the /metrics page.

A thread of the agent asks one reader process for one GPU at a time. `reader_watch` decides what follows: a reader
process that does not answer in time is killed, the next one skips the suspect GPU, and the other GPUs are read in the
same round.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from watchkeeper.agent.gpus.gpu_page import GpuPage
from watchkeeper.agent.gpus.gpu_samples import GpuSample, SampleMerger, Snapshot, add_xid
from watchkeeper.agent.gpus.reader_link import ReaderExited, ReaderLink
from watchkeeper.agent.gpus.reader_watch import ReaderFault, ReaderLimits, ReaderWatch
from watchkeeper.kit import clock, logs
from watchkeeper.model import fleet
from watchkeeper.readers.nvml import choice, families

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DriverFault:
    """A fault of reading this node's GPUs; `cause` is an id from packs/causes.csv."""

    cause: str
    place: fleet.Place
    since: datetime
    evidence: str


@dataclass(frozen=True, slots=True)
class NvmlEvent:
    """An event as NVML delivered it, before it is merged with the kernel log line about the same fault."""

    kind: str
    uuid: str | None
    detail: int
    at: datetime
    instance_id: int | None = None


@dataclass(frozen=True, slots=True)
class SamplerSettings:
    """`place` is this node; `environment` is for the reader process (None: the agent's environment)."""

    place: fleet.Place
    hostname: str
    limits: ReaderLimits = field(default_factory=ReaderLimits)
    choice: choice.FamilyChoice = field(default_factory=choice.choose_families)
    events: bool = True
    environment: Mapping[str, str] | None = None
    # Adds profiling metrics of another source to GPUs for which NVML has none.
    add_profiling: Callable[[GpuSample], GpuSample] | None = None


@dataclass(slots=True)
class SuspectProbe:
    link: ReaderLink
    index: int
    deadline: float


class Sampler:
    """Reads the GPUs in a thread: call `start` and `stop` once, and the other methods from any thread in between."""

    def __init__(
        self, settings: SamplerSettings, wall: clock.Clock, *, on_event: Callable[[NvmlEvent], None] | None = None
    ) -> None:
        self._settings = settings
        self._wall_clock = wall
        self._on_event = on_event
        limits = settings.limits
        self._watch = ReaderWatch(limits)
        self._lock = threading.Lock()
        cadence = families.Cadence
        fresh_seconds = dict.fromkeys((cadence.FAST, cadence.PROFILE), 2 * limits.interval_seconds)
        fresh_seconds |= {cadence.SLOW: 2 * limits.slow_seconds, cadence.RARE: 2 * limits.rare_seconds}
        self._page = GpuPage(settings.choice.families, hostname=settings.hostname, fresh_seconds=fresh_seconds)
        self._merger = SampleMerger({family.name: family.cadence for family in settings.choice.families})
        self._samples_by_index: dict[int, GpuSample] = {}
        self._snapshot = Snapshot()
        self._reader: ReaderLink | None = None
        self._probe: SuspectProbe | None = None
        self._abandoned: list[ReaderLink] = []
        self._answers: list[dict[str, Any]] = []
        self._logged_faults: set[tuple[str, str | None]] = set()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_stopping = self._is_release_requested = self._needs_renewal = False
        # Whether no reader process of this agent has a GPU open.
        self.has_released_gpus = False
        self.is_profiling_paused = False
        self._thread = threading.Thread(target=self._run, name="watchkeeper-sampler", daemon=True)

    # Called by the agent.

    def start(self) -> None:
        for problem in self._settings.choice.problems:
            log.warning("counter ignored", extra=logs.fields(problem=problem))
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and its reader processes; a process that cannot be killed is left to the kernel."""
        self._is_stopping = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)

    def pause_profiling(self, is_paused: bool) -> None:
        """Release the profiling counters to other tools, or use them again."""
        with self._lock:
            # The reader process is replaced, because it keeps the counters reserved in the driver.
            self._needs_renewal |= is_paused and not self.is_profiling_paused
            self.is_profiling_paused = is_paused

    def release_gpus(self, is_released: bool) -> None:
        """Close every GPU in the next round, or open them again: a reset needs a GPU that no process has open."""
        self._is_release_requested, self.has_released_gpus = is_released, False

    def page(self) -> bytes:
        return self._page.render(self._snapshot, time.monotonic())

    def set_holders(self, holders: Mapping[tuple[str, str | None], Mapping[str, str]]) -> None:
        """Show these holder labels on the page; call it in the thread that renders the page."""
        self._page.set_holders(holders)

    def snapshot(self) -> Snapshot:
        """The newest sample of each GPU; times are those of `time.monotonic`."""
        return self._snapshot

    def faults(self) -> list[DriverFault]:
        now, wall_now = time.monotonic(), self._wall_clock.now()
        with self._lock:
            reader_faults = self._watch.faults(now)
        faults = []
        for fault in reader_faults:
            since = wall_now - timedelta(seconds=max(0.0, now - fault.since))
            place = replace(self._settings.place, gpu=fault.uuid)
            faults.append(DriverFault(fault.cause, place, since, fault.evidence))
        return faults

    def gpus(self) -> tuple[fleet.Gpu, ...]:
        """The GPUs that have answered, for the inventory."""
        return tuple(
            fleet.Gpu(
                gpu.identity["uuid"], gpu.index, fleet.normalise_pci(gpu.identity["pci"]), model=gpu.identity["model"]
            )
            for gpu in self._snapshot.gpus
        )

    # Runs in the sampler's thread.

    def _run(self) -> None:
        interval = self._settings.limits.interval_seconds
        due = time.monotonic()
        while not self._is_stopping:
            self._run_step(self._read_all_gpus)
            self._run_step(self._publish_snapshot)
            # A round that takes longer than its interval skips the rounds that it missed.
            due = max(due + interval, time.monotonic())
            while not self._is_stopping and time.monotonic() < due:
                self._run_step(self._poll_readers, due)
        self._drop_reader()
        self._end_probe()
        for link in self._abandoned:
            link.wait_for_exit(1.0)

    def _run_step(self, step: Callable[..., None], *arguments: float) -> None:
        """Run one step; an error costs the reader process, not the thread."""
        try:
            step(*arguments)
        except ReaderExited as error:
            log.warning("reader process exited", extra=logs.fields(problem=str(error)))
            self._drop_reader()
        except Exception:
            log.exception("sampling failed, reader process restarted")
            self._drop_reader()

    def _read_all_gpus(self) -> None:
        if self._is_release_requested:
            self._drop_reader()
            self._end_probe()
            self._reap_abandoned(time.monotonic())
            self.has_released_gpus = not self._abandoned
            return
        now = time.monotonic()
        self._reap_abandoned(now)
        self._probe_suspects(now)
        with self._lock:
            is_renewal_due = self._watch.is_renewal_due(now)
            is_renewal_requested, self._needs_renewal = self._needs_renewal, False
        if is_renewal_due or (is_renewal_requested and self._reader is not None and not self._abandoned):
            self._renew_reader(now)
        if self._reader is None and not self._start_reader():
            return
        with self._lock:
            indices = self._watch.gpus_to_read()
        for index in indices:
            if self._is_stopping or (self._reader is None and not self._start_reader()):
                return
            self._read_gpu(index)

    def _read_gpu(self, index: int) -> None:
        reader = self._reader
        assert reader is not None
        requested_at = time.monotonic()
        with self._lock:
            cadences = self._watch.due_cadences(index, requested_at)
            timeout_seconds = self._watch.answer_seconds(index)
        if self.is_profiling_paused:
            cadences.remove(families.Cadence.PROFILE)
        self._answers.clear()
        try:
            reader.request_reading(index, cadences)
            self._poll_readers(requested_at + timeout_seconds, for_answer=True)
        except ReaderExited as error:
            self._drop_reader()
            with self._lock:
                self._watch.record_died(index, str(error), now=time.monotonic())
            return
        now = time.monotonic()
        if self._answers:
            self._record_answer(self._answers[0], cadences, requested_at=requested_at, now=now)
        elif not self._is_stopping:
            call = reader.current_call()
            waited = now - requested_at
            log.warning("driver call hung", extra=logs.fields(call=call, gpu=index, waited_seconds=round(waited, 1)))
            self._drop_reader()
            with self._lock:
                self._watch.record_hung(index, call, waited_seconds=waited, now=now)

    def _record_answer(
        self, answer: Mapping[str, Any], cadences: list[families.Cadence], *, requested_at: float, now: float
    ) -> None:
        index, identity, lost = answer["gpu"], answer.get("identity"), answer.get("lost")
        with self._lock:
            if "refused" in answer:
                self._watch.record_refused(index, answer["refused"], now)
                self._samples_by_index.pop(index, None)
                return
            duration = now - requested_at
            self._watch.record_answered(index, now=now, duration_seconds=duration, identity=identity, lost=lost)
        before = self._samples_by_index.get(index)
        if identity is not None and (before is None or before.identity["uuid"] != identity["uuid"]):
            before = GpuSample(index, identity, {}, {}, last_xid=0 if answer.get("events") else None)
        if before is None:
            return
        after = self._merger.merge(before, answer, cadences=cadences, read_at=requested_at)
        self._samples_by_index[index] = after
        for call, error in after.errors.keys() - before.errors.keys():
            log.warning("driver call failed", extra=logs.fields(gpu=after.identity["uuid"], call=call, error=error))

    def _publish_snapshot(self) -> None:
        now = time.monotonic()
        with self._lock:
            reader_faults = self._watch.faults(now)
            count = self._watch.count
        self._samples_by_index = {index: gpu for index, gpu in self._samples_by_index.items() if index < count}
        self._log_faults(reader_faults)
        faults = tuple((fault.cause, fault.uuid) for fault in reader_faults)
        self._snapshot = Snapshot(self._build_samples(), faults)

    def _build_samples(self) -> tuple[GpuSample, ...]:
        samples = (self._samples_by_index[index] for index in sorted(self._samples_by_index))
        add_profiling = self._settings.add_profiling
        return tuple(samples) if add_profiling is None else tuple(map(add_profiling, samples))

    def _log_faults(self, reader_faults: tuple[ReaderFault, ...]) -> None:
        active = {(fault.cause, fault.uuid) for fault in reader_faults}
        for fault in reader_faults:
            if (fault.cause, fault.uuid) not in self._logged_faults:
                log_fields = logs.fields(cause=fault.cause, gpu=fault.uuid, evidence=fault.evidence)
                log.error("gpu fault detected", extra=log_fields)
        for cause, uuid in self._logged_faults - active:
            log.info("gpu fault resolved", extra=logs.fields(cause=cause, gpu=uuid))
        self._logged_faults = active

    # Reader processes.

    def _start_reader(self) -> bool:
        """Start a reader process; False if that is not allowed now or failed."""
        with self._lock:
            if not self._watch.may_start(time.monotonic()):
                return False
        self._reader = self._open_reader()
        return self._reader is not None

    def _renew_reader(self, now: float) -> None:
        """Start the next reader process before the old one is killed, so that every GPU always has a client."""
        old, new = self._reader, self._open_reader()
        if new is None:
            with self._lock:
                self._watch.postpone_renewal(now)
            return
        self._reader = new
        self._abandon_reader(old)

    def _open_reader(self) -> ReaderLink | None:
        """Start a reader process and wait until it has opened NVML; None if that failed."""
        now = time.monotonic()
        timeout_seconds = self._settings.limits.start_seconds
        with self._lock:
            self._watch.record_starting(now)
        self._answers.clear()
        link: ReaderLink | None = None
        try:
            link = self._spawn_reader(events=self._settings.events)
            self._poll_readers(now + timeout_seconds, for_answer=True, opening=link)
        except ReaderExited as error:
            self._abandon_reader(link)
            with self._lock:
                self._watch.record_start_failed(str(error), time.monotonic())
            return None
        answer = self._answers[0] if self._answers else {}
        now = time.monotonic()
        with self._lock:
            if "hello" in answer:
                self._watch.record_opened(answer["hello"]["count"], now)
                return link
            if "broken" in answer:
                self._watch.record_open_failed(answer["broken"], answer["text"], now=now)
            elif not self._is_stopping:
                self._watch.record_start_hung(link.current_call(), timeout_seconds, now=now)
        self._abandon_reader(link)
        return None

    def _spawn_reader(self, *, events: bool) -> ReaderLink:
        return ReaderLink(self._settings.choice.families, events=events, environment=self._settings.environment)

    def _drop_reader(self) -> None:
        self._abandon_reader(self._reader)
        self._reader = None

    def _abandon_reader(self, link: ReaderLink | None) -> None:
        if link is not None:
            link.abandon()
            # A killed process exits within milliseconds, unless it waits in the kernel.
            link.wait_for_exit(0.05)
            self._abandoned.append(link)
            self._reap_abandoned(time.monotonic())

    def _reap_abandoned(self, now: float) -> None:
        self._abandoned = [link for link in self._abandoned if not link.has_exited()]
        with self._lock:
            self._watch.record_abandoned(len(self._abandoned), now)

    def _probe_suspects(self, now: float) -> None:
        """Start a probe of a suspect GPU whose pause is over, and end a probe that exceeds its deadline."""
        probe = self._probe
        if probe is not None and now >= probe.deadline:
            self._end_probe()
            with self._lock:
                self._watch.record_probed(probe.index, succeeded=False, now=now)
        with self._lock:
            index = self._watch.next_suspect(now) if self._probe is None else None
        if index is not None:
            try:
                deadline = now + self._settings.limits.start_seconds
                self._probe = SuspectProbe(self._spawn_reader(events=False), index, deadline)
            except ReaderExited as error:
                log.warning("suspect gpu not probed", extra=logs.fields(gpu=index, problem=str(error)))

    def _end_probe(self) -> None:
        if self._probe is not None:
            link, self._probe = self._probe.link, None
            self._abandon_reader(link)

    def _read_probe(self, probe: SuspectProbe) -> None:
        try:
            for message in probe.link.read_messages():
                if "hello" in message:
                    probe.link.request_reading(probe.index, [families.Cadence.FAST])
                elif "gpu" in message or "broken" in message:
                    with self._lock:
                        self._watch.record_probed(probe.index, succeeded="gpu" in message, now=time.monotonic())
                    self._end_probe()
        except ReaderExited:
            self._end_probe()
            with self._lock:
                self._watch.record_probed(probe.index, succeeded=False, now=time.monotonic())

    # Messages of reader processes.

    def _poll_readers(self, deadline: float, *, for_answer: bool = False, opening: ReaderLink | None = None) -> None:
        """Read messages of all reader processes until the deadline, the awaited answer, or the stop."""
        while not self._is_stopping and not (for_answer and self._answers):
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0:
                return
            links = [link for link in (opening, self._reader) if link is not None]
            if self._probe is not None:
                links.append(self._probe.link)
            by_fd = {link.fileno(): link for link in links}
            poll = select.poll()
            for fd in (*by_fd, self._wake):
                poll.register(fd, select.POLLIN)
            for fd, _ in poll.poll(seconds_left * 1000):
                if self._probe is not None and by_fd.get(fd) is self._probe.link:
                    self._read_probe(self._probe)
                elif fd in by_fd:
                    self._read_reader(by_fd[fd], is_awaited=opening is None or by_fd[fd] is opening)

    def _read_reader(self, link: ReaderLink, *, is_awaited: bool) -> None:
        for message in link.read_messages():
            if "event" in message:
                self._pass_on_event(message["event"])
            elif is_awaited:
                self._answers.append(message)

    def _pass_on_event(self, event: Mapping[str, Any]) -> None:
        nvml_event = NvmlEvent(event["kind"], event["uuid"], event["detail"], self._wall_clock.now(), event["slice_id"])
        if nvml_event.kind == "xid":
            for index, gpu in self._samples_by_index.items():
                if gpu.identity["uuid"] == nvml_event.uuid:
                    self._samples_by_index[index] = add_xid(gpu, nvml_event.detail)
            self._snapshot = replace(self._snapshot, gpus=self._build_samples())
        if self._on_event is not None:
            self._on_event(nvml_event)
