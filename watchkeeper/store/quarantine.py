"""What a clock that ran ahead has written is set aside: blocks in a folder of their own, which nobody reads.

`durable` puts them there when the clock was put back, and removes them when they are older than anything that is
kept. They are ordinary blocks: whoever finds that the clock was right then moves them back while the hub is stopped.
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
    """How many samples were ahead of the clock, and by how much at most."""

    samples: int
    ahead_ms: int
    folder: Path


@contextmanager
def create_folder(store: Path, now_ms: int) -> Iterator[Path]:
    """A folder for what is set aside now; none if nothing was, as when the disk refuses."""
    name = f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y-%m-%dT%H-%M-%S}.{now_ms % 1000:03}Z"
    number = sum(path.name.startswith(name) for path in (store / FOLDER).glob("*"))
    folder = store / FOLDER / f"{name}-{number}"
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        if not any(folder.iterdir()):
            folder.rmdir()


def remove_expired(store: Path, *, oldest_ms: int) -> None:
    """Remove what was set aside before anything that is kept."""
    for folder in (store / FOLDER).glob("*"):
        if folder.stat().st_mtime * 1000 < oldest_ms:
            shutil.rmtree(folder)
