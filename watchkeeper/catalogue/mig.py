"""Which MIG profiles a GPU has, what each gives and where it can lie: packs/mig_profiles.csv; and what fits together.

An instance takes compute slices of the GPU (seven, four or two) and a stretch of its memory slices that may begin
only at certain places. `render.mig` asks before it writes a layout, `capacity.rightsizing` before it advises a slice.
The GPUs themselves, with the names that the driver gives them, are packs/mig_gpus.csv.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from watchkeeper.catalogue import pack

GPUS, PROFILES = "mig_gpus.csv", "mig_profiles.csv"
# With a media engine more than the others, with all of them, with none.
MEDIA, ALL_MEDIA, NO_MEDIA = "+me", "+me.all", "-me"
# Compute slices of a GPU that is not in the table.
MAX_SLICES = 7
# Before the model in the names that the driver gives.
MAKER = "nvidia "
# Layouts that `fits` remembers: the mixes of one model's slices are some hundred.
MOST_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class MigGpu:
    """A GPU that can be divided, by its PCI device ids and by the driver's names; `compute` and `memory` are slices."""

    name: str
    models: tuple[str, ...]
    device_ids: tuple[str, ...]
    compute: int
    memory: int


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One kind of instance on one GPU: `memory` slices from one of `starts`, at most `most` of them.

    `memory_mib` is what a program finds in it, by the driver that gives the least.
    """

    gpu: str
    name: str
    compute: int
    memory: int
    starts: tuple[int, ...]
    most: int
    memory_mib: int

    @property
    def is_plain(self) -> bool:
        """Whether its size is all that its name says: no other media engines, no graphics."""
        return self.name.endswith("gb")


class ImpossibleLayout(ValueError):
    """Instances that do not fit together on the GPU; the message says why, with both numbers."""


@cache
def gpus() -> Mapping[str, MigGpu]:
    """The models by name, in the order of the table."""
    return {gpu.name: gpu for gpu in pack.load(GPUS, _gpu)}


def gpu_of_model(model: str) -> MigGpu | None:
    """The GPU that the driver calls so; a hyphen or _ is a space, since labels of Kubernetes and Slurm have none."""
    return _by_model().get(_plain(model))


def profiles(gpu: str) -> Mapping[str, MigProfile]:
    """The profiles of a GPU model by name; ImpossibleLayout for a model that is not in the table."""
    found = _by_gpu().get(gpu)
    if found is None:
        raise ImpossibleLayout(f"the GPU `{gpu[:40]}` is not known; known are {', '.join(gpus())}")
    return found


def place_instances(gpu: str, names: Sequence[str]) -> list[tuple[str, int]]:
    """Where each of these instances can begin so that all fit, the largest first; ImpossibleLayout if none can."""
    known = profiles(gpu)
    for name in names:
        if name not in known:
            raise ImpossibleLayout(f"`{name[:40]}` is no profile of {gpu}; it has {', '.join(known)}")
    wanted = sorted((known[name] for name in names), key=lambda one: (-one.memory, one.name))
    _check_counts(gpus()[gpu], wanted)
    found = next(_placements(wanted, frozenset()), None)
    if found is None:
        asked, there = sum(one.memory for one in wanted), gpus()[gpu].memory
        where = ", ".join(f"{one.name} at {_words(one.starts)}" for one in dict.fromkeys(wanted))
        raise ImpossibleLayout(
            f"{' + '.join(names)} does not fit on {gpu}: it needs {asked} of {there} memory slices, and instances may "
            f"begin only so: {where}"
        )
    return [(profile.name, start) for profile, start in zip(wanted, found, strict=True)]


@lru_cache(MOST_REMEMBERED)
def gpu_share(profile: str, model: str) -> float | None:
    """The part of a GPU that an instance is, by words of the GPU's name; None where GPUs that fit differ in it.

    `1g.24gb` is a seventh of an H100 NVL, a quarter of an RTX PRO 6000 and half of an RTX PRO 5000.
    """
    words = set(_plain(model).split())
    known = [gpu for gpu in gpus().values() if words and any(words <= set(_plain(name).split()) for name in gpu.models)]
    size = profile.partition("gb")[0] + "gb"
    having = [gpu for gpu in known or gpus().values() if size in profiles(gpu.name)]
    compute = int(profile[0])
    found = {compute / gpu.compute for gpu in having or known} or {compute / MAX_SLICES}
    return min(found.pop(), 1.0) if len(found) == 1 else None


def minimum_gpu_share(profile: str, model: str) -> float:
    """The part of a GPU that an instance is; of GPUs that differ in it, of the one with the most slices."""
    return gpu_share(profile, model) or int(profile[0]) / MAX_SLICES


@lru_cache(MOST_REMEMBERED)
def fits(gpu: str, names: tuple[str, ...]) -> bool:
    """Whether these instances fit beside each other."""
    try:
        place_instances(gpu, names)
    except ImpossibleLayout:
        return False
    return True


def _check_counts(gpu: MigGpu, wanted: Sequence[MigProfile]) -> None:
    for profile, count in Counter(wanted).items():
        if count > profile.most:
            raise ImpossibleLayout(
                f"{count} of {profile.name} on {gpu.name}: at most {profile.most} fit (they begin at "
                f"{_words(profile.starts)} of the memory slices)"
            )
    media = [profile.name for profile in wanted if MEDIA in profile.name]
    if len(media) > 1:
        raise ImpossibleLayout(f"{len(media)} instances with {MEDIA} on {gpu.name}: only 1 can have the media engines")
    beside = [profile.name for profile in wanted if not profile.name.endswith((ALL_MEDIA, NO_MEDIA))]
    if beside and any(name.endswith(ALL_MEDIA) for name in media):
        raise ImpossibleLayout(f"{media[0]} has all media engines of {gpu.name}: {beside[0]} beside it has none left")
    compute = sum(profile.compute for profile in wanted)
    if compute > gpu.compute:
        names = " + ".join(profile.name for profile in wanted)
        raise ImpossibleLayout(f"{names} needs {compute} compute slices, {gpu.name} has {gpu.compute}")


def _placements(wanted: Sequence[MigProfile], taken: frozenset[int]) -> Iterator[list[int]]:
    if not wanted:
        yield []
        return
    for start in wanted[0].starts:
        needed = frozenset(range(start, start + wanted[0].memory))
        if not needed & taken:
            for rest in _placements(wanted[1:], taken | needed):
                yield [start, *rest]


def _words(starts: Sequence[int]) -> str:
    return " or ".join(map(str, starts))


@cache
def _by_model() -> Mapping[str, MigGpu]:
    return {_plain(model): gpu for gpu in gpus().values() for model in gpu.models}


def _plain(model: str) -> str:
    return model.lower().replace("-", " ").replace("_", " ").strip().removeprefix(MAKER)


@cache
def _by_gpu() -> Mapping[str, Mapping[str, MigProfile]]:
    found: dict[str, dict[str, MigProfile]] = {}
    for profile in pack.load(PROFILES, _profile):
        found.setdefault(profile.gpu, {})[profile.name] = profile
    return found


def _gpu(cells: Mapping[str, str]) -> MigGpu:
    pack.required(cells["source"])
    models = tuple(model.strip() for model in pack.required(cells["models"]).split(";"))
    ids = tuple(pack.required(cells["device_ids"]).split())
    return MigGpu(pack.required(cells["gpu"]), models, ids, int(cells["compute"]), int(cells["memory"]))


def _profile(cells: Mapping[str, str]) -> MigProfile:
    pack.required(cells["source"])
    return MigProfile(
        pack.choice(cells["gpu"], frozenset(gpus())),
        pack.required(cells["profile"]),
        int(cells["compute"]),
        int(cells["memory"]),
        tuple(map(int, cells["starts"].split())),
        int(cells["most"]),
        int(cells["memory_mib"]),
    )
