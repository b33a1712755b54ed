"""Find stray cordons: a call that timed out may take effect after its repair has ended.

`repairs` reports ended repairs and removes the stray cordons. For an hour after a repair, its node is observed every
five minutes. A node that does not answer is kept until it was observed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from watchkeeper.model import fleet
from watchkeeper.model.repairs import Repair, RepairId
from watchkeeper.remediate.driver import NodeObservation

REMEMBERED_FOR = timedelta(hours=1)
CHECK_INTERVAL = timedelta(minutes=5)


class StrayCordons:
    """The nodes of recently ended repairs. Not thread-safe."""

    def __init__(self, past: Iterable[Repair], now: datetime) -> None:
        self._ended = {
            repair.node: (repair.id, repair.ended_at)
            for repair in past
            if repair.ended_at and now - repair.ended_at < REMEMBERED_FOR
        }
        self._checked_at: datetime | None = None

    def remember(self, ended: Repair, now: datetime) -> None:
        self._ended[ended.node] = (ended.id, ended.ended_at or now)

    def check_nodes(
        self,
        observe: Callable[[fleet.Place], NodeObservation | None],
        is_busy: Callable[[fleet.Place], bool],
        now: datetime,
    ) -> list[tuple[RepairId, NodeObservation]]:
        """Observe the nodes without an active repair, each with the repair that ended there; empty between checks."""
        if self._checked_at is not None and timedelta() <= now - self._checked_at < CHECK_INTERVAL:
            return []
        self._checked_at = now
        observations: list[tuple[RepairId, NodeObservation]] = []
        for node, (id, ended_at) in list(self._ended.items()):
            if is_busy(node):
                continue
            observed = observe(node)
            if observed is None:
                # A timeout takes long: the remaining nodes are observed at the next check.
                return observations
            observations.append((id, observed))
            if not now - ended_at < REMEMBERED_FOR:
                self._ended.pop(node, None)
        return observations
