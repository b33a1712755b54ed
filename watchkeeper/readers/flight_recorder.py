"""Dumps of PyTorch's flight recorder: what each rank enqueued, started and completed, by process group.

A dump is a pickle or JSON and does not say which rank wrote it; the file name does. The doctor compares
the dumps of a job to find the rank that is behind.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from watchkeeper.errors import WatchkeeperError
from watchkeeper.readers import safe_pickle

# nccl_trace_rank_3   comm_lib_trace_rank_12.json   rank7.pickle
RANK_OF_NAME = re.compile(r"rank[_-]?(\d{1,9})(?=\D|$)(?!.*rank[_-]?\d)", re.IGNORECASE)


class NotADump(WatchkeeperError):
    """The file has not the shape of a flight-recorder dump."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One entry: `state` is scheduled, started or completed."""

    group: str
    sequence: int
    operation: str
    sizes: str
    state: str
    is_p2p: bool
    timed_out: bool


@dataclass(frozen=True, slots=True)
class Dump:
    """What one rank recorded, oldest first; `ranks` are the members of each group."""

    rank: int | None
    version: str
    ranks: Mapping[str, tuple[int, ...]]
    collectives: tuple[Collective, ...]


def looks_like(head: bytes) -> bool:
    return (
        (head[:1] == b"\x80" or head.lstrip()[:1] == b"{")
        and b"entries" in head
        and (b"pg_config" in head or b"collective_seq_id" in head or b"nccl_version" in head)
    )


def read(name: str, raw: bytes) -> Dump:
    """One dump; a pickle is never loaded, see `safe_pickle`."""
    if raw[:1] == b"\x80":
        loaded = safe_pickle.loads(raw)
    else:
        try:
            loaded = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise NotADump(f"broken JSON: {error}", where=name) from error
    if not isinstance(loaded, dict) or not isinstance(loaded.get("entries"), (list, tuple)):
        raise NotADump("has no entries", where=name)
    rank = RANK_OF_NAME.search(name.rsplit("/", 1)[-1])
    entries = [entry for entry in loaded["entries"] if isinstance(entry, dict)]
    return Dump(
        rank=int(rank[1]) if rank else None,
        version=str(loaded.get("version", "")),
        ranks=_groups(loaded.get("pg_config")),
        collectives=tuple(_collective(entry) for entry in entries),
    )


def _groups(config: Any) -> dict[str, tuple[int, ...]]:
    found = {}
    for key, group in config.items() if isinstance(config, dict) else ():
        if isinstance(group, dict):
            text = str(group.get("ranks", ""))
            found[str(key)] = tuple(int(number) for number in re.findall(r"\d+", text))
    return found


def _collective(entry: Mapping[str, Any]) -> Collective:
    group = entry.get("process_group")
    name = str(group[0]) if isinstance(group, (list, tuple)) and group else str(entry.get("pg_id", ""))
    sequence = entry.get("collective_seq_id", entry.get("seq_id", 0))
    state = str(entry.get("state", ""))
    return Collective(
        group=name,
        sequence=sequence if isinstance(sequence, int) else 0,
        operation=str(entry.get("profiling_name", "")).removeprefix("nccl:"),
        sizes=str(entry.get("input_sizes", "")),
        state=state,
        is_p2p=bool(entry.get("is_p2p", False)),
        timed_out=bool(entry.get("retired", False)) and state != "completed",
    )
