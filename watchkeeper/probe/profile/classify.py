"""Classify what bounds a segment of a recording, from its features, with confidence and reason.

The rules eliminate one class after another: idle, links, bursts, launches, a GPU that waits, and only then the unit
that is at its ceiling. Without GPM, `classify_basic` decides by power and NVML counters with less confidence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from watchkeeper.probe.profile import classify_basic
from watchkeeper.probe.profile.features import Features
from watchkeeper.probe.profile.verdict import Bound, WorkloadVerdict, confidence_beyond, limits, percent

# Confidence factor without GPM: `gpu_util` reads 99 % even during pure copies.
NO_GPM_FACTOR = 0.72
# Means of fewer rows are not reliable.
MIN_SAMPLES = 10
MAX_CONFIDENCE = 0.97
MIN_CONFIDENCE = 0.2


Rule = Callable[[Features], WorkloadVerdict | None]


def classify(features: Features) -> WorkloadVerdict:
    """The verdict of the first rule that matches; missing counters lower its confidence."""
    rules = PROFILED if features.is_profiled else BASIC
    verdict = next(match for rule in rules if (match := rule(features)) is not None)
    doubts = list(_find_doubts(features))
    confidence = verdict.confidence
    for factor, _ in doubts:
        confidence *= factor
    confidence = round(min(MAX_CONFIDENCE, max(MIN_CONFIDENCE, confidence)), 2)
    return replace(
        verdict, confidence=confidence, doubts=tuple(f"{text} (confidence × {factor:g})" for factor, text in doubts)
    )


def _find_doubts(features: Features) -> Iterator[tuple[float, str]]:
    if not features.is_profiled:
        yield NO_GPM_FACTOR, "no GPM counters (sm_util, graphics_util …): judged only by gpu_util, power and PCIe"
    else:
        for name, column in (("tensor", "any_tensor_util"), ("fp32", "fp32_util")):
            if getattr(features, name) is None:
                yield 0.7, f"the recording has no {column}"
        if features.is_graphics_estimated:
            yield 0.8, "the recording has no graphics_util"
        if features.is_dram_estimated:
            yield 0.85, "the recording has no dram_bw_util"
    if features.pcie_in is None or features.pcie_out is None:
        yield 0.8, "PCIe traffic is not known in both directions, so launches and copies are not visible"
    if not features.is_profiled and features.power_over_idle is None:
        yield 0.8, "power is unknown, so light and heavy work look the same"
    if not features.is_profiled and features.mem_copy is None:
        yield 0.8, "mem_copy_util is unknown"
    if features.samples < MIN_SAMPLES:
        share = max(1, features.samples) / MIN_SAMPLES
        yield share, f"only {features.samples} samples, at least {MIN_SAMPLES} are needed for a reliable mean"
    if features.interval_seconds > 2 * limits()["gap_seconds"]:
        yield 0.93, f"one sample per {features.interval_seconds:.1f} s does not show shorter stops"


def _detect_idle(features: Features) -> WorkloadVerdict | None:
    rhythm, limit = features.rhythm, limits()["idle_activity"]
    is_working = features.sm_median or (features.dram or 0.0) >= limits()["weak_dominant"]
    if rhythm.steady_mean >= limit or is_working or _has_uncounted_copies(features):
        return None
    confidence = 0.95 if rhythm.steady_mean < limit / 5 else 0.75
    return WorkloadVerdict(Bound.IDLE, confidence, f"kernels and copies take {percent(rhythm.mean)} of the time")


def _has_uncounted_copies(features: Features) -> bool:
    """Without PCIe counters, copies show as the difference of `gpu_util`, which counts them, and `graphics_util`."""
    is_counter_missing = features.pcie_in is None or features.pcie_out is None
    if not is_counter_missing or features.gpu_util is None:
        return False
    kernels = features.graphics if features.graphics is not None else features.sm
    if kernels is not None:
        return features.gpu_util - kernels >= limits()["copy_share"]
    # During copies `gpu_util` is high at idle power; loops of tiny kernels have pauses (26 to 47 %).
    power_share = features.power_over_idle
    return features.gpu_util >= limits()["busy"] and power_share is not None and power_share < limits()["copies_power"]


def _detect_communication(features: Features) -> WorkloadVerdict | None:
    """A collective keeps a kernel on a few SMs and a link busy, while pipes and memory are not busy."""
    pipe_share, _ = _compute_share(features)
    dram_share = (features.dram or 0.0) / limits()["dram_practical"]
    if max(pipe_share, dram_share) >= limits()["dominant"]:
        return None
    nvlink = features.nvlink
    if nvlink is not None and nvlink >= limits()["nvlink_dominant"] and nvlink > max(pipe_share, dram_share):
        others = percent(max(pipe_share, dram_share))
        why = f"NVLink carries {percent(nvlink)} of its maximum, tensor cores and memory stay below {others}"
        return WorkloadVerdict(Bound.COMM, confidence_beyond(nvlink, limits()["nvlink_dominant"]), why)
    graphics, sm = features.graphics or 0.0, features.sm or 0.0
    if (
        graphics < limits()["busy"]
        or sm > limits()["narrow_kernel"] * graphics
        or max(pipe_share, dram_share) > limits()["quiet_unit"]
    ):
        return None
    slower, faster = sorted((features.pcie_in or 0.0, features.pcie_out or 0.0))
    if slower >= limits()["quiet_unit"] and faster < 2 * slower:
        why = f"kernels on {percent(sm)} of the SMs, PCIe traffic is similar in both directions ({percent(slower)})"
        return WorkloadVerdict(Bound.COMM, 0.6, why)
    if (features.network_gb or 0.0) >= limits()["network_gb_per_second"]:
        why = f"kernels wait on {percent(sm)} of the SMs while the network carries {features.network_gb:.1f} GB/s"
        return WorkloadVerdict(Bound.COMM, 0.6, why)
    return None


def _detect_pcie(features: Features) -> WorkloadVerdict | None:
    if _has_uncounted_copies(features):
        evidence = f"gpu_util {percent(features.gpu_util)}, SMs active {percent(features.sm)}"
        why = f"{evidence}: copies, and the PCIe counter is missing"
        return WorkloadVerdict(Bound.PCIE, 0.7 if features.is_profiled else 0.55, why)
    pcie = features.pcie
    if pcie is None:
        return None
    sm_share = features.sm if features.sm is not None else 0.0
    gb_per_second = max(features.pcie_in_mib or 0.0, features.pcie_out_mib or 0.0) * 2**20 / 1e9
    unit_share = max(_compute_share(features)[0], (features.dram or 0.0) / limits()["dram_practical"])
    # A kernel that reads host memory keeps the SMs waiting and no unit busy.
    is_waiting_kernel = features.is_profiled and unit_share < limits()["quiet_unit"]
    if pcie >= limits()["pcie_dominant"] and (sm_share < pcie or is_waiting_kernel):
        # The counter includes headers, so a full link reads 108 % of its payload rate.
        share = percent(min(1.0, pcie))
        why = f"PCIe carries {gb_per_second:.1f} GB/s, {share} of the link; SMs are active {percent(features.sm)}"
        if features.is_profiled and unit_share >= limits()["dominant"]:
            why = f"{why}, and a unit of the GPU is at {percent(unit_share)} of its ceiling"
            return WorkloadVerdict(Bound.MIXED, 0.6, why)
        return WorkloadVerdict(Bound.PCIE, confidence_beyond(pcie, limits()["pcie_dominant"]), why)
    is_steady = features.rhythm.gaps < 2 or features.rhythm.quiet_share < 0.5
    # Without GPM, low power shows that no kernels run.
    is_light = features.sm is not None or (features.power_over_idle or 0.0) < limits()["light_power"]
    is_only_copies = sm_share < 0.1 * pcie and is_steady and is_light
    if pcie >= limits()["pcie_alone"] and is_only_copies:
        evidence = f"{gb_per_second:.1f} GB/s ({percent(pcie)} of the link) with SMs active {percent(features.sm)}"
        why = f"only copies: {evidence}; typical for copies from pageable memory"
        return WorkloadVerdict(Bound.PCIE, confidence_beyond(pcie, limits()["pcie_alone"]) - 0.05, why)
    return None


def _detect_bursts(features: Features) -> WorkloadVerdict | None:
    """Work with repeated stops that are long enough to be visible."""
    rhythm = features.rhythm
    is_repeated = rhythm.gaps >= 2 or (rhythm.gaps == 1 and rhythm.longest_gap_seconds >= 1.0)
    if not is_repeated or rhythm.quiet_share < limits()["stop_share"]:
        return None
    stops = f"{rhythm.gaps} stop{'s' if rhythm.gaps > 1 else ''} of up to {rhythm.longest_gap_seconds:.1f} s"
    stops = f"{stops}, {percent(rhythm.quiet_share)} of the time"
    if rhythm.level >= limits()["stall_level"] and rhythm.mean >= limits()["stall_share"]:
        why = f"{stops}; between stops the GPU is active {percent(rhythm.level)}"
        return WorkloadVerdict(Bound.STALLS, 0.85 if rhythm.gaps >= 3 else 0.7, why)
    if not _fills_gpu(features) and not _has_bulk_copies(features):
        why = f"active {percent(rhythm.mean)} of the time, with kernels that do not fill the GPU; {stops}"
        return WorkloadVerdict(Bound.UNDERUTILIZED, 0.65, why)
    why = f"the GPU waits: active {percent(rhythm.mean)} of the time on average, {stops}"
    return WorkloadVerdict(Bound.DATA_STARVED, 0.8 if rhythm.mean < limits()["stall_share"] / 2 else 0.65, why)


def _measure_launches(features: Features) -> tuple[float, bool] | None:
    """MiB/s over PCIe for each percent of busy time, and whether it can be launches; None if unknown."""
    if features.pcie_in_mib is None or not features.graphics:
        return None
    # An idle GPU moves about 1 MiB/s.
    mib_per_busy_percent = max(0.0, features.pcie_in_mib - 1.0) / (100 * features.graphics)
    response_ratio = 1.0 if features.pcie_out_mib is None else features.pcie_out_mib / max(1.0, features.pcie_in_mib)
    is_responsive = response_ratio >= limits()["launch_answer_ratio"]
    return mib_per_busy_percent, is_responsive and mib_per_busy_percent <= limits()["launch_mib_most"]


def _detect_launches(features: Features) -> WorkloadVerdict | None:
    graphics, sm = features.graphics or 0.0, features.sm or 0.0
    launches = _measure_launches(features)
    if launches is None or not launches[1] or features.pcie_in_mib is None:
        return None
    mib_per_busy_percent, mib_per_second = launches[0], features.pcie_in_mib
    is_light = max(features.dram or 0.0, _compute_share(features)[0]) < limits()["weak_dominant"]
    # A kernel of a few microseconds can fill the GPU; then pauses show that launches are too slow.
    has_pauses = graphics < limits()["pressed_busy"]
    is_narrow = sm < limits()["wide_kernel"] * graphics
    is_tiny = mib_per_busy_percent >= limits()["launch_mib_per_busy_percent"] and (is_narrow or has_pauses)
    # Longer kernels, each launched when the one before ends.
    is_pressed = (
        has_pauses
        and mib_per_second >= 2 * limits()["launch_mib_per_second"]
        and mib_per_busy_percent >= limits()["pressed_mib"]
    )
    if mib_per_second < limits()["launch_mib_per_second"] or not is_light or not (is_tiny or is_pressed):
        return None
    why = (
        f"a kernel runs {percent(graphics)} of the time but SMs are active only {percent(sm)}, and PCIe carries "
        f"{mib_per_second:.0f} MiB/s of launches: kernels are shorter than the time to launch them"
    )
    confidence = min(
        confidence_beyond(mib_per_busy_percent, limits()["launch_mib_per_busy_percent"]),
        confidence_beyond(mib_per_second, limits()["launch_mib_per_second"]),
    )
    return WorkloadVerdict(Bound.LAUNCH, confidence if is_tiny else 0.6, why)


def _fills_gpu(features: Features) -> bool:
    """Whether the kernels fill the GPU and keep one of its units busy; True if unknown."""
    graphics = features.graphics
    if graphics is None or features.sm is None:
        return True
    units = (features.tensor, features.dram, features.fp32, features.fp64, features.fp16, features.integer)
    known_units = [unit for unit in units if unit is not None]
    is_heavy = not known_units or max(known_units) >= limits()["heavy_kernel"] * graphics
    return features.sm >= limits()["wide_kernel"] * graphics and is_heavy


def _has_bulk_copies(features: Features) -> bool:
    launches = _measure_launches(features)
    return launches is not None and launches[0] > limits()["launch_mib_most"]


def _detect_waiting(features: Features) -> WorkloadVerdict | None:
    """The GPU is idle much of the time: with wide kernels it waits for data, with narrow ones it has little work."""
    graphics, sm = features.graphics or 0.0, features.sm or 0.0
    if graphics >= limits()["busy"]:
        return None
    width = sm / graphics if graphics else 0.0
    has_input = _has_bulk_copies(features) and (features.pcie_in_mib or 0.0) >= limits()["launch_mib_per_second"]
    # Rare short kernels are requests, however wide, unless there is input traffic for batches.
    if _fills_gpu(features) and (graphics >= limits()["request_share"] or has_input):
        kernel_text = f"a kernel runs {percent(graphics)} of the time"
        why = f"{kernel_text} on {percent(width)} of the SMs; the GPU waits for the rest"
        confidence = 0.9 if graphics < 0.4 else 0.6
        return WorkloadVerdict(Bound.DATA_STARVED, confidence, why)
    kernel_text = f"a kernel runs {percent(graphics)} of the time, and SMs are active {percent(sm)}"
    if has_input:
        why = f"{kernel_text}; {features.pcie_in_mib:.0f} MiB/s of input arrive over PCIe, and the GPU waits for more"
        return WorkloadVerdict(Bound.DATA_STARVED, 0.6, why)
    why = f"{kernel_text}; no unit is near its ceiling"
    if features.pcie_in is None and graphics >= limits()["launch_busy_least"]:
        return WorkloadVerdict(Bound.LAUNCH, 0.55, f"{why}; frequent small kernels suggest launches")
    return WorkloadVerdict(Bound.UNDERUTILIZED, 0.85 if graphics < 0.2 else 0.65, why)


def _detect_narrow_kernels(features: Features) -> WorkloadVerdict | None:
    """A kernel always runs, but most SMs have no work."""
    graphics, sm = features.graphics or 0.0, features.sm or 0.0
    dram_share = (features.dram or 0.0) / limits()["dram_practical"]
    if sm >= limits()["narrow_kernel"] * graphics or dram_share >= limits()["weak_dominant"]:
        return None
    kernel_text = f"a kernel runs {percent(graphics)} of the time on {percent(sm / graphics)} of the SMs"
    return WorkloadVerdict(Bound.UNDERUTILIZED, 0.8, f"{kernel_text}: too few blocks to fill the GPU")


def _compute_share(features: Features) -> tuple[float, bool]:
    """The busiest arithmetic pipe as a share of its practical ceiling, and whether it is the tensor cores."""
    tensor = (features.tensor or 0.0) / limits()["tensor_practical"]
    other_pipes = max(
        max(features.fp32 or 0.0, features.fp16 or 0.0) / limits()["fp32_practical"],
        (features.fp64 or 0.0) / limits()["fp64_practical"],
    )
    return max(tensor, other_pipes), tensor >= other_pipes


def _classify_by_unit(features: Features) -> WorkloadVerdict:
    """The class of a busy GPU: by the unit that is at its ceiling."""
    busy = max(features.graphics or 0.0, limits()["busy"])
    pipe_share, is_tensor = _compute_share(features)
    memory_share = (features.dram or 0.0) / limits()["dram_practical"] / busy
    pipe_share /= busy
    # Memory traffic needs integer address arithmetic, so integer work counts only if memory is quiet.
    integer_share = (features.integer or 0.0) / limits()["fp32_practical"] / busy
    if memory_share < limits()["quiet_unit"] and integer_share > pipe_share:
        pipe_share, is_tensor = integer_share, False
    counters = (("tensor", features.tensor), ("fp32", features.fp32), ("memory", features.dram), ("SMs", features.sm))
    numbers = ", ".join(f"{name} {percent(share)}" for name, share in counters)
    highest, ratio = max(pipe_share, memory_share), min(pipe_share, memory_share) / max(pipe_share, memory_share, 1e-9)
    compute = Bound.COMPUTE if is_tensor else Bound.COMPUTE_NO_TENSOR
    bound = compute if pipe_share >= memory_share else Bound.MEMORY
    # Norms and softmax use fp32 but are bound by memory; tensor cores with busy memory are a training step.
    balanced = limits()["balanced_tensor" if is_tensor and bound is Bound.MEMORY else "balanced"]
    if highest >= limits()["dominant"] and ratio < balanced:
        confidence = min(confidence_beyond(highest, limits()["dominant"]), 0.95 - 0.4 * ratio)
        why = f"{_unit_name(bound)} at {percent(min(1.0, highest))} of the practical ceiling ({numbers})"
        return WorkloadVerdict(bound, confidence, why)
    if highest < limits()["dominant"] and features.tensor is None:
        why = f"SMs busy, memory below its ceiling, and tensor work is unknown ({numbers})"
        return WorkloadVerdict(Bound.COMPUTE, 0.5, why)
    # Scattered accesses saturate the memory system at low bandwidth: 0.27 for a transposing copy.
    threshold = limits()["weak_dominant"] / (1 if bound is not Bound.MEMORY else 2)
    if highest >= threshold and ratio <= limits()["alone"]:
        why = f"{_unit_name(bound)} at {percent(highest)} of the practical ceiling, all others far below ({numbers})"
        return WorkloadVerdict(bound, 0.6 if highest >= limits()["weak_dominant"] else 0.45, why)
    has_tensor = (features.tensor or 0.0) >= limits()["some_tensor"]
    if limits()["quiet_unit"] <= memory_share and pipe_share < limits()["weak_dominant"] and not has_tensor:
        why = f"device memory at {percent(memory_share)} of the practical ceiling, no tensor work ({numbers})"
        return WorkloadVerdict(Bound.MEMORY, 0.45, why)
    if highest < limits()["weak_dominant"] and memory_share < limits()["quiet_unit"]:
        return _classify_without_unit(features, pipe_share, numbers=numbers, is_tensor=is_tensor)
    return WorkloadVerdict(Bound.MIXED, 0.75 if ratio > 0.6 else 0.6, f"no single unit explains the time ({numbers})")


def _classify_without_unit(features: Features, pipe_share: float, *, numbers: str, is_tensor: bool) -> WorkloadVerdict:
    """The class if SMs are busy but no counted unit: special functions, caches or latency inside kernels."""
    if pipe_share >= limits()["quiet_unit"] and not is_tensor:
        why = f"SMs busy with arithmetic outside the tensor cores, memory quiet ({numbers})"
        return WorkloadVerdict(Bound.COMPUTE_NO_TENSOR, 0.6, why)
    if pipe_share >= limits()["quiet_unit"]:
        return WorkloadVerdict(Bound.MIXED, 0.45, f"kernels too small to keep the tensor cores busy ({numbers})")
    if features.fp32 is None or features.integer is None:
        why = f"SMs busy without tensor cores or memory; arithmetic counters are missing ({numbers})"
        return WorkloadVerdict(Bound.COMPUTE_NO_TENSOR, 0.5, why)
    if (features.sm or 0.0) >= limits()["full_sms"]:
        why = f"SMs busy, arithmetic and device memory not busy: caches or latency inside kernels ({numbers})"
        return WorkloadVerdict(Bound.MEMORY, 0.4, why)
    return WorkloadVerdict(Bound.MIXED, 0.4, f"no unit is near its ceiling ({numbers})")


PROFILED: tuple[Rule, ...] = (
    _detect_idle,
    _detect_communication,
    _detect_pcie,
    _detect_bursts,
    _detect_launches,
    _detect_waiting,
    _detect_narrow_kernels,
    _classify_by_unit,
)
BASIC: tuple[Rule, ...] = (
    _detect_idle,
    _detect_communication,
    _detect_pcie,
    _detect_bursts,
    classify_basic.detect_waiting,
    classify_basic.detect_light_work,
    classify_basic.classify_by_unit,
)


def _unit_name(bound: Bound) -> str:
    return {Bound.MEMORY: "device memory", Bound.COMPUTE: "tensor cores"}.get(bound, "arithmetic pipes")
