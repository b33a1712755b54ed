"""Reads every GPU of this machine on an interval and keeps the page that a scrape gets.

A thread of the agent asks one reader child for one GPU at a time. What `reader_watch` decides happens
here: a child that is late is given up, the next one leaves the suspect out, and the other GPUs get their
turn in the same round. `page` renders the last snapshot and never waits for the driver; `faults` says by
name what is wrong; NVML's events go to `on_event` as they come, in the sampler's thread.
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

from watchkeeper.agent.gpus.gpu_page import Freshness, GpuPage
from watchkeeper.agent.gpus.gpu_samples import GpuSample, SampleMerger, Snapshot, with_xid
from watchkeeper.agent.gpus.reader_link import ReaderGone, ReaderLink
from watchkeeper.agent.gpus.reader_watch import ReaderFault, ReaderLimits, ReaderWatch
from watchkeeper.kit import clock, logs
from watchkeeper.model import fleet
from watchkeeper.readers.nvml import choice, families

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DriverFault:
    """Something about reading this node that has a name; `cause` is one of packs/causes.csv."""

    cause: str
    place: fleet.Place
    since: datetime
    evidence: str


@dataclass(frozen=True, slots=True)
class DriverFact:
    """One event as NVML gave it: raw, for merging with the kernel's line about the same thing."""

    kind: str
    uuid: str | None
    detail: int
    at: datetime
    slice_id: int | None = None


@dataclass(frozen=True, slots=True)
class SamplerSettings:
    """`place` is this node; `environment` is for the reader child, None for the agent's own."""

    place: fleet.Place
    hostname: str
    limits: ReaderLimits = field(default_factory=ReaderLimits)
    choice: choice.Choice = field(default_factory=choice.choose_families)
    events: bool = True
    environment: Mapping[str, str] | None = None
    # Another source of profiling metrics, for GPUs on which NVML has none.
    profiled: Callable[[GpuSample], GpuSample] | None = None


@dataclass(slots=True)
class Probe:
    """A disposable reader that tries one suspect."""

    link: ReaderLink
    index: int
    gives_up_at: float


