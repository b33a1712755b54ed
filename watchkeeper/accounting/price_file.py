"""Load the price book named in the settings, and reload it when its file changes.

API reports and budget metrics use it, so that both have the same prices.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from watchkeeper.catalogue import prices
from watchkeeper.config import settings as config
from watchkeeper.errors import PackError, error_reason
from watchkeeper.kit import files

MAX_BYTES = 16 * 1024 * 1024


class PriceFile:
    """The price book file; if `path` is None, the shipped book, with `fallback` as the price of all other models."""

    def __init__(self, path: str | None, *, fallback: float) -> None:
        self._path = None if path is None else Path(path)
        # The shipped book has few models. The others get the price of the settings, which reports point out.
        self._shipped = replace(prices.shipped_book(), fallback=fallback) if path is None else None
        self._cached: tuple[files.FileStamp | None, prices.PriceBook] | None = None

    @classmethod
    def of_settings(cls, settings: config.CostSettings) -> PriceFile:
        return cls(settings.prices, fallback=settings.dollars_per_gpu_hour)

    def book(self) -> prices.PriceBook:
        if self._shipped is not None:
            return self._shipped
        assert self._path is not None
        try:
            stamp = files.read_stamp(self._path)
            if self._cached is None or stamp is None or self._cached[0] != stamp:
                if stamp is not None and stamp.size_bytes > MAX_BYTES:
                    raise PackError(f"{stamp.size_bytes:,} bytes; the limit is {MAX_BYTES:,}", where=str(self._path))
                text = self._path.read_text(encoding="utf-8-sig")
                self._cached = stamp, prices.read_book(text, where=self._path.name)
            return self._cached[1]
        except (OSError, UnicodeDecodeError) as error:
            problem = f"cannot read the price book: {self._path}: {error_reason(error)}"
            raise PackError(problem, where="[cost] prices") from error
