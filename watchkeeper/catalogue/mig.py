"""Which MIG profiles a GPU has and where each can lie, from packs/mig_placements.csv; and whether some fit together.

An instance takes compute slices of the GPU (seven on most models) and a stretch of its memory slices that may begin
only at certain places. `render.mig` asks before it writes a layout. The GPUs themselves are packs/mig_gpus.csv.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from watchkeeper.catalogue import pack

GPUS, PROFILES = "mig_gpus.csv", "mig_placements.csv"
MEDIA = "+me"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A model that can be divided, by its PCI device ids; `compute` and `memory` are slices."""

    name: str
    device_ids: tuple[str, ...]
    compute: int
    memory: int


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of instance on one GPU model: `memory` slices from one of `starts`, at most `most` of them."""

    gpu: str
    name: str
    compute: int
    memory: int
    starts: tuple[int, ...]
    most: int


class ImpossibleLayout(ValueError):
    """Instances that do not fit together on the GPU; the message says why, with both numbers."""


@cache
def gpus() -> Mapping[str, Gpu]:
    """The models by name, in the order of the table."""
    return {gpu.name: gpu for gpu in pack.load(GPUS, _gpu)}


def profiles(gpu: str) -> Mapping[str, Profile]:
    """The profiles of a GPU model by name; ImpossibleLayout for a model that is not in the table."""
    found = _by_gpu().get(gpu)
    if found is None:
        raise ImpossibleLayout(f"the GPU `{gpu[:40]}` is not known; known are {', '.join(gpus())}")
    return found


def place(gpu: str, names: Sequence[str]) -> list[tuple[str, int]]:
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


def _check_counts(gpu: Gpu, wanted: Sequence[Profile]) -> None:
    for profile, count in Counter(wanted).items():
        if count > profile.most:
            raise ImpossibleLayout(
                f"{count} of {profile.name} on {gpu.name}: at most {profile.most} fit (they begin at "
                f"{_words(profile.starts)} of the memory slices)"
            )
    media = [profile.name for profile in wanted if profile.name.endswith(MEDIA)]
    if len(media) > 1:
        raise ImpossibleLayout(f"{len(media)} instances with {MEDIA} on {gpu.name}: only 1 can have the media engines")
    compute = sum(profile.compute for profile in wanted)
    if compute > gpu.compute:
        names = " + ".join(profile.name for profile in wanted)
        raise ImpossibleLayout(f"{names} needs {compute} compute slices, {gpu.name} has {gpu.compute}")


def _placements(wanted: Sequence[Profile], taken: frozenset[int]) -> Iterator[list[int]]:
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
def _by_gpu() -> Mapping[str, Mapping[str, Profile]]:
    found: dict[str, dict[str, Profile]] = {}
    for profile in pack.load(PROFILES, _profile):
        found.setdefault(profile.gpu, {})[profile.name] = profile
    return found


def _gpu(cells: Mapping[str, str]) -> Gpu:
    ids = tuple(pack.filled(cells["device_ids"]).split())
    return Gpu(pack.filled(cells["gpu"]), ids, int(cells["compute"]), int(cells["memory"]))


def _profile(cells: Mapping[str, str]) -> Profile:
    pack.filled(cells["source"])
    return Profile(
        pack.one_of(cells["gpu"], frozenset(gpus())),
        pack.filled(cells["profile"]),
        int(cells["compute"]),
        int(cells["memory"]),
        tuple(map(int, cells["starts"].split())),
        int(cells["most"]),
    )
