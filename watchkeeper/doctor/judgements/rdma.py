"""Compare the adapters that ranks use with those that ibstat lists: unknown names, ports that are down or not used.

This needs both inputs: the logs of the ranks (or the settings of the job) and `ibstat` of a node of the job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from watchkeeper.doctor.facts import DoctorFacts, Sighting
from watchkeeper.doctor.opinion import MAX_EVIDENCE, Opinion, opinion

HCA_SETTING = "NCCL_IB_HCA"
# NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]
USED = re.compile(r"\](?P<hca>[\w.-]+):\d+/")


def adapters_against_ibstat(facts: DoctorFacts) -> Iterable[Opinion]:
    active, down = (
        {sighting.fields["hca"]: sighting for sighting in facts.find(sign) if sighting.fields.get("hca")}
        for sign in ("hca-port-active", "hca-port-down")
    )
    listed = sorted({*active, *down})
    lines = facts.find("nccl-setting", "env-setting")
    settings = [line for line in lines if line.fields["variable"] == HCA_SETTING]
    if not active or not listed:
        return
    for sighting in settings[:1]:
        yield from _configured_adapters(sighting, listed, down)
    device_lines = facts.find("nccl-ib-devices")
    used = {match["hca"] for line in device_lines for match in USED.finditer(line.fields["hcas"])}
    if not used and settings:
        used = {hca for hca in listed if is_chosen(settings[0].fields["value"], hca)}
    yield from _idle_adapters(used & active.keys(), active, on=[*settings[:1], *device_lines[:2]])


def _configured_adapters(sighting: Sighting, listed: list[str], down: dict[str, Sighting]) -> Iterable[Opinion]:
    value = sighting.fields["value"]
    if not value.startswith("^"):
        unknown = [name for name in _adapter_names(value) if not any(_matches(name, hca, value) for hca in listed)]
        if unknown:
            why = f"{HCA_SETTING} names {', '.join(unknown)}, but ibstat lists {', '.join(listed)}."
            advice = [f"Set it to adapters of the node: {HCA_SETTING}={','.join(listed)}"]
            yield opinion("nccl_rdma_not_used", 0.7, why, on=[sighting], advice=advice)
    down_adapters = [hca for hca in down if is_chosen(value, hca)]
    if down_adapters:
        why = f"{HCA_SETTING} selects {', '.join(down_adapters)}, whose port is down."
        ports = [down[hca] for hca in down_adapters[:MAX_EVIDENCE]]
        yield opinion("ib_link_degraded", 0.62, why, on=[sighting, *ports])


def _idle_adapters(used: set[str], active: dict[str, Sighting], *, on: list[Sighting]) -> Iterable[Opinion]:
    """Unused adapters of the same kind and rate as the used ones; a management interface has another rate."""
    kinds = {_kind(active[hca]) for hca in used}
    same_kind = [hca for hca, sighting in active.items() if _kind(sighting) in kinds]
    idle = [hca for hca in same_kind if hca not in used]
    if used and idle:
        why = f"Ranks use {len(used)} of {len(same_kind)} active adapters of the same kind"
        why += f"; not used: {', '.join(idle)}."
        advice = [f"Add them, or do not set {HCA_SETTING}: NCCL then uses all active adapters"]
        shown = [*on, *(active[hca] for hca in idle)]
        yield opinion("nccl_rdma_not_used", 0.52, why, on=shown[:MAX_EVIDENCE], advice=advice)


def _kind(sighting: Sighting) -> tuple[str, str]:
    return sighting.fields.get("layer", ""), sighting.fields.get("rate", "")


def is_chosen(value: str, hca: str) -> bool:
    """Whether the value selects the adapter, by NCCL's rules: names are prefixes, `=` means exact, `^` excludes."""
    is_named = any(_matches(name, hca, value) for name in _adapter_names(value))
    return is_named is not value.startswith("^")


def _adapter_names(value: str) -> list[str]:
    return [part.partition(":")[0] for part in value.lstrip("^=").split(",") if part]


def _matches(name: str, hca: str, value: str) -> bool:
    return hca == name if value.lstrip("^").startswith("=") else hca.startswith(name)
