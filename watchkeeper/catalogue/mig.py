"""The MIG profiles of each GPU model, from packs/mig_profiles.csv, and which instances fit together.

An instance takes compute slices of the GPU (seven, four or two) and a range of its memory slices, which can start
only at certain positions. The GPUs, with the driver's names for them, are in packs/mig_gpus.csv.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from watchkeeper.catalogue import pack

GPUS, PROFILES = "mig_gpus.csv", "mig_profiles.csv"
# Suffixes of profiles with one more media engine, with all of them, with none.
MEDIA, ALL_MEDIA, NO_MEDIA = "+me", "+me.all", "-me"
# Compute slices of a GPU that is not in the table.
MAX_SLICES = 7
# The driver puts this before the model.
MAKER = "nvidia "
# Cached results of `fits`: one model has some hundred combinations.
MOST_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class MigGpu:
    """A GPU model with MIG; `compute` and `memory` are numbers of slices."""

    name: str = pack.cell(pack.required, "gpu")
    models: tuple[str, ...] = pack.cell(lambda text: tuple(map(str.strip, pack.required(text).split(";"))))
    device_ids: tuple[str, ...] = pack.cell(lambda text: tuple(pack.required(text).split()))
    compute: int = pack.cell(int)
    memory: int = pack.cell(int)


def _gpu_name(text: str) -> str:
    return pack.choice(text, frozenset(gpus()))


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A MIG profile of a GPU model: `memory` slices from one of `starts`, at most `most` instances."""

    gpu: str = pack.cell(_gpu_name)
    name: str = pack.cell(pack.required, "profile")
    compute: int = pack.cell(int)
    memory: int = pack.cell(int)
    starts: tuple[int, ...] = pack.cell(lambda text: tuple(map(int, text.split())))
    most: int = pack.cell(int)
    # The usable memory, the lowest of all driver versions.
    memory_mib: int = pack.cell(int)

    @property
    def is_plain(self) -> bool:
        """Whether the profile has no extra media engines or graphics."""
        return self.name.endswith("gb")


class ImpossibleLayout(ValueError):
    """MIG instances that do not fit together on the GPU; the message has the limit and the request."""


@cache
def gpus() -> Mapping[str, MigGpu]:
    return {gpu.name: gpu for gpu in pack.load(GPUS, pack.row_reader(MigGpu, "source"))}


def gpu_of_model(model: str) -> MigGpu | None:
    """The GPU with this driver name; hyphen and _ count as spaces, as in labels of Kubernetes and Slurm."""
    return _by_model().get(_normalised_model(model))


def profiles(gpu: str) -> Mapping[str, MigProfile]:
    """The profiles of a GPU model by name; ImpossibleLayout for a model that is not in the table."""
    profiles_by_name = _by_gpu().get(gpu)
    if profiles_by_name is None:
        raise ImpossibleLayout(f"unknown GPU model `{gpu[:40]}`; supported: {', '.join(gpus())}")
    return profiles_by_name


def place_instances(gpu: str, names: Sequence[str]) -> list[tuple[str, int]]:
    """A start position for each instance so that all fit, the largest first; ImpossibleLayout if there is none."""
    available = profiles(gpu)
    for name in names:
        if name not in available:
            raise ImpossibleLayout(f"`{name[:40]}` is not a profile of {gpu}; it has {', '.join(available)}")
    requested = sorted((available[name] for name in names), key=lambda profile: (-profile.memory, profile.name))
    _check_counts(gpus()[gpu], requested)
    starts = next(_placements(requested, frozenset()), None)
    if starts is None:
        needed, total = sum(profile.memory for profile in requested), gpus()[gpu].memory
        where = ", ".join(f"{profile.name} at {_starts_text(profile.starts)}" for profile in dict.fromkeys(requested))
        problem = f"{' + '.join(names)} does not fit on {gpu}: it needs {needed} of {total} memory slices"
        raise ImpossibleLayout(f"{problem}, and instances can start only here: {where}")
    return [(profile.name, start) for profile, start in zip(requested, starts, strict=True)]


@lru_cache(MOST_REMEMBERED)
def gpu_share(profile: str, model: str) -> float | None:
    """The share of a GPU that an instance has, by words of the model name; None if matching models differ."""
    # `1g.24gb` is a seventh of an H100 NVL, a quarter of an RTX PRO 6000 and half of an RTX PRO 5000.
    words = set(_normalised_model(model).split())
    matching = [gpu for name, gpu in _by_model().items() if words and words <= set(name.split())]
    size = profile.partition("gb")[0] + "gb"
    candidates = [gpu for gpu in matching or gpus().values() if size in profiles(gpu.name)]
    compute = int(profile[0])
    shares = {compute / gpu.compute for gpu in candidates or matching} or {compute / MAX_SLICES}
    return min(shares.pop(), 1.0) if len(shares) == 1 else None


def minimum_gpu_share(profile: str, model: str) -> float:
    """The share of a GPU that an instance has; if matching models differ, that of the model with the most slices."""
    return gpu_share(profile, model) or int(profile[0]) / MAX_SLICES


@lru_cache(MOST_REMEMBERED)
def fits(gpu: str, names: tuple[str, ...]) -> bool:
    try:
        place_instances(gpu, names)
    except ImpossibleLayout:
        return False
    return True


def _check_counts(gpu: MigGpu, requested: Sequence[MigProfile]) -> None:
    for profile, count in Counter(requested).items():
        if count > profile.most:
            starts = f"they start at {_starts_text(profile.starts)} of the memory slices"
            raise ImpossibleLayout(f"{count} of {profile.name} on {gpu.name}: at most {profile.most} fit ({starts})")
    media = [profile.name for profile in requested if MEDIA in profile.name]
    if len(media) > 1:
        raise ImpossibleLayout(f"{len(media)} instances with {MEDIA} on {gpu.name}: only 1 can have the media engines")
    others = [profile.name for profile in requested if not profile.name.endswith((ALL_MEDIA, NO_MEDIA))]
    if others and any(name.endswith(ALL_MEDIA) for name in media):
        raise ImpossibleLayout(f"{media[0]} has all media engines of {gpu.name}: none is left for {others[0]}")
    compute = sum(profile.compute for profile in requested)
    if compute > gpu.compute:
        names = " + ".join(profile.name for profile in requested)
        raise ImpossibleLayout(f"{names} needs {compute} compute slices, {gpu.name} has {gpu.compute}")


def _placements(requested: Sequence[MigProfile], taken: frozenset[int]) -> Iterator[list[int]]:
    if not requested:
        yield []
        return
    for start in requested[0].starts:
        needed = frozenset(range(start, start + requested[0].memory))
        if not needed & taken:
            for rest in _placements(requested[1:], taken | needed):
                yield [start, *rest]


def _starts_text(starts: Sequence[int]) -> str:
    return " or ".join(map(str, starts))


@cache
def _by_model() -> Mapping[str, MigGpu]:
    return {_normalised_model(model): gpu for gpu in gpus().values() for model in gpu.models}


def _normalised_model(model: str) -> str:
    return model.lower().replace("-", " ").replace("_", " ").strip().removeprefix(MAKER)


@cache
def _by_gpu() -> Mapping[str, Mapping[str, MigProfile]]:
    by_gpu: dict[str, dict[str, MigProfile]] = {}
    for profile in pack.load(PROFILES, pack.row_reader(MigProfile, "source")):
        by_gpu.setdefault(profile.gpu, {})[profile.name] = profile
    return by_gpu
