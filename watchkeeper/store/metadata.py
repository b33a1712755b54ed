"""What targets say about their metrics: type, help and unit, one line per metric.

Scrapes and remote writers note it; with a durable store it lies in one small file beside the blocks.
"""

from __future__ import annotations

import json
from pathlib import Path

from watchkeeper import errors
from watchkeeper.kit import files

Description = tuple[str, str, str]

MAX_METRICS = 20_000


class Metadata:
    """Descriptions by metric name; one too many is not kept."""

    def __init__(self) -> None:
        self._known: dict[str, Description] = {}
        self._is_saved = True

    def record(self, name: str, type: str, *, help: str = "", unit: str = "") -> None:
        described = (type, help, unit)
        if self._known.get(name) != described and (name in self._known or len(self._known) < MAX_METRICS):
            self._known[name] = described
            self._is_saved = False

    def all(self) -> dict[str, Description]:
        return dict(self._known)

    def save(self, path: Path) -> None:
        """Write the file if anything changed since it was written or read; StoreError if the disk refuses."""
        if not self._is_saved:
            self._is_saved = True
            try:
                files.write_atomically(path, json.dumps(self.all(), ensure_ascii=False, indent=0).encode())
            except OSError as error:
                self._is_saved = False
                raise errors.StoreError(
                    f"descriptions of metrics cannot be written: {error.strerror}",
                    where=str(path),
                    now="They stay in memory; samples are not concerned",
                    remedy="Make room on the disk, and let this user write the file",
                ) from error

    def load(self, path: Path) -> None:
        """Take over what the file says; StoreError if it is damaged or cannot be read."""
        if not path.exists():
            return
        try:
            read = json.loads(path.read_bytes())
            self._known = {str(name): (str(one[0]), str(one[1]), str(one[2])) for name, one in read.items()}
        except (OSError, ValueError, AttributeError, IndexError, TypeError) as error:
            raise errors.StoreError(f"descriptions of metrics cannot be read: {error}", where=str(path)) from error
