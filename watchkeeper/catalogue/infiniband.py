"""How a counter file of an InfiniBand port becomes a metric, from packs/infiniband_families.csv.

The names are node_exporter's where it has one, because rules and dashboards already ask for them. `basic_bits` is the
width of the counter in the specification's PortCounters, at whose maximum it stops counting; None where it has 64 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from watchkeeper.catalogue import pack, tables

FOLDERS = frozenset({"counters", "hw_counters"})


@dataclass(frozen=True, slots=True)
class Family:
    folder: str
    file: str
    name: str
    scale: int
    basic_bits: int | None
    help: str

    @property
    def basic_maximum(self) -> int | None:
        return None if self.basic_bits is None else (1 << self.basic_bits) - 1


@cache
def families() -> Mapping[tuple[str, str], Family]:
    """By folder and file."""
    return {(row.folder, row.file): row for row in pack.load("infiniband_families.csv", _family)}


@cache
def maximum(counter: str) -> int | None:
    """Where a counter of perfquery stops; None if it does not, or nobody knows."""
    row = tables.counter(counter)
    family = None if row is None else families().get(("counters", row.sysfs_name))
    return None if family is None else family.basic_maximum


def _family(cells: Mapping[str, str]) -> Family:
    bits = cells["basic_bits"]
    return Family(
        folder=pack.one_of(cells["folder"], FOLDERS),
        file=pack.filled(cells["file"]),
        name=pack.filled(cells["family"]),
        scale=int(cells["scale"]),
        basic_bits=int(bits) if bits else None,
        help=pack.filled(cells["help"]),
    )
