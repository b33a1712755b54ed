"""Metadata of metrics: type, help and unit.

Scrapes and remote write record it; a durable store saves it in one small file next to the blocks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from watchkeeper import errors

Description = tuple[str, str, str]

MAX_METRICS = 20_000


class Metadata:
    """Descriptions by metric name, up to `MAX_METRICS`."""

    def __init__(self) -> None:
        self._description_by_metric: dict[str, Description] = {}
        self._is_saved = True

    def record(self, name: str, type: str, *, help: str = "", unit: str = "") -> None:
        description = (type, help, unit)
        if self._description_by_metric.get(name) != description and (
            name in self._description_by_metric or len(self._description_by_metric) < MAX_METRICS
        ):
            self._description_by_metric[name] = description
            self._is_saved = False

    def descriptions(self) -> dict[str, Description]:
        return dict(self._description_by_metric)

    def save(self, path: Path, *, write: Callable[[Path, bytes], None]) -> None:
        """Write the file if anything changed since it was written or read; StoreError if the write fails."""
        if not self._is_saved:
            self._is_saved = True
            try:
                write(path, json.dumps(self.descriptions(), ensure_ascii=False, indent=0).encode())
            except OSError as error:
                self._is_saved = False
                raise errors.StoreError(
                    f"the metadata of metrics cannot be written: {error.strerror}",
                    where=str(path),
                    now="It stays in memory; samples are not affected",
                    remedy="Free disk space, and check that this user may write the file",
                ) from error

    def load(self, path: Path) -> None:
        """Load the file if it exists; StoreError if it is damaged or cannot be read."""
        if not path.exists():
            return
        try:
            document = json.loads(path.read_bytes())
            self._description_by_metric = {
                str(name): (str(fields[0]), str(fields[1]), str(fields[2])) for name, fields in document.items()
            }
        except (OSError, ValueError, AttributeError, IndexError, TypeError) as error:
            raise errors.StoreError(f"the metadata of metrics cannot be read: {error}", where=str(path)) from error
