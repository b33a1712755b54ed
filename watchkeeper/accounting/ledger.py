"""The usage ledger: recorded hours kept for years, one small file per day, beyond the retention of the store.

A file has the hours of one UTC day by team and by job, and their sums. A report of a year reads 365 sums, and hours
only for the partial days of its window. `usage_reader.update_ledger` writes the files; a day is replaced as a whole,
and never by one with fewer hours.
"""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from watchkeeper.accounting import recorded_hours, time_ranges, usage
from watchkeeper.accounting.tally import HOUR, UsageSlot, UsageTally
from watchkeeper.errors import StoreError
from watchkeeper.kit import files

DAY = 86_400.0
# Increased when an earlier version could not read the files.
FORMAT_VERSION = 1


class UsageLedger:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Consecutive days usually have the same keys.
        self._last_keys: tuple[bytes, list[usage.Key]] = b"", []

    def is_missing_hours(self, day: float, teams: recorded_hours.RecordedHours) -> bool:
        """Whether `teams` has more hours of this day than its file; after its retention the store has fewer."""
        starts = teams.starts[(teams.starts >= day) & (teams.starts < day + DAY)]
        return len(np.unique(starts)) > self._count_kept_hours(day)

    def write_day(self, day: float, teams: recorded_hours.RecordedHours, jobs: recorded_hours.RecordedHours) -> None:
        arrays: dict[str, Any] = {"form": np.array(FORMAT_VERSION)}
        for name, hours in (("teams", teams), ("jobs", jobs)):
            arrays |= _build_arrays(name, hours, day)
        arrays["slots"] = _encode_json(
            [
                [cluster, start, share]
                for cluster, shares in sorted(teams.share.items())
                for start, share in sorted(shares.items())
                if day <= start < day + DAY
            ]
        )
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **arrays)
        self._folder.mkdir(parents=True, exist_ok=True)
        files.write_atomically(self._path(day), buffer.getvalue())

    def days(self) -> list[float]:
        starts = []
        for path in self._folder.glob("????-??-??.npz"):
            with contextlib.suppress(ValueError):
                starts.append(datetime.strptime(path.stem, "%Y-%m-%d").replace(tzinfo=UTC).timestamp())
        return sorted(starts)

    def add_to_tally(self, tally: UsageTally, *, by_job: bool) -> list[tuple[float, float]]:
        """Add the hours of the tally's window; return the time ranges that they cover."""
        days = [day for day in self.days() if day < tally.until and day + DAY > tally.since]
        return [covered for day in days for covered in self._add_day(tally, day, "jobs" if by_job else "teams")]

    def _add_day(self, tally: UsageTally, day: float, name: str) -> list[tuple[float, float]]:
        path = self._path(day)
        try:
            with np.load(path, allow_pickle=False) as arrays:
                if int(arrays["form"]) != FORMAT_VERSION:
                    problem = f"has format {int(arrays['form'])}, this version reads {FORMAT_VERSION}"
                    raise StoreError(problem, where=str(path))
                keys = self._decode_keys(arrays[f"{name}_keys"].tobytes())
                if tally.since <= day and tally.until >= day + DAY:
                    tally.add(keys, arrays[f"{name}_sums"])
                else:
                    starts = arrays[f"{name}_starts"]
                    weights = time_ranges.cover(np.unique(starts), HOUR, since=tally.since, until=tally.until)
                    indexes = np.searchsorted(np.unique(starts), starts)
                    rows = arrays[f"{name}_amounts"].astype(np.float64) * weights[indexes, None]
                    tally.add([keys[index] for index in arrays[f"{name}_owners"].tolist()], rows)
                shares = {(cluster, start): share for cluster, start, share in _decode_json(arrays["slots"])}
                sizes = _decode_json(arrays["sizes"])
                for cluster, start, size in sizes:
                    share = shares.get((cluster, start), 1.0)
                    tally.add_slot(cluster, UsageSlot(start, start + HOUR, share, size))
                return [(start, start + HOUR) for _, start, _ in sizes]
        except (OSError, KeyError, ValueError, TypeError, zipfile.BadZipFile) as error:
            problem = f"cannot read the usage ledger of {path.stem} ({error})"
            tally.notes.append(f"{problem}; recorded hours of the store are used")
            return []

    def _decode_keys(self, text: bytes) -> list[usage.Key]:
        if self._last_keys[0] != text:
            self._last_keys = text, [tuple(key) for key in json.loads(text)]
        return self._last_keys[1]

    def _count_kept_hours(self, day: float) -> int:
        try:
            with np.load(self._path(day), allow_pickle=False) as arrays:
                return len({start for _, start, _ in _decode_json(arrays["sizes"])})
        except (OSError, KeyError, ValueError, TypeError, zipfile.BadZipFile):
            return 0

    def _path(self, day: float) -> Path:
        return self._folder / f"{datetime.fromtimestamp(day, UTC):%Y-%m-%d}.npz"


def _build_arrays(name: str, hours: recorded_hours.RecordedHours, day: float) -> Mapping[str, Any]:
    is_in_day = (hours.starts >= day) & (hours.starts < day + DAY)
    starts, amounts = hours.starts[is_in_day], hours.amounts[is_in_day]
    key_indexes: dict[usage.Key, int] = {}
    row_indexes = np.flatnonzero(is_in_day).tolist()
    indexes = [key_indexes.setdefault(hours.keys[index], len(key_indexes)) for index in row_indexes]
    # Single precision is exact to 0.000006 % of each hour. Sums use the stored values, so that both agree.
    stored_amounts = amounts.astype(np.float32)
    unique_starts = np.unique(starts)
    weights = time_ranges.cover(unique_starts, HOUR, since=day - HOUR, until=day + DAY + HOUR)
    sums = np.zeros((len(key_indexes), len(usage.PARTS)))
    exact_amounts = stored_amounts.astype(np.float64)
    np.add.at(sums, indexes, exact_amounts * weights[np.searchsorted(unique_starts, starts), None])
    owners = np.array(indexes, dtype=np.uint32)
    arrays = {
        f"{name}_keys": _encode_json(list(key_indexes)), f"{name}_starts": starts, f"{name}_owners": owners,
        f"{name}_amounts": stored_amounts, f"{name}_sums": sums,
    }  # fmt: skip
    if name == "teams":
        keys = [hours.keys[index] for index in row_indexes]
        slots, _, sizes = recorded_hours.sum_by_slot(keys, starts, exact_amounts)
        arrays["sizes"] = _encode_json([[*slot, size] for slot, size in zip(slots, sizes.tolist(), strict=True)])
    return arrays


def _encode_json(value: Any) -> Any:
    return np.frombuffer(json.dumps(value, separators=(",", ":")).encode(), dtype=np.uint8)


def _decode_json(array: Any) -> Any:
    return json.loads(array.tobytes())
