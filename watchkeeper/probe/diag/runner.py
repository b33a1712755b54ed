"""A whole diagnostic run: look, refuse what is busy, work, watch, judge. `run` is what others call.

`watchkeeper diag` calls it on a node, and so does whoever validates a GPU after a repair. Nothing here changes a
GPU: no clocks, no power limit, no mode. Everything that touches a driver is a child (`diag_children`), so that
whatever hangs has a name and a deadline, and Ctrl-C ends all of it.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from watchkeeper.model import gpu_selectors
from watchkeeper.model.diag import NO_WORK, DiagReport, DiagVerdict, TestedGpu, TestResult
from watchkeeper.probe.diag import child_processes, dcgm, gather, judge, plan, software_checks
from watchkeeper.probe.diag.gpu_monitor import GpuMonitor
from watchkeeper.probe.diag.software_facts import GpuReading, SystemPaths
from watchkeeper.probe.diag.work_loop import ReportProgress, WorkerJob, WorkLoop
from watchkeeper.readers.node.node import NodeFacts

# What an idle driver itself may have on a GPU.
IDLE_MIB = 1024.0
IDLE_PERCENT = 5.0
AUTO, TORCH, DCGM, BOTH = "auto", "torch", "dcgm", "both"
ENGINES = (AUTO, TORCH, DCGM, BOTH)
MODULES = {gather.WATCH: "diag.nvml_child", gather.CUDA: "gpu_work.cuda_driver", "work": "gpu_work.worker_child"}


@dataclass(frozen=True, slots=True)
class DiagOptions:
    """How a run is bent; `seconds` None is the usual length of the level.

    `python` is the interpreter that has torch; in tests `programs` take the place of our children.
    """

    seconds: float | None = None
    chosen: gpu_selectors.GpuSelection | None = None
    is_busy_ok: bool = False
    expected_gpus: int | None = None
    engine: str = AUTO
    python: str = sys.executable
    dcgmi: str = dcgm.PROGRAM
    programs: Mapping[str, child_processes.ChildProgram] = field(default_factory=dict)
    trees: SystemPaths = field(default_factory=SystemPaths)

    def children(self) -> dict[str, child_processes.ChildProgram]:
        usual = {
            name: child_processes.module(module, python=self.python if name == "work" else sys.executable)
            for name, module in MODULES.items()
        }
        return usual | dict(self.programs)


def _silent(_who: str, _test: str, _done: float, _facts: Mapping[str, Any]) -> None:
    pass


def run(
    level: int,
    *,
    now: datetime,
    node: NodeFacts | None = None,
    options: DiagOptions | None = None,
    tell: ReportProgress = _silent,
) -> DiagReport:
    """Every test of this level on the chosen GPUs; `node` is what is known of the machine beside its GPUs."""
    wished, start = options or DiagOptions(), time.monotonic()
    with child_processes.Children() as children:
        facts = gather.gather_facts(
            children, wished.children(), node=node, trees=wished.trees, expected_gpus=wished.expected_gpus
        )
        gpus = [gpu for gpu in facts.gpus if wished.chosen is None or wished.chosen.includes(_named(gpu))]
        others = {gpu.uuid for gpu in facts.gpus} - {gpu.uuid for gpu in gpus}
        results = [result for result in software_checks.examine(facts) if result.gpu not in others]
        if wished.chosen is not None:
            missing = wished.chosen.unmatched_texts(map(_named, facts.gpus))
            results += [TestResult("gpu_count", None, DiagVerdict.FAIL, f"GPU {word} is not there") for word in missing]
        stopped = ""
        if level >= 2 and gpus:
            found, stopped = _use(children, gpus, level=level, wished=wished, tell=tell)
            results += found
    tested = tuple(TestedGpu(gpu.uuid, gpu.index, gpu.model) for gpu in gpus)
    seconds = round(time.monotonic() - start, 2)
    return DiagReport(level, os.uname().nodename, now, seconds, tested, tuple(results), stopped)


def _named(gpu: GpuReading) -> gpu_selectors.SelectableGpu:
    return gpu_selectors.SelectableGpu(gpu.index, gpu.uuid, gpu.pci)


def _use(
    children: child_processes.Children,
    gpus: Sequence[GpuReading],
    *,
    level: int,
    wished: DiagOptions,
    tell: ReportProgress,
) -> tuple[list[TestResult], str]:
    """The tests that need the GPUs for themselves."""
    refused = [result for gpu in gpus if (result := refuse(gpu, is_busy_ok=wished.is_busy_ok)) is not None]
    closed = {result.gpu for result in refused}
    free = [gpu for gpu in gpus if gpu.uuid not in closed]
    if not free:
        return refused, ""
    results: list[TestResult] = [*refused]
    if wished.engine in (DCGM, BOTH) or (wished.engine == AUTO and shutil.which(wished.dcgmi) is not None):
        asked = _ask_dcgm(free, level, wished.dcgmi)
        results += asked
        has_answered = any(result.test != dcgm.NO_ANSWER for result in asked)
        if wished.engine == DCGM and not has_answered:
            return [*refused, *(replace(result, test=NO_WORK) for result in asked)], ""
        if wished.engine == DCGM or (wished.engine == AUTO and has_answered):
            return results, ""
    work = WorkLoop(children, GpuMonitor(gpu.uuid for gpu in free), tell)
    work.run(list(_jobs(free, level, wished)))
    if len(free) > 1 and not work.stopped:
        work.run([_pairs(free, wished)])
    results += [*judge.judge_measurements(work.found), *work.watched.results()]
    return results, work.stopped


def refuse(gpu: GpuReading, *, is_busy_ok: bool) -> TestResult | None:
    """Why a GPU is left alone: somebody uses it, or it is cut into slices."""
    if gpu.number("DCGM_FI_DEV_MIG_MODE"):
        return TestResult(NO_WORK, gpu.uuid, DiagVerdict.SKIP, "MIG is on: there is no whole GPU to test")
    used, busy = gpu.number("DCGM_FI_DEV_FB_USED") or 0.0, gpu.number("DCGM_FI_DEV_GPU_UTIL") or 0.0
    said = []
    if gpu.programs:
        said.append(f"programs {', '.join(str(row[0]) for row in gpu.programs[:5])} use it")
    if used > IDLE_MIB:
        said.append(f"{used:.0f} MiB of its memory are in use, {IDLE_MIB:.0f} are let pass")
    if busy > IDLE_PERCENT:
        said.append(f"it is {busy:.0f} % busy, {IDLE_PERCENT:.0f} are let pass")
    if not said or is_busy_ok:
        return None
    why = f"{'; '.join(said)}: a test would slow that work and be slowed by it. --busy-ok tests all the same"
    return TestResult(NO_WORK, gpu.uuid, DiagVerdict.SKIP, why)


def _jobs(gpus: Iterable[GpuReading], level: int, wished: DiagOptions) -> Iterable[WorkerJob]:
    seconds = wished.seconds or plan.USUAL_SECONDS.get(level, 0.0)
    for gpu in gpus:
        is_shared = refuse(gpu, is_busy_ok=False) is not None
        steps = plan.steps(level, seconds, is_shared=is_shared)
        yield WorkerJob(f"gpu {gpu.index}", gpu.uuid, gpu.model, steps, _program(wished, [gpu.uuid]))


def _pairs(gpus: Sequence[GpuReading], wished: DiagOptions) -> WorkerJob:
    """One child that sees all GPUs; what it finds is said about the first."""
    first, uuids = gpus[0], [gpu.uuid for gpu in gpus]
    step = replace(plan.P2P, options={"names": [gpu.index for gpu in gpus]})
    return WorkerJob("gpu pairs", first.uuid, first.model, (step,), _program(wished, uuids))


def _program(wished: DiagOptions, uuids: Sequence[str]) -> child_processes.ChildProgram:
    usual = wished.children()["work"]
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(uuids), **(usual.environment or {})}
    return child_processes.ChildProgram(usual.arguments, usual.python, visible)


def _ask_dcgm(gpus: Sequence[GpuReading], level: int, program: str) -> tuple[TestResult, ...]:
    command = dcgm.arguments(level, [gpu.index for gpu in gpus], program=program)
    text, why = dcgm.run(command, dcgm.LIMIT_SECONDS[level])
    if text is None:
        return (TestResult(dcgm.NO_ANSWER, None, DiagVerdict.SKIP, why),)
    return dcgm.read(text, {gpu.index: gpu.uuid for gpu in gpus})
