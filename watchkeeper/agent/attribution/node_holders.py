"""Connects attribution to the agent: the sources of this node, and what the /metrics page shows of them.

The agent calls `refresh` every two seconds and `page` on each scrape; the sampler's page gets the labels.
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
POLL_SECONDS = 0.1
MAX_FIRST_POLLS = 20


@dataclass(frozen=True, slots=True)
class HolderSettings:
    """How holders are found and shown; `job_directory` is dcgm-exporter's --hpc-job-mapping-dir."""

    display: attribution_page.HolderDisplay = attribution_page.HolderDisplay.BOTH
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
            attribution.NamedSource("kubelet", pods, pods.exists),
            attribution.NamedSource("slurm", jobs, jobs.is_present),
        ]
        find_workloads = programs.ProgramWorkloads(roots.proc, roots.root).find_workloads
        self._attributor = attribution.Attributor(sources, find_workloads, failures)

    @property
    def current(self) -> Mapping[str, workloads.Attribution]:
        return self._attributor.current

    async def refresh(self, sampler: Sampler) -> None:
        # The first page must have its labels: wait briefly for the first snapshot.
        for _ in range(MAX_FIRST_POLLS):
            if sampler.snapshot().gpus:
                break
            await asyncio.sleep(POLL_SECONDS)
        current = await self._attributor.refresh(sampler.snapshot().gpus, time.monotonic())
        sampler.set_holders(attribution_page.build_holder_labels(current, self._settings.display))

    def page(self, sampler: Sampler) -> bytes:
        gpus, current = sampler.snapshot().gpus, self._attributor.current
        return attribution_page.render(gpus, current, hostname=self._hostname, display=self._settings.display).encode()
