"""Who holds each GPU, as text of the /metrics page: dcgm-exporter's labels on every family, or one series of its own.

Labels make each family a new series whenever a GPU changes hands; the information series is one, to be joined with. A
GPU that several hold has no one holder that labels could name, and a program that no scheduler sent has no label in
dcgm-exporter's vocabulary: both are shown as information series whatever was chosen. `watchkeeper_gpu_attribution` is
always there, so that nobody has to guess why a label is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from watchkeeper.agent.gpus.gpu_samples import GpuSample
from watchkeeper.kit import own_metrics
from watchkeeper.model.workloads import Attribution, Holding, Workload, WorkloadKind

WORKLOAD_INFO = "watchkeeper_gpu_workload_info"
WORKLOAD_SHARE = "watchkeeper_gpu_workload_share"
ATTRIBUTION = "watchkeeper_gpu_attribution"
ATTRIBUTED = "attributed"
HELP = {
    WORKLOAD_INFO: "1 for each workload that holds the GPU or slice; join it by UUID.",
    WORKLOAD_SHARE: "Part of the GPU's utilisation that is this workload's, where several hold it; the parts sum to 1.",
    ATTRIBUTION: "Workloads that hold the GPU; the reason says why there are none.",
}

# A GPU and one of its slices, or None for all of it.
Part = tuple[str, str | None]


class HolderDisplay(StrEnum):
    """How holders appear on the page."""

    LABELS = "labels"
    INFO = "info"
    BOTH = "both"


def holder_labels(current: Mapping[str, Attribution], shown: HolderDisplay) -> dict[Part, dict[str, str]]:
    """Labels of the one holder of each GPU or slice, as dcgm-exporter names them."""
    if shown is HolderDisplay.INFO:
        return {}
    found: dict[Part, dict[str, str]] = {}
    for uuid, attribution in current.items():
        for part, holdings in _by_part(attribution.holdings).items():
            labels = _exporter_labels(holdings[0].workload) if len(holdings) == 1 else {}
            if labels:
                found[uuid, part] = labels
    return found


def render(
    gpus: Sequence[GpuSample], current: Mapping[str, Attribution], *, hostname: str, shown: HolderDisplay
) -> str:
    """The families of attribution, with their heads."""
    lines: dict[str, list[str]] = {WORKLOAD_INFO: [], WORKLOAD_SHARE: [], ATTRIBUTION: []}
    for gpu in gpus:
        uuid = gpu.identity["uuid"]
        attribution = current.get(uuid)
        if attribution is None:
            continue
        own = {"gpu": str(gpu.index), "UUID": uuid, "Hostname": hostname}
        reason = ATTRIBUTED if attribution.reason is None else attribution.reason.value
        lines[ATTRIBUTION].append(_line(ATTRIBUTION, own | {"reason": reason}, len(attribution.holdings)))
        profiles = {str(part.id): part.profile for part in gpu.mig_instances}
        alone = {part for part, held in _by_part(attribution.holdings).items() if len(held) == 1}
        for holding in attribution.holdings:
            labels = own | _slice_labels(holding, profiles) | workload_labels(holding.workload)
            is_labelled = holding.slice in alone and bool(_exporter_labels(holding.workload))
            if shown is not HolderDisplay.LABELS or not is_labelled:
                lines[WORKLOAD_INFO].append(_line(WORKLOAD_INFO, labels, 1))
            if holding.share is not None:
                lines[WORKLOAD_SHARE].append(_line(WORKLOAD_SHARE, labels, round(holding.share, 4)))
    return "".join(
        f"# HELP {name} {HELP[name]}\n# TYPE {name} gauge\n{''.join(found)}" for name, found in lines.items() if found
    )


def workload_labels(workload: Workload) -> dict[str, str]:
    """What an information series says about a workload; an empty value is an absent label."""
    named = {
        "workload_kind": workload.kind.value,
        "workload": workload.name,
        "namespace": workload.namespace,
        "container": workload.container,
        "user": workload.user,
    }
    return {name: value for name, value in named.items() if value}


def _exporter_labels(workload: Workload) -> dict[str, str]:
    if workload.kind is WorkloadKind.POD:
        return {"container": workload.container, "namespace": workload.namespace, "pod": workload.name}
    return {"hpc_job": workload.name} if workload.kind is WorkloadKind.SLURM_JOB else {}


def _slice_labels(holding: Holding, profiles: Mapping[str, str]) -> dict[str, str]:
    if holding.slice is None:
        return {}
    profile = profiles.get(holding.slice)
    return ({"GPU_I_PROFILE": profile} if profile else {}) | {"GPU_I_ID": holding.slice}


def _by_part(holdings: Sequence[Holding]) -> dict[str | None, list[Holding]]:
    found: dict[str | None, list[Holding]] = {}
    for holding in holdings:
        found.setdefault(holding.slice, []).append(holding)
    return found


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{label}="{own_metrics.escape(text)}"' for label, text in labels.items())
    return f"{name}{{{inside}}} {value:g}\n"
