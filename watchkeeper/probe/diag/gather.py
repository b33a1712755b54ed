"""Gather the facts for `software_checks` from NVML, CUDA and files, before any test uses a GPU.

`runner` calls `gather_facts`. NVML and CUDA are queried in child processes; a timeout is also a fact.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from watchkeeper.probe.diag import child_processes, software_facts
from watchkeeper.probe.diag.software_facts import CudaStatus, GpuReading, NvmlStatus, SoftwareFacts, SystemPaths
from watchkeeper.readers.node.node import NodeFacts

# Without persistence mode, the driver initialises each GPU first, which takes seconds per GPU.
TIMEOUT_SECONDS = 90.0
NVML, CUDA = "nvml", "cuda"


class _FactsCollector:
    def __init__(self) -> None:
        self.driver: NvmlStatus | None = None
        self.cuda: CudaStatus | None = None
        self.gpus: tuple[GpuReading, ...] = ()
        self.lost: tuple[str, ...] = ()
        self.is_nvml_done = False

    @property
    def is_complete(self) -> bool:
        return self.is_nvml_done and self.cuda is not None

    def add_message(self, message: child_processes.ChildMessage) -> None:
        body: Mapping[str, Any] = message.body or {"type": "ended", "why": message.exit_reason}
        if message.child == CUDA:
            self.cuda = self.cuda or _parse_cuda_status(body)
        elif body["type"] == "ready":
            self.driver = NvmlStatus(str(body["driver"]), str(body["library"]))
        elif body["type"] == "reading":
            self.gpus, self.lost = software_facts.read_gpus(body["gpus"])
            self.is_nvml_done = True
        elif body["type"] in ("start_failed", "ended"):
            # The child exits after it reports an error: the first message has the reason.
            if self.driver is None or self.driver.error_name is None:
                self.driver = NvmlStatus(error_name=str(body.get("reason", "UNKNOWN")), error_text=str(body["why"]))
            self.is_nvml_done = True


def gather_facts(
    children: child_processes.Children,
    programs: Mapping[str, child_processes.ChildProgram],
    *,
    node: NodeFacts | None,
    paths: SystemPaths,
    expected_gpus: int | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> SoftwareFacts:
    """Start both children and collect their facts; the NVML child keeps running."""
    for name in (CUDA, NVML):
        children.start(name, programs[name])
    collector, deadline = _FactsCollector(), time.monotonic() + timeout_seconds
    while not collector.is_complete and time.monotonic() < deadline:
        message = children.next_message(deadline)
        if message is not None:
            collector.add_message(message)
    timeout_text = f"no answer within {timeout_seconds:g} s"
    driver = collector.driver
    if driver is None or not collector.is_nvml_done:
        driver = NvmlStatus(error_name="TIMEOUT", error_text=timeout_text)
    return SoftwareFacts(
        driver,
        collector.cuda or CudaStatus(0, -1, "no answer", error_text=timeout_text),
        gpus=collector.gpus,
        lost=collector.lost,
        node=node,
        expected_gpus=expected_gpus,
        device_files=software_facts.device_files(collector.gpus, paths.dev),
        has_nouveau=(paths.sysfs / software_facts.NOUVEAU_MODULE).is_dir(),
        local_cpus=software_facts.local_cpus(collector.gpus, paths.sysfs),
        allowed_cpus=frozenset(os.sched_getaffinity(0)),
        environment=dict(os.environ),
    )


def _parse_cuda_status(body: Mapping[str, Any]) -> CudaStatus:
    if body["type"] != "cuda":
        return CudaStatus(0, -1, "no answer", error_text=str(body.get("why", "")))
    return CudaStatus(
        body.get("library"),
        body.get("code"),
        str(body.get("name", "")),
        int(body.get("count") or 0),
        str(body.get("why", "")),
    )
