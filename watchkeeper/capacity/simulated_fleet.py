"""Simulate the allocation of a fleet's GPUs during a replay: which are free, and where a job fits.

A job that fits on one node goes to the node with the fewest free GPUs left (best fit); a larger job takes whole nodes
and one more for the rest. A share of a GPU goes to the shared GPU with the least free share that is enough, a job that
fits into a MIG instance to the smallest that is enough. Shares are integers in thousandths of a GPU, so that sums are
exact.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

GPU_MILLI = 1000


@dataclass(frozen=True, slots=True)
class FleetNode:
    """A node with GPUs; `sliced_gpus` of them have `slices_of_gpu` MIG instances each."""

    name: str
    gpus: int
    model: str = ""
    rack: str = ""
    sliced_gpus: int = 0
    slices_of_gpu: int = 0


@dataclass(frozen=True, slots=True, order=True)
class GpuRequest:
    """The request of a job in thousandths of a GPU; empty `models` means any model."""

    milli: int
    models: tuple[str, ...] = ()
    # The size of the MIG instance that is enough, 0 for none.
    slice_milli: int = 0

    @property
    def gpus(self) -> float:
        return self.milli / GPU_MILLI


@dataclass(frozen=True, slots=True)
class JobPlacement:
    """Where a job runs: whole GPUs by node, a share of the GPU `shared`, or a MIG instance."""

    milli: int
    nodes: tuple[tuple[int, int], ...] = ()
    shared: int | None = None
    slice_milli: int = 0
    slice_node: int = 0


class SimulatedFleet:
    """The free GPUs of every node, by model and by number of free GPUs."""

    def __init__(self, nodes: Sequence[FleetNode]) -> None:
        self.nodes = nodes
        self.milli = sum(node.gpus for node in nodes) * GPU_MILLI
        self.used_milli = 0
        self._free = [node.gpus - node.sliced_gpus for node in nodes]
        self._groups: dict[str, _ModelGroup] = {}
        self._slices: list[tuple[int, int]] = []
        # Shared GPUs sorted by their free share; each keeps its number while it is shared.
        self._free_shares: list[tuple[int, int]] = []
        self._free_milli_of: dict[int, int] = {}
        self._node_of: dict[int, int] = {}
        self._next_shared = 0
        for index, node in enumerate(nodes):
            self._groups.setdefault(node.model, _ModelGroup()).add(index, self._free[index])
            if node.sliced_gpus and node.slices_of_gpu:
                part = GPU_MILLI // node.slices_of_gpu
                self._slices += [(part, index)] * (node.sliced_gpus * node.slices_of_gpu)
        self._slices.sort()

    def can_ever_fit(self, shape: GpuRequest) -> bool:
        """Whether the job fits on this fleet, which must be empty."""
        placement = self.place(shape)
        if placement is not None:
            self.release(placement)
        return placement is not None

    def place(self, shape: GpuRequest) -> JobPlacement | None:
        """Allocate the request, or return None and allocate nothing."""
        placement = self._place_on_slice(shape) if shape.slice_milli else None
        if placement is None:
            placement = self._place_share(shape) if shape.milli < GPU_MILLI else self._place_whole(shape)
        if placement is not None:
            self.used_milli += placement.milli
        return placement

    def release(self, placement: JobPlacement) -> None:
        self.used_milli -= placement.milli
        if placement.slice_milli:
            insort(self._slices, (placement.slice_milli, placement.slice_node))
        elif placement.shared is not None:
            self._release_share(placement.shared, placement.milli)
        else:
            for index, count in placement.nodes:
                self._change(index, count)

    def free_by_node(self) -> list[int]:
        return list(self._free)

    def _place_on_slice(self, shape: GpuRequest) -> JobPlacement | None:
        for position in range(bisect_left(self._slices, (shape.slice_milli, -1)), len(self._slices)):
            part, index = self._slices[position]
            if not shape.models or self.nodes[index].model in shape.models:
                del self._slices[position]
                return JobPlacement(part, slice_milli=part, slice_node=index)
        return None

    def _place_share(self, shape: GpuRequest) -> JobPlacement | None:
        for position in range(bisect_left(self._free_shares, (shape.milli, -1)), len(self._free_shares)):
            free_milli, shared = self._free_shares[position]
            if not shape.models or self.nodes[self._node_of[shared]].model in shape.models:
                del self._free_shares[position]
                self._free_milli_of[shared] = free_milli - shape.milli
                insort(self._free_shares, (free_milli - shape.milli, shared))
                return JobPlacement(shape.milli, shared=shared)
        index = self._best_node(1, shape.models)
        if index is None:
            return None
        self._change(index, -1)
        shared = self._next_shared
        self._next_shared += 1
        self._node_of[shared], self._free_milli_of[shared] = index, GPU_MILLI - shape.milli
        insort(self._free_shares, (GPU_MILLI - shape.milli, shared))
        return JobPlacement(shape.milli, shared=shared)

    def _release_share(self, shared: int, milli: int) -> None:
        free_milli = self._free_milli_of[shared]
        del self._free_shares[bisect_left(self._free_shares, (free_milli, shared))]
        if free_milli + milli == GPU_MILLI:
            del self._free_milli_of[shared]
            self._change(self._node_of.pop(shared), 1)
        else:
            self._free_milli_of[shared] = free_milli + milli
            insort(self._free_shares, (free_milli + milli, shared))

    def _place_whole(self, shape: GpuRequest) -> JobPlacement | None:
        count = -(-shape.milli // GPU_MILLI)
        index = self._best_node(count, shape.models)
        if index is not None:
            self._change(index, -count)
            return JobPlacement(count * GPU_MILLI, ((index, count),))
        taken: list[tuple[int, int]] = []
        remaining = count
        # Whole nodes of one model, the largest first, so that a job spans as few nodes as possible.
        for model in self._allowed(shape.models):
            largest = self._groups[model].largest
            while 0 < largest <= remaining and (index := self._groups[model].best(largest)) is not None:
                self._change(index, -largest)
                taken.append((index, largest))
                remaining -= largest
            if taken and remaining and (index := self._best_node(remaining, (model,))) is not None:
                self._change(index, -remaining)
                taken.append((index, remaining))
                remaining = 0
            if not remaining:
                return JobPlacement(count * GPU_MILLI, tuple(taken))
            for index, gpu_count in taken:
                self._change(index, gpu_count)
            taken, remaining = [], count
        return None

    def _allowed(self, models: tuple[str, ...]) -> list[str]:
        return [model for model in sorted(self._groups) if not models or model in models]

    def _best_node(self, count: int, models: tuple[str, ...]) -> int | None:
        best: tuple[int, int] | None = None
        for model in self._allowed(models):
            index = self._groups[model].best(count)
            if index is not None and (best is None or (self._free[index], index) < best):
                best = (self._free[index], index)
        return None if best is None else best[1]

    def _change(self, index: int, change: int) -> None:
        self._free[index] += change
        self._groups[self.nodes[index].model].move(index, self._free[index])


class _ModelGroup:
    """Nodes of one model in a heap for each number of free GPUs; outdated entries are dropped when they are read."""

    def __init__(self) -> None:
        self.largest = 0
        self._free_by_node: dict[int, int] = {}
        self._heaps: list[list[int]] = [[]]

    def add(self, index: int, free: int) -> None:
        self.largest = max(self.largest, free)
        self._heaps += [[] for _ in range(free + 1 - len(self._heaps))]
        self.move(index, free)

    def move(self, index: int, free: int) -> None:
        self._free_by_node[index] = free
        heapq.heappush(self._heaps[free], index)

    def best(self, count: int) -> int | None:
        for free in range(count, len(self._heaps)):
            heap = self._heaps[free]
            while heap and self._free_by_node[heap[0]] != free:
                heapq.heappop(heap)
            if heap:
                return heap[0]
        return None
