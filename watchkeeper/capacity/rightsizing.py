"""Does this workload need this GPU? Whether MIG, MPS, time slicing or a smaller GPU would do, and why.

Decided from what a workload did, not from what it asked for: the activity that it exceeds one time in twenty (p95 of
SM activity), its mean, and the most memory it held. MIG comes first because its slices cannot disturb each other; MPS
and time slicing share memory and faults, so they are for GPUs that cannot be cut. `web/uses` asks a hub what
each workload did; what is said is advice.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from watchkeeper.catalogue import mig, pack

# Activity: what a slice must have beyond the busiest moments, as workloads grow; memory: room for fragments and peaks
# between two samples.
COMPUTE_ROOM, MEMORY_ROOM = 1.3, 1.2
# At half of its SMs a workload uses its GPU; below one part in a hundred nothing of it runs (rules/usage.yaml).
BUSY, IDLE = 0.5, 0.01
# Someone who is busy in bursts and idle on average, as a notebook, can take turns with others.
BURSTY = 0.25
# A quarter of a large GPU's SMs is what a smaller model has in all, about.
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
    """What a workload did with each of its GPUs, 0 to 1 and MiB; None: not measured. `is_new`: not for long enough.

    Of one in MIG slices, all of it is about these: `slice` is their profile. `is_shared`: others are on the same.
    """

    name: str
    gpus: int
    model: str
    mean_active: float | None
    p95_active: float | None
    peak_memory_mib: float | None
    memory_mib: float | None
    slice: str = ""
    is_shared: bool = False
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class RightsizingAdvice:
    """What would do for a workload; `profile` names the slice or the smaller GPU, `saves_gpus` is left to others."""

    name: str
    gpus: int
    model: str
    fit: RightsizingAction
    why: str
    profile: str = ""
    saves_gpus: float = 0.0


@dataclass(frozen=True, slots=True)
class GpuModelSpec:
    name: str
    memory_mib: int
    watts: int


@functools.cache
def models() -> tuple[GpuModelSpec, ...]:
    return pack.load(
        "gpu_models.csv", lambda cells: GpuModelSpec(cells["model"], int(cells["memory_mib"]), int(cells["tdp_watts"]))
    )


def of_model(model: str) -> list[mig.MigProfile]:
    """The slices that a GPU can be cut into, the smallest first; none for models without MIG or that nobody listed."""
    gpu = mig.gpu_of_model(model)
    if gpu is None:
        return []
    found = [one for one in mig.profiles(gpu.name).values() if one.compute < gpu.compute and one.is_plain]
    return sorted(found, key=lambda one: (one.compute, one.memory_mib))


def advise(use: WorkloadUse) -> RightsizingAdvice:
    """What would do for one workload, and why."""
    mean, p95, memory = use.mean_active, use.p95_active, use.peak_memory_mib
    if use.is_shared:
        return _say(use, RightsizingAction.KEEP, "it shares its GPU with others already")
    if use.is_new:
        return _say(use, RightsizingAction.UNKNOWN, "seen on its GPUs for less than ten minutes")
    if mean is None or p95 is None:
        return _say(use, RightsizingAction.UNKNOWN, "no activity was measured: export DCGM_FI_PROF_SM_ACTIVE")
    seen = f"SM activity {100 * mean:.0f} % on average, {100 * p95:.0f} % at its busiest"
    if p95 < IDLE:
        where = f" in its {use.slice} slice" if use.slice else " on it"
        return _say(use, RightsizingAction.GIVE_BACK, f"{seen}: nothing runs{where}", saves=use.gpus * _part(use))
    if use.slice:
        return _in_slice(use, seen, p95=p95, memory=memory)
    if use.gpus > 1:
        needed = max(1, -(-int(1000 * mean * COMPUTE_ROOM * use.gpus) // 1000))
        if p95 < BUSY and needed < use.gpus:
            why = f"{seen}: the work of {use.gpus} GPUs would fit on {needed}; slices have no NVLink, so none of them"
            return _say(use, RightsizingAction.FEWER_GPUS, why, saves=float(use.gpus - needed))
        return _say(use, RightsizingAction.KEEP, f"{seen}: it uses its {use.gpus} GPUs")
    if p95 >= BUSY:
        return _say(use, RightsizingAction.KEEP, f"{seen}: it uses its GPU")
    if memory is None:
        return _say(
            use, RightsizingAction.UNKNOWN, f"{seen}, but its memory was not measured: export DCGM_FI_DEV_FB_USED"
        )
    return _shared(use, seen, p95=p95, mean=mean, memory=memory)


def _part(use: WorkloadUse) -> float:
    """What one of its GPUs or slices takes from others, in GPUs."""
    cut = _cut(use)
    return 1 / cut.most if cut is not None else 1.0


def _cut(use: WorkloadUse) -> mig.MigProfile | None:
    return next((cut for cut in of_model(use.model) if cut.name == use.slice), None)


def _in_slice(use: WorkloadUse, seen: str, *, p95: float, memory: float | None) -> RightsizingAdvice:
    """Activity is the slice's own: half of 4/7 is 2/7 of the GPU."""
    cut = _cut(use)
    if cut is None or memory is None or p95 >= BUSY:
        return _say(use, RightsizingAction.KEEP, f"{seen} of its {use.slice} slice")
    needs = f"{seen}, {memory / 1024:.1f} GiB at most in {use.slice}"
    for less in of_model(use.model):
        fits = less.compute >= cut.compute * p95 * COMPUTE_ROOM and less.memory_mib >= memory * MEMORY_ROOM
        if fits and less.most > cut.most:
            why = f"{needs}: {less.name} has {less.memory_mib / 1024:.0f} GiB, and {less.most} of them fit on a GPU"
            saves = use.gpus * (1 / cut.most - 1 / less.most)
            return _say(
                use, RightsizingAction.SMALLER_SLICE, f"{why} instead of {cut.most}", profile=less.name, saves=saves
            )
    return _say(use, RightsizingAction.KEEP, f"{needs}: no smaller slice has room for it")


