"""Marks that came late: a call that we gave up may have taken effect after all, and left a cordon that nothing needs.

`repairs` says which repairs have ended; for an hour their nodes are looked at now and then, and what is ours there and
belongs to nothing is taken off. A node that cannot be looked at is not forgotten before it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from watchkeeper.model import fleet
from watchkeeper.model.repairs import Repair, RepairId
from watchkeeper.remediate.driver import NodeObservation

REMEMBERED = timedelta(hours=1)
PAUSE = timedelta(minutes=5)


class StrayCordons:
    """Where a call of ours may have taken effect after its repair had ended. One thread at a time may call it."""

    def __init__(self, past: Iterable[Repair], now: datetime) -> None:
        self._ended = {
            one.node: (one.id, one.ended_at) for one in past if one.ended_at and now - one.ended_at < REMEMBERED
        }
        self._looked: datetime | None = None

    def remember(self, ended: Repair, now: datetime) -> None:
        self._ended[ended.node] = (ended.id, ended.ended_at or now)

    def look(
        self,
        observe: Callable[[fleet.Place], NodeObservation | None],
        is_busy: Callable[[fleet.Place], bool],
        now: datetime,
    ) -> list[tuple[RepairId, NodeObservation]]:
        """What is seen at nodes where nothing is at work, with the repair that ended there; nothing between looks."""
        if self._looked is not None and timedelta() <= now - self._looked < PAUSE:
            return []
        self._looked = now
        found: list[tuple[RepairId, NodeObservation]] = []
        for node, (id, ended_at) in list(self._ended.items()):
            if is_busy(node):
                continue
            observed = observe(node)
            if observed is None:
                # One that does not answer takes its time about it; the others are asked with it, the next time.
                return found
            found.append((id, observed))
            if not now - ended_at < REMEMBERED:
                self._ended.pop(node, None)
        return found
