"""How well a job uses what it holds, what it is bound by, and the change that would help most: jobstats' report.

Decided from means of its GPUs: a job that waits for input, for a slow rank or for a link does not need a faster GPU.
`board` asks `bound_by` for each job of a list, `report` asks `judge` for one in full, with the same facts; `profile`
looks closer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from watchkeeper.model import jobs
from watchkeeper.model.jobs import BoundBy, Efficiency, Fix, ResourceUse, Straggler

# Shares from which one unit explains the time (packs/bottleneck_limits.csv has the reasons: a dominant share of what is
# practical, and nothing that runs).
TENSOR, DRAM, BUSY, IDLE = 0.45, 0.45, 0.6, 0.01
# As in packs/rules/training.yaml: a fifth of the time without input.
STARVED = 0.2
# Utilisation counts time in which anything ran; so much more of it than SM activity is waiting, not work.
WAITING = 0.4
# SMs that are active for less of the time wait for something outside the GPU.
LITTLE = 0.3
# Below half of the memory a larger batch fits; the most that is not worth a GPU of its own (packs/rules/usage.yaml).
ROOMY, WASTED = 0.5, 0.05
WORDS = {
    BoundBy.COMPUTE: "its GPUs compute most of the time",
    BoundBy.MEMORY_BANDWIDTH: "the GPUs' memory is the busiest part",
    BoundBy.INPUT: "steps wait for input",
    BoundBy.COMMUNICATION: "GPUs wait in collectives more than they work",
    BoundBy.STRAGGLER: "all ranks wait for one",
    BoundBy.POWER_OR_HEAT: "clocks are held down by heat or power",
    BoundBy.NOTHING: "nothing runs on its GPUs",
    BoundBy.UNKNOWN: "too little is measured to say",
}
# Where the program does not say for what.
OUTSIDE = "its GPUs have nothing to do for most of the time"
NOTHING_MOST = "no part of its GPUs is busy for most of the time"
NOBODY = "it stands still, and no rank stands out as the one that the others wait for"


@dataclass(frozen=True, slots=True)
class JobFacts:
    """Means of a job's GPUs as shares (`uses`, by the label `of` of packs/rules/jobs.yaml), and what bears on it."""

    gpus: float
    uses: Mapping[str, float] = field(default_factory=dict)
    input_wait: float | None = None
    straggler: Straggler | None = None
    slowed_gpus: int = 0
    # It is hung or stalled: whatever its GPUs do meanwhile is waiting.
    is_stuck: bool = False
    # Nothing runs on its GPUs any more, however much did earlier in the hour.
    is_idle: bool = False
    memory_bytes: float | None = None
    cpus: float | None = None
    cpus_used: float | None = None


def bound_by(facts: JobFacts) -> BoundBy:
    """The first that explains it, the most certain before the likely."""
    active, seen = facts.uses.get("active"), facts.uses
    if facts.straggler is not None:
        return BoundBy.STRAGGLER
    if facts.is_stuck:
        return BoundBy.UNKNOWN
    if facts.input_wait is not None and facts.input_wait >= STARVED:
        return BoundBy.INPUT
    if active is None:
        return BoundBy.UNKNOWN
    if facts.is_idle or active < IDLE:
        return BoundBy.NOTHING
    if facts.slowed_gpus:
        return BoundBy.POWER_OR_HEAT
    if facts.gpus > 1 and (seen.get("spinning", 0.0) >= 0.5 or seen.get("utilisation", 0.0) - active >= WAITING):
        return BoundBy.COMMUNICATION
    if seen.get("dram", 0.0) >= DRAM and seen.get("dram", 0.0) > seen.get("tensor", 0.0):
        return BoundBy.MEMORY_BANDWIDTH
    if seen.get("tensor", 0.0) >= TENSOR or active >= BUSY:
        return BoundBy.COMPUTE
    is_outside = "tensor" in seen and active < LITTLE and facts.input_wait is None
    return BoundBy.INPUT if is_outside else BoundBy.UNKNOWN


def assess_efficiency(facts: JobFacts, window_seconds: float) -> Efficiency:
    bound = bound_by(facts)
    active, memory = facts.uses.get("active"), facts.uses.get("memory")
    uses = (
        ResourceUse("GPU", facts.gpus, None if active is None else facts.gpus * active, "GPUs", active),
        ResourceUse(
            "GPU memory",
            facts.memory_bytes,
            None if memory is None or facts.memory_bytes is None else memory * facts.memory_bytes,
            "bytes",
            memory,
        ),
        ResourceUse("CPU", facts.cpus, facts.cpus_used, "cores", _share(facts.cpus_used, facts.cpus)),
    )
    unseen = []
    if active is None:
        unseen.append("how active its GPUs are: no exporter has DCGM_FI_PROF_SM_ACTIVE or DCGM_FI_DEV_GPU_UTIL of them")
    elif "tensor" not in facts.uses:
        unseen.append("tensor cores and memory bandwidth (DCGM_FI_PROF_*): busy may be work or waiting")
    if facts.cpus_used is None:
        unseen.append("CPU: neither node_exporter nor our agent of its nodes is scraped")
    if facts.input_wait is None:
        unseen.append("waiting for input: the job does not export training_data_wait_seconds_total")
    return Efficiency(window_seconds, uses, bound, _why(facts, bound), tuple(_fixes(facts, bound)), tuple(unseen))


