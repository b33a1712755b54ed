"""Batches of scraped samples for remote write, with the encoded labels of each series.

A target exposes the same series at each scrape. `remote_appender` encodes the labels once, when it assigns an id to the
series, and `sender` only adds times and values. Encoding the labels of each sample again took ten times as long: with
100,000 GPUs it was most of the work of a hub.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from watchkeeper.query.engine import Floats, Millis
from watchkeeper.query.remote import remote_write


@dataclass(frozen=True, slots=True, eq=False)
class ScrapeBatch:
    """For each row the encoded labels of a series, a time and a value."""

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
        """The body of a remote-write request."""
        return remote_write.encode_rows(self.encoded_labels, self.times, self.values)
