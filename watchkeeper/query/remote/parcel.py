"""Scraped samples on their way to a server, each with the labels of its series as they go over the wire.

A scrape brings the same series every time: `prometheus` writes the labels of each into bytes once, when it gives the
series a number, and `sender` only puts values behind them. A sample as an object, its labels looked up and written
anew, took ten times as long: at 100,000 GPUs that was the larger part of all that a hub had to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from watchkeeper.query.engine import Floats, Millis
from watchkeeper.query.remote import remote_write


@dataclass(frozen=True, slots=True, eq=False)
class Parcel:
    """Row by row the labels of a series as bytes, a time and a value."""

    names: Sequence[bytes]
    times: Millis
    values: Floats

    @classmethod
    def scrape(cls, names: Sequence[bytes], at_ms: int, values: Sequence[float]) -> Parcel:
        return cls(names, np.full(len(names), at_ms, dtype=np.int64), np.array(values, dtype=np.float64))

    @classmethod
    def joined(cls, parcels: Sequence[Parcel]) -> Parcel:
        if len(parcels) == 1:
            return parcels[0]
        names = [name for parcel in parcels for name in parcel.names]
        return cls(
            names, np.concatenate([one.times for one in parcels]), np.concatenate([one.values for one in parcels])
        )

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, rows: slice) -> Parcel:
        return Parcel(self.names[rows], self.times[rows], self.values[rows])

    def body(self) -> bytes:
        """A request of remote write."""
        return remote_write.encode_rows(self.names, self.times, self.values)
