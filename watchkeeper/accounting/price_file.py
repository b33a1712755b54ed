"""The price book of the settings, read again when its file has changed.

Reports of the API and the watch over budgets ask the same one, so that a price is never two prices.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from watchkeeper.catalogue import prices
from watchkeeper.errors import PackError, error_reason
from watchkeeper.kit import files

LARGEST_BYTES = 16 * 1024 * 1024


class PriceFile:
    """`path` None is the shipped book, with one price for every model that it does not know."""

    def __init__(self, path: str | None, *, fallback: float) -> None:
        self._path = None if path is None else Path(path)
        self._fallback = fallback
        self._kept: tuple[files.FileStamp | None, prices.PriceBook] | None = None

    def book(self) -> prices.PriceBook:
        if self._path is None:
            # The shipped book knows a few models; the one price of the settings stands in for the others, and says so.
            return replace(prices.shipped_book(), fallback=self._fallback)
        try:
            stamp = files.read_stamp(self._path)
            if self._kept is None or stamp is None or self._kept[0] != stamp:
                if stamp is not None and stamp.size_bytes > LARGEST_BYTES:
                    raise PackError(f"{stamp.size_bytes:,} bytes; the most is {LARGEST_BYTES:,}", where=str(self._path))
                self._kept = stamp, prices.read_book(self._path.read_text(encoding="utf-8-sig"), where=self._path.name)
            return self._kept[1]
        except (OSError, UnicodeDecodeError) as error:
            raise PackError(
                f"the price book cannot be read: {self._path}: {error_reason(error)}", where="[cost] prices"
            ) from error
