"""The words in which people name GPUs of one node: `0`, `0-3`, a UUID or its beginning, a PCI address, a MIG slice.

A slice is `0/1`, the GPU instance 1 of GPU 0, or its own UUID. A `Selection` is read once, by a command or from a group
(`agent.gpus.gpu_groups`), and held against the GPUs that are there then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from watchkeeper.model.fleet import normalise_pci

# Larger than the largest machine; a range such as 0-99999999 is a mistake.
MOST_GPUS = 1024
RANGE = re.compile(r"(\d{1,4})-(\d{1,4})\Z", re.ASCII)
# `0/1`, and as CUDA wrote it before R470 `MIG-GPU-8a…/1/0`: GPU, instance, and perhaps compute instance.
SLICE = re.compile(r"(?:MIG-)?(?P<gpu>\d{1,4}|GPU-[0-9a-fA-F-]+)/(?P<slice>\d{1,3})(?:/\d{1,3})?\Z", re.ASCII)
# `00000000:5D:00.0`, `0000:5d:00.0`, `5d:00.0`
PCI = re.compile(r"(?:pci:)?(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?\Z", re.IGNORECASE)
UUID = re.compile(r"GPU-[0-9a-fA-F-]{1,36}\Z")
MIG_UUID = re.compile(r"MIG-[0-9a-fA-F-]{1,36}\Z")


@dataclass(frozen=True, slots=True)
class SelectableGpu:
    """A GPU as a word may name it; what is not known is None. `slices`: UUID of each MIG slice to its instance."""

    index: int | None
    uuid: str | None
    pci: str | None
    slices: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuSelector:
    """One GPU in somebody's words: exactly one of `index`, `uuid`, `pci` and `mig`, the UUID of a slice.

    `slice` is the instance where the GPU is named; None is the whole GPU.
    """

    text: str
    index: int | None = None
    uuid: str | None = None
    pci: str | None = None
    mig: str | None = None
    slice: int | None = None

    def matches(self, gpu: SelectableGpu) -> bool:
        if self.index is not None:
            return gpu.index == self.index
        if self.pci is not None:
            return gpu.pci == self.pci
        if self.mig is not None:
            return bool(self.slices(gpu))
        return gpu.uuid is not None and gpu.uuid.lower().startswith((self.uuid or "").lower())

    def slices(self, gpu: SelectableGpu) -> frozenset[int]:
        """The slices of a GPU that the word means; none of them: the GPU itself, if it is named at all."""
        if self.mig is None:
            return frozenset() if self.slice is None else frozenset({self.slice})
        start = self.mig.lower()
        return frozenset(number for uuid, number in gpu.slices.items() if uuid.lower().startswith(start))


@dataclass(frozen=True, slots=True)
class GpuSelection:
    """The chosen GPUs of this node."""

    selectors: tuple[GpuSelector, ...]

    def includes(self, gpu: SelectableGpu) -> bool:
        return any(word.matches(gpu) for word in self.selectors)

    def slices(self, gpu: SelectableGpu) -> frozenset[int] | None:
        """The chosen slices of a chosen GPU; None: the GPU itself is meant."""
        meant = [word.slices(gpu) for word in self.selectors if word.matches(gpu)]
        return frozenset().union(*meant) if meant and all(meant) else None

    def unmatched_texts(self, gpus: Iterable[SelectableGpu]) -> list[str]:
        """The words that name none of these GPUs."""
        there = list(gpus)
        return [word.text for word in self.selectors if not any(word.matches(gpu) for gpu in there)]


def parse_selection(texts: Iterable[str]) -> GpuSelection:
    """What people type, with commas or without; ValueError names the first that is no GPU."""
    words: list[GpuSelector] = []
    for text in (part.strip() for given in texts for part in given.split(",")):
        if text:
            words += _read_word(text)
        if len(words) > MOST_GPUS:
            raise ValueError(f"{len(words)} GPUs or more, the limit is {MOST_GPUS}")
    if not words:
        raise ValueError("no GPU is named")
    return GpuSelection(tuple(words))


def _read_word(text: str) -> list[GpuSelector]:
    if (found := RANGE.match(text)) is not None:
        first, last = int(found[1]), int(found[2])
        if first > last:
            raise ValueError(f"`{text}` goes backwards; write {last}-{first}")
        if last >= MOST_GPUS:
            raise ValueError(f"`{text}` goes up to {last}, the highest index is {MOST_GPUS - 1}")
        return [GpuSelector(str(index), index=index) for index in range(first, last + 1)]
    if text.isascii() and text.isdigit() and len(text) <= 4:
        return [GpuSelector(text, index=int(text))]
    if (found := SLICE.match(text)) is not None:
        gpu, number = found["gpu"], int(found["slice"])
        whole = GpuSelector(text, index=int(gpu)) if gpu.isdigit() else GpuSelector(text, uuid=gpu)
        return [replace(whole, slice=number)]
    if UUID.match(text):
        return [GpuSelector(text, uuid=text)]
    if PCI.match(text):
        return [GpuSelector(text, pci=normalise_pci(text))]
    if MIG_UUID.match(text):
        return [GpuSelector(text, mig=text)]
    raise ValueError(f"`{text[:60]}` is no GPU; write an index, 0-3, a UUID, a PCI address, or 0/1 for a MIG slice")
