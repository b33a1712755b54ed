"""A recording: rows of numbers in time, for one GPU or several, with or without labels of what ran.

`read` takes CSV (or Parquet) of any tool that uses the names in `columns`; `write_csv` and `write_parquet` keep what
`recorder` saw. What is wrong with a file is said with its line: single bad rows are left out and noted, a file that is
mostly bad is refused. A cell that is empty, NaN or out of its range is unknown, never 0.
"""

from __future__ import annotations

import csv
import io
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from watchkeeper.errors import WatchkeeperError, quote
from watchkeeper.probe.profile import columns

# One GPU at 10 Hz for eleven hours; each row takes about 1 KiB while it is judged.
MOST_ROWS = 400_000
MOST_KNOWN_CELLS = 200_000
# Above this share of unreadable rows it is the wrong file, not a damaged one.
MOST_BAD_SHARE = 0.1
MOST_NOTES = 8
UNKNOWN_WORDS = frozenset({"", "nan", "none", "null", "n/a", "na", "-", "[n/a]", "[not supported]", "not supported"})
# Counters round up: 100.4 % was seen.
PERCENT_LIMIT = 101.0


class RecordingError(WatchkeeperError):
    """A file is no recording that can be judged; `where` is the file and, where there is one, the line."""


@dataclass(frozen=True, slots=True)
class GpuTrack:
    """One GPU's rows in the order of time. `numbers` has a list for each column that the file has."""

    gpu: str
    times: Sequence[float]
    numbers: Mapping[str, Sequence[float | None]]
    labels: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.times)

    def has(self, column: str) -> bool:
        return any(value is not None for value in self.numbers.get(column, ()))

    def tells_work(self, rows: Sequence[int] | None = None) -> bool:
        """Whether any of these rows, or of all, says if the GPU worked; a slice of MIG, for one, says nothing."""
        wanted = range(len(self)) if rows is None else rows
        told = [values for name in columns.ANY_OF if (values := self.numbers.get(name)) is not None]
        return any(values[row] is not None for row in wanted for values in told)

    def part(self, rows: Sequence[int]) -> GpuTrack:
        """Some rows, in ascending order."""
        take: Callable[[Sequence[Any]], Sequence[Any]] = _taker(rows)
        numbers = {name: take(values) for name, values in self.numbers.items()}
        return GpuTrack(self.gpu, take(self.times), numbers, None if self.labels is None else take(self.labels))


