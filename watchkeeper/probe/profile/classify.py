"""What a stretch of a recording is bound by: one pure decision from features to a class, with its confidence and why.

The order is that of elimination: does anything happen, does it come in bursts, is it a link, is the GPU fed at all, and
only then which of its units is at its ceiling. Without GPM the same questions are put to power and NVML's own counters,
which answer less surely. `segments` calls it for each stretch; `advice` says what to do about the class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from watchkeeper.probe.profile import classify_basic
from watchkeeper.probe.profile.features import Features
from watchkeeper.probe.profile.limits import limits
from watchkeeper.probe.profile.verdict import Bound, WorkloadVerdict, confidence_beyond, known, percent

# NVML's counters alone: `gpu_util` reads 99 % during pure copies, so a verdict from it is worth about this much.
WITHOUT_GPM = 0.72
# Below this many rows a mean is luck.
FEW_SAMPLES = 10
MOST_CONFIDENT = 0.97
LEAST_CONFIDENT = 0.2


Rule = Callable[[Features], WorkloadVerdict | None]


def classify(features: Features) -> WorkloadVerdict:
    """The first rule that has an answer; then what is missing lowers the confidence."""
    rules = PROFILED if features.is_profiled else BASIC
    verdict = next(found for rule in rules if (found := rule(features)) is not None)
    doubts = list(_doubts(features))
    confidence = verdict.confidence
    for factor, _ in doubts:
        confidence *= factor
    confidence = round(min(MOST_CONFIDENT, max(LEAST_CONFIDENT, confidence)), 2)
    return replace(
        verdict, confidence=confidence, unsure=tuple(f"{text} (confidence × {factor:g})" for factor, text in doubts)
    )


def _doubts(features: Features) -> Iterator[tuple[float, str]]:
    if not features.is_profiled:
        yield WITHOUT_GPM, "no GPM counters (sm_util, graphics_util …): judged by gpu_util, power and PCIe alone"
    else:
        for name, column in (("tensor", "any_tensor_util"), ("fp32", "fp32_util")):
            if getattr(features, name) is None:
                yield 0.7, f"the recording does not have {column}"
        if features.graphics_is_guessed:
            yield 0.8, "the recording does not have graphics_util"
        if features.dram_is_guessed:
            yield 0.85, "the recording does not have dram_bw_util"
    if features.pcie_in is None or features.pcie_out is None:
        yield 0.8, "PCIe traffic is not known both ways, so launches and copies cannot be seen"
    if not features.is_profiled and features.power_over_idle is None:
        yield 0.8, "power is unknown, so light work cannot be told from heavy"
    if not features.is_profiled and features.mem_copy is None:
        yield 0.8, "mem_copy_util is unknown"
    if features.samples < FEW_SAMPLES:
        yield 0.8, f"only {features.samples} samples; from {FEW_SAMPLES} on a mean says something"
    if features.interval_seconds > 2 * limits()["gap_seconds"]:
        yield 0.93, f"a sample each {features.interval_seconds:.1f} s cannot show stops shorter than that"


def _idle(features: Features) -> WorkloadVerdict | None:
    rhythm, limit = features.rhythm, limits()["idle_activity"]
    is_at_work = features.sm_usual or (features.dram or 0.0) >= limits()["weak_dominant"]
    if rhythm.mean >= limit or is_at_work or _has_unseen_copies(features):
        return None
    sure = 0.95 if rhythm.mean < limit / 5 else 0.75
    return WorkloadVerdict(Bound.IDLE, sure, f"kernels and copies take {percent(rhythm.mean)} of the time")


def _has_unseen_copies(features: Features) -> bool:
    """`gpu_util` counts copies and `graphics_util` does not: what PCIe's counter cannot say, their difference may."""
    is_blind = features.pcie_in is None or features.pcie_out is None
    if not is_blind or features.gpu_util is None:
        return False
    kernels = features.graphics if features.graphics is not None else features.sm
    if kernels is not None:
        return features.gpu_util - kernels >= limits()["copy_share"]
    # Copies keep `gpu_util` high at the power of an idle GPU; loops of tiny kernels leave pauses (26 to 47 %).
    over = features.power_over_idle
    return features.gpu_util >= limits()["busy"] and over is not None and over < limits()["copies_power"]


