"""The adapters that ranks use against those that ibstat shows: names that do not exist, ports that are dark or idle.

Both have to be handed in together: the ranks' logs (or the job's settings) and `ibstat` of a node of the job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from watchkeeper.doctor.facts import DoctorFacts, Sighting
from watchkeeper.doctor.opinion import MAX_EVIDENCE, Opinion, opinion

SETTING = "NCCL_IB_HCA"
# NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]
USED = re.compile(r"\](?P<hca>[\w.-]+):\d+/")


def adapters_against_ibstat(facts: DoctorFacts) -> Iterable[Opinion]:
    active = {
        sighting.fields["hca"]: sighting for sighting in facts.of("hca-port-active") if sighting.fields.get("hca")
    }
    down = {sighting.fields["hca"]: sighting for sighting in facts.of("hca-port-down") if sighting.fields.get("hca")}
    listed = sorted({*active, *down})
    given = [sighting for sighting in facts.of("nccl-setting", "env-setting") if sighting.fields["variable"] == SETTING]
    if not active or not listed:
        return
    for sighting in given[:1]:
        yield from _names(sighting, listed, down)
    lines = facts.of("nccl-ib-devices")
    used = {match["hca"] for line in lines for match in USED.finditer(line.fields["hcas"])}
    if not used and given:
        used = {hca for hca in listed if is_chosen(given[0].fields["value"], hca)}
    yield from _idle(used & active.keys(), active, on=[*given[:1], *lines[:2]])


def _names(sighting: Sighting, listed: list[str], down: dict[str, Sighting]) -> Iterable[Opinion]:
    value = sighting.fields["value"]
    if not value.startswith("^"):
        unknown = [name for name in _parts(value) if not any(_fits(name, hca, value) for hca in listed)]
        if unknown:
            why = f"{SETTING} names {', '.join(unknown)}, and ibstat lists {', '.join(listed)}."
            advice = [f"Name adapters that the node has: {SETTING}={','.join(listed)}"]
            yield opinion("nccl_rdma_not_used", 0.7, why, on=[sighting], advice=advice)
    dark = [hca for hca in down if is_chosen(value, hca)]
    if dark:
        why = f"{SETTING} chooses {', '.join(dark)}, whose port is down."
        yield opinion("ib_link_degraded", 0.62, why, on=[sighting, *(down[hca] for hca in dark[:MAX_EVIDENCE])])


def _idle(used: set[str], active: dict[str, Sighting], *, on: list[Sighting]) -> Iterable[Opinion]:
    """Adapters of the same kind and rate as the used ones; an interface for management is meant to be left out."""
    kinds = {_kind(active[hca]) for hca in used}
    alike = [hca for hca, sighting in active.items() if _kind(sighting) in kinds]
    idle = [hca for hca in alike if hca not in used]
    if used and idle:
        why = f"Ranks use {len(used)} of {len(alike)} active adapters of the same kind; idle: {', '.join(idle)}."
        advice = [f"Name them too, or leave {SETTING} unset: NCCL then takes every active adapter"]
        shown = [*on, *(active[hca] for hca in idle)]
        yield opinion("nccl_rdma_not_used", 0.52, why, on=shown[:MAX_EVIDENCE], advice=advice)


def _kind(sighting: Sighting) -> tuple[str, str]:
    return sighting.fields.get("layer", ""), sighting.fields.get("rate", "")


def is_chosen(value: str, hca: str) -> bool:
    """NCCL's own reading: names are prefixes, `=` makes them exact, `^` in front leaves them out."""
    named = any(_fits(name, hca, value) for name in _parts(value))
    return named is not value.startswith("^")


def _parts(value: str) -> list[str]:
    return [part.partition(":")[0] for part in value.lstrip("^=").split(",") if part]


def _fits(name: str, hca: str, value: str) -> bool:
    return hca == name if value.lstrip("^").startswith("=") else hca.startswith(name)
