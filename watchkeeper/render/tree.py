"""What a target renders: files by name. `cli.render` writes them; every target is one function of this shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from watchkeeper.config import settings as config


@dataclass(frozen=True, slots=True)
class File:
    """One file, by its path below the directory that was asked for."""

    path: str
    text: str
    is_executable: bool = False


# A target's `files`: the same settings give the same bytes, so that a second run shows in git what changed.
Target = Callable[[config.Settings], list[File]]
