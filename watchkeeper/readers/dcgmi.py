"""Read the output of `dcgmi dmon` and `dcgmi discovery -l`.

    #Entity   GRACT        SMACT        DRAMA             | 0      | Name: NVIDIA A100-SXM4-80GB      |
    ID                                                    |        | PCI Bus ID: 00000000:07:00.0     |
    GPU 0     N/A          0.930        0.252             |        | Device UUID: GPU-9ca02968-…      |

`agent.gpus.dcgm_profile` runs both: the first prints values by DCGM's GPU id, the second the UUID of each id.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from watchkeeper.catalogue import pack

# DCGM's short names (dcgm_fields.cpp) of the profiling fields, from 1001; other fields are identified by their column.
PROFILING_NAMES = (
    *("GRACT", "SMACT", "SMOCC", "TENSO", "DRAMA", "FP64A", "FP32A", "FP16A", "PCITX", "PCIRX", "NVLTX", "NVLRX"),
)
SHORT_NAMES = {name: number for number, name in enumerate(PROFILING_NAMES, 1001)}
ROW = re.compile(r"GPU\s+(?P<gpu>\d+)\s+(?P<cells>\S.*)")
GPU_ID = re.compile(r"^\|\s*(\d+)\s*\|")
DEVICE = re.compile(r"Device UUID:\s*(GPU-[0-9a-fA-F-]+)")
DISCOVERY = ("dcgmi", "discovery", "-l")


def dmon_command(fields: Sequence[int], seconds: float) -> list[str]:
    """The command that prints these fields of every GPU at this interval; `-d` is in milliseconds."""
    return ["dcgmi", "dmon", "-e", ",".join(map(str, fields)), "-d", str(max(100, round(seconds * 1000)))]


@dataclass(slots=True)
class DmonReader:
    """Reads the output of one `dcgmi dmon` with these fields; the header gives their order."""

    fields: Sequence[int]
    _columns: Sequence[int] = ()

    def read(self, line: str) -> tuple[int, Mapping[int, float]] | None:
        """A GPU's id with its values; None for a header, a MIG instance, or any other line."""
        # `N/A` is absent: the first sample after a start has no values, and a paused GPU never has values.
        if line.startswith("#Entity"):
            self._columns = self._column_fields(line.split()[1:])
            return None
        match = ROW.match(line)
        cells = [] if match is None else match["cells"].split()
        if match is None or len(cells) != len(self._columns):
            return None
        values = {
            field: number
            for field, cell in zip(self._columns, cells, strict=True)
            if (number := _number(cell)) is not None
        }
        return int(match["gpu"]), values

    def _column_fields(self, names: Sequence[str]) -> Sequence[int]:
        """The field of each column; empty if the columns are not the requested fields."""
        if len(names) != len(self.fields):
            return ()
        columns = [SHORT_NAMES.get(name, field) for name, field in zip(names, self.fields, strict=True)]
        return columns if sorted(columns) == sorted(self.fields) else ()


def read_discovery(lines: Iterable[str]) -> dict[int, str]:
    """Map DCGM's GPU ids to UUIDs."""
    uuids: dict[int, str] = {}
    gpu: int | None = None
    for line in lines:
        if (number := GPU_ID.match(line)) is not None:
            gpu = int(number[1])
        if gpu is not None and (uuid_match := DEVICE.search(line)) is not None:
            uuids[gpu] = uuid_match[1]
            gpu = None
    return uuids


@cache
def field_ids() -> Mapping[str, int]:
    """DCGM's number of each field, by its old and its new name."""
    rows = pack.load("dcgm_fields.csv", lambda cells: (int(cells["field_id"]), cells["name"], cells["name_from_4_6"]))
    return {name: number for number, *names in rows for name in names if name}


def _number(cell: str) -> float | None:
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