def _communication(features: Features) -> WorkloadVerdict | None:
    """A collective keeps a kernel resident on a few SMs, and a link busy, while pipes and memory are not."""
    pipes, _ = _compute_share(features)
    dram = (features.dram or 0.0) / limits()["dram_practical"]
    if max(pipes, dram) >= limits()["dominant"]:
        return None
    nvlink = features.nvlink
    if nvlink is not None and nvlink >= limits()["nvlink_dominant"] and nvlink > max(pipes, dram):
        others = percent(max(pipes, dram))
        why = f"NVLink carries {percent(nvlink)} of what it can, while tensor and memory stay below {others}"
        return WorkloadVerdict(Bound.COMM, confidence_beyond(nvlink, limits()["nvlink_dominant"]), why)
    graphics, sm = features.graphics or 0.0, features.sm or 0.0
    if (
        graphics < limits()["busy"]
        or sm > limits()["narrow_kernel"] * graphics
        or max(pipes, dram) > limits()["quiet_unit"]
    ):
        return None
    ways = (features.pcie_in or 0.0, features.pcie_out or 0.0)
    if min(ways) >= limits()["quiet_unit"] and max(ways) < 2 * min(ways):
        why = f"kernels on {percent(sm)} of the SMs, PCIe carries as much out as in ({percent(min(ways))} of its rate)"
        return WorkloadVerdict(Bound.COMM, 0.6, why)
    if (features.network_gb or 0.0) >= limits()["network_gb_per_second"]:
        why = f"kernels wait on {percent(sm)} of the SMs while the network carries {features.network_gb:.1f} GB/s"
        return WorkloadVerdict(Bound.COMM, 0.6, why)
    return None


def _pcie(features: Features) -> WorkloadVerdict | None:
    if _has_unseen_copies(features):
        seen = f"gpu_util {known(features.gpu_util)}, SMs active {known(features.sm)}"
        why = f"{seen}: copies, for which PCIe's counter is missing"
        return WorkloadVerdict(Bound.PCIE, 0.7 if features.is_profiled else 0.55, why)
    pcie = features.pcie
    if pcie is None:
        return None
    kernels = features.sm if features.sm is not None else 0.0
    rate = max(features.pcie_in_mib or 0.0, features.pcie_out_mib or 0.0) * 2**20 / 1e9
    units = max(_compute_share(features)[0], (features.dram or 0.0) / limits()["dram_practical"])
    # A kernel that reads the host's memory keeps the SMs waiting, and no unit busy.
    is_only_waiting = features.is_profiled and units < limits()["quiet_unit"]
    if pcie >= limits()["pcie_dominant"] and (kernels < pcie or is_only_waiting):
        # The counter has headers in it, so a full link reads 108 % of what it carries of payload.
        share = percent(min(1.0, pcie))
        why = f"PCIe carries {rate:.1f} GB/s, {share} of what the link can; SMs are active {known(features.sm)}"
        if features.is_profiled and units >= limits()["dominant"]:
            return WorkloadVerdict(
                Bound.MIXED, 0.6, f"{why}, and a unit of the GPU is at {percent(units)} of its ceiling"
            )
        return WorkloadVerdict(Bound.PCIE, confidence_beyond(pcie, limits()["pcie_dominant"]), why)
    is_steady = features.rhythm.gaps < 2 or features.rhythm.quiet_share < 0.5
    # Without GPM's word on kernels, power has to say that there are none.
    is_light = features.sm is not None or (features.power_over_idle or 0.0) < limits()["light_power"]
    is_alone = kernels < 0.1 * pcie and is_steady and is_light
    if pcie >= limits()["pcie_alone"] and is_alone:
        seen = f"{rate:.1f} GB/s ({percent(pcie)} of the link) with SMs active {known(features.sm)}"
        why = f"nothing but copies: {seen}; copies from pageable memory look like this"
        return WorkloadVerdict(Bound.PCIE, confidence_beyond(pcie, limits()["pcie_alone"]) - 0.05, why)
    return None


