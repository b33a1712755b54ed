"""Advise on rightsizing: whether MIG, MPS, time-slicing or a smaller GPU is enough for a workload, and why.

The decision uses what a workload did and not what it requested: mean and p95 of SM activity, and peak memory. MIG is
preferred because its instances are isolated. MPS and time-slicing share memory and faults, so they are for GPUs without
MIG.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from watchkeeper.catalogue import gpu_models, mig

# Compute: headroom above p95, as workloads grow. Memory: headroom for fragmentation and for peaks between two samples.
COMPUTE_HEADROOM, MEMORY_HEADROOM = 1.3, 1.2
# From 50 % SM activity on, a workload uses its GPU; below 1 % it does not run (rules/usage.yaml).
BUSY, IDLE = 0.5, 0.01
# A workload with a mean below this share of its p95 is bursty, such as a notebook, and can use time-slicing.
BURSTY = 0.25
# A smaller model has about a quarter of the SMs of a large one.
LIGHT = 0.25


class RightsizingAction(StrEnum):
    KEEP = "keep"
    GIVE_BACK = "give_back"
    FEWER_GPUS = "fewer_gpus"
    MIG = "mig"
    MPS = "mps"
    TIME_SLICING = "time_slicing"
    SMALLER_GPU = "smaller_gpu"
    SMALLER_SLICE = "smaller_slice"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class WorkloadUse:
    """How a workload used each of its GPUs, as shares from 0 to 1 and MiB; None if not measured."""

    name: str
    gpus: int
    model: str
    mean_active: float | None
    p95_active: float | None
    peak_memory_mib: float | None
    memory_mib: float | None
    # The profile of its MIG instances: then all values are about the instances.
    slice: str = ""
    # Other workloads use the same GPU.
    is_shared: bool = False
    # Measured for less than ten minutes.
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class RightsizingAdvice:
    """What is enough for a workload; `profile` is a MIG profile or a smaller GPU, `saves_gpus` the GPUs it frees."""

    name: str
    gpus: int
    model: str
    fit: RightsizingAction
    why: str
    profile: str = ""
    saves_gpus: float = 0.0


def list_profiles(model: str) -> list[mig.MigProfile]:
    """Return the MIG profiles smaller than the GPU, the smallest first; none for models unknown or without MIG."""
    gpu = mig.gpu_of_model(model)
    if gpu is None:
        return []
    plain = (profile for profile in mig.profiles(gpu.name).values() if profile.is_plain)
    profiles = [profile for profile in plain if profile.compute < gpu.compute]
    return sorted(profiles, key=lambda profile: (profile.compute, profile.memory_mib))


def advise(use: WorkloadUse) -> RightsizingAdvice:
    mean, p95, memory = use.mean_active, use.p95_active, use.peak_memory_mib
    if use.is_shared:
        return _create_advice(use, RightsizingAction.KEEP, "it already shares its GPU with other workloads")
    if use.is_new:
        return _create_advice(use, RightsizingAction.UNKNOWN, "measured on its GPUs for less than ten minutes")
    if mean is None or p95 is None:
        return _create_advice(use, RightsizingAction.UNKNOWN, "no SM activity: export DCGM_FI_PROF_SM_ACTIVE")
    activity = f"SM activity {100 * mean:.0f} % on average, {100 * p95:.0f} % at p95"
    profiles = list_profiles(use.model) if use.slice else []
    current = next((profile for profile in profiles if profile.name == use.slice), None)
    if p95 < IDLE:
        idle = f"{activity}: its {use.slice} instance is idle" if use.slice else f"{activity}: its GPU is idle"
        saves = use.gpus / (1 if current is None else current.most)
        return _create_advice(use, RightsizingAction.GIVE_BACK, idle, saves=saves)
    if use.slice:
        if current is None or memory is None or p95 >= BUSY:
            return _create_advice(use, RightsizingAction.KEEP, f"{activity} of its {use.slice} instance")
        return _advise_slice(use, activity, current, p95=p95, memory=memory)
    if use.gpus > 1:
        needed = max(1, -(-int(1000 * mean * COMPUTE_HEADROOM * use.gpus) // 1000))
        if p95 < BUSY and needed < use.gpus:
            why = f"{activity}: {needed} of {use.gpus} GPUs are enough; MIG instances have no NVLink"
            return _create_advice(use, RightsizingAction.FEWER_GPUS, why, saves=float(use.gpus - needed))
        return _create_advice(use, RightsizingAction.KEEP, f"{activity}: it uses its {use.gpus} GPUs")
    if p95 >= BUSY:
        return _create_advice(use, RightsizingAction.KEEP, f"{activity}: it uses its GPU")
    if memory is None:
        why = f"{activity}, but no memory use: export DCGM_FI_DEV_FB_USED"
        return _create_advice(use, RightsizingAction.UNKNOWN, why)
    return _advise_sharing(use, activity, p95=p95, mean=mean, memory=memory)


def _advise_slice(
    use: WorkloadUse, activity: str, current: mig.MigProfile, *, p95: float, memory: float
) -> RightsizingAdvice:
    """Advise on a workload in a MIG instance; its activity is relative to the instance: half of 4/7 is 2/7 of a GPU."""
    needs = f"{activity}, {memory / 1024:.1f} GiB at peak in {use.slice}"
    for smaller in list_profiles(use.model):
        has_compute = smaller.compute >= current.compute * p95 * COMPUTE_HEADROOM
        if has_compute and smaller.memory_mib >= memory * MEMORY_HEADROOM and smaller.most > current.most:
            size = f"{smaller.name} has {smaller.memory_mib / 1024:.0f} GiB"
            why = f"{needs}: {size}, and a GPU has {smaller.most} of them instead of {current.most}"
            saves = use.gpus * (1 / current.most - 1 / smaller.most)
            return _create_advice(use, RightsizingAction.SMALLER_SLICE, why, profile=smaller.name, saves=saves)
    return _create_advice(use, RightsizingAction.KEEP, f"{needs}: no smaller MIG profile is enough")


def _advise_sharing(use: WorkloadUse, activity: str, *, p95: float, mean: float, memory: float) -> RightsizingAdvice:
    needs = f"{activity}, {memory / 1024:.1f} GiB at peak"
    profiles = list_profiles(use.model)
    for profile in profiles:
        total_compute = mig.gpus()[profile.gpu].compute
        if profile.compute / total_compute >= p95 * COMPUTE_HEADROOM and profile.memory_mib >= memory * MEMORY_HEADROOM:
            share = f"{profile.compute}/{total_compute} of the SMs and {profile.memory_mib / 1024:.0f} GiB"
            why = f"{needs}: {profile.name} has {share}"
            return _create_advice(use, RightsizingAction.MIG, why, profile=profile.name, saves=1 - 1 / profile.most)
    if use.memory_mib is None or memory * MEMORY_HEADROOM > use.memory_mib / 2:
        smaller = _find_smaller_gpu(use, p95=p95, memory=memory)
        if smaller is not None:
            size = f"{smaller.name} has {smaller.memory_mib / 1024:.0f} GiB"
            why = f"{needs}: no room for a second workload, but {size}; test it first, because SMs of models differ"
            return _create_advice(use, RightsizingAction.SMALLER_GPU, why, profile=smaller.name)
        why = f"{needs}: its memory use leaves no room for a second workload"
        return _create_advice(use, RightsizingAction.KEEP, why)
    reason = "no MIG profile of this GPU is large enough" if profiles else "this GPU has no MIG"
    if mean < BURSTY * p95:
        why = f"{needs}, in bursts; {reason}: use time-slicing with another workload. Memory and faults are shared"
        return _create_advice(use, RightsizingAction.TIME_SLICING, why, saves=0.5)
    why = f"{needs}, steadily; {reason}: use MPS with another workload. Memory and faults are shared"
    return _create_advice(use, RightsizingAction.MPS, why, saves=0.5)


def _find_smaller_gpu(use: WorkloadUse, *, p95: float, memory: float) -> gpu_models.GpuModel | None:
    """Return the model with the least power that has enough memory; None if the activity is too high for it."""
    models = gpu_models.gpu_models().values()
    current = next((model for model in models if model.name.lower() == use.model.lower()), None)
    if current is None or p95 > LIGHT:
        return None
    large = [model for model in models if model.memory_mib >= memory * MEMORY_HEADROOM]
    fits = [model for model in large if model.tdp_watts < current.tdp_watts]
    return min(fits, key=lambda model: (model.tdp_watts, model.name), default=None)


def _create_advice(
    use: WorkloadUse, fit: RightsizingAction, why: str, *, profile: str = "", saves: float = 0.0
) -> RightsizingAdvice:
    return RightsizingAdvice(use.name, use.gpus, use.model, fit, why, profile=profile, saves_gpus=round(saves, 3))


@dataclass(frozen=True, slots=True)
class Repartition:
    """GPUs of a model to partition with MIG for the workloads that fit into instances, and the GPUs that this frees."""

    model: str
    workloads: int
    gpus_to_cut: int
    frees_gpus: int
    slices: Mapping[str, int]


def plan_repartitions(advice: Iterable[RightsizingAdvice]) -> list[Repartition]:
    """Pack the MIG profiles by model, the largest first, each on the first GPU where it fits."""
    by_model: dict[str, list[mig.MigProfile]] = {}
    for workload_advice in advice:
        if workload_advice.fit is RightsizingAction.MIG:
            profiles = list_profiles(workload_advice.model)
            profile = next(profile for profile in profiles if profile.name == workload_advice.profile)
            by_model.setdefault(workload_advice.model, []).append(profile)
    return [_pack_profiles(model, cuts) for model, cuts in sorted(by_model.items())]


def _pack_profiles(model: str, profiles: Sequence[mig.MigProfile]) -> Repartition:
    by_size = sorted(profiles, key=lambda profile: (-profile.memory, -profile.compute, profile.name))
    gpus: list[tuple[str, ...]] = []
    for profile in by_size:
        at = next((at for at, placed in enumerate(gpus) if mig.fits(profile.gpu, (*placed, profile.name))), None)
        if at is None:
            gpus.append((profile.name,))
        else:
            gpus[at] = (*gpus[at], profile.name)
    slices = dict(sorted(Counter(profile.name for profile in profiles).items()))
    return Repartition(model, len(profiles), len(gpus), len(profiles) - len(gpus), slices)
