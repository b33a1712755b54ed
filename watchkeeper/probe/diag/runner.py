"""Run a diagnostic: gather facts, check software, skip busy GPUs, test and monitor the others, and judge.

Nothing here changes a GPU: no clocks, no power limit, no mode. Every driver call is in a child process
(`child_processes`), so that a hang gets a name and a timeout, and Ctrl-C ends all of them.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from watchkeeper.model import gpu_selectors
from watchkeeper.model.diag import NO_WORK, DiagReport, DiagVerdict, TestedGpu, TestResult
from watchkeeper.probe.diag import child_processes, dcgm, judge, plan, software_checks, software_facts
from watchkeeper.probe.diag.gpu_monitor import GpuMonitor
from watchkeeper.probe.diag.software_facts import GpuReading, SystemPaths
from watchkeeper.probe.diag.work_loop import ReportProgress, WorkerJob, WorkLoop
from watchkeeper.readers.node.node import NodeFacts

# Limits of an idle GPU: the driver itself uses some memory.
MAX_IDLE_MIB = 1024.0
MAX_IDLE_PERCENT = 5.0
AUTO, TORCH, DCGM, BOTH = "auto", "torch", "dcgm", "both"
ENGINES = (AUTO, TORCH, DCGM, BOTH)
MODULES = {
    software_facts.NVML: "diag.nvml_child",
    software_facts.CUDA: "gpu_work.cuda_driver",
    "work": "gpu_work.worker_child",
}


@dataclass(frozen=True, slots=True)
class DiagOptions:
    """Options of a run; `seconds` None means the default length of the level.

    `python` is an interpreter with torch. `programs` replace child programs in tests.
    """

    seconds: float | None = None
    selection: gpu_selectors.GpuSelection | None = None
    is_busy_ok: bool = False
    expected_gpus: int | None = None
    engine: str = AUTO
    python: str = sys.executable
    dcgmi: str = dcgm.PROGRAM
    programs: Mapping[str, child_processes.ChildProgram] = field(default_factory=dict)
    paths: SystemPaths = field(default_factory=SystemPaths)

    def child_programs(self) -> dict[str, child_processes.ChildProgram]:
        default_programs = {
            name: child_processes.module_program(module, python=self.python if name == "work" else sys.executable)
            for name, module in MODULES.items()
        }
        return default_programs | dict(self.programs)


def run(
    level: int,
    *,
    now: datetime,
    node: NodeFacts | None = None,
    options: DiagOptions | None = None,
    report_progress: ReportProgress = lambda *_: None,
) -> DiagReport:
    """Run all tests of this level on the selected GPUs; `node` has the facts of the node other than its GPUs."""
    options, start = options or DiagOptions(), time.monotonic()
    selection, programs, paths = options.selection, options.child_programs(), options.paths
    with child_processes.Children() as children:
        facts = software_facts.gather_facts(
            children, programs, node=node, paths=paths, expected_gpus=options.expected_gpus
        )
        gpus = [gpu for gpu in facts.gpus if selection is None or selection.includes(_selectable(gpu))]
        unselected_uuids = {gpu.uuid for gpu in facts.gpus} - {gpu.uuid for gpu in gpus}
        results = [result for result in software_checks.run_checks(facts) if result.gpu not in unselected_uuids]
        missing = [] if selection is None else selection.unmatched_texts(map(_selectable, facts.gpus))
        results += [TestResult("gpu_count", None, DiagVerdict.FAIL, f"GPU {text} not found") for text in missing]
        stop_reason = ""
        if level >= 2 and gpus:
            gpu_results, stop_reason = _run_gpu_tests(
                children, gpus, level=level, options=options, report_progress=report_progress
            )
            results += gpu_results
    tested = tuple(TestedGpu(gpu.uuid, gpu.index, gpu.model) for gpu in gpus)
    seconds = round(time.monotonic() - start, 2)
    return DiagReport(level, os.uname().nodename, now, seconds, tested, tuple(results), stop_reason)


def _selectable(gpu: GpuReading) -> gpu_selectors.SelectableGpu:
    return gpu_selectors.SelectableGpu(gpu.index, gpu.uuid, gpu.pci)


def _run_gpu_tests(
    children: child_processes.Children,
    gpus: Sequence[GpuReading],
    *,
    level: int,
    options: DiagOptions,
    report_progress: ReportProgress,
) -> tuple[list[TestResult], str]:
    """Run the tests that need idle GPUs; returns the results and the reason of an early stop."""
    refused = [result for gpu in gpus if (result := refuse_gpu(gpu, is_busy_ok=options.is_busy_ok)) is not None]
    refused_uuids = {result.gpu for result in refused}
    free = [gpu for gpu in gpus if gpu.uuid not in refused_uuids]
    if not free:
        return refused, ""
    results: list[TestResult] = [*refused]
    if options.engine in (DCGM, BOTH) or (options.engine == AUTO and shutil.which(options.dcgmi) is not None):
        dcgm_results = _run_dcgm(free, level, options.dcgmi)
        results += dcgm_results
        has_dcgm_results = any(result.test != dcgm.NO_DIAGNOSTIC for result in dcgm_results)
        if options.engine == DCGM and not has_dcgm_results:
            return [*refused, *(replace(result, test=NO_WORK) for result in dcgm_results)], ""
        if options.engine == DCGM or (options.engine == AUTO and has_dcgm_results):
            return results, ""
    loop = WorkLoop(children, GpuMonitor(gpu.uuid for gpu in free), report_progress)
    loop.run(list(_worker_jobs(free, level, options)))
    if len(free) > 1 and not loop.stop_reason:
        # One worker uses all GPUs; its results are reported for the first.
        step = replace(plan.P2P, options={"names": [gpu.index for gpu in free]})
        program = _worker_program(options, [gpu.uuid for gpu in free])
        loop.run([WorkerJob("gpu pairs", free[0].uuid, free[0].model, (step,), program)])
    results += [*judge.judge_measurements(loop.measurements), *loop.monitor.results()]
    return results, loop.stop_reason


def refuse_gpu(gpu: GpuReading, *, is_busy_ok: bool) -> TestResult | None:
    """The result that says why a GPU is not tested: it is in use, or MIG is enabled."""
    if gpu.number("DCGM_FI_DEV_MIG_MODE"):
        return TestResult(NO_WORK, gpu.uuid, DiagVerdict.SKIP, "MIG is enabled: only whole GPUs can be tested")
    used_mib, busy_percent = gpu.number("DCGM_FI_DEV_FB_USED") or 0.0, gpu.number("DCGM_FI_DEV_GPU_UTIL") or 0.0
    reasons = []
    if gpu.programs:
        reasons.append(f"used by processes {', '.join(str(row[0]) for row in gpu.programs[:5])}")
    if used_mib > MAX_IDLE_MIB:
        reasons.append(f"{used_mib:.0f} MiB of memory used, the limit is {MAX_IDLE_MIB:.0f}")
    if busy_percent > MAX_IDLE_PERCENT:
        reasons.append(f"{busy_percent:.0f} % busy, the limit is {MAX_IDLE_PERCENT:.0f}")
    if not reasons or is_busy_ok:
        return None
    reason = f"{'; '.join(reasons)}: a test would disturb this workload. To test anyway, use --busy-ok"
    return TestResult(NO_WORK, gpu.uuid, DiagVerdict.SKIP, reason)


def _worker_jobs(gpus: Iterable[GpuReading], level: int, options: DiagOptions) -> Iterable[WorkerJob]:
    seconds = options.seconds or plan.DEFAULT_SECONDS.get(level, 0.0)
    for gpu in gpus:
        steps = plan.plan_steps(level, seconds, is_shared=refuse_gpu(gpu, is_busy_ok=False) is not None)
        yield WorkerJob(f"gpu {gpu.index}", gpu.uuid, gpu.model, steps, _worker_program(options, [gpu.uuid]))


def _worker_program(options: DiagOptions, uuids: Sequence[str]) -> child_processes.ChildProgram:
    program = options.child_programs()["work"]
    return replace(program, environment={"CUDA_VISIBLE_DEVICES": ",".join(uuids), **(program.environment or {})})


def _run_dcgm(gpus: Sequence[GpuReading], level: int, program: str) -> tuple[TestResult, ...]:
    command = [program, "diag", "-r", str(level), "-j", "-i", ",".join(str(gpu.index) for gpu in gpus)]
    text, reason = dcgm.run_dcgmi(command, dcgm.TIMEOUT_SECONDS[level])
    if text is None:
        return (TestResult(dcgm.NO_DIAGNOSTIC, None, DiagVerdict.SKIP, reason),)
    return dcgm.parse_output(text, {gpu.index: gpu.uuid for gpu in gpus})
