"""Connects attribution to the agent: the sources of this node, and what the /metrics page shows of them.

A holder is shown as dcgm-exporter's labels on every family, or as info series. Labels start a new series of every
family when the holder of a GPU changes; several holders of one GPU, and processes that no scheduler started, have no
labels and get info series with every display.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from watchkeeper.agent import node_facts
from watchkeeper.agent.attribution import kubelet, programs, slurm_jobs
from watchkeeper.agent.attribution.attribution import Attributor, NamedSource
from watchkeeper.agent.gpus.gpu_samples import GpuSample
from watchkeeper.agent.gpus.sampler import Sampler
from watchkeeper.agent.page_text import format_labels
from watchkeeper.kit import own_metrics
from watchkeeper.model.workloads import Attribution, Holding, Workload, WorkloadKind

REFRESH_SECONDS = 2.0
POLL_SECONDS = 0.1
MAX_FIRST_POLLS = 20
WORKLOAD_INFO = "watchkeeper_gpu_workload_info"
WORKLOAD_SHARE = "watchkeeper_gpu_workload_share"
ATTRIBUTION = "watchkeeper_gpu_attribution"
ATTRIBUTED = "attributed"
HELP = {
    WORKLOAD_INFO: "1 for each workload that holds the GPU or MIG instance; join it by UUID.",
    WORKLOAD_SHARE: "Share of the GPU's utilisation that this workload causes, if several hold it; shares sum to 1.",
    ATTRIBUTION: "Number of workloads that hold the GPU; the reason label says why there is none.",
}

# A GPU's UUID, and the id of a MIG instance or None for the whole GPU.
GpuPart = tuple[str, str | None]


class HolderDisplay(StrEnum):
    LABELS = "labels"
    INFO = "info"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class HolderSettings:
    """How holders are found and shown; `job_directory` is dcgm-exporter's --hpc-job-mapping-dir."""

    display: HolderDisplay = HolderDisplay.BOTH
    job_directory: Path | None = None
    # The node's name in Slurm, if it is not the agent's node name.
    slurm_node: str | None = None
    pod_resources: Path | None = None


class NodeHolders:
    def __init__(
        self, settings: HolderSettings, node: str, *, roots: node_facts.Roots, registry: own_metrics.Registry
    ) -> None:
        self._settings = settings
        self._hostname = node
        failures = registry.counter(
            "watchkeeper_agent_attribution_failures_total", "Failed reads of a source of GPU holders."
        )
        pods = kubelet.PodResourcesClient(settings.pod_resources or roots.root / kubelet.SOCKET.relative_to("/"))
        jobs = slurm_jobs.SlurmJobs(settings.slurm_node or node, proc=roots.proc, job_directory=settings.job_directory)
        sources = [
            NamedSource("kubelet", pods, pods.exists),
            NamedSource("slurm", jobs, jobs.is_present),
        ]
        find_workloads = programs.ProgramWorkloads(roots.proc, roots.root).find_workloads
        self._attributor = Attributor(sources, find_workloads, failures)

    @property
    def current(self) -> Mapping[str, Attribution]:
        return self._attributor.current

    async def refresh(self, sampler: Sampler) -> None:
        # The first page must have its labels: wait briefly for the first snapshot.
        for _ in range(MAX_FIRST_POLLS):
            if sampler.snapshot().gpus:
                break
            await asyncio.sleep(POLL_SECONDS)
        current = await self._attributor.refresh(sampler.snapshot().gpus, time.monotonic())
        sampler.set_holders(build_holder_labels(current, self._settings.display))

    def page(self, sampler: Sampler) -> bytes:
        gpus, current = sampler.snapshot().gpus, self._attributor.current
        return render(gpus, current, hostname=self._hostname, display=self._settings.display).encode()


def build_holder_labels(current: Mapping[str, Attribution], display: HolderDisplay) -> dict[GpuPart, dict[str, str]]:
    """The labels of each GPU or MIG instance that has exactly one holder, in dcgm-exporter's names."""
    if display is HolderDisplay.INFO:
        return {}
    labels_by_part: dict[GpuPart, dict[str, str]] = {}
    for uuid, attribution in current.items():
        holding_counts = Counter(holding.slice for holding in attribution.holdings)
        for holding in attribution.holdings:
            labels = _build_exporter_labels(holding.workload)
            if labels and holding_counts[holding.slice] == 1:
                labels_by_part[uuid, holding.slice] = labels
    return labels_by_part


def render(
    gpus: Sequence[GpuSample], current: Mapping[str, Attribution], *, hostname: str, display: HolderDisplay
) -> str:
    lines: dict[str, list[str]] = {WORKLOAD_INFO: [], WORKLOAD_SHARE: [], ATTRIBUTION: []}
    for gpu in gpus:
        uuid = gpu.identity["uuid"]
        attribution = current.get(uuid)
        if attribution is None:
            continue
        gpu_labels = {"gpu": str(gpu.index), "UUID": uuid, "Hostname": hostname}
        reason = ATTRIBUTED if attribution.reason is None else attribution.reason.value
        lines[ATTRIBUTION].append(_format_line(ATTRIBUTION, gpu_labels | {"reason": reason}, len(attribution.holdings)))
        profiles = {str(instance.id): instance.profile for instance in gpu.mig_instances}
        holding_counts = Counter(holding.slice for holding in attribution.holdings)
        for holding in attribution.holdings:
            labels = gpu_labels | _build_slice_labels(holding, profiles) | build_workload_labels(holding.workload)
            is_labelled = holding_counts[holding.slice] == 1 and bool(_build_exporter_labels(holding.workload))
            if display is not HolderDisplay.LABELS or not is_labelled:
                lines[WORKLOAD_INFO].append(_format_line(WORKLOAD_INFO, labels, 1))
            if holding.share is not None:
                lines[WORKLOAD_SHARE].append(_format_line(WORKLOAD_SHARE, labels, round(holding.share, 4)))
    return "".join(
        f"# HELP {name} {HELP[name]}\n# TYPE {name} gauge\n{''.join(family_lines)}"
        for name, family_lines in lines.items()
        if family_lines
    )


def build_workload_labels(workload: Workload) -> dict[str, str]:
    labels = {
        "workload_kind": workload.kind.value,
        "workload": workload.name,
        "namespace": workload.namespace,
        "container": workload.container,
        "user": workload.user,
    }
    return {name: value for name, value in labels.items() if value}


def _build_exporter_labels(workload: Workload) -> dict[str, str]:
    if workload.kind is WorkloadKind.POD:
        return {"container": workload.container, "namespace": workload.namespace, "pod": workload.name}
    return {"hpc_job": workload.name} if workload.kind is WorkloadKind.SLURM_JOB else {}


def _build_slice_labels(holding: Holding, profiles: Mapping[str, str]) -> dict[str, str]:
    if holding.slice is None:
        return {}
    profile = profiles.get(holding.slice)
    return ({"GPU_I_PROFILE": profile} if profile else {}) | {"GPU_I_ID": holding.slice}


def _format_line(name: str, labels: Mapping[str, str], value: float) -> str:
    return f"{name}{{{format_labels(labels)}}} {value:g}\n"
