"""How a user selects GPUs of one node: `0`, `0-3`, a UUID or its beginning, a PCI address, a MIG instance.

A MIG instance is `0/1`, the GPU instance 1 of GPU 0, or its own UUID. A `GpuSelection` is parsed once, from a command
or a group (`agent.gpus.gpu_groups`), and matched against the GPUs that are present then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from watchkeeper.model.fleet import normalise_pci

# Larger than the largest machine; a range such as 0-99999999 is a mistake.
MAX_GPUS = 1024
RANGE = re.compile(r"(\d{1,4})-(\d{1,4})\Z", re.ASCII)
# `0/1`, and as CUDA wrote it before R470 `MIG-GPU-8a…/1/0`: GPU, instance, and perhaps compute instance.
SLICE = re.compile(r"(?:MIG-)?(?P<gpu>\d{1,4}|GPU-[0-9a-fA-F-]+)/(?P<slice>\d{1,3})(?:/\d{1,3})?\Z", re.ASCII)
# `00000000:5D:00.0`, `0000:5d:00.0`, `5d:00.0`
PCI = re.compile(r"(?:pci:)?(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?\Z", re.IGNORECASE)
UUID = re.compile(r"GPU-[0-9a-fA-F-]{1,36}\Z")
SELECTOR_FORMS = "an index, 0-3, a UUID, a PCI address, or 0/1 for a MIG instance"
MIG_UUID = re.compile(r"MIG-[0-9a-fA-F-]{1,36}\Z")


@dataclass(frozen=True, slots=True)
class SelectableGpu:
    """A GPU that can be selected; unknown values are None. `slices` maps each MIG UUID to its instance number."""

    index: int | None
    uuid: str | None
    pci: str | None
    slices: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuSelector:
    """One GPU as the user wrote it: exactly one of `index`, `uuid`, `pci` and `mig` (the UUID of a MIG instance).

    `slice` is the instance number if the GPU is named; None is the whole GPU.
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
        """The MIG instances that this selects; empty: the whole GPU, if it matches."""
        if self.mig is None:
            return frozenset() if self.slice is None else frozenset({self.slice})
        start = self.mig.lower()
        return frozenset(number for uuid, number in gpu.slices.items() if uuid.lower().startswith(start))


@dataclass(frozen=True, slots=True)
class GpuSelection:
    selectors: tuple[GpuSelector, ...]

    def includes(self, gpu: SelectableGpu) -> bool:
        return any(selector.matches(gpu) for selector in self.selectors)

    def slices(self, gpu: SelectableGpu) -> frozenset[int] | None:
        """The selected MIG instances of a selected GPU; None: the whole GPU."""
        selected = [selector.slices(gpu) for selector in self.selectors if selector.matches(gpu)]
        return frozenset().union(*selected) if selected and all(selected) else None

    def unmatched_texts(self, gpus: Iterable[SelectableGpu]) -> list[str]:
        """The selectors that match none of these GPUs."""
        present = list(gpus)
        return [selector.text for selector in self.selectors if not any(selector.matches(gpu) for gpu in present)]


def parse_selection(texts: Iterable[str]) -> GpuSelection:
    """Parse selectors, separated by commas or as separate texts; ValueError names the first that is invalid."""
    selectors: list[GpuSelector] = []
    for text in (part.strip() for item in texts for part in item.split(",")):
        if text:
            selectors += _parse_selector(text)
        if len(selectors) > MAX_GPUS:
            raise ValueError(f"{len(selectors)} GPUs or more, the limit is {MAX_GPUS}")
    if not selectors:
        raise ValueError(f"no GPU selected; write {SELECTOR_FORMS}")
    return GpuSelection(tuple(selectors))


def _parse_selector(text: str) -> list[GpuSelector]:
    if (match := RANGE.match(text)) is not None:
        first, last = int(match[1]), int(match[2])
        if first > last:
            raise ValueError(f"`{text}` is reversed; write {last}-{first}")
        if last >= MAX_GPUS:
            raise ValueError(f"`{text}` ends at {last}, the highest index is {MAX_GPUS - 1}")
        return [GpuSelector(str(index), index=index) for index in range(first, last + 1)]
    if text.isascii() and text.isdigit() and len(text) <= 4:
        return [GpuSelector(text, index=int(text))]
    if (match := SLICE.match(text)) is not None:
        gpu, number = match["gpu"], int(match["slice"])
        selector = GpuSelector(text, index=int(gpu)) if gpu.isdigit() else GpuSelector(text, uuid=gpu)
        return [replace(selector, slice=number)]
    if UUID.match(text):
        return [GpuSelector(text, uuid=text)]
    if PCI.match(text):
        return [GpuSelector(text, pci=normalise_pci(text))]
    if MIG_UUID.match(text):
        return [GpuSelector(text, mig=text)]
    raise ValueError(f"`{text[:60]}` does not select a GPU; write {SELECTOR_FORMS}")
