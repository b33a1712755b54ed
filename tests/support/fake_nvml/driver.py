"""Builds the fake libnvidia-ml.so.1 and tells it what to answer."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_nvml.c")
UUID = "GPU-00000000-0000-0000-0000-{:012d}".format
NOT_SUPPORTED = "!3"
DRIVER_NOT_LOADED = "!9"
GPU_IS_LOST = "!15"
VERSION_MISMATCH = "!18"
UNKNOWN_ERROR = "!999"
HANG = "hang"
EVERY = "*"


def has_compiler() -> bool:
    return shutil.which("gcc") is not None


def build(folder: Path) -> Path:
    """The library in `folder`, where LD_LIBRARY_PATH may point."""
    library = folder / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["gcc", *flags, "-o", str(library), str(SOURCE), "-lpthread"], check=True)
    return library


class FakeNvml:
    """One machine's worth of GPUs; `tell` takes effect with the next driver call."""

    def __init__(self, library: Path, control: Path, *, gpus: int = 1) -> None:
        self._control = control
        self._lines: dict[tuple[str, str], str] = {}
        self._events = 0
        self.environment = {**os.environ, "LD_LIBRARY_PATH": str(library.parent), "FAKE_NVML_CONTROL": str(control)}
        self.tell(EVERY, Count=gpus)

    def tell(self, gpu: int | str, key: str | None = None, value: object = None, **named: object) -> None:
        """Set keys of one GPU, or of `EVERY`; None takes a line back."""
        for name, number in (named | ({} if key is None else {key: value})).items():
            self._lines.pop((str(gpu), name), None)
            if number is not None:
                self._lines[str(gpu), name] = str(number)
        lines = [f"{where} {name} {text}\n" for (where, name), text in self._lines.items()]
        fresh = self._control.with_suffix(".new")
        fresh.write_text("".join(lines))
        # File times tick every few milliseconds; the library must notice each change.
        now = time.time_ns()
        os.utime(fresh, ns=(now, now))
        fresh.rename(self._control)

    def raise_event(self, gpu: int, kind: int, detail: int) -> None:
        self._events += 1
        self.tell(gpu, event=f"{self._events}:{kind}:{detail}")
