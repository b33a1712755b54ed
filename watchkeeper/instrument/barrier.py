"""`barrier_report`: PyTorch's monitored barrier, whose error says on which nodes and GPUs the missing ranks are.

A rank that waits names numbers; people need machines. Each rank leaves its place in the job's store (`introduce`), so
rank 0 can look up where the missing ones were, though they no longer answer. It needs a Gloo group.
"""

from __future__ import annotations

import contextlib
import re
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

from watchkeeper.instrument import optional, placement

KEY = "watchkeeper/place/{}"
TIMEOUT_SECONDS = 300.0
# A rank that never said where it runs has no key, and the store would wait for it.
STORE_SECONDS = 2.0
# [Rank 0]: Ranks 3, 7 failed to pass monitoredBarrier in 300000 ms
MISSING = re.compile(r"Ranks? (?P<ranks>\d+(?:, ?\d+)*) failed to pass monitoredBarrier")


class BarrierBroken(RuntimeError):
    """Ranks did not come; `missing` says which, and where they run. Empty on ranks that rank 0 could not tell."""

    def __init__(self, missing: tuple[placement.Placement, ...], *, waited_seconds: float, first_error: str) -> None:
        self.missing = missing
        named = "; ".join(map(str, missing))
        told = f"{len(missing)} did not come: {named}" if missing else f"rank 0 knows who did not come ({first_error})"
        super().__init__(
            f"barrier: after {waited_seconds:g} s {told}. Look at the logs and GPUs of those; the others only wait"
        )


def introduce(place: placement.Placement) -> None:
    """Leave this rank's place in the job's store, where a process group is up."""
    store = _store()
    if store is not None:
        store.set(KEY.format(place.rank), place.as_json())


def barrier_report(
    group: Any = None, *, timeout_seconds: float = TIMEOUT_SECONDS, place: placement.Placement | None = None
) -> None:
    """Wait for all ranks of a Gloo group; BarrierBroken names the nodes and GPUs of those that do not come."""
    dist = optional.need("torch.distributed", package="torch")
    mine = place or placement.from_environment()
    if place is None:
        mine = replace(mine, rank=dist.get_rank(), world_size=dist.get_world_size())
    introduce(mine)
    try:
        # All of them: without it the error names only the first that is missing.
        dist.monitored_barrier(group, timedelta(seconds=timeout_seconds), wait_all_ranks=mine.rank == 0)
    except RuntimeError as error:
        missing = tuple(_place_of(rank) for rank in missing_ranks(str(error)))
        first = str(error).partition("\n")[0][:200]
        raise BarrierBroken(missing, waited_seconds=timeout_seconds, first_error=first) from error


def missing_ranks(said: str) -> list[int]:
    found = MISSING.search(said)
    return [] if found is None else [int(rank) for rank in found["ranks"].split(",")]


def _place_of(rank: int) -> placement.Placement:
    store = _store()
    # DistStoreError is a RuntimeError; a rank that never introduced itself stays a number.
    with contextlib.suppress(RuntimeError, ValueError, TypeError):
        if store is not None:
            key = KEY.format(rank)
            store.wait([key], timedelta(seconds=STORE_SECONDS))
            return placement.from_json(store.get(key))
    return placement.Placement(rank=rank)


def _store() -> Any:
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    # Not public, and the only way to the store that torchrun's ranks share (torch 1.9 to 2.13).
    return dist.distributed_c10d._get_default_store()