def _bursts(features: Features) -> WorkloadVerdict | None:
    """Work that stops for long enough to be seen, again and again."""
    rhythm = features.rhythm
    is_rhythm = rhythm.gaps >= 2 or (rhythm.gaps == 1 and rhythm.longest_gap_seconds >= 1.0)
    if not is_rhythm or rhythm.quiet_share < limits()["stop_share"]:
        return None
    word = "stop" if rhythm.gaps == 1 else "stops"
    stops = (
        f"{rhythm.gaps} {word} of up to {rhythm.longest_gap_seconds:.1f} s, {percent(rhythm.quiet_share)} of the time"
    )
    if rhythm.level >= limits()["stall_level"] and rhythm.mean >= limits()["stall_share"]:
        why = f"{stops}; in between the GPU is active {percent(rhythm.level)}"
        return WorkloadVerdict(Bound.STALLS, 0.85 if rhythm.gaps >= 3 else 0.7, why)
    if not _is_worth_waiting(features) and not _has_copies(features):
        why = f"active {percent(rhythm.mean)} of the time, with kernels that do not fill the GPU; {stops}"
        return WorkloadVerdict(Bound.UNDERUTILIZED, 0.65, why)
    why = f"the GPU waits: active {percent(rhythm.mean)} of the time on average, {stops}"
    return WorkloadVerdict(Bound.DATA_STARVED, 0.8 if rhythm.mean < limits()["stall_share"] / 2 else 0.65, why)


def _launches(features: Features) -> tuple[float, bool] | None:
    """MiB/s over PCIe for each percent of busy time, and whether that traffic can be launches; None: unknown."""
    if features.pcie_in_mib is None or not features.graphics:
        return None
    # An idle GPU moves about 1 MiB/s.
    traffic = max(0.0, features.pcie_in_mib - 1.0)
    for_each = traffic / (100 * features.graphics)
    answers = 1.0 if features.pcie_out_mib is None else features.pcie_out_mib / max(1.0, features.pcie_in_mib)
    return for_each, for_each <= limits()["launch_mib_most"] and answers >= limits()["launch_answer_ratio"]


def _fed_by_launches(features: Features) -> WorkloadVerdict | None:
    graphics, sm = features.graphics or 0.0, features.sm or 0.0
    found = _launches(features)
    if found is None or not found[1] or features.pcie_in_mib is None:
        return None
    for_each, rate = found[0], features.pcie_in_mib
    is_light = max(features.dram or 0.0, _compute_share(features)[0]) < limits()["weak_dominant"]
    # A kernel of a few microseconds may well fill the GPU: then pauses have to say that launches do not keep up.
    has_pauses = graphics < limits()["pressed_busy"]
    is_narrow = sm < limits()["wide_kernel"] * graphics
    is_tiny = for_each >= limits()["launch_mib_per_busy_percent"] and (is_narrow or has_pauses)
    # Longer kernels, but one launched as soon as the one before has ended.
    is_pressed = has_pauses and rate >= 2 * limits()["launch_mib_per_second"] and for_each >= limits()["pressed_mib"]
    if rate < limits()["launch_mib_per_second"] or not is_light or not (is_tiny or is_pressed):
        return None
    why = (
        f"a kernel runs {percent(graphics)} of the time but SMs are active only {percent(sm)}, and {rate:.0f} MiB/s of "
        f"PCIe are launches: kernels shorter than the time to launch them"
    )
    sure = min(
        confidence_beyond(for_each, limits()["launch_mib_per_busy_percent"]),
        confidence_beyond(rate, limits()["launch_mib_per_second"]),
    )
    return WorkloadVerdict(Bound.LAUNCH, sure if is_tiny else 0.6, why)


def _is_worth_waiting(features: Features) -> bool:
    """Whether the kernels that do run fill the GPU and keep one of its units busy; True where that is unknown."""
    graphics = features.graphics
    if graphics is None or features.sm is None:
        return True
    units = (features.tensor, features.dram, features.fp32, features.fp64, features.fp16, features.integer)
    told = [unit for unit in units if unit is not None]
    is_heavy = not told or max(told) >= limits()["heavy_kernel"] * graphics
    return features.sm >= limits()["wide_kernel"] * graphics and is_heavy


