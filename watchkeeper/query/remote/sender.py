"""Send samples to a server by remote write: at once, or through a bounded queue.

`send` is for callers that need the result (recorded series, ALERTS); `enqueue` is for the scraper, which must not wait
for a server. One thread sends the queue, so that the samples of a series stay in order, and retries while the server is
down; if the queue is full, the oldest samples are dropped, because newer ones matter more.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

import numpy as np

from watchkeeper import errors
from watchkeeper.kit.logs import fields
from watchkeeper.model.histograms import HistogramSample
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query.engine import Floats, Millis
from watchkeeper.query.remote import remote_write, responses
from watchkeeper.query.remote.http import RETRY_BACKOFF, Request, ServerClient
from watchkeeper.store.interfaces import AnySample, Appended

log = logging.getLogger(__name__)

# Prometheus' own max_samples_per_send.
BATCH_SAMPLES = 2000
QUEUED_SAMPLES = 500_000
# A server stores nothing of a request with one bad sample, so a refused batch is halved until the bad samples are
# isolated. 10,000 bad samples must not become 20,000 requests: beyond this limit the rest of the batch is dropped.
MAX_HALVINGS = 64
REFUSED_STATUSES = (400, 409, 413, 415, 422)
# Phrases of Prometheus, Mimir and Thanos for refused samples, and our reason for each.
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


@dataclass(frozen=True, slots=True, eq=False)
class ScrapeBatch:
    encoded_labels: Sequence[bytes]
    times: Millis
    values: Floats

    @classmethod
    def from_scrape(cls, encoded_labels: Sequence[bytes], at_ms: int, values: Sequence[float]) -> ScrapeBatch:
        return cls(
            encoded_labels, np.full(len(encoded_labels), at_ms, dtype=np.int64), np.array(values, dtype=np.float64)
        )

    @classmethod
    def concatenate(cls, batches: Sequence[ScrapeBatch]) -> ScrapeBatch:
        if len(batches) == 1:
            return batches[0]
        encoded_labels = [labels for batch in batches for labels in batch.encoded_labels]
        return cls(
            encoded_labels,
            np.concatenate([batch.times for batch in batches]),
            np.concatenate([batch.values for batch in batches]),
        )

    def __len__(self) -> int:
        return len(self.encoded_labels)

    def __getitem__(self, rows: slice) -> ScrapeBatch:
        return ScrapeBatch(self.encoded_labels[rows], self.times[rows], self.values[rows])

    def encode(self) -> bytes:
        return remote_write.encode_rows(self.encoded_labels, self.times, self.values)


SampleBatch: TypeAlias = list[AnySample] | ScrapeBatch


class Sender:
    """Sends samples to one remote-write address. `close` stops the thread; queued samples are dropped and counted."""

    def __init__(self, client: ServerClient, *, max_queued: int = QUEUED_SAMPLES) -> None:
        self._client = client
        self._max_queued = max_queued
        self._queue: deque[Sequence[AnySample] | ScrapeBatch] = deque()
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
        """Samples that the server has not stored yet."""
        return self._queued + self._in_flight

    def send(self, samples: Iterable[AnySample]) -> Appended:
        """Write samples now; StoreError if the server fails, with the number of samples already written."""
        kept, dropped, remaining = 0, Counter[str](), iter(samples)
        while batch := list(islice(remaining, BATCH_SAMPLES)):
            try:
                appended = self._write(batch)
            except errors.StoreError as error:
                if kept:
                    error.now = f"{kept} samples were written before. {error.now or ''}".strip()
                raise
            kept += appended.kept
            dropped.update(appended.dropped)
        return Appended(kept, dict(dropped))

    def enqueue(self, samples: Sequence[AnySample] | ScrapeBatch) -> Appended:
        """Queue samples without waiting; the result counts samples that were dropped because the queue is full."""
        lost = 0
        with self._change:
            if self._closing.is_set():
                return Appended(0, {"closed": len(samples)})
            self._queue.append(samples)
            self._queued += len(samples)
            while self._queued > self._max_queued:
                oldest = self._queue.popleft()
                self._queued -= len(oldest)
                lost += len(oldest)
            self.dropped.update({"queue_full": lost} if lost else {})
            self._change.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="remote write", daemon=True)
                self._thread.start()
        return Appended(len(samples) - lost, {"queue_full": lost} if lost else {})

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until the queue is empty; False after the timeout."""
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

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            self._deliver(batch)
            with self._change:
                self._in_flight = 0
                self._change.notify_all()

    def _next_batch(self) -> list[Sequence[AnySample] | ScrapeBatch] | None:
        """The oldest samples, up to one batch; None after `close`."""
        with self._change:
            self._change.wait_for(lambda: self._queue or self._closing.is_set())
            if self._closing.is_set():
                return None
            batch: list[Sequence[AnySample] | ScrapeBatch] = []
            count = 0
            while self._queue and (not batch or count + len(self._queue[0]) <= BATCH_SAMPLES):
                batch.append(self._queue.popleft())
                count += len(batch[-1])
            self._queued -= count
            self._in_flight = count
            return batch

    def _deliver(self, queued: list[Sequence[AnySample] | ScrapeBatch]) -> None:
        batches: list[SampleBatch] = [
            [sample for part in queued if not isinstance(part, ScrapeBatch) for sample in part]
        ]
        if scraped := [part for part in queued if isinstance(part, ScrapeBatch)]:
            batches.append(ScrapeBatch.concatenate(scraped))
        for samples in batches:
            for at in range(0, len(samples), BATCH_SAMPLES):
                part = samples[at : at + BATCH_SAMPLES]
                if not self._write_with_retries(part):
                    self.dropped["closed"] += len(part)

    def _write_with_retries(self, part: SampleBatch) -> bool:
        """Write samples and retry while the server is down; False if the sender is closed first."""
        failures = 0
        while not self._closing.is_set():
            try:
                self._write(part)
                return True
            except errors.StoreError as error:
                if self.problem is None:
                    log.warning("remote write failed, retrying", extra=fields(error=error))
                self.problem = str(error)
            failures += 1
            self._closing.wait(RETRY_BACKOFF.delay_seconds(failures))
        return False

    def _write(self, batch: SampleBatch) -> Appended:
        """Write samples in few requests; drop only the samples that the server refuses."""
        kept, dropped, halvings, message = 0, Counter[str](), 0, ""
        parts: list[SampleBatch] = [batch]
        while parts:
            part = parts.pop()
            problem = self._post(part)
            if problem is None:
                kept += len(part)
            elif len(part) > 1 and halvings < MAX_HALVINGS:
                halvings += 1
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
            else:
                message = problem
                dropped[drop_reason(problem)] += len(part)
        if dropped:
            count = sum(dropped.values())
            log.warning("samples dropped by server", extra=fields(count=count, message=errors.quote(message)))
        with self._change:
            self.kept += kept
            self.dropped.update(dropped)
            self.problem = None
        return Appended(kept, dict(dropped))

    def _post(self, samples: SampleBatch) -> str | None:
        """Why the server refuses these samples, or None; StoreError for any other failure."""
        body = samples.encode() if isinstance(samples, ScrapeBatch) else _encode(samples)
        response = self._client.send(Request("POST", "", body=body, headers=remote_write.HEADERS))
        if 200 <= response.status < 300:
            return None
        if response.status in REFUSED_STATUSES:
            return response.body[:1000].decode("utf-8", "replace").strip() or f"status {response.status}"
        raise responses.response_error(response, self._client.url)


def _encode(samples: list[AnySample]) -> bytes:
    histograms = [sample for sample in samples if isinstance(sample, HistogramSample)]
    numbers = [sample for sample in samples if isinstance(sample, Sample)]
    if not histograms and len({sample.labels for sample in numbers}) == len(numbers):
        # One sample of each series, as a recording rule writes.
        return remote_write.encode_samples(numbers)
    return remote_write.encode(list(group_by_series(numbers)), histograms)


def group_by_series(samples: Iterable[Sample]) -> Iterator[tuple[Labels, list[int], list[float]]]:
    columns_by_series: dict[Labels, tuple[list[int], list[float]]] = {}
    for sample in samples:
        times, values = columns_by_series.setdefault(sample.labels, ([], []))
        times.append(sample.at_ms)
        values.append(sample.value)
    return ((labels, times, values) for labels, (times, values) in columns_by_series.items())


def drop_reason(message: str) -> str:
    """The reason for a server's message, as used in `Appended.dropped`."""
    lower = message.lower()
    return next((reason for phrase, reason in REASONS if phrase in lower), "refused")