def pending_efficiency(command: str) -> Efficiency:
    """Of a job that holds nothing yet."""
    fix = Fix("Ask why it does not start", "each node has its reason, and one change is the smallest", command)
    return Efficiency(0.0, (), BoundBy.UNKNOWN, "it holds no GPU yet", (fix,))


def _share(used: float | None, held: float | None) -> float | None:
    return used / held if used is not None and held else None


def _why(facts: JobFacts, bound: BoundBy) -> str:
    seen = [
        f"{name} {facts.uses[key]:.0%}"
        for key, name in (
            ("active", "SMs"),
            ("tensor", "tensor cores"),
            ("dram", "memory"),
            ("utilisation", "utilisation"),
        )
        if key in facts.uses
    ]
    if facts.input_wait is not None:
        seen.append(f"input wait {facts.input_wait:.0%}")
    words = WORDS[bound]
    if facts.is_stuck and bound is BoundBy.UNKNOWN:
        words = NOBODY
    elif bound is BoundBy.UNKNOWN and "tensor" in facts.uses:
        words = NOTHING_MOST
    elif bound is BoundBy.INPUT and facts.input_wait is None:
        words = OUTSIDE
    return f"{words}: {', '.join(seen)}" if seen else words


def _fixes(facts: JobFacts, bound: BoundBy) -> list[Fix]:
    first = _first_fix(facts, bound)
    return [*([first] if first is not None else []), *_size_fixes(facts, bound)]


def _first_fix(facts: JobFacts, bound: BoundBy) -> Fix | None:
    """What helps against the thing it is bound by."""
    active, slow = facts.uses.get("active"), facts.straggler
    if bound is BoundBy.STRAGGLER and slow is not None:
        where = f", GPU {slow.gpu}" if slow.rank is not None and slow.gpu else ""
        if slow.is_gone:
            words = f"Read the end of the log of {jobs.straggler_name(slow)}, and the kernel log of its node"
            return Fix(words, "what the others say only follows", "journalctl -k --since -1h | grep -iE 'xid|oom'")
        if slow.score is None:
            words = f"See where the program of {jobs.straggler_name(slow)}{where} stands"
            return Fix(words, "the job would go on", "py-spy dump --pid PID")
        if slow.is_short_of_cpu:
            words = f"See what takes the CPUs of {slow.node}, and end it or give the job its own"
            return Fix(words, f"{jobs.straggler_name(slow)} would keep pace with the others", jobs.WHO_TAKES_CPUS)
        shorter = f"steps of all {facts.gpus:g} GPUs would be up to {slow.score / (1 + slow.score):.0%} shorter"
        return Fix(f"Look at {jobs.straggler_name(slow)}{where}", shorter, "nvidia-smi -q -d PERFORMANCE")
    if facts.is_stuck:
        words = "See where the program of each rank stands"
        return Fix(words, "the one that stands elsewhere than the others holds it up", "py-spy dump --pid PID")
    if bound is BoundBy.INPUT and facts.input_wait is None:
        words = "See what the program waits for: requests, input, or work of its CPUs"
        return Fix(words, f"up to {1 - (active or 0.0):.0%} of the time", "py-spy top --pid PID")
    if bound is BoundBy.INPUT:
        share = facts.input_wait or 0.0
        words = "Let the loader work ahead: more workers, pinned memory, prefetch; or move data closer"
        settings = "DataLoader(num_workers=8, pin_memory=True, prefetch_factor=4)"
        return Fix(words, f"up to {share:.0%} of the time", settings)
    if bound is BoundBy.COMMUNICATION:
        words = "Exchange less often or overlap it: gradient accumulation, larger buckets; check that NCCL uses RDMA"
        return Fix(words, "the difference between utilisation and SM activity", "NCCL_DEBUG=INFO")
    if bound is BoundBy.POWER_OR_HEAT:
        return Fix("Have cooling and power of its nodes looked at", f"{facts.slowed_gpus} of its GPUs are slowed down")
    if bound is BoundBy.NOTHING:
        return Fix("Give the GPUs back, or find out why nothing runs", f"{facts.gpus:g} GPUs are held for nothing")
    if bound is BoundBy.UNKNOWN and "tensor" in facts.uses:
        words = "Look closer: a profile shows what runs between its kernels"
        return Fix(words, f"SMs are idle {1 - (active or 0.0):.0%} of the time", "watchkeeper profile -- CMD")
    if bound is BoundBy.MEMORY_BANDWIDTH:
        words = "Fuse kernels, and use bf16 or fp8 where fp32 is not needed"
        return Fix(words, "less traffic to memory", "torch.compile(model)")
    return None


def _size_fixes(facts: JobFacts, bound: BoundBy) -> list[Fix]:
    """Fewer GPUs, or more work for each."""
    active, memory = facts.uses.get("active"), facts.uses.get("memory")
    if active is None or facts.is_stuck or bound is BoundBy.NOTHING:
        return []
    found = []
    needed = max(1, round(facts.gpus * active * 2))
    if active < WASTED and needed < facts.gpus:
        found.append(
            Fix(f"Ask for {needed} GPUs instead of {facts.gpus:g}", f"SMs are active {active:.1%} of the time")
        )
    if memory is not None and memory < ROOMY and active < BUSY:
        words = f"Make the batch larger: {1 - memory:.0%} of the GPUs' memory is free"
        found.append(Fix(words, "fewer, larger kernels fill the SMs"))
    return found