def _has_copies(features: Features) -> bool:
    found = _launches(features)
    return found is not None and found[0] > limits()["launch_mib_most"]


def _not_fed(features: Features) -> WorkloadVerdict | None:
    """The GPU is free much of the time: with wide kernels it waits for data, with narrow ones it is hardly asked."""
    graphics, sm = features.graphics or 0.0, features.sm or 0.0
    if graphics >= limits()["busy"]:
        return None
    width = sm / graphics if graphics else 0.0
    has_input = _has_copies(features) and (features.pcie_in_mib or 0.0) >= limits()["launch_mib_per_second"]
    # One short kernel now and then is a request, however wide it is, unless batches come in for it.
    if _is_worth_waiting(features) and (graphics >= limits()["request_share"] or has_input):
        ran = f"a kernel runs {percent(graphics)} of the time"
        why = f"{ran} and then fills {percent(width)} of the SMs; the rest is waiting"
        sure = 0.9 if graphics < 0.4 else 0.6
        return WorkloadVerdict(Bound.DATA_STARVED, sure, why)
    ran = f"a kernel runs {percent(graphics)} of the time, and SMs are active {percent(sm)}"
    if has_input:
        why = f"{ran}; {features.pcie_in_mib:.0f} MiB/s of input come over PCIe, and in between it waits for more"
        return WorkloadVerdict(Bound.DATA_STARVED, 0.6, why)
    why = f"{ran}; nothing is near its ceiling"
    if features.pcie_in is None and graphics >= limits()["launch_busy_least"]:
        return WorkloadVerdict(Bound.LAUNCH, 0.55, f"{why}; such small kernels so often are launches, if nobody sleeps")
    return WorkloadVerdict(Bound.UNDERUTILIZED, 0.85 if graphics < 0.2 else 0.65, why)


def _narrow(features: Features) -> WorkloadVerdict | None:
    """Always a kernel, and most of the SMs without work."""
    graphics, sm = features.graphics or 0.0, features.sm or 0.0
    dram = (features.dram or 0.0) / limits()["dram_practical"]
    if sm >= limits()["narrow_kernel"] * graphics or dram >= limits()["weak_dominant"]:
        return None
    ran = f"a kernel runs {percent(graphics)} of the time on {percent(sm / graphics)} of the SMs"
    why = f"{ran}: too few blocks to fill the GPU"
    return WorkloadVerdict(Bound.UNDERUTILIZED, 0.8, why)


def _compute_share(features: Features) -> tuple[float, bool]:
    """The busiest arithmetic pipe as a share of what it reaches in practice, and whether it is the tensor cores."""
    tensor = (features.tensor or 0.0) / limits()["tensor_practical"]
    others = max(
        max(features.fp32 or 0.0, features.fp16 or 0.0) / limits()["fp32_practical"],
        (features.fp64 or 0.0) / limits()["fp64_practical"],
    )
    return max(tensor, others), tensor >= others


