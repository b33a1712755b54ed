"""A disk that refuses and a clock that is wrong, for one process and its children: shim.c, built and controlled."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import time
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
# As `struct control` in shim.c: error, stopped, offset, stopped at, failed.
SHAPE = struct.Struct("iiqqq")


class Shim:
    """What the processes with `environment` are told by their C library."""

    def __init__(self, folder: Path, directory: Path) -> None:
        library, control = folder / "shim.so", folder / "shim.control"
        if not library.exists():
            line = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
            subprocess.run(line, check=True, capture_output=True, timeout=60)
        control.write_bytes(bytes(SHAPE.size))
        with control.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), SHAPE.size)
        self.environment = os.environ | {
            "LD_PRELOAD": str(library),
            "FAULTS_CONTROL": str(control),
            "FAULTS_DIRECTORY": str(directory.resolve()),
        }

    @property
    def failed(self) -> int:
        """How many writes were refused so far."""
        return int(SHAPE.unpack(self._shared[:])[4])

    def refuse_writes(self, error: int) -> None:
        """Fail each write under the directory with this errno; 0 lets them through again."""
        self._put(error=error)

    def shift_clock(self, seconds: float) -> None:
        self._put(offset=round(seconds * 1e9))

    def stop_clock(self, is_stopped: bool) -> None:
        self._put(stopped=int(is_stopped), stopped_at=time.time_ns())

    def _put(self, **changed: int) -> None:
        names = ("error", "stopped", "offset", "stopped_at", "failed")
        now = dict(zip(names, SHAPE.unpack(self._shared[:]), strict=True)) | changed
        self._shared[:] = SHAPE.pack(*(now[name] for name in names))

    def close(self) -> None:
        self._shared.close()
