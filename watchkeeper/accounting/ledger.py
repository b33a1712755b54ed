"""The ledger: recorded hours kept for years, one small file a day, beside a store that forgets after weeks.

A file has the hours of one UTC day by team and by job, and the sums of the whole day, so that a year by team reads 365
small sums and only the edges of a window hour by hour. `books.keep_up` writes what `recorded.hours` found; a day that
is kept again is replaced as a whole, and never by one with fewer hours.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from watchkeeper.accounting import recorded_hours, time_ranges, usage
from watchkeeper.accounting.tally import HOUR, UsageSlot, UsageTally
from watchkeeper.errors import StoreError
from watchkeeper.kit import files

DAY = 86_400.0
# Changes whenever a file written by one version cannot be read by another.
FORM = 1
NAMES = {False: "teams", True: "jobs"}


class UsageLedger:
    """A folder of days."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Days in a row have the same keys more often than not.
        self._last_keys: tuple[bytes, list[usage.Key]] = b"", []

    def lacks(self, day: float, teams: recorded_hours.RecordedHours) -> bool:
        """Whether these hours of a day are more than those that are kept; a store that forgets has fewer one day."""
        inside = teams.starts[(teams.starts >= day) & (teams.starts < day + DAY)]
        return len(np.unique(inside)) > self._hours_of(day)

    def keep(self, day: float, teams: recorded_hours.RecordedHours, jobs: recorded_hours.RecordedHours) -> None:
        """Write the hours of the UTC day that begins at `day`."""
        arrays: dict[str, Any] = {"form": np.array(FORM)}
        for name, found in (("teams", teams), ("jobs", jobs)):
            arrays |= _arrays(name, found, day)
        slots = [
            (cluster, start, seen)
            for cluster, known in sorted(teams.seen.items())
            for start, seen in sorted(known.items())
            if day <= start < day + DAY
        ]
        arrays["slots"] = _text([[cluster, start, seen] for cluster, start, seen in slots])
        written = io.BytesIO()
        np.savez_compressed(written, allow_pickle=False, **arrays)
        self._folder.mkdir(parents=True, exist_ok=True)
        files.write_atomically(self._path(day), written.getvalue())

    def days(self) -> list[float]:
        """The days that are kept, by their start."""
        found = []
        for path in self._folder.glob("????-??-??.npz"):
            try:
                found.append(datetime.strptime(path.stem, "%Y-%m-%d").replace(tzinfo=UTC).timestamp())
            except ValueError:
                continue
        return sorted(found)

    def add(self, tally: UsageTally, *, by_job: bool) -> list[tuple[float, float]]:
        """Put what is kept of the window into a tally; returns the stretches that it covers."""
        covered: list[tuple[float, float]] = []
        for day in self.days():
            if day < tally.until and day + DAY > tally.since:
                covered += self._add_day(tally, day, NAMES[by_job])
        return covered

    def _add_day(self, tally: UsageTally, day: float, name: str) -> list[tuple[float, float]]:
        path = self._path(day)
        try:
            with np.load(path, allow_pickle=False) as kept:
                if int(kept["form"]) != FORM:
                    raise StoreError(f"is of form {int(kept['form'])}, this version reads {FORM}", where=str(path))
                keys = self._keys(kept[f"{name}_keys"].tobytes())
                is_whole = tally.since <= day and tally.until >= day + DAY
                if is_whole:
                    tally.add(keys, kept[f"{name}_sums"])
                else:
                    starts = kept[f"{name}_starts"]
                    weights = time_ranges.cover(np.unique(starts), HOUR, since=tally.since, until=tally.until)
                    at = np.searchsorted(np.unique(starts), starts)
                    rows = kept[f"{name}_amounts"].astype(np.float64) * weights[at, None]
                    tally.add([keys[one] for one in kept[f"{name}_owners"].tolist()], rows)
                return _see(tally, _read(kept["slots"]), _read(kept["sizes"]))
        except (OSError, KeyError, ValueError, TypeError, zipfile.BadZipFile) as error:
            tally.notes.append(
                f"the ledger of {path.stem} cannot be read ({error}); its hours are taken from elsewhere"
            )
            return []

    def _keys(self, text: bytes) -> list[usage.Key]:
        if self._last_keys[0] != text:
            self._last_keys = text, [tuple(key) for key in json.loads(text)]
        return self._last_keys[1]

    def _hours_of(self, day: float) -> int:
        try:
            with np.load(self._path(day), allow_pickle=False) as kept:
                return len({start for _, start, _ in _read(kept["sizes"])})
        except (OSError, KeyError, ValueError, TypeError, zipfile.BadZipFile):
            return 0

    def _path(self, day: float) -> Path:
        return self._folder / f"{datetime.fromtimestamp(day, UTC):%Y-%m-%d}.npz"


def _arrays(name: str, found: recorded_hours.RecordedHours, day: float) -> Mapping[str, Any]:
    inside = (found.starts >= day) & (found.starts < day + DAY)
    starts, amounts = found.starts[inside], found.amounts[inside]
    places: dict[usage.Key, int] = {}
    chosen = np.flatnonzero(inside).tolist()
    owners = np.array([places.setdefault(found.keys[at], len(places)) for at in chosen], dtype=np.uint32)
    # Single precision is exact to 0.000006 % of each hour; sums are of what is kept, so that both agree.
    kept = amounts.astype(np.float32)
    starts_once = np.unique(starts)
    weights = time_ranges.cover(starts_once, HOUR, since=day - HOUR, until=day + DAY + HOUR)
    sums = np.zeros((len(places), len(usage.PARTS)))
    np.add.at(
        sums, owners.astype(np.int64), kept.astype(np.float64) * weights[np.searchsorted(starts_once, starts), None]
    )
    made = {
        f"{name}_keys": _text(list(places)), f"{name}_starts": starts, f"{name}_owners": owners,
        f"{name}_amounts": kept, f"{name}_sums": sums,
    }  # fmt: skip
    if name == "teams":
        slots, _, sizes = recorded_hours.by_slot([found.keys[at] for at in chosen], starts, kept.astype(np.float64))
        made["sizes"] = _text([[*slot, size] for slot, size in zip(slots, sizes.tolist(), strict=True)])
    return made


def _see(tally: UsageTally, slots: Sequence[Any], sizes: Sequence[Any]) -> list[tuple[float, float]]:
    seen = {(cluster, start): share for cluster, start, share in slots}
    covered = []
    for cluster, start, size in sizes:
        tally.saw(cluster, UsageSlot(start, start + HOUR, seen.get((cluster, start), 1.0), size))
        covered.append((start, start + HOUR))
    return covered


def _text(value: Any) -> Any:
    return np.frombuffer(json.dumps(value, separators=(",", ":")).encode(), dtype=np.uint8)


def _read(kept: Any) -> Any:
    return json.loads(kept.tobytes())
