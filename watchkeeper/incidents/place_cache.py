"""Results of queries about places, cached for seconds: in a storm the same place is queried again and again.

`footprint` and `holders` keep their results in one each.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from watchkeeper.kit.logs import fields
from watchkeeper.model import fleet

log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_AGE = timedelta(seconds=15)


class PlaceCache(Generic[T]):
    """Calls `load` for a place that is not cached; `result_name` is in the log if that fails."""

    def __init__(
        self, load: Callable[[fleet.Place], T], now: Callable[[], datetime], *, max_places: int, result_name: str
    ) -> None:
        self._load, self._now, self._max_places, self._result_name = load, now, max_places, result_name
        self._results: dict[fleet.Place, tuple[datetime, T]] = {}

    def get(self, place: fleet.Place) -> T | None:
        """The result; None if it cannot be loaded now, which is not cached."""
        now = self._now()
        if place in self._results and abs(now - self._results[place][0]) < MAX_AGE:
            return self._results[place][1]
        if len(self._results) >= self._max_places:
            self._results.clear()
        try:
            result = self._load(place)
        # Deliberately everything: the incident matters more than this detail of it.
        except Exception as error:
            log.warning("incident query failed", extra=fields(query=self._result_name, place=str(place), error=error))
            return None
        self._results[place] = (now, result)
        return result
