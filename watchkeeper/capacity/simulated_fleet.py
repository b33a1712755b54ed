"""The GPUs of a fleet while jobs are replayed on it: which are free, and where a job fits.

A job of up to a node's GPUs goes onto one node, the one that is left with the fewest free GPUs (best fit), and among
equals the first; a larger one takes whole nodes and the rest of it one more. A share of a GPU goes onto the GPU that
is shared already and has the least room, else it begins to share a free one; where GPUs are cut into slices, a job that
fits into one takes the smallest that does. Whether a job fits is never guessed from a total: that is what makes
fragmentation visible. `replay` asks; shares are counted in thousandths, so that sums are exact.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

WHOLE = 1000


@dataclass(frozen=True, slots=True)
class FleetNode:
    """A node with GPUs; `sliced_gpus` of them are cut into `slices_of_gpu` parts each, for jobs that fit into one."""

    name: str
    gpus: int
    model: str = ""
    rack: str = ""
    sliced_gpus: int = 0
    slices_of_gpu: int = 0


@dataclass(frozen=True, slots=True, order=True)
class GpuRequest:
    """What a job asks for, in thousandths of a GPU; `slice_milli` is what of a slice would do, 0 for none.

    `models` empty: any model will do.
    """

    milli: int
    models: tuple[str, ...] = ()
    slice_milli: int = 0

    @property
    def gpus(self) -> float:
        return self.milli / WHOLE


@dataclass(frozen=True, slots=True)
class JobPlacement:
    """Where a job sits: whole GPUs by node, or a part of the GPU `shared`, or a slice."""

    milli: int
    nodes: tuple[tuple[int, int], ...] = ()
    shared: int | None = None
    slice_milli: int = 0
    slice_node: int = 0


class SimulatedFleet:
    """Free GPUs of every node, found by model and by how many are free."""

    def __init__(self, nodes: Sequence[FleetNode]) -> None:
        self.nodes = nodes
        self.milli = sum(node.gpus for node in nodes) * WHOLE
        self.used_milli = 0
        self._free = [node.gpus - node.sliced_gpus for node in nodes]
        self._groups: dict[str, _ModelGroup] = {}
        self._slices: list[tuple[int, int]] = []
        # Shared GPUs with room, by room; each keeps its number for as long as it is shared.
        self._rooms: list[tuple[int, int]] = []
        self._room_of: dict[int, int] = {}
        self._node_of: dict[int, int] = {}
        self._next_shared = 0
        for at, node in enumerate(nodes):
            whole = node.gpus - node.sliced_gpus
            self._groups.setdefault(node.model, _ModelGroup()).add(at, whole)
            if node.sliced_gpus and node.slices_of_gpu:
                part = WHOLE // node.slices_of_gpu
                self._slices += [(part, at)] * (node.sliced_gpus * node.slices_of_gpu)
        self._slices.sort()

    def could_ever(self, shape: GpuRequest) -> bool:
        """True if the job fits while nothing else runs."""
        return SimulatedFleet(self.nodes).place(shape) is not None if self.used_milli else self._fits(shape)

    def _fits(self, shape: GpuRequest) -> bool:
        placing = self.place(shape)
        if placing is not None:
            self.take_back(placing)
        return placing is not None

    def place(self, shape: GpuRequest) -> JobPlacement | None:
        """Take what the job asks for, or nothing at all."""
        placing = self._place_on_slice(shape) if shape.slice_milli else None
        if placing is None:
            placing = self._place_share(shape) if shape.milli < WHOLE else self._place_whole(shape)
        if placing is not None:
            self.used_milli += placing.milli
        return placing

    def take_back(self, placing: JobPlacement) -> None:
        self.used_milli -= placing.milli
        if placing.slice_milli:
            insort(self._slices, (placing.slice_milli, placing.slice_node))
        elif placing.shared is not None:
            self._leave_shared(placing.shared, placing.milli)
        else:
            for at, count in placing.nodes:
                self._change(at, count)

    def free_by_node(self) -> list[int]:
        """Whole free GPUs of each node."""
        return list(self._free)

    def _place_on_slice(self, shape: GpuRequest) -> JobPlacement | None:
        found = bisect_left(self._slices, (shape.slice_milli, -1))
        while found < len(self._slices):
            part, at = self._slices[found]
            if not shape.models or self.nodes[at].model in shape.models:
                del self._slices[found]
                return JobPlacement(part, slice_milli=part, slice_node=at)
            found += 1
        return None

    def _place_share(self, shape: GpuRequest) -> JobPlacement | None:
        for found in range(bisect_left(self._rooms, (shape.milli, -1)), len(self._rooms)):
            room, shared = self._rooms[found]
            if not shape.models or self.nodes[self._node_of[shared]].model in shape.models:
                del self._rooms[found]
                self._room_of[shared] = room - shape.milli
                insort(self._rooms, (room - shape.milli, shared))
                return JobPlacement(shape.milli, shared=shared)
        at = self._best_node(1, shape.models)
        if at is None:
            return None
        self._change(at, -1)
        shared = self._next_shared
        self._next_shared += 1
        self._node_of[shared], self._room_of[shared] = at, WHOLE - shape.milli
        insort(self._rooms, (WHOLE - shape.milli, shared))
        return JobPlacement(shape.milli, shared=shared)

    def _leave_shared(self, shared: int, milli: int) -> None:
        room = self._room_of[shared]
        del self._rooms[bisect_left(self._rooms, (room, shared))]
        if room + milli == WHOLE:
            del self._room_of[shared]
            self._change(self._node_of.pop(shared), 1)
        else:
            self._room_of[shared] = room + milli
            insort(self._rooms, (room + milli, shared))

    def _place_whole(self, shape: GpuRequest) -> JobPlacement | None:
        count = -(-shape.milli // WHOLE)
        at = self._best_node(count, shape.models)
        if at is not None:
            self._change(at, -count)
            return JobPlacement(count * WHOLE, ((at, count),))
        taken: list[tuple[int, int]] = []
        left = count
        # Whole nodes of one model, the largest first: a job over several nodes spans as few as it can.
        for model in self._allowed(shape.models):
            largest = self._groups[model].largest
            while 0 < largest <= left and (at := self._groups[model].best(largest)) is not None:
                self._change(at, -largest)
                taken.append((at, largest))
                left -= largest
            if taken and left and (at := self._best_node(left, (model,))) is not None:
                self._change(at, -left)
                taken.append((at, left))
                left = 0
            if not left:
                return JobPlacement(count * WHOLE, tuple(taken))
            for at, held in taken:
                self._change(at, held)
            taken, left = [], count
        return None

    def _allowed(self, models: tuple[str, ...]) -> list[str]:
        return [model for model in sorted(self._groups) if not models or model in models]

    def _best_node(self, count: int, models: tuple[str, ...]) -> int | None:
        best: tuple[int, int] | None = None
        for model in self._allowed(models):
            at = self._groups[model].best(count)
            if at is not None and (best is None or (self._free[at], at) < best):
                best = (self._free[at], at)
        return None if best is None else best[1]

    def _change(self, at: int, by: int) -> None:
        self._free[at] += by
        self._groups[self.nodes[at].model].move(at, self._free[at])


class _ModelGroup:
    """Nodes of one model in a heap for each number of free GPUs; an entry that is no longer true goes when met."""

    def __init__(self) -> None:
        self.largest = 0
        self._now: dict[int, int] = {}
        self._heaps: list[list[int]] = [[]]

    def add(self, at: int, free: int) -> None:
        self.largest = max(self.largest, free)
        self._heaps += [[] for _ in range(free + 1 - len(self._heaps))]
        self.move(at, free)

    def move(self, at: int, free: int) -> None:
        self._now[at] = free
        heapq.heappush(self._heaps[free], at)

    def best(self, count: int) -> int | None:
        for free in range(count, len(self._heaps)):
            heap = self._heaps[free]
            while heap and self._now[heap[0]] != free:
                heapq.heappop(heap)
            if heap:
                return heap[0]
        return None
