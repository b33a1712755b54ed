"""Choose the metric families to read: the default set, or the fields of a dcgm-exporter counters file.

The families are in packs/dcgm_fields.csv (DCGM's names) and packs/gpu_families.csv (metrics that dcgm-exporter lacks).
The agent chooses once, when it starts, and passes the families to the sampler.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from watchkeeper.catalogue import pack
from watchkeeper.readers import counters_csv
from watchkeeper.readers.nvml.families import Cadence, NvmlFamily


@dataclass(frozen=True, slots=True)
class FamilyChoice:
    """The families to export, and a problem for each field that NVML does not provide."""

    families: tuple[NvmlFamily, ...]
    problems: tuple[str, ...] = ()


@cache
def load_dcgm_families() -> Mapping[str, tuple[NvmlFamily, bool]]:
    """DCGM's fields by name, old and new (DCGM 4.6), and whether they are in the default set."""
    families: dict[str, tuple[NvmlFamily, bool]] = {}
    for family, new_name, is_chosen in pack.load("dcgm_fields.csv", _read_dcgm):
        families[family.name] = (family, is_chosen)
        if new_name:
            families[new_name] = (family._replace(name=new_name), False)
    return families


@cache
def load_own_families() -> tuple[NvmlFamily, ...]:
    return pack.load(
        "gpu_families.csv",
        lambda cells: _read(
            cells, help=f"{pack.required(cells['description'])}.", labels=tuple(cells["labels"].split())
        ),
    )


def choose_families(counters: Iterable[counters_csv.CounterField] | None = None) -> FamilyChoice:
    """The families of a counters file, or the default set; Watchkeeper's own families are always included."""
    if counters is None:
        chosen = [family for family, is_chosen in load_dcgm_families().values() if is_chosen]
        return FamilyChoice((*chosen, *load_own_families()))
    families, problems = [], []
    for counter in counters:
        if counter.name in load_dcgm_families():
            family = load_dcgm_families()[counter.name][0]
            families.append(family._replace(prom_type=counter.prom_type, help=counter.help))
        else:
            problems.append(f"line {counter.line}: NVML does not provide {counter.name}; the field was dropped")
    return FamilyChoice((*families, *load_own_families()), tuple(problems))


def _read_dcgm(cells: Mapping[str, str]) -> tuple[NvmlFamily, str, bool]:
    unit = f" (in {cells['unit']})" if cells["unit"] else ""
    family = _read(cells, help=f"{pack.required(cells['description'])}{unit}.")
    return family, cells["name_from_4_6"], pack.yes_or_no(cells["chosen"])


def _read(cells: Mapping[str, str], *, help: str, labels: tuple[str, ...] = ()) -> NvmlFamily:
    call, _, part = pack.required(cells["nvml"]).partition(".")
    return NvmlFamily(
        name=pack.required(cells["name"]),
        prom_type=pack.choice(cells["prom_type"], counters_csv.PROM_TYPES),
        help=help,
        is_float=cells["value_type"] == "double",
        is_per_slice=pack.yes_or_no(cells["per_slice"]),
        call=call,
        part=part,
        scale=float(cells["scale"] or 1),
        cadence=Cadence(cells["cadence"]),
        labels=labels,
    )
