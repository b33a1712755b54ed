"""`barrier_report`: PyTorch's monitored barrier, whose error says on which nodes and GPUs the missing ranks are.

A rank that waits names numbers; people need machines. Each rank leaves its place in the job's store (`introduce`), so
the others can look up where the missing ones were, though they no longer answer. It needs a Gloo group.

Gloo names who is missing only where every connection still stands: a rank that died before the barrier began breaks it
with "connection closed by peer". So each rank also signs in the store when it comes, and who did not sign is missing.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

from watchkeeper.instrument import optional, placement

KEY = "watchkeeper/place/{}"
# How many barriers of this group the rank has come to: one key a rank, however many barriers there are.
SIGNED = "watchkeeper/barrier/{}/{}"
TIMEOUT_SECONDS = 300.0
# A rank that never said where it runs has no key, and the store would wait for it.
STORE_SECONDS = 2.0
LOOK_SECONDS = 0.1
# [Rank 0]: Ranks 3, 7 failed to pass monitoredBarrier in 300000 ms
MISSING = re.compile(r"Ranks? (?P<ranks>\d+(?:, ?\d+)*) failed to pass monitoredBarrier")

_come: Counter[str] = Counter()


class BarrierBroken(RuntimeError):
    """Ranks did not come; `missing` says which, and where they run. Empty where the job's store is gone too."""

    def __init__(self, missing: tuple[placement.Placement, ...], *, waited_seconds: float, first_error: str) -> None:
        self.missing = missing
        named = "; ".join(map(str, missing))
        told = f"{len(missing)} did not come: {named}" if missing else f"somebody did not come ({first_error})"
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
    deadline = time.monotonic() + timeout_seconds
    turn = _sign(group, mine.rank)
    try:
        # All of them: without it the error names only the first that is missing.
        dist.monitored_barrier(group, timedelta(seconds=timeout_seconds), wait_all_ranks=mine.rank == 0)
    except RuntimeError as error:
        ranks = missing_ranks(str(error)) or _unsigned(group, dist.get_process_group_ranks(group), turn, deadline)
        missing = tuple(_place_of(rank) for rank in ranks)
        first = str(error).partition("\n")[0][:200]
        raise BarrierBroken(missing, waited_seconds=timeout_seconds, first_error=first) from error


def missing_ranks(said: str) -> list[int]:
    found = MISSING.search(said)
    return [] if found is None else [int(rank) for rank in found["ranks"].split(",")]


def _sign(group: Any, rank: int) -> int:
    name = _name(group)
    _come[name] += 1
    store = _store()
    if store is not None:
        store.set(SIGNED.format(name, rank), str(_come[name]))
    return _come[name]


def _unsigned(group: Any, ranks: list[int], turn: int, deadline: float) -> list[int]:
    """The ranks that have not come to this turn by the deadline; none where the store does not answer."""
    store, away = _store(), ranks
    with contextlib.suppress(RuntimeError, ValueError):
        while store is not None:
            away = [rank for rank in away if _signed(store, SIGNED.format(_name(group), rank)) < turn]
            if not away or time.monotonic() >= deadline:
                return away
            time.sleep(LOOK_SECONDS)
    return []


def _signed(store: Any, key: str) -> int:
    return int(store.get(key)) if store.check([key]) else 0


def _name(group: Any) -> str:
    return "world" if group is None else str(group.group_name)


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
