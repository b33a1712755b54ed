"""Read dumps of PyTorch's flight recorder: the collectives that a rank scheduled, started and completed.

A dump is a pickle or JSON without the rank that wrote it; the file name has the rank. The doctor compares the dumps of
a job to find the rank that is behind.
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
RANK = re.compile(r"(?<!\d)\d{1,9}(?!\d)")


class InvalidDump(WatchkeeperError):
    """The file is not a valid flight-recorder dump."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a dump: `state` is scheduled, started or completed."""

    group: str
    sequence: int
    operation: str
    sizes: str
    state: str
    is_p2p: bool
    timed_out: bool


@dataclass(frozen=True, slots=True)
class RankDump:
    """The collectives of one rank, oldest first; `ranks` are the ranks of each process group."""

    rank: int | None
    version: str
    ranks: Mapping[str, tuple[int, ...]]
    collectives: tuple[Collective, ...]


def is_dump(head: bytes) -> bool:
    is_pickle_or_json = head[:1] == b"\x80" or head.lstrip()[:1] == b"{"
    other_keys = (b"pg_config", b"collective_seq_id", b"nccl_version")
    return is_pickle_or_json and b"entries" in head and any(key in head for key in other_keys)


def read(name: str, raw: bytes) -> RankDump:
    """Read a dump; a pickle is never executed, see `safe_pickle`."""
    if raw[:1] == b"\x80":
        loaded = safe_pickle.loads(raw)
    else:
        try:
            loaded = json.loads(raw)
            safe_pickle.check_plain(loaded)
        except (ValueError, RecursionError) as error:
            raise InvalidDump(f"invalid JSON: {error}", where=name) from error
    if not isinstance(loaded, dict) or not isinstance(loaded.get("entries"), (list, tuple)):
        raise InvalidDump("has no `entries` list", where=name)
    rank = RANK_OF_NAME.search(name.rsplit("/", 1)[-1])
    entries = [entry for entry in loaded["entries"] if isinstance(entry, dict)]
    return RankDump(
        rank=int(rank[1]) if rank else None,
        version=str(loaded.get("version", "")),
        ranks=_read_groups(loaded.get("pg_config")),
        collectives=tuple(_read_collective(entry) for entry in entries),
    )


def _read_groups(config: Any) -> dict[str, tuple[int, ...]]:
    groups = config.items() if isinstance(config, dict) else ()
    texts = {str(key): str(group.get("ranks", "")) for key, group in groups if isinstance(group, dict)}
    return {key: tuple(map(int, RANK.findall(text))) for key, text in texts.items()}


def _read_collective(entry: Mapping[str, Any]) -> Collective:
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