def _busiest_unit(features: Features) -> WorkloadVerdict:
    """The GPU is fed and its SMs have work: which of its units is at its ceiling?"""
    busy = max(features.graphics or 0.0, limits()["busy"])
    pipes, is_tensor = _compute_share(features)
    memory = (features.dram or 0.0) / limits()["dram_practical"] / busy
    pipes /= busy
    # Address arithmetic accompanies memory traffic: integer work counts where memory is quiet.
    if memory < limits()["quiet_unit"] and (features.integer or 0.0) / limits()["fp32_practical"] / busy > pipes:
        pipes, is_tensor = (features.integer or 0.0) / limits()["fp32_practical"] / busy, False
    told = (("tensor", features.tensor), ("fp32", features.fp32), ("memory", features.dram), ("SMs", features.sm))
    numbers = ", ".join(f"{name} {known(share)}" for name, share in told)
    strongest, ratio = max(pipes, memory), min(pipes, memory) / max(pipes, memory, 1e-9)
    compute = Bound.COMPUTE if is_tensor else Bound.COMPUTE_NO_TENSOR
    winner = compute if pipes >= memory else Bound.MEMORY
    # fp32 accompanies norms and softmax, whose pace memory sets; tensor cores beside busy memory are a training step.
    balanced = limits()["balanced_tensor" if is_tensor and winner is Bound.MEMORY else "balanced"]
    if strongest >= limits()["dominant"] and ratio < balanced:
        sure = min(confidence_beyond(strongest, limits()["dominant"]), 0.95 - 0.4 * ratio)
        return WorkloadVerdict(
            winner, sure, f"{_unit(winner)} at {percent(min(1.0, strongest))} of the practical ceiling ({numbers})"
        )
    if strongest < limits()["dominant"] and features.tensor is None:
        return WorkloadVerdict(
            Bound.COMPUTE, 0.5, f"SMs are busy, memory is not at its ceiling, and tensor work is unknown ({numbers})"
        )
    # Scattered accesses keep the memory system busy long before its bandwidth is: 0.27 for a transposing copy.
    enough = limits()["weak_dominant"] / (1 if winner is not Bound.MEMORY else 2)
    if strongest >= enough and ratio <= limits()["alone"]:
        why = f"{_unit(winner)} at {percent(strongest)} of the practical ceiling, nothing else near ({numbers})"
        return WorkloadVerdict(winner, 0.6 if strongest >= limits()["weak_dominant"] else 0.45, why)
    if limits()["quiet_unit"] <= memory and pipes < limits()["weak_dominant"] and not _has_tensor(features):
        why = f"device memory at {percent(memory)} of the practical ceiling, and no tensor work ({numbers})"
        return WorkloadVerdict(Bound.MEMORY, 0.45, why)
    if strongest < limits()["weak_dominant"] and memory < limits()["quiet_unit"]:
        return _no_unit(features, pipes, numbers=numbers, is_tensor=is_tensor)
    return WorkloadVerdict(Bound.MIXED, 0.75 if ratio > 0.6 else 0.6, f"no unit alone explains the time ({numbers})")


def _no_unit(features: Features, pipes: float, *, numbers: str, is_tensor: bool) -> WorkloadVerdict:
    """SMs are busy and no counted unit is: special functions, caches or waiting inside kernels."""
    if pipes >= limits()["quiet_unit"] and not is_tensor:
        why = f"SMs busy with arithmetic that is not on the tensor cores, memory quiet ({numbers})"
        return WorkloadVerdict(Bound.COMPUTE_NO_TENSOR, 0.6, why)
    if pipes >= limits()["quiet_unit"]:
        return WorkloadVerdict(Bound.MIXED, 0.45, f"kernels too small for the tensor cores to be busy ({numbers})")
    if features.fp32 is None or features.integer is None:
        return WorkloadVerdict(
            Bound.COMPUTE_NO_TENSOR,
            0.5,
            f"SMs busy without tensor cores or memory; their arithmetic is unknown ({numbers})",
        )
    if (features.sm or 0.0) >= limits()["full_sms"]:
        why = f"SMs busy while neither arithmetic nor device memory is: caches or latency inside kernels ({numbers})"
        return WorkloadVerdict(Bound.MEMORY, 0.4, why)
    return WorkloadVerdict(Bound.MIXED, 0.4, f"no unit is near its ceiling ({numbers})")


PROFILED: tuple[Rule, ...] = (
    _idle,
    _communication,
    _pcie,
    _bursts,
    _fed_by_launches,
    _not_fed,
    _narrow,
    _busiest_unit,
)
BASIC: tuple[Rule, ...] = (
    _idle,
    _communication,
    _pcie,
    _bursts,
    classify_basic.waiting,
    classify_basic.light,
    classify_basic.unit,
)


def _has_tensor(features: Features) -> bool:
    return (features.tensor or 0.0) >= limits()["some_tensor"]


def _unit(bound: Bound) -> str:
    return {Bound.MEMORY: "device memory", Bound.COMPUTE: "tensor cores"}.get(bound, "arithmetic pipes")
