"""The first look of a run: what NVML, CUDA and files say before anything works, put together for `diag_software`.

`diag_run` calls `look`. NVML and CUDA are asked in children; one that does not answer in time is a fact too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from watchkeeper.probe.diag import child_processes, software_facts
from watchkeeper.probe.diag.software_facts import CudaStatus, GpuReading, NvmlStatus, SoftwareFacts, SystemPaths
from watchkeeper.readers.node.node import NodeFacts

# A driver without persistence mode wakes each GPU first, which takes seconds for each.
ANSWER_SECONDS = 90.0
WATCH, CUDA = "watch", "cuda"


class _FactsCollector:
    """What has been heard so far."""

    def __init__(self) -> None:
        self.driver: NvmlStatus | None = None
        self.cuda: CudaStatus | None = None
        self.gpus: tuple[GpuReading, ...] = ()
        self.lost: tuple[str, ...] = ()
        self.is_read = False

    @property
    def is_whole(self) -> bool:
        return self.is_read and self.cuda is not None

    def take(self, line: child_processes.ChildMessage) -> None:
        words: Mapping[str, Any] = line.words or {"say": "ended", "why": line.why}
        if line.child == CUDA:
            self.cuda = self.cuda or _cuda(words)
        elif words["say"] == "hello":
            self.driver = NvmlStatus(str(words["driver"]), str(words["library"]), int(words["count"]))
        elif words["say"] == "reading":
            self.gpus, self.lost = software_facts.read_gpus(words["gpus"])
            self.is_read = True
        elif words["say"] in ("broken", "ended"):
            # The child ends after it has said what is broken: the first word counts.
            if self.driver is None or self.driver.broken is None:
                self.driver = NvmlStatus(broken=str(words.get("reason", "UNKNOWN")), why=str(words["why"]))
            self.is_read = True


def gather_facts(
    children: child_processes.Children,
    programs: Mapping[str, child_processes.ChildProgram],
    *,
    node: NodeFacts | None,
    trees: SystemPaths,
    expected_gpus: int | None = None,
    seconds: float = ANSWER_SECONDS,
) -> SoftwareFacts:
    """Start both children and hear them; the one that watches goes on."""
    for name in (CUDA, WATCH):
        children.start(name, programs[name])
    heard, until = _FactsCollector(), time.monotonic() + seconds
    while not heard.is_whole and time.monotonic() < until:
        line = children.hear(until)
        if line is not None:
            heard.take(line)
    late = f"no answer within {seconds:g} s"
    driver = heard.driver if heard.driver is not None and heard.is_read else NvmlStatus(broken="TIMEOUT", why=late)
    return SoftwareFacts(
        driver,
        heard.cuda or CudaStatus(0, -1, "no answer", why=late),
        gpus=heard.gpus,
        lost=heard.lost,
        node=node,
        expected_gpus=expected_gpus,
        device_files=software_facts.device_files(heard.gpus, trees.dev),
        has_nouveau=(trees.sysfs / software_facts.NOUVEAU).is_dir(),
        local_cpus=software_facts.local_cpus(heard.gpus, trees.sysfs),
        allowed_cpus=frozenset(os.sched_getaffinity(0)),
        environment=dict(os.environ),
    )


def _cuda(words: Mapping[str, Any]) -> CudaStatus:
    if words["say"] != "cuda":
        return CudaStatus(0, -1, "no answer", why=str(words.get("why", "")))
    return CudaStatus(
        words.get("library"),
        words.get("code"),
        str(words.get("name", "")),
        int(words.get("count") or 0),
        str(words.get("why", "")),
    )
