"""Samples on their way to a server by remote write: at once, or through a bounded queue.

`send` belongs to callers that must know what became of their samples (recorded series, ALERTS); `offer` to the
scraper, which must not wait for a server. The queue is worked off by one thread, so that the samples of a series
stay in order; while the server is away it waits and repeats, and when the queue is full the oldest samples
go, because what is so now matters more than what was. Samples that the server refuses are counted by reason.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeAlias

from watchkeeper import errors
from watchkeeper.kit.logs import fields
from watchkeeper.model.histograms import HistogramSample
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query.remote import answers, remote_write
from watchkeeper.query.remote.http import RETRY_BACKOFF, Request, ServerClient
from watchkeeper.query.remote.parcel import Parcel
from watchkeeper.store.interfaces import AnySample, Appended

log = logging.getLogger(__name__)

# Prometheus' own max_samples_per_send.
BATCH_SAMPLES = 2000
QUEUED_SAMPLES = 500_000
# A server keeps nothing of a request with one bad sample in it, so a refused batch is halved until the bad ones are
# found. 10,000 bad samples must not become 20,000 requests: beyond this many the rest of the batch is given up.
HALVINGS = 64
REFUSED = (400, 409, 413, 415, 422)
# Words of Prometheus, Mimir and Thanos about samples that they do not keep.
REASONS = (
    ("out of order", "out_of_order"),
    ("out-of-order", "out_of_order"),
    ("out of bounds", "too_old"),
    ("too old", "too_old"),
    ("too-old", "too_old"),
    ("duplicate", "duplicate"),
    ("too far in future", "future"),
    ("limit", "limit"),
)

Load: TypeAlias = list[AnySample] | Parcel


class Sender:
    """One address that takes remote write. `close` ends the thread; what is then still queued is lost and counted."""

    def __init__(self, client: ServerClient, *, max_queued: int = QUEUED_SAMPLES) -> None:
        self._client = client
        self._max_queued = max_queued
        self._queue: deque[Sequence[AnySample] | Parcel] = deque()
        self._queued = 0
        self._in_flight = 0
        self._change = threading.Condition()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self.kept = 0
        self.dropped: Counter[str] = Counter()
        self.problem: str | None = None

    @property
    def queued(self) -> int:
        """Samples that the server has not taken yet."""
        return self._queued + self._in_flight

    def send(self, samples: Iterable[AnySample]) -> Appended:
        """Write samples now; StoreError says why the server cannot be written to, and from which sample on."""
        kept, dropped, rest = 0, Counter[str](), iter(samples)
        while batch := list(islice(rest, BATCH_SAMPLES)):
            try:
                taken = self._write(batch)
            except errors.StoreError as error:
                if kept:
                    error.now = f"{kept} samples were written before. {error.now or ''}".strip()
                raise
            kept += taken.kept
            dropped.update(taken.dropped)
        return Appended(kept, dict(dropped))

    def offer(self, samples: Sequence[AnySample] | Parcel) -> Appended:
        """Queue samples without waiting; counts those that had to go to make room."""
        lost = 0
        with self._change:
            if self._closing.is_set():
                return Appended(0, {"closed": len(samples)})
            self._queue.append(samples)
            self._queued += len(samples)
            while self._queued > self._max_queued:
                gone = self._queue.popleft()
                self._queued -= len(gone)
                lost += len(gone)
            self.dropped.update({"queue_full": lost} if lost else {})
            self._change.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="remote write", daemon=True)
                self._thread.start()
        return Appended(len(samples) - lost, {"queue_full": lost} if lost else {})

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until the queue is empty; False if it is not by then."""
        with self._change:
            return self._change.wait_for(lambda: self.queued == 0, timeout_seconds)

    def close(self) -> None:
        with self._change:
            self._closing.set()
            self._change.notify_all()
        self._client.close()
        if self._thread is not None:
            self._thread.join()
        with self._change:
            self.dropped.update({"closed": self._queued} if self._queued else {})
            self._queue.clear()
            self._queued = 0

    def _work(self) -> None:
        while (batch := self._next_batch()) is not None:
            self._deliver(batch)
            with self._change:
                self._in_flight = 0
                self._change.notify_all()

    def _next_batch(self) -> list[Sequence[AnySample] | Parcel] | None:
        """The oldest samples, up to a batch; None when the sender closes."""
        with self._change:
            self._change.wait_for(lambda: self._queue or self._closing.is_set())
            if self._closing.is_set():
                return None
            batch: list[Sequence[AnySample] | Parcel] = []
            count = 0
            while self._queue and (not batch or count + len(self._queue[0]) <= BATCH_SAMPLES):
                batch.append(self._queue.popleft())
                count += len(batch[-1])
            self._queued -= count
            self._in_flight = count
            return batch

    def _deliver(self, batch: list[Sequence[AnySample] | Parcel]) -> None:
        loads: list[Load] = [[one for part in batch if not isinstance(part, Parcel) for one in part]]
        if parcels := [part for part in batch if isinstance(part, Parcel)]:
            loads.append(Parcel.joined(parcels))
        for load in loads:
            for at in range(0, len(load), BATCH_SAMPLES):
                part = load[at : at + BATCH_SAMPLES]
                if not self._insist(part):
                    self.dropped["closed"] += len(part)

    def _insist(self, part: Load) -> bool:
        """Write samples, again and again while the server is away; False when the sender closes first."""
        failures = 0
        while not self._closing.is_set():
            try:
                self._write(part)
                return True
            except errors.StoreError as error:
                if self.problem is None:
                    log.warning("Samples cannot be written to the server", extra=fields(error=error))
                self.problem = str(error)
            failures += 1
            self._closing.wait(RETRY_BACKOFF.delay_seconds(failures))
        return False

    def _write(self, batch: Load) -> Appended:
        """Write samples in few requests; only those that the server refuses for themselves are lost."""
        kept, dropped, halvings, message = 0, Counter[str](), 0, ""
        parts: list[Load] = [batch]
        while parts:
            part = parts.pop()
            refused = self._post(part)
            if refused is None:
                kept += len(part)
            elif len(part) > 1 and halvings < HALVINGS:
                halvings += 1
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
            else:
                message = refused
                dropped[reason_of(refused)] += len(part)
        if dropped:
            count = sum(dropped.values())
            log.warning("The server refused samples", extra=fields(count=count, message=errors.quote(message)))
        with self._change:
            self.kept += kept
            self.dropped.update(dropped)
            self.problem = None
        return Appended(kept, dict(dropped))

    def _post(self, samples: Load) -> str | None:
        """Why the server refuses exactly these samples, or None; StoreError for any other trouble."""
        body = samples.body() if isinstance(samples, Parcel) else _body(samples)
        response = self._client.send(Request("POST", "", body=body, headers=remote_write.HEADERS))
        if 200 <= response.status < 300:
            return None
        if response.status in REFUSED:
            return response.body[:1000].decode("utf-8", "replace").strip() or f"status {response.status}"
        raise answers.refusal(response, self._client.url)


def _body(samples: list[AnySample]) -> bytes:
    histograms = [one for one in samples if isinstance(one, HistogramSample)]
    numbers = [one for one in samples if isinstance(one, Sample)]
    if not histograms and len({one.labels for one in numbers}) == len(numbers):
        # What a rule has recorded: one sample of each series.
        return remote_write.encode_samples(numbers)
    return remote_write.encode(list(by_series(numbers)), histograms)


def by_series(samples: Iterable[Sample]) -> Iterator[tuple[Labels, list[int], list[float]]]:
    """The samples of each series together, in the order in which they came."""
    found: dict[Labels, tuple[list[int], list[float]]] = {}
    for sample in samples:
        times, values = found.setdefault(sample.labels, ([], []))
        times.append(sample.at_ms)
        values.append(sample.value)
    return ((labels, times, values) for labels, (times, values) in found.items())


def reason_of(message: str) -> str:
    """The server's message as one of the reasons that appends count by."""
    lower = message.lower()
    return next((reason for words, reason in REASONS if words in lower), "refused")
