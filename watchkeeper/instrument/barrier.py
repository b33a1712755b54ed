"""`barrier_report`: PyTorch's monitored barrier with an error that names the nodes and GPUs of missing ranks.

PyTorch's error has only the numbers of the ranks, so each rank writes its placement to the job's store
(`publish_place`). It needs a Gloo group.

Gloo names the missing ranks only while all connections are up, so each rank also records its arrival in the store.
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

PLACE_KEY = "watchkeeper/place/{}"
# The number of barriers of this group that the rank has reached: one key for each rank.
ARRIVAL_KEY = "watchkeeper/barrier/{}/{}"
TIMEOUT_SECONDS = 300.0
# A rank that never published its placement has no key, and the store would wait for it.
STORE_TIMEOUT_SECONDS = 2.0
POLL_SECONDS = 0.1
# [Rank 0]: Ranks 3, 7 failed to pass monitoredBarrier in 300000 ms
MISSING_RANKS = re.compile(r"Ranks? (?P<ranks>\d+(?:, ?\d+)*) failed to pass monitoredBarrier")

_barrier_counts: Counter[str] = Counter()


class BarrierBroken(RuntimeError):
    """Ranks are missing; `missing` has their placements, or is empty if the job's store is unreachable too."""

    def __init__(self, missing: tuple[placement.Placement, ...], *, waited_seconds: float, first_error: str) -> None:
        self.missing = missing
        places = "; ".join(map(str, missing))
        count = "1 rank is" if len(missing) == 1 else f"{len(missing)} ranks are"
        problem = f"{count} missing: {places}" if missing else f"unknown ranks are missing ({first_error})"
        remedy = "Check the logs and GPUs of these ranks; the other ranks only wait"
        super().__init__(f"barrier: timed out after {waited_seconds:g} s, {problem}. {remedy}")


def publish_place(place: placement.Placement) -> None:
    """Write this rank's placement to the job's store, if a process group is initialised."""
    store = _find_store()
    if store is not None:
        store.set(PLACE_KEY.format(place.rank), place.as_json())


# The name until release 0.1; kept until release 0.3.
introduce = publish_place


def barrier_report(
    group: Any = None, *, timeout_seconds: float = TIMEOUT_SECONDS, place: placement.Placement | None = None
) -> None:
    """Wait for all ranks of a Gloo group; BarrierBroken names the nodes and GPUs of missing ranks."""
    dist = optional.require("torch.distributed", package="torch")
    own_place = place or placement.from_environment()
    if place is None:
        own_place = replace(own_place, rank=dist.get_rank(), world_size=dist.get_world_size())
    publish_place(own_place)
    deadline = time.monotonic() + timeout_seconds
    barrier_number = _record_arrival(group, own_place.rank)
    try:
        # Without `wait_all_ranks`, the error names only the first missing rank.
        dist.monitored_barrier(group, timedelta(seconds=timeout_seconds), wait_all_ranks=own_place.rank == 0)
    except RuntimeError as error:
        ranks = parse_missing_ranks(str(error))
        if not ranks:
            ranks = _find_absent(group, dist.get_process_group_ranks(group), barrier_number, deadline)
        missing = tuple(_read_place(rank) for rank in ranks)
        first_line = str(error).partition("\n")[0][:200]
        raise BarrierBroken(missing, waited_seconds=timeout_seconds, first_error=first_line) from error


def parse_missing_ranks(message: str) -> list[int]:
    match = MISSING_RANKS.search(message)
    return [] if match is None else [int(rank) for rank in match["ranks"].split(",")]


def _record_arrival(group: Any, rank: int) -> int:
    name = _group_name(group)
    _barrier_counts[name] += 1
    store = _find_store()
    if store is not None:
        store.set(ARRIVAL_KEY.format(name, rank), str(_barrier_counts[name]))
    return _barrier_counts[name]


def _find_absent(group: Any, ranks: list[int], barrier_number: int, deadline: float) -> list[int]:
    """The ranks that have not reached this barrier by the deadline; empty if the store does not answer."""
    store, name, absent = _find_store(), _group_name(group), ranks
    with contextlib.suppress(RuntimeError, ValueError):
        while store is not None:
            absent = [rank for rank in absent if _read_arrivals(store, name, rank) < barrier_number]
            if not absent or time.monotonic() >= deadline:
                return absent
            time.sleep(POLL_SECONDS)
    return []


def _read_arrivals(store: Any, name: str, rank: int) -> int:
    key = ARRIVAL_KEY.format(name, rank)
    return int(store.get(key)) if store.check([key]) else 0


def _group_name(group: Any) -> str:
    return "world" if group is None else str(group.group_name)


def _read_place(rank: int) -> placement.Placement:
    store = _find_store()
    # DistStoreError is a RuntimeError; a rank that never published its placement stays a number.
    with contextlib.suppress(RuntimeError, ValueError, TypeError):
        if store is not None:
            key = PLACE_KEY.format(rank)
            store.wait([key], timedelta(seconds=STORE_TIMEOUT_SECONDS))
            return placement.from_json(store.get(key))
    return placement.Placement(rank=rank)


def _find_store() -> Any:
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    # Not public, but the only access to the store that torchrun's ranks share (torch 1.9 to 2.13).
    return dist.distributed_c10d._get_default_store()
