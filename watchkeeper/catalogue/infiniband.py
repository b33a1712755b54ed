"""How a counter file of an InfiniBand port becomes a metric, from packs/infiniband_families.csv.

The names are node_exporter's where it has one, because existing rules and dashboards use them. `basic_bits` is the
width of the counter in the specification's PortCounters, at whose maximum it stops; None for a 64-bit counter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial

from watchkeeper.catalogue import pack, tables

FOLDERS = frozenset({"counters", "hw_counters"})


@dataclass(frozen=True, slots=True)
class CounterFamily:
    folder: str = pack.cell(partial(pack.choice, choices=FOLDERS))
    file: str = pack.cell(pack.required)
    name: str = pack.cell(pack.required, "family")
    scale: int = pack.cell(int)
    basic_bits: int | None = pack.cell(pack.optional(int))
    help: str = pack.cell(pack.required)

    @property
    def basic_maximum(self) -> int | None:
        return None if self.basic_bits is None else (1 << self.basic_bits) - 1


@cache
def counter_families() -> Mapping[tuple[str, str], CounterFamily]:
    """By folder and file."""
    return {(row.folder, row.file): row for row in pack.load("infiniband_families.csv", pack.row_reader(CounterFamily))}


@cache
def counter_maximum(counter: str) -> int | None:
    """The value at which a counter of perfquery stops; None if it has no limit or the limit is unknown."""
    row = tables.find_counter(counter)
    family = None if row is None else counter_families().get(("counters", row.sysfs_name))
    return None if family is None else family.basic_maximum
