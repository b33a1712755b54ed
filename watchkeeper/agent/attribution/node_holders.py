"""Attribution as one part of the agent: which sources this node has, and what of them the page shows.

The agent calls `refresh` every two seconds and `page` with each scrape; the sampler's page gets the labels.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from watchkeeper.agent import node_facts
from watchkeeper.agent.attribution import attribution, attribution_page, kubelet, programs, slurm_jobs
from watchkeeper.agent.gpus.sampler import Sampler
from watchkeeper.kit import own_metrics
from watchkeeper.model import workloads

REFRESH_SECONDS = attribution.REFRESH_SECONDS
LOOK_SECONDS = 0.1
FIRST_LOOKS = 20


@dataclass(frozen=True, slots=True)
class HolderSettings:
    """How holders are found and shown. `job_files` is dcgm-exporter's --hpc-job-mapping-dir."""

    shown: attribution_page.HolderDisplay = attribution_page.HolderDisplay.BOTH
    job_files: Path | None = None
    # Slurm's name of this node, where it differs from ours.
    slurm_node: str | None = None
    pod_resources: Path | None = None


class NodeHolders:
    """The holders of this node's GPUs."""

    def __init__(
        self, settings: HolderSettings, node: str, *, roots: node_facts.Roots, registry: own_metrics.Registry
    ) -> None:
        self._settings = settings
        self._hostname = node
        failures = registry.counter(
            "watchkeeper_agent_attribution_failures_total", "Questions about holders that a source did not answer."
        )
        socket = settings.pod_resources or roots.root / kubelet.SOCKET.relative_to("/")
        pods = kubelet.KubeletPods(socket)
        jobs = slurm_jobs.SlurmJobs(settings.slurm_node or node, proc=roots.proc, mapping=settings.job_files)
        self._attributor = attribution.Attributor(
            [
                attribution.NamedSource("kubelet", pods, pods.exists),
                attribution.NamedSource("slurm", jobs, jobs.is_present),
            ],
            programs.ProgramOwners(roots.proc, roots.root).look_up,
            failures=failures,
        )

    @property
    def current(self) -> Mapping[str, workloads.Attribution]:
        """Who holds each GPU, by UUID, as of the last `refresh`."""
        return self._attributor.current

    async def refresh(self, sampler: Sampler) -> None:
        # A page right after the start must not lack its labels: wait a moment for the first reading.
        for _ in range(FIRST_LOOKS):
            if sampler.snapshot().gpus:
                break
            await asyncio.sleep(LOOK_SECONDS)
        current = await self._attributor.refresh(sampler.snapshot().gpus, time.monotonic())
        sampler.set_holders(attribution_page.holder_labels(current, self._settings.shown))

    def page(self, sampler: Sampler) -> bytes:
        gpus, current = sampler.snapshot().gpus, self._attributor.current
        text = attribution_page.render(gpus, current, hostname=self._hostname, shown=self._settings.shown)
        return text.encode()
