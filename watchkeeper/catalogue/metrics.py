"""What a metric means and does not show: names from packs/dcgm_fields.csv, guidance from packs/metric_guide.csv.

`watchkeeper explain metric NAME` prints it, also for other fields of DCGM (packs/dcgm_other_fields.csv). DCGM 4.6
renamed many fields; both names have the same row. Metrics of other exporters, and names that do not exist, are in the
guide only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from watchkeeper.catalogue import pack

FIELDS, OTHER_FIELDS, GUIDE = "dcgm_fields.csv", "dcgm_other_fields.csv", "metric_guide.csv"
# The version whose public fields the two tables list.
DCGM_VERSION = "4.6"
CLOSE_NAMES = 5


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric; bands, cannot_tell and look_next are empty without an entry in the guide, field_id outside DCGM."""

    name: str
    newer_name: str
    field_id: str
    unit: str
    type: str
    meaning: str
    bands: str
    cannot_tell: str
    look_next: str
    source: str


def lookup(name: str) -> MetricRow | None:
    """The row of a metric by its old or new name, ignoring case, or by DCGM's field id."""
    return _by_name().get(name.upper())


def lookup_any(name: str) -> MetricRow | None:
    """The row of a metric, or of a DCGM field that Watchkeeper neither exports nor reads."""
    return lookup(name) or _other_fields().get(name.upper())


def field_names() -> frozenset[str]:
    """The names of all DCGM fields, as DCGM called them up to 4.5."""
    return frozenset(name for name, row in _by_name().items() if name == row.name and name.startswith("DCGM_FI_"))


def similar_names(name: str) -> tuple[str, ...]:
    """Existing names that share words with an unknown name, the closest first."""
    words = {word for word in name.upper().split("_") if word not in ("DCGM", "FI", "DEV", "PROF")}
    scored = ((len(words & set(candidate.split("_"))), candidate) for candidate in _by_name())
    best = sorted((pair for pair in scored if pair[0]), key=lambda pair: (-pair[0], len(pair[1]), pair[1]))
    return tuple(candidate for _, candidate in best[:CLOSE_NAMES])


@cache
def _by_name() -> dict[str, MetricRow]:
    guide = {row["name"]: row for row in pack.load(GUIDE, dict)}
    rows: dict[str, MetricRow] = {}
    for cells in pack.load(FIELDS, dict):
        row = _row(cells, guide.pop(cells["name"], {}))
        rows[row.name] = row
        rows.setdefault(cells["field_id"], row)
        if row.newer_name:
            rows.setdefault(row.newer_name, row)
    for name, cells in guide.items():
        rows[name.upper()] = _row({}, cells)
    return rows


@cache
def _other_fields() -> dict[str, MetricRow]:
    guide = {"bands": "unknown here: Watchkeeper neither exports nor reads this field"}
    rows = [_row(cells, guide) for cells in pack.load(OTHER_FIELDS, dict)]
    keys = ((key.upper(), row) for row in rows for key in (row.field_id, row.name, row.newer_name) if key)
    return dict(keys)


def _row(cells: Mapping[str, str], guide: Mapping[str, str]) -> MetricRow:
    return MetricRow(
        name=cells.get("name") or guide["name"],
        newer_name=cells.get("name_from_4_6", ""),
        field_id=cells.get("field_id", ""),
        unit=cells.get("unit") or guide.get("unit", ""),
        type=cells.get("prom_type") or guide.get("type", ""),
        meaning=cells.get("description") or pack.required(guide.get("meaning", "")),
        **{name: guide.get(name, "") for name in ("bands", "cannot_tell", "look_next")},
        source="; ".join(part for part in (cells.get("source", ""), guide.get("source", "")) if part),
    )