def _shared(use: WorkloadUse, seen: str, *, p95: float, mean: float, memory: float) -> RightsizingAdvice:
    needs = f"{seen}, {memory / 1024:.1f} GiB at most"
    cuts = of_model(use.model)
    for cut in cuts:
        whole = mig.gpus()[cut.gpu].compute
        if cut.compute / whole >= p95 * COMPUTE_ROOM and cut.memory_mib >= memory * MEMORY_ROOM:
            part = f"{cut.compute}/{whole} of the SMs and {cut.memory_mib / 1024:.0f} GiB"
            why = f"{needs}: {cut.name} has {part} of its own"
            return _say(use, RightsizingAction.MIG, why, profile=cut.name, saves=1 - 1 / cut.most)
    if use.memory_mib is None or memory * MEMORY_ROOM > use.memory_mib / 2:
        smaller = _smaller(use, p95=p95, memory=memory)
        if smaller is not None:
            why = f"{needs}: no room for a second workload, but {smaller.name} has {smaller.memory_mib / 1024:.0f} GiB"
            return _say(
                use,
                RightsizingAction.SMALLER_GPU,
                f"{why}; try it first, since SMs of models differ",
                profile=smaller.name,
            )
        return _say(use, RightsizingAction.KEEP, f"{needs}: its memory leaves no room for a second workload")
    reason = "no slice of this GPU is large enough" if cuts else "this GPU has no MIG"
    if mean < BURSTY * p95:
        why = f"{needs}, in bursts; {reason}: take turns with another. Memory and faults are shared"
        return _say(use, RightsizingAction.TIME_SLICING, why, saves=0.5)
    why = f"{needs}, steadily; {reason}: run beside another under MPS. Memory and faults are shared"
    return _say(use, RightsizingAction.MPS, why, saves=0.5)


def _smaller(use: WorkloadUse, *, p95: float, memory: float) -> GpuModelSpec | None:
    """The model with the least power that has less of it and memory enough; None where activity asks for more."""
    here = next((model for model in models() if model.name.lower() == use.model.lower()), None)
    if here is None or p95 > LIGHT:
        return None
    fits = [model for model in models() if model.watts < here.watts and model.memory_mib >= memory * MEMORY_ROOM]
    return min(fits, key=lambda model: (model.watts, model.name), default=None)


def _say(
    use: WorkloadUse, fit: RightsizingAction, why: str, *, profile: str = "", saves: float = 0.0
) -> RightsizingAdvice:
    return RightsizingAdvice(use.name, use.gpus, use.model, fit, why, profile=profile, saves_gpus=round(saves, 3))


@dataclass(frozen=True, slots=True)
class Repartition:
    """How many GPUs of a model, cut into slices, would hold the workloads that fit into slices; the rest is free."""

    model: str
    workloads: int
    gpus_to_cut: int
    frees_gpus: int
    slices: Mapping[str, int]


def repartition(advice: Iterable[RightsizingAdvice]) -> list[Repartition]:
    """By model: the largest slices first, each on the first GPU where it can lie beside those that are there."""
    by_model: dict[str, list[mig.MigProfile]] = {}
    for one in advice:
        if one.fit is RightsizingAction.MIG:
            cut = next(cut for cut in of_model(one.model) if cut.name == one.profile)
            by_model.setdefault(one.model, []).append(cut)
    return [_packed(model, cuts) for model, cuts in sorted(by_model.items())]


def _packed(model: str, cuts: Sequence[mig.MigProfile]) -> Repartition:
    by_size = sorted(cuts, key=lambda cut: (-cut.memory, -cut.compute, cut.name))
    rooms: list[tuple[str, ...]] = []
    for cut in by_size:
        at = next((at for at, room in enumerate(rooms) if mig.fits(cut.gpu, (*room, cut.name))), None)
        if at is None:
            rooms.append((cut.name,))
        else:
            rooms[at] = (*rooms[at], cut.name)
    slices = dict(sorted(Counter(cut.name for cut in cuts).items()))
    return Repartition(model, len(cuts), len(rooms), len(cuts) - len(rooms), slices)
