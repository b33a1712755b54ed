"""Assess how well a job uses its GPUs, its bottleneck, and the change that helps most, as jobstats does.

Decides from means over the job's GPUs: a job that waits for input, a slow rank or a link does not need a faster GPU.
`board` calls `find_bottleneck` for each job of the list, `report` calls `assess_efficiency` for one job, with the same
facts; `watchkeeper profile` measures in more detail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from watchkeeper.model import jobs
from watchkeeper.model.jobs import BoundBy, Efficiency, Fix, ResourceUse, Straggler

# From these shares on, one unit explains the time (packs/bottleneck_limits.csv); below IDLE_SHARE nothing runs.
TENSOR_SHARE, DRAM_SHARE, BUSY_SHARE, IDLE_SHARE = 0.45, 0.45, 0.6, 0.01
# As in packs/rules/training.yaml: a fifth of the time waiting for input.
STARVED_SHARE = 0.2
# Utilisation counts the time in which any kernel runs: so much more of it than SM activity means waiting.
WAITING_SHARE = 0.4
# Below this SM activity, the GPU waits for something outside of it.
LOW_SM_SHARE = 0.3
# Below half of the memory, a larger batch fits; below 5 % SM activity, fewer GPUs are enough (packs/rules/usage.yaml).
HALF_EMPTY_SHARE, WASTED_SHARE = 0.5, 0.05
BOUND_TEXTS = {
    BoundBy.COMPUTE: "GPUs compute most of the time",
    BoundBy.MEMORY_BANDWIDTH: "GPU memory is the busiest unit",
    BoundBy.INPUT: "steps wait for input",
    BoundBy.COMMUNICATION: "GPUs wait in collectives most of the time",
    BoundBy.STRAGGLER: "all ranks wait for one rank",
    BoundBy.POWER_OR_HEAT: "GPUs are throttled by heat or power",
    BoundBy.NOTHING: "GPUs are idle",
    BoundBy.UNKNOWN: "unknown: too few metrics",
}
# For jobs that do not export what they wait for.
WAITS_OUTSIDE_TEXT = "GPUs are idle most of the time"
NOTHING_BUSY_TEXT = "no unit of the GPUs is busy most of the time"
STUCK_TEXT = "stalled, and no rank differs from the others"
LOST_RANK_TEXT = "stalled, because all ranks wait for one that is gone"


@dataclass(frozen=True, slots=True)
class JobFacts:
    """Measurements of a job; `uses` has means over its GPUs as shares, by the label `of` of packs/rules/jobs.yaml."""

    gpus: float
    uses: Mapping[str, float] = field(default_factory=dict)
    input_wait: float | None = None
    straggler: Straggler | None = None
    throttled_gpus: int = 0
    # It is hung or stalled: activity of its GPUs is waiting, not work.
    is_stuck: bool = False
    # Nothing runs on its GPUs now, whatever the mean of the hour.
    is_idle: bool = False
    memory_bytes: float | None = None
    cpus: float | None = None
    cpus_used: float | None = None


def find_bottleneck(facts: JobFacts) -> BoundBy:
    """Return the first bottleneck that explains the measurements; the most certain are checked first."""
    active, uses = facts.uses.get("active"), facts.uses
    # A rank that is gone is a fault, which has a cause, and no bottleneck.
    if facts.straggler is not None:
        return BoundBy.UNKNOWN if facts.straggler.is_gone else BoundBy.STRAGGLER
    if facts.is_stuck:
        return BoundBy.UNKNOWN
    if facts.input_wait is not None and facts.input_wait >= STARVED_SHARE:
        return BoundBy.INPUT
    if active is None:
        return BoundBy.UNKNOWN
    if facts.is_idle or active < IDLE_SHARE:
        return BoundBy.NOTHING
    if facts.throttled_gpus:
        return BoundBy.POWER_OR_HEAT
    if facts.gpus > 1 and (uses.get("spinning", 0.0) >= 0.5 or uses.get("utilisation", 0.0) - active >= WAITING_SHARE):
        return BoundBy.COMMUNICATION
    if uses.get("dram", 0.0) >= DRAM_SHARE and uses.get("dram", 0.0) > uses.get("tensor", 0.0):
        return BoundBy.MEMORY_BANDWIDTH
    if uses.get("tensor", 0.0) >= TENSOR_SHARE or active >= BUSY_SHARE:
        return BoundBy.COMPUTE
    waits_outside = "tensor" in uses and active < LOW_SM_SHARE and facts.input_wait is None
    return BoundBy.INPUT if waits_outside else BoundBy.UNKNOWN


def assess_efficiency(facts: JobFacts, window_seconds: float) -> Efficiency:
    bottleneck = find_bottleneck(facts)
    active, memory = facts.uses.get("active"), facts.uses.get("memory")
    used_bytes = None if memory is None or facts.memory_bytes is None else memory * facts.memory_bytes
    cpu_share = facts.cpus_used / facts.cpus if facts.cpus_used is not None and facts.cpus else None
    uses = (
        ResourceUse("GPU", facts.gpus, None if active is None else facts.gpus * active, "GPUs", active),
        ResourceUse("GPU memory", facts.memory_bytes, used_bytes, "bytes", memory),
        ResourceUse("CPU", facts.cpus, facts.cpus_used, "cores", cpu_share),
    )
    missing = []
    if active is None:
        missing.append("GPU activity: no exporter has DCGM_FI_PROF_SM_ACTIVE or DCGM_FI_DEV_GPU_UTIL of its GPUs")
    elif "tensor" not in facts.uses:
        missing.append("tensor cores and memory bandwidth (DCGM_FI_PROF_*): a busy GPU may work or wait")
    if facts.cpus_used is None:
        missing.append("CPU: neither node_exporter nor the agent of its nodes is scraped")
    if facts.input_wait is None:
        missing.append("input wait: the job does not export training_data_wait_seconds_total")
    fix = _suggest_first_fix(facts, bottleneck)
    fixes = (*((fix,) if fix is not None else ()), *_suggest_size_fixes(facts, bottleneck))
    return Efficiency(window_seconds, uses, bottleneck, _explain(facts, bottleneck), fixes, tuple(missing))


def pending_efficiency(command: str) -> Efficiency:
    fix = Fix("Find out why it is pending", "shows the reason of each node and the smallest change", command)
    return Efficiency(0.0, (), BoundBy.UNKNOWN, "no GPU allocated yet", (fix,))


def _explain(facts: JobFacts, bottleneck: BoundBy) -> str:
    names = {"active": "SMs", "tensor": "tensor cores", "dram": "memory", "utilisation": "utilisation"}
    parts = [f"{name} {facts.uses[key]:.0%}" for key, name in names.items() if key in facts.uses]
    if facts.input_wait is not None:
        parts.append(f"input wait {facts.input_wait:.0%} of the last 5 min")
    text = BOUND_TEXTS[bottleneck]
    if facts.straggler is not None and facts.straggler.is_gone:
        text = LOST_RANK_TEXT
    elif facts.is_stuck and bottleneck is BoundBy.UNKNOWN:
        text = STUCK_TEXT
    elif bottleneck is BoundBy.UNKNOWN and "tensor" in facts.uses:
        text = NOTHING_BUSY_TEXT
    elif bottleneck is BoundBy.INPUT and facts.input_wait is None:
        text = WAITS_OUTSIDE_TEXT
    return f"{text}: {', '.join(parts)}" if parts else text


def _suggest_first_fix(facts: JobFacts, bottleneck: BoundBy) -> Fix | None:
    active, straggler = facts.uses.get("active"), facts.straggler
    if straggler is not None:
        gpu_text = f", GPU {straggler.gpu}" if straggler.rank is not None and straggler.gpu else ""
        if straggler.is_gone:
            text = f"Read the last log lines of {jobs.straggler_name(straggler)}, and the kernel log of its node"
            why = "errors of the other ranks are consequences"
            return Fix(text, why, "journalctl -k --since -1h | grep -iE 'xid|oom'")
        if straggler.score is None:
            text = f"See which call blocks {jobs.straggler_name(straggler)}{gpu_text}"
            return Fix(text, "unblocks the job", "py-spy dump --pid PID")
        if straggler.is_short_of_cpu:
            text = f"See what uses the CPUs of {straggler.node}, and end it or reserve CPUs for the job"
            return Fix(text, f"{jobs.straggler_name(straggler)} becomes as fast as the others", jobs.TOP_CPU_COMMAND)
        gain = f"steps of all {facts.gpus:g} GPUs get up to {straggler.score / (1 + straggler.score):.0%} shorter"
        return Fix(f"Check {jobs.straggler_name(straggler)}{gpu_text}", gain, "nvidia-smi -q -d PERFORMANCE")
    if facts.is_stuck:
        text = "Compare the stack of each rank"
        return Fix(text, "the rank with a different stack blocks the others", "py-spy dump --pid PID")
    if bottleneck is BoundBy.INPUT and facts.input_wait is None:
        text = "See what the program waits for: requests, input, or its CPUs"
        return Fix(text, f"up to {1 - (active or 0.0):.0%} of the time", "py-spy top --pid PID")
    if bottleneck is BoundBy.INPUT:
        share = facts.input_wait or 0.0
        text = "Speed up the data loader: more workers, pinned memory, prefetch; or move the data closer"
        settings = "DataLoader(num_workers=8, pin_memory=True, prefetch_factor=4)"
        return Fix(text, f"up to {share:.0%} of the time", settings)
    if bottleneck is BoundBy.COMMUNICATION:
        text = "Communicate less often or overlap it: gradient accumulation, larger buckets; check that NCCL uses RDMA"
        return Fix(text, "the difference between utilisation and SM activity", "NCCL_DEBUG=INFO")
    if bottleneck is BoundBy.POWER_OR_HEAT:
        return Fix("Check cooling and power of its nodes", f"{facts.throttled_gpus} of its GPUs are throttled")
    if bottleneck is BoundBy.NOTHING:
        return Fix("Release the GPUs, or find out why nothing runs", f"{facts.gpus:g} GPUs are allocated and idle")
    if bottleneck is BoundBy.UNKNOWN and "tensor" in facts.uses:
        text = "Profile the job to see what runs between its kernels"
        return Fix(text, f"SMs are idle {1 - (active or 0.0):.0%} of the time", "watchkeeper profile -- CMD")
    if bottleneck is BoundBy.MEMORY_BANDWIDTH:
        text = "Fuse kernels, and use bf16 or fp8 where fp32 is not needed"
        return Fix(text, "less memory traffic", "torch.compile(model)")
    return None


def _suggest_size_fixes(facts: JobFacts, bottleneck: BoundBy) -> list[Fix]:
    """Suggest fewer GPUs, or more work for each."""
    active, memory = facts.uses.get("active"), facts.uses.get("memory")
    if active is None or facts.is_stuck or bottleneck is BoundBy.NOTHING:
        return []
    fixes = []
    enough_gpus = max(1, round(facts.gpus * active * 2))
    if active < WASTED_SHARE and enough_gpus < facts.gpus:
        why = f"SMs are active {active:.1%} of the time"
        fixes.append(Fix(f"Request {enough_gpus} GPUs instead of {facts.gpus:g}", why))
    if memory is not None and memory < HALF_EMPTY_SHARE and active < BUSY_SHARE:
        text = f"Increase the batch size: {1 - memory:.0%} of the GPU memory is free"
        fixes.append(Fix(text, "fewer, larger kernels fill the SMs"))
    return fixes
