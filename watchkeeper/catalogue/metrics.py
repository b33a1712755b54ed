"""What a metric means and what it cannot tell: packs/dcgm_fields.csv for names, packs/metric_guide.csv for judgement.

`watchkeeper explain metric NAME` prints it. DCGM 4.6 renamed many fields; both names lead to the same row. Metrics of
others, and names that people look for in vain, stand in the guide alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from watchkeeper.catalogue import pack

FIELDS, GUIDE = "dcgm_fields.csv", "metric_guide.csv"
CLOSE_NAMES = 5


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric; the last three are empty where nobody has written a guide for it."""

    name: str
    newer_name: str
    unit: str
    type: str
    meaning: str
    bands: str
    cannot_tell: str
    look_next: str
    source: str


def lookup(name: str) -> MetricRow | None:
    """The row of a metric under its old or new name, in any case."""
    return _by_name().get(name.upper())


def similar_names(name: str) -> tuple[str, ...]:
    """Names that have the same words, for a name that nobody knows."""
    words = {word for word in name.upper().split("_") if word not in ("DCGM", "FI", "DEV", "PROF")}
    scored = ((len(words & set(known.split("_"))), known) for known in _by_name())
    best = sorted((pair for pair in scored if pair[0]), key=lambda pair: (-pair[0], len(pair[1]), pair[1]))
    return tuple(known for _, known in best[:CLOSE_NAMES])


@cache
def _by_name() -> dict[str, MetricRow]:
    guide = {row["name"]: row for row in pack.load(GUIDE, dict)}
    found: dict[str, MetricRow] = {}
    for cells in pack.load(FIELDS, dict):
        row = _row(cells, guide.pop(cells["name"], {}))
        found[row.name] = row
        if row.newer_name:
            found.setdefault(row.newer_name, row)
    for name, cells in guide.items():
        found[name.upper()] = _row({}, cells)
    return found


def _row(cells: Mapping[str, str], guide: Mapping[str, str]) -> MetricRow:
    return MetricRow(
        name=cells.get("name") or guide["name"],
        newer_name=cells.get("name_from_4_6", ""),
        unit=cells.get("unit") or guide.get("unit", ""),
        type=cells.get("prom_type") or guide.get("type", ""),
        meaning=cells.get("description") or pack.required(guide.get("meaning", "")),
        bands=guide.get("bands", ""),
        cannot_tell=guide.get("cannot_tell", ""),
        look_next=guide.get("look_next", ""),
        source="; ".join(part for part in (cells.get("source", ""), guide.get("source", "")) if part),
    )