def _taker(rows: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A slice where rows follow each other, which is most often so; both ways run without a step of Python for each."""
    if not rows or rows[-1] - rows[0] + 1 == len(rows):
        low, high = (rows[0], rows[-1] + 1) if rows else (0, 0)
        return lambda values: values[low:high]
    return operator.itemgetter(*rows)


@dataclass(frozen=True, slots=True)
class Recording:
    """Tracks by GPU; `notes` say what was left out or put right, each with its line."""

    tracks: tuple[GpuTrack, ...]
    notes: tuple[str, ...] = ()
    model: str | None = None
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return max((track.times[-1] - track.times[0] for track in self.tracks), default=0.0)


def read(path: Path) -> Recording:
    """The recording in a file; RecordingError says what is wrong with it."""
    if path.suffix == ".parquet":
        return _read_parquet(path)
    try:
        text = path.read_bytes().decode("utf-8-sig", "replace")
    except OSError as error:
        raise RecordingError(
            f"cannot be read: {error.strerror}", where=str(path), remedy="Check the name and permissions"
        ) from error
    return read_text(text, where=str(path))


def read_text(text: str, *, where: str) -> Recording:
    if not text.strip():
        raise RecordingError("the file is empty", where=where, remedy=f"The first line names columns: {_wanted()}")
    header = text.lstrip().partition("\n")[0]
    delimiter = max(",;\t", key=header.count)
    reader = csv.reader(io.StringIO(text), delimiter=delimiter)
    names = next(cells for cells in reader if any(cell.strip() for cell in cells))
    table = _Table([name.strip().lower() for name in names], where)
    try:
        for cells in reader:
            if cells and any(cell.strip() for cell in cells):
                table.add(cells, reader.line_num)
    except csv.Error as error:
        raise RecordingError(str(error), where=f"{where}:{reader.line_num}") from error
    return table.finish()


def _read_parquet(path: Path) -> Recording:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise RecordingError(
            "Parquet needs the Python package pyarrow",
            where=str(path),
            remedy="Install pyarrow, or give the recording as CSV",
        ) from error
    try:
        found = parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise RecordingError(f"this is no Parquet file that can be read: {error}", where=str(path)) from error
    table = _Table([name.lower() for name in found.column_names], str(path))
    for number, row in enumerate(zip(*(column.to_pylist() for column in found.columns), strict=True), start=1):
        table.add(["" if value is None else str(value) for value in row], number)
    return table.finish()


class _Table:
    """Rows as they come, sorted by GPU at the end."""

    def __init__(self, names: list[str], where: str) -> None:
        self._names = names
        self._where = where
        self._notes: list[str] = []
        self._more_notes = 0
        self._bad: list[str] = []
        self._odd: dict[str, int] = {}
        self._rows: dict[str, list[tuple[float, str, list[float | None]]]] = {}
        self._count = 0
        self._check_header()
        self._time = names.index(columns.TIME)
        self._label = names.index(columns.LABEL) if columns.LABEL in names else None
        self._gpu = next((names.index(word) for word in columns.GPU_WORDS if word in names), None)
        self._numbers = [(at, name) for at, name in enumerate(names) if name in columns.NUMBERS]
        places = [at for at, _ in self._numbers]
        # itemgetter of one place gives the cell itself, of a slice a list.
        one = slice(places[0], places[0] + 1)
        picked: Any = operator.itemgetter(*places) if len(places) > 1 else operator.itemgetter(one)
        self._pick: Callable[[list[str]], Sequence[str]] = picked
        self._known = _Cells()

    def _check_header(self) -> None:
        doubled = sorted({name for name in self._names if name and self._names.count(name) > 1})
        shown = ", ".join(self._names[:12])[:200]
        if doubled:
            raise RecordingError(f"column {doubled[0]} stands twice in the header", where=f"{self._where}:1")
        if columns.TIME not in self._names:
            raise RecordingError(
                f"there is no column `{columns.TIME}` (time in seconds)",
                where=f"{self._where}:1",
                now=f"The columns are {shown}",
                remedy=f"A recording has {_wanted()}",
            )
        if not any(name in self._names for name in columns.ANY_OF):
            raise RecordingError(
                f"none of the columns {', '.join(columns.ANY_OF)} is there, so nothing says whether the GPU works",
                where=f"{self._where}:1",
                now=f"The columns are {shown}",
                remedy=f"A recording has {_wanted()}",
            )

    def add(self, cells: list[str], line: int) -> None:
        self._count += 1
        if self._count > MOST_ROWS:
            raise RecordingError(
                f"more than {MOST_ROWS:,} rows",
                where=f"{self._where}:{line}",
                remedy="Give a shorter piece, or one row a second instead of ten",
            )
        try:
            if len(cells) < len(self._names):
                raise ValueError(f"{len(cells)} cells where the header has {len(self._names)}: half a row")
            at = _time(cells[self._time])
            values = self._read(cells)
        except ValueError as error:
            self._bad.append(f"line {line}: {error}")
            return
        gpu = "0" if self._gpu is None else cells[self._gpu].strip() or "0"
        rows = self._rows.setdefault(gpu, [])
        if rows and at < rows[-1][0]:
            self._note(f"line {line}: {at:.3f} is earlier than the row before it; rows were put in order")
        rows.append((at, "" if self._label is None else cells[self._label].strip(), values))

    def _read(self, cells: list[str]) -> list[float | None]:
        if len(self._known) > MOST_KNOWN_CELLS:
            self._known.clear()
        try:
            return [*map(self._known.__getitem__, self._pick(cells))]
        except ValueError as error:
            bad = next(name for place, name in self._numbers if _is_no_number(cells[place]))
            raise ValueError(f"{bad} {error}") from error

    def _note(self, text: str) -> None:
        if len(self._notes) < MOST_NOTES:
            self._notes.append(text)
        else:
            self._more_notes += 1

    def finish(self) -> Recording:
        if len(self._bad) > MOST_BAD_SHARE * self._count or not self._rows:
            problem = self._bad[0] if self._bad else "there is no row below the header"
            count = f"{len(self._bad)} of {self._count} rows cannot be read" if self._bad else None
            raise RecordingError(problem, where=self._where, now=count, remedy=f"A recording has {_wanted()}")
        notes = [f"left out: {text}" for text in self._bad[:MOST_NOTES]]
        if len(self._bad) > MOST_NOTES:
            notes.append(f"left out: {len(self._bad) - MOST_NOTES} rows more")
        notes += self._notes
        if self._more_notes:
            notes.append(f"{self._more_notes} rows more were out of order")
        tracks = tuple(self._track(gpu, rows, notes) for gpu, rows in sorted(self._rows.items()))
        notes += [
            f"{count} values of {name} are no percentage and count as unknown" for name, count in self._odd.items()
        ]
        silent = [track.gpu for track in tracks if not track.tells_work()]
        if len(silent) == len(tracks):
            problem = f"{', '.join(columns.ANY_OF)} have no value in any row, so nothing says whether the GPU works"
            raise RecordingError(problem, where=self._where, remedy=f"A recording has {_wanted()}")
        notes += [f"gpu {gpu}: left out, because nothing says whether it works" for gpu in silent]
        return Recording(tuple(track for track in tracks if track.gpu not in silent), tuple(notes))

    def _track(self, gpu: str, rows: list[tuple[float, str, list[float | None]]], notes: list[str]) -> GpuTrack:
        rows.sort(key=lambda row: row[0])
        kept = [row for row, after in zip(rows, [*rows[1:], None], strict=True) if after is None or row[0] != after[0]]
        if len(kept) < len(rows):
            notes.append(
                f"gpu {gpu}: {len(rows) - len(kept)} rows have the time of another one; the last of each counts"
            )
        whole = zip(*(row[2] for row in kept), strict=True)
        numbers = {name: self._checked(name, column) for (_, name), column in zip(self._numbers, whole, strict=True)}
        labels = None if self._label is None else [row[1] for row in kept]
        if labels is not None and not any(labels):
            labels = None
        return GpuTrack(gpu, [row[0] for row in kept], numbers, labels)

    def _checked(self, name: str, column: Sequence[float | None]) -> Sequence[float | None]:
        """The column without what cannot be: a percentage below 0 or well above 100."""
        present = present_values(column)
        if name not in columns.PERCENTS or not present or (min(present) >= 0 and max(present) <= PERCENT_LIMIT):
            return column
        kept = [value if value is not None and 0 <= value <= PERCENT_LIMIT else None for value in column]
        self._odd[name] = self._odd.get(name, 0) + len(present) - len(present_values(kept))
        return kept


class _Cells(dict[str, float | None]):
    """What each text means. Counters repeat themselves: of 2.5 million cells some 10,000 are different."""

    def __missing__(self, text: str) -> float | None:
        value = self[text] = _number(text)
        return value


def _is_no_number(text: str) -> bool:
    try:
        _number(text)
    except ValueError:
        return True
    return False


def _wanted() -> str:
    return "t, gpu_util, mem_copy_util, power_w and, where the GPU gives them, sm_util, dram_bw_util, any_tensor_util …"


def _time(text: str) -> float:
    try:
        at = float(text)
    except ValueError:
        try:
            at = datetime.fromisoformat(text.strip()).timestamp()
        except ValueError as error:
            raise ValueError(f"t {quote(text)} is neither seconds nor a time such as 2026-11-15T09:00:00Z") from error
    if not math.isfinite(at):
        raise ValueError(f"t {quote(text)} is no time")
    return at


def _number(text: str) -> float | None:
    if text.strip().lower() in UNKNOWN_WORDS:
        return None
    try:
        # NVML's bit mask is written as 0x4 by some.
        value = float(int(text, 16)) if text.strip().lower().startswith("0x") else float(text)
    except ValueError as error:
        raise ValueError(f"{quote(text)} is not a number") from error
    return value if math.isfinite(value) else None


def rows(recording: Recording) -> Iterator[tuple[list[str], list[Any]]]:
    """Names and cells of every row, for whoever writes them."""
    known = [name for name in columns.NUMBERS if any(name in track.numbers for track in recording.tracks)]
    has_labels = any(track.labels is not None for track in recording.tracks)
    names = [columns.TIME, columns.GPU, *([columns.LABEL] if has_labels else []), *known]
    order = sorted(
        (track.times[row], at, row) for at, track in enumerate(recording.tracks) for row in range(len(track))
    )
    for _, at, row in order:
        track = recording.tracks[at]
        label = [track.labels[row] if track.labels is not None else ""] if has_labels else []
        numbers = [track.numbers[name][row] if name in track.numbers else None for name in known]
        yield names, [track.times[row], track.gpu, *label, *numbers]


def write_csv(recording: Recording, path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        for at, (names, cells) in enumerate(rows(recording)):
            if at == 0:
                writer.writerow(names)
            writer.writerow(["" if cell is None else cell for cell in cells])


def write_parquet(recording: Recording, path: Path) -> None:
    """Needs pyarrow; ImportError where it is absent."""
    import pyarrow
    from pyarrow import parquet

    table: dict[str, list[Any]] = {}
    for names, cells in rows(recording):
        for name, cell in zip(names, cells, strict=True):
            table.setdefault(name, []).append(cell)
    parquet.write_table(pyarrow.table(table), path, compression="zstd")


def save(recording: Recording, folder: Path) -> Path:
    """The recording in `folder`: Parquet where pyarrow is installed, CSV otherwise."""
    path = folder / "recording.parquet"
    try:
        write_parquet(recording, path)
    except ImportError:
        path = folder / "recording.csv"
        write_csv(recording, path)
    return path


def present_values(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
