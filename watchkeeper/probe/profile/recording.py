"""Read and write recordings: rows of numbers over time for one or more GPUs, with or without labels.

`read_recording` reads CSV or Parquet of any tool with the names in `columns`. Invalid rows are dropped and noted with
their line, and a file with too many of them is refused; a cell that is empty, NaN or out of range is unknown.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from watchkeeper.errors import WatchkeeperError, quote
from watchkeeper.probe.profile import columns

# One GPU at 10 Hz for eleven hours; a row takes about 1 KiB of memory.
MAX_ROWS = 400_000
MAX_CACHED_CELLS = 200_000
# A larger share of invalid rows means a wrong file, not a damaged one.
MAX_BAD_SHARE = 0.1
MAX_NOTES = 8
UNKNOWN_WORDS = frozenset({"", "nan", "none", "null", "n/a", "na", "-", "[n/a]", "[not supported]", "not supported"})
# Counters round up, to 100.4 % for example.
PERCENT_LIMIT = 101.0
EXPECTED_COLUMNS = (
    "A recording has t, gpu_util, mem_copy_util, power_w and, with GPM, sm_util, dram_bw_util, any_tensor_util …"
)


class RecordingError(WatchkeeperError):
    """A file is not a valid recording; `where` is the file, with the line if there is one."""


@dataclass(frozen=True, slots=True)
class GpuTrack:
    """The rows of one GPU in time order; `numbers` has a list for each column of the recording."""

    gpu: str
    times: Sequence[float]
    numbers: Mapping[str, Sequence[float | None]]
    labels: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.times)

    def has(self, column: str) -> bool:
        return any(value is not None for value in self.numbers.get(column, ()))

    def has_activity(self, rows: Sequence[int] | None = None) -> bool:
        """Whether these rows (default: all) have any activity value; a MIG instance, for example, has none."""
        selected = range(len(self)) if rows is None else rows
        present = [self.numbers[name] for name in columns.ACTIVITY_COLUMNS if name in self.numbers]
        return any(values[row] is not None for row in selected for values in present)

    def select_rows(self, rows: Sequence[int]) -> GpuTrack:
        take_rows: Any = operator.itemgetter(*rows) if rows else operator.itemgetter(slice(0))
        # They usually are consecutive.
        if rows and rows[-1] - rows[0] + 1 == len(rows):
            take_rows = operator.itemgetter(slice(rows[0], rows[-1] + 1))
        labels = None if self.labels is None else take_rows(self.labels)
        numbers = {name: take_rows(values) for name, values in self.numbers.items()}
        return GpuTrack(self.gpu, take_rows(self.times), numbers, labels)


@dataclass(frozen=True, slots=True)
class Recording:
    """One track for each GPU; `notes` lists dropped and corrected rows with their lines."""

    tracks: tuple[GpuTrack, ...]
    notes: tuple[str, ...] = ()
    model: str | None = None
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return max((track.times[-1] - track.times[0] for track in self.tracks), default=0.0)


def read_recording(path: Path) -> Recording:
    """Read a CSV or Parquet file; RecordingError if it is not a valid recording."""
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
        raise RecordingError("the file is empty", where=where, remedy=EXPECTED_COLUMNS)
    reader = csv.reader(io.StringIO(text), delimiter=max(",;\t", key=text.lstrip().partition("\n")[0].count))
    names = next(cells for cells in reader if any(cell.strip() for cell in cells))
    table = _RowTable([name.strip().lower() for name in names], where)
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
        problem, remedy = "Parquet needs the Python package pyarrow", "Install pyarrow, or give the recording as CSV"
        raise RecordingError(problem, where=str(path), remedy=remedy) from error
    try:
        parquet_table = parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise RecordingError(f"not a valid Parquet file: {error}", where=str(path)) from error
    table = _RowTable([name.lower() for name in parquet_table.column_names], str(path))
    for number, row in enumerate(zip(*(column.to_pylist() for column in parquet_table.columns), strict=True), start=1):
        table.add(["" if value is None else str(value) for value in row], number)
    return table.finish()


class _RowTable:
    def __init__(self, names: list[str], where: str) -> None:
        self._names = names
        self._where = where
        self._notes: list[str] = []
        self._omitted_notes = 0
        self._bad_rows: list[str] = []
        self._out_of_range: dict[str, int] = {}
        self._rows: dict[str, list[tuple[float, str, list[float | None]]]] = {}
        self._count = 0
        self._check_header()
        self._time_position = names.index(columns.TIME)
        self._label_position = names.index(columns.LABEL) if columns.LABEL in names else None
        self._gpu_position = next((names.index(word) for word in columns.GPU_COLUMNS if word in names), None)
        self._number_columns = [(at, name) for at, name in enumerate(names) if name in columns.NUMBER_COLUMNS]
        positions = [at for at, _ in self._number_columns]
        # itemgetter returns a single cell for one position, but a list for a slice.
        first_cell = slice(positions[0], positions[0] + 1)
        cell_getter: Any = operator.itemgetter(*positions) if len(positions) > 1 else operator.itemgetter(first_cell)
        self._get_cells: Callable[[list[str]], Sequence[str]] = cell_getter
        self._parsed_cells = _CellCache()

    def _check_header(self) -> None:
        repeated = sorted({name for name in self._names if name and self._names.count(name) > 1})
        if repeated:
            raise RecordingError(f"column {repeated[0]} is twice in the header", where=f"{self._where}:1")
        if columns.TIME not in self._names:
            problem = f"no column `{columns.TIME}` (time in seconds)"
        elif not any(name in self._names for name in columns.ACTIVITY_COLUMNS):
            problem = f"no column {', '.join(columns.ACTIVITY_COLUMNS)}: at least one is needed"
        else:
            return
        listed = ", ".join(self._names[:12])[:200]
        raise RecordingError(
            problem, where=f"{self._where}:1", now=f"The columns are {listed}", remedy=EXPECTED_COLUMNS
        )

    def add(self, cells: list[str], line: int) -> None:
        self._count += 1
        if self._count > MAX_ROWS:
            remedy = "Use a shorter recording, or one row a second"
            raise RecordingError(f"more than {MAX_ROWS:,} rows", where=f"{self._where}:{line}", remedy=remedy)
        try:
            if len(cells) < len(self._names):
                raise ValueError(f"{len(cells)} cells, the header has {len(self._names)}")
            at = _parse_time(cells[self._time_position])
            values = self._parse_numbers(cells)
        except ValueError as error:
            self._bad_rows.append(f"line {line}: {error}")
            return
        gpu = "0" if self._gpu_position is None else cells[self._gpu_position].strip() or "0"
        rows = self._rows.setdefault(gpu, [])
        if rows and at < rows[-1][0]:
            self._note(f"line {line}: {at:.3f} is earlier than the row before; rows were sorted")
        rows.append((at, "" if self._label_position is None else cells[self._label_position].strip(), values))

    def _parse_numbers(self, cells: list[str]) -> list[float | None]:
        if len(self._parsed_cells) > MAX_CACHED_CELLS:
            self._parsed_cells.clear()
        try:
            return [*map(self._parsed_cells.__getitem__, self._get_cells(cells))]
        except ValueError as error:
            bad_column = next(name for place, name in self._number_columns if _is_invalid_number(cells[place]))
            raise ValueError(f"{bad_column} {error}") from error

    def _note(self, text: str) -> None:
        if len(self._notes) < MAX_NOTES:
            self._notes.append(text)
        else:
            self._omitted_notes += 1

    def finish(self) -> Recording:
        if len(self._bad_rows) > MAX_BAD_SHARE * self._count or not self._rows:
            problem = self._bad_rows[0] if self._bad_rows else "no row after the header"
            count = f"{len(self._bad_rows)} of {self._count} rows are invalid" if self._bad_rows else None
            raise RecordingError(problem, where=self._where, now=count, remedy=EXPECTED_COLUMNS)
        notes = [f"dropped: {text}" for text in self._bad_rows[:MAX_NOTES]]
        if len(self._bad_rows) > MAX_NOTES:
            notes.append(f"dropped: {len(self._bad_rows) - MAX_NOTES} more rows")
        notes += self._notes
        if self._omitted_notes:
            notes.append(f"{self._omitted_notes} more rows were out of order")
        tracks = tuple(self._track(gpu, rows, notes) for gpu, rows in sorted(self._rows.items()))
        notes += [
            f"{count} values of {name} are out of range for a percentage; they are unknown"
            for name, count in self._out_of_range.items()
        ]
        without_activity = [track.gpu for track in tracks if not track.has_activity()]
        if len(without_activity) == len(tracks):
            problem = f"{', '.join(columns.ACTIVITY_COLUMNS)} have no values: the activity of the GPU is unknown"
            raise RecordingError(problem, where=self._where, remedy=EXPECTED_COLUMNS)
        notes += [f"gpu {gpu}: dropped, no activity values" for gpu in without_activity]
        return Recording(tuple(track for track in tracks if track.gpu not in without_activity), tuple(notes))

    def _track(self, gpu: str, rows: list[tuple[float, str, list[float | None]]], notes: list[str]) -> GpuTrack:
        rows.sort(key=lambda row: row[0])
        kept_rows = [
            row for row, after in zip(rows, [*rows[1:], None], strict=True) if after is None or row[0] != after[0]
        ]
        if len(kept_rows) < len(rows):
            notes.append(
                f"gpu {gpu}: {len(rows) - len(kept_rows)} rows have duplicate times; the last row of each time was kept"
            )
        all_columns = zip(*(row[2] for row in kept_rows), strict=True)
        numbers = {
            name: self._drop_out_of_range(name, column)
            for (_, name), column in zip(self._number_columns, all_columns, strict=True)
        }
        labels = None if self._label_position is None else [row[1] for row in kept_rows]
        if labels is not None and not any(labels):
            labels = None
        return GpuTrack(gpu, [row[0] for row in kept_rows], numbers, labels)

    def _drop_out_of_range(self, name: str, column: Sequence[float | None]) -> Sequence[float | None]:
        """The column without impossible percentages."""
        present = present_values(column)
        if name not in columns.PERCENT_COLUMNS or not present or (min(present) >= 0 and max(present) <= PERCENT_LIMIT):
            return column
        valid_values = [value if value is not None and 0 <= value <= PERCENT_LIMIT else None for value in column]
        self._out_of_range[name] = self._out_of_range.get(name, 0) + len(present) - len(present_values(valid_values))
        return valid_values


class _CellCache(dict[str, float | None]):
    """Parsed cells by text: of 2.5 million cells, about 10,000 are different."""

    def __missing__(self, text: str) -> float | None:
        value = self[text] = _parse_number(text)
        return value


def _is_invalid_number(text: str) -> bool:
    try:
        _parse_number(text)
    except ValueError:
        return True
    return False


def _parse_time(text: str) -> float:
    try:
        at = float(text)
    except ValueError:
        try:
            at = datetime.fromisoformat(text.strip()).timestamp()
        except ValueError as error:
            raise ValueError(f"t {quote(text)} is not seconds or a time such as 2026-11-15T09:00:00Z") from error
    if not math.isfinite(at):
        raise ValueError(f"t {quote(text)} is not finite")
    return at


def _parse_number(text: str) -> float | None:
    if text.strip().lower() in UNKNOWN_WORDS:
        return None
    try:
        # Some tools write NVML's bit mask as 0x4.
        value = float(int(text, 16)) if text.strip().lower().startswith("0x") else float(text)
    except ValueError as error:
        raise ValueError(f"{quote(text)} is not a number") from error
    return value if math.isfinite(value) else None


def to_table(recording: Recording) -> tuple[list[str], Iterator[list[Any]]]:
    recorded = set().union(*(track.numbers for track in recording.tracks))
    names_present = [name for name in columns.NUMBER_COLUMNS if name in recorded]
    has_labels = any(track.labels is not None for track in recording.tracks)
    order = sorted(
        (at, index, row) for index, track in enumerate(recording.tracks) for row, at in enumerate(track.times)
    )

    def cells_of(track: GpuTrack, row: int) -> list[Any]:
        label = [track.labels[row] if track.labels is not None else ""] if has_labels else []
        numbers = [track.numbers[name][row] if name in track.numbers else None for name in names_present]
        return [track.times[row], track.gpu, *label, *numbers]

    header = [columns.TIME, columns.GPU, *([columns.LABEL] if has_labels else []), *names_present]
    return header, (cells_of(recording.tracks[index], row) for _, index, row in order)


def write_csv(recording: Recording, path: Path) -> None:
    header, rows = to_table(recording)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(itertools.chain([header], rows))


def write_parquet(recording: Recording, path: Path) -> None:
    """Write Parquet; ImportError without pyarrow."""
    import pyarrow
    from pyarrow import parquet

    header, rows = to_table(recording)
    table = dict(zip(header, map(list, zip(*rows, strict=True)), strict=False))
    parquet.write_table(pyarrow.table(table), path, compression="zstd")


def save(recording: Recording, folder: Path) -> Path:
    """Write the recording to `folder`: as Parquet if pyarrow is installed, else as CSV."""
    path = folder / "recording.parquet"
    try:
        write_parquet(recording, path)
    except ImportError:
        path = folder / "recording.csv"
        write_csv(recording, path)
    return path


def present_values(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