class Sampler:
    """Start it once, stop it once; everything else may be called from any thread in between."""

    def __init__(
        self, settings: SamplerSettings, wall: clock.Clock, *, on_event: Callable[[DriverFact], None] | None = None
    ) -> None:
        self._settings = settings
        self._wall = wall
        self._on_event = on_event
        limits = settings.limits
        self._watch = ReaderWatch(limits)
        self._lock = threading.Lock()
        two = {families.Cadence.FAST: limits.interval, families.Cadence.PROFILE: limits.interval}
        two |= {families.Cadence.SLOW: limits.slow, families.Cadence.RARE: limits.rare}
        freshness = Freshness({cadence: 2 * seconds for cadence, seconds in two.items()})
        self._page = GpuPage(settings.choice.families, hostname=settings.hostname, freshness=freshness)
        self._merger = SampleMerger({family.name: family.cadence for family in settings.choice.families})
        self._gpus: dict[int, GpuSample] = {}
        self._snapshot = Snapshot()
        self._reader: ReaderLink | None = None
        self._probe: Probe | None = None
        self._given_up: list[ReaderLink] = []
        self._answers: list[dict[str, Any]] = []
        self._said: set[tuple[str, str | None]] = set()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_stopping = self._is_resting = self._is_at_rest = False
        self._is_profiling_paused = self._needs_renewal = False
        self._thread = threading.Thread(target=self._run, name="watchkeeper-sampler", daemon=True)

    # For the agent.

    def start(self) -> None:
        for problem in self._settings.choice.problems:
            log.warning("Counter left out", extra=logs.fields(problem=problem))
        self._thread.start()

    def stop(self) -> None:
        """End the thread and its children; a child that cannot be killed is left to the kernel."""
        self._is_stopping = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)

    def pause_profiling(self, is_paused: bool) -> None:
        """Leave the profiling counters to other tools, or take them up again."""
        with self._lock:
            # The reader that sampled them goes as well, so that nothing of it stays reserved in the driver.
            self._needs_renewal |= is_paused and not self._is_profiling_paused
            self._is_profiling_paused = is_paused

    def release_gpus(self, is_resting: bool) -> None:
        """Let go of every GPU with the next round, or take them up again: a reset needs one that nobody has open."""
        self._is_resting, self._is_at_rest = is_resting, False

    @property
    def has_released_gpus(self) -> bool:
        """No reader of ours has a GPU open."""
        return self._is_at_rest

    @property
    def is_profiling_paused(self) -> bool:
        return self._is_profiling_paused

    def page(self) -> bytes:
        """The /metrics page now."""
        return self._page.render(self._snapshot, time.monotonic())

    def set_holders(self, holders: Mapping[tuple[str, str | None], Mapping[str, str]]) -> None:
        """Show these labels of holders on the page; for the thread that asks for the page."""
        self._page.set_holders(holders)

    def snapshot(self) -> Snapshot:
        """What was last read of each GPU; its times are those of time.monotonic."""
        return self._snapshot

    def faults(self) -> list[DriverFault]:
        """Every named fault that holds now."""
        now, wall = time.monotonic(), self._wall.now()
        with self._lock:
            troubles = self._watch.faults(now)
        return [
            DriverFault(
                trouble.cause,
                replace(self._settings.place, gpu=trouble.uuid),
                wall - timedelta(seconds=max(0.0, now - trouble.since)),
                trouble.evidence,
            )
            for trouble in troubles
        ]

    def gpus(self) -> tuple[fleet.Gpu, ...]:
        """The GPUs that have answered, as the inventory wants them."""
        return tuple(
            fleet.Gpu(
                gpu.identity["uuid"], gpu.index, fleet.normalise_pci(gpu.identity["pci"]), model=gpu.identity["model"]
            )
            for gpu in self._snapshot.gpus
        )

    # The thread.

    def _run(self) -> None:
        interval = self._settings.limits.interval
        due = time.monotonic()
        while not self._is_stopping:
            self._guarded(self._round)
            self._guarded(self._publish)
            # A round that took longer than its interval skips the ones it missed.
            due = max(due + interval, time.monotonic())
            while not self._is_stopping and time.monotonic() < due:
                self._guarded(self._listen, due)
        self._drop_reader()
        self._end_probe()
        for link in self._given_up:
            link.wait_gone(1.0)

    def _guarded(self, step: Callable[..., None], *given: float) -> None:
        """Whatever goes wrong with a child costs that child and not the watch."""
        try:
            step(*given)
        except ReaderGone as error:
            log.warning("Reader gone", extra=logs.fields(problem=str(error)))
            self._drop_reader()
        except Exception:
            log.exception("Sampling failed; a new reader is started")
            self._drop_reader()

    def _round(self) -> None:
        """Ask every GPU that is not suspect, once."""
        if self._is_resting:
            self._drop_reader()
            self._end_probe()
            self._reap(time.monotonic())
            self._is_at_rest = not self._given_up
            return
        now = time.monotonic()
        self._reap(now)
        self._try_suspects(now)
        with self._lock:
            is_renewal_due = self._watch.renewal_due(now)
            is_renewal_wanted, self._needs_renewal = self._needs_renewal, False
        if is_renewal_due or (is_renewal_wanted and self._reader is not None and not self._given_up):
            self._renew(now)
        if self._reader is None and not self._start():
            return
        with self._lock:
            asks = self._watch.gpus_to_read()
        for index in asks:
            if self._is_stopping or (self._reader is None and not self._start()):
                return
            self._ask(index)

    def _ask(self, index: int) -> None:
        reader = self._reader
        assert reader is not None
        asked_at = time.monotonic()
        with self._lock:
            cadences = self._watch.cadences(index, asked_at)
            patience = self._watch.answer_seconds(index)
        if self._is_profiling_paused:
            cadences.remove(families.Cadence.PROFILE)
        self._answers.clear()
        try:
            reader.request_reading(index, cadences)
            self._listen(asked_at + patience, for_answer=True)
        except ReaderGone as error:
            self._drop_reader()
            with self._lock:
                self._watch.died(index, str(error), now=time.monotonic())
            return
        now = time.monotonic()
        if self._answers:
            self._take(self._answers[0], cadences, asked_at=asked_at, now=now)
        elif not self._is_stopping:
            call = reader.current_call()
            log.warning(
                "Driver call hangs", extra=logs.fields(call=call, gpu=index, waited_seconds=round(now - asked_at, 1))
            )
            self._drop_reader()
            with self._lock:
                self._watch.hung(index, call, waited=now - asked_at, now=now)

    def _take(
        self, answer: Mapping[str, Any], cadences: list[families.Cadence], *, asked_at: float, now: float
    ) -> None:
        index, identity, lost = answer["gpu"], answer.get("identity"), answer.get("lost")
        with self._lock:
            if "refused" in answer:
                self._watch.refused(index, answer["refused"], now)
                self._gpus.pop(index, None)
                return
            self._watch.answered(index, now=now, took=now - asked_at, identity=identity, lost=lost)
        before = self._gpus.get(index)
        if identity is not None and (before is None or before.identity["uuid"] != identity["uuid"]):
            before = GpuSample(index, identity, {}, {}, last_xid=0 if answer.get("events") else None)
        if before is None:
            return
        after = self._gpus[index] = self._merger.merge(before, answer, cadences=cadences, at=asked_at)
        for call, error in after.errors.keys() - before.errors.keys():
            log.warning("Driver call failed", extra=logs.fields(gpu=after.identity["uuid"], call=call, error=error))

    def _publish(self) -> None:
        now = time.monotonic()
        with self._lock:
            troubles = self._watch.faults(now)
            count = self._watch.count
        self._gpus = {index: gpu for index, gpu in self._gpus.items() if index < count}
        faults = tuple((trouble.cause, trouble.uuid) for trouble in troubles)
        self._say(troubles)
        self._snapshot = Snapshot(self._samples(), faults)

    def _samples(self) -> tuple[GpuSample, ...]:
        found = (self._gpus[index] for index in sorted(self._gpus))
        profiled = self._settings.profiled
        return tuple(found) if profiled is None else tuple(map(profiled, found))

    def _say(self, troubles: tuple[ReaderFault, ...]) -> None:
        """Log a fault when it begins and when it ends."""
        now_said = {(trouble.cause, trouble.uuid) for trouble in troubles}
        for trouble in troubles:
            if (trouble.cause, trouble.uuid) not in self._said:
                where = {"cause": trouble.cause, "gpu": trouble.uuid, "evidence": trouble.evidence}
                log.error("GPU fault", extra=logs.fields(**where))
        for cause, uuid in self._said - now_said:
            log.info("GPU fault is over", extra=logs.fields(cause=cause, gpu=uuid))
        self._said = now_said

    # Children.

    def _start(self) -> bool:
        """Open a reader; False if that is not allowed now or did not work."""
        with self._lock:
            if not self._watch.may_start(time.monotonic()):
                return False
        self._reader = self._open()
        return self._reader is not None

    def _renew(self, now: float) -> None:
        """Open the next reader before the old one goes, so that no GPU is without a client in between."""
        old, new = self._reader, self._open()
        if new is None:
            with self._lock:
                self._watch.postpone_renewal(now)
            return
        self._reader = new
        self._abandon(old)

    def _open(self) -> ReaderLink | None:
        """Start a child and wait until it has opened NVML."""
        now = time.monotonic()
        patience = self._settings.limits.start
        with self._lock:
            self._watch.starting(now)
        self._answers.clear()
        link: ReaderLink | None = None
        try:
            link = self._spawn(events=self._settings.events)
            self._listen(now + patience, for_answer=True, opening=link)
        except ReaderGone as error:
            self._abandon(link)
            with self._lock:
                self._watch.start_failed(str(error), time.monotonic())
            return None
        answer = self._answers[0] if self._answers else {}
        now = time.monotonic()
        with self._lock:
            if "hello" in answer:
                self._watch.opened(answer["hello"]["count"], now)
                return link
            if "broken" in answer:
                self._watch.open_failed(answer["broken"], answer["text"], now=now)
            elif not self._is_stopping:
                self._watch.start_hung(link.current_call(), patience, now=now)
        self._abandon(link)
        return None

    def _spawn(self, *, events: bool) -> ReaderLink:
        return ReaderLink(self._settings.choice.families, events=events, environment=self._settings.environment)

    def _drop_reader(self) -> None:
        self._abandon(self._reader)
        self._reader = None

    def _abandon(self, link: ReaderLink | None) -> None:
        if link is not None:
            link.abandon()
            # A killed child is gone in a moment, unless it sits in the kernel.
            link.wait_gone(0.05)
            self._given_up.append(link)
            self._reap(time.monotonic())

    def _reap(self, now: float) -> None:
        self._given_up = [link for link in self._given_up if not link.is_gone()]
        with self._lock:
            self._watch.abandoned(len(self._given_up), now)

    def _try_suspects(self, now: float) -> None:
        """Send a disposable reader after a suspect whose pause is over, and judge the one that is out."""
        probe = self._probe
        if probe is not None and now >= probe.gives_up_at:
            self._end_probe()
            with self._lock:
                self._watch.retried(probe.index, succeeded=False, now=now)
        with self._lock:
            index = self._watch.retry_due(now) if self._probe is None else None
        if index is not None:
            try:
                self._probe = Probe(self._spawn(events=False), index, now + self._settings.limits.start)
            except ReaderGone as error:
                log.warning("Suspect not tried", extra=logs.fields(gpu=index, problem=str(error)))

    def _end_probe(self) -> None:
        if self._probe is not None:
            link, self._probe = self._probe.link, None
            self._abandon(link)

    def _hear_probe(self, probe: Probe) -> None:
        try:
            for message in probe.link.read_messages():
                if "hello" in message:
                    probe.link.request_reading(probe.index, [families.Cadence.FAST])
                elif "gpu" in message or "broken" in message:
                    with self._lock:
                        self._watch.retried(probe.index, succeeded="gpu" in message, now=time.monotonic())
                    self._end_probe()
        except ReaderGone:
            self._end_probe()
            with self._lock:
                self._watch.retried(probe.index, succeeded=False, now=time.monotonic())

    # Hearing.

    def _listen(self, until: float, *, for_answer: bool = False, opening: ReaderLink | None = None) -> None:
        """Hear every child until the time is over, the answer is there, or the agent stops."""
        while not self._is_stopping and not (for_answer and self._answers):
            left = until - time.monotonic()
            if left <= 0:
                return
            links = [link for link in (opening, self._reader) if link is not None]
            if self._probe is not None:
                links.append(self._probe.link)
            by_fd = {link.fileno(): link for link in links}
            poll = select.poll()
            for fd in (*by_fd, self._wake):
                poll.register(fd, select.POLLIN)
            for fd, _ in poll.poll(left * 1000):
                if self._probe is not None and by_fd.get(fd) is self._probe.link:
                    self._hear_probe(self._probe)
                elif fd in by_fd:
                    self._hear(by_fd[fd], is_awaited=opening is None or by_fd[fd] is opening)

    def _hear(self, link: ReaderLink, *, is_awaited: bool) -> None:
        for message in link.read_messages():
            if "event" in message:
                self._on_driver_event(message["event"])
            elif is_awaited:
                self._answers.append(message)

    def _on_driver_event(self, event: Mapping[str, Any]) -> None:
        fact = DriverFact(event["kind"], event["uuid"], event["detail"], self._wall.now(), event["slice_id"])
        if fact.kind == "xid":
            self._count_xid(fact)
        if self._on_event is not None:
            self._on_event(fact)

    def _count_xid(self, fact: DriverFact) -> None:
        for index, gpu in self._gpus.items():
            if gpu.identity["uuid"] == fact.uuid:
                self._gpus[index] = with_xid(gpu, fact.detail)
        self._snapshot = replace(self._snapshot, gpus=self._samples())
