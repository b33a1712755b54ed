"""Quarantine samples that a wrong clock dated into the future: blocks in a separate folder that is not queried.

`durable` moves them there when the clock was set back, and removes them when they exceed the retention. They are normal
blocks: if the clock was right then, stop the hub and move them back.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

FOLDER = "ahead"


@dataclass(frozen=True, slots=True)
class QuarantinedSamples:
    """How many samples were ahead of the clock, and how far the newest one was."""

    samples: int
    ahead_ms: int
    folder: Path


@contextmanager
def create_folder(samples_path: Path, now_ms: int) -> Iterator[Path]:
    """Create a folder for this quarantine; it is removed again if it stays empty."""
    name = f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y-%m-%dT%H-%M-%S}.{now_ms % 1000:03}Z"
    number = sum(path.name.startswith(name) for path in (samples_path / FOLDER).glob("*"))
    folder = samples_path / FOLDER / f"{name}-{number}"
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        if not any(folder.iterdir()):
            folder.rmdir()


def remove_expired(samples_path: Path, *, oldest_ms: int) -> None:
    """Remove quarantined samples that are older than the retention."""
    for folder in (samples_path / FOLDER).glob("*"):
        if folder.stat().st_mtime * 1000 < oldest_ms:
            shutil.rmtree(folder)
