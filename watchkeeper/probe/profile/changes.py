"""Where one workload ends and the next begins, in a track without labels.

What runs is told by the rows in which something runs; when it runs is a rhythm, and a rhythm is no change. So pauses
are set aside first, and the rest is cut where its shares change for good: again and again at the place that explains
most (binary segmentation), while that is more than the rows scatter by themselves. `segments` judges the pieces.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise

from watchkeeper.probe.profile.features import activity
from watchkeeper.probe.profile.limits import limits
from watchkeeper.probe.profile.recording import GpuTrack

# Shorter stretches are transitions, not workloads.
SHORTEST_SECONDS = 2.0
MOST_PIECES = 128
# A long track is averaged to so many bins before it is cut; 8,192 are fourteen minutes at ten rows a second.
MOST_BINS = 8192
# A change is judged by the rows around it, as many times the shortest piece: further away others may follow.
NEAR = 2
# Rows of a burst, from which on it can be compared with another.
LEAST_BURST = 5
# So many places are tried in a stretch, and then those around the best.
TRIED = 256
COLUMNS = (
    "graphics_util",
    "sm_util",
    "any_tensor_util",
    "dram_bw_util",
    "fp32_util",
    "fp64_util",
    "gpu_util",
    "mem_copy_util",
)
Vector = Sequence[float]


def pieces(track: GpuTrack, ceiling: float) -> list[range]:
    """Rows of each stretch in order; rows in none of them are short pauses between two. `ceiling`: PCIe's, in MiB/s."""
    size = max(1, -(-len(track) // MOST_BINS))
    seconds = size * interval(track)
    vectors = _bins(track, size, ceiling=ceiling)
    quiet = limits()["quiet_activity"]
    levels = filled(activity(track, ceiling))
    is_busy = [statistics.fmean(levels[at : at + size]) >= quiet for at in range(0, len(track), size)]
    found: list[range] = []
    for low, high in _stretches(is_busy, round(limits()["pause_seconds"] / seconds)):
        busy = [at for at in range(low, high) if is_busy[at]]
        if not busy:
            found.append(range(low, high))
            continue
        parts = [
            range(rows[a], rows[b - 1] + 1)
            for rows in _workloads(vectors, busy, round(limits()["gap_seconds"] / seconds))
            for a, b in pairwise(_cuts([vectors[at] for at in rows], max(3, round(SHORTEST_SECONDS / seconds))))
        ]
        found += _with_pauses(parts, range(low, high), shortest=round(SHORTEST_SECONDS / seconds))
    return [range(piece.start * size, min(piece.stop * size, len(track))) for piece in found]


def interval(track: GpuTrack) -> float:
    gaps = [b - a for a, b in pairwise(track.times)]
    return max(1e-3, statistics.median(gaps)) if gaps else 1.0


def filled(values: Sequence[float | None]) -> list[float]:
    """An empty cell keeps the last value; 0 before the first."""
    last: float = 0.0
    found: list[float] = []
    for value in values:
        last = last if value is None else value
        found.append(last)
    return found


def _bins(track: GpuTrack, size: int, *, ceiling: float) -> list[Vector]:
    """Shares as square roots: from 0 to 2 % is as much of a change as from 60 to 85 %."""
    wholes = dict.fromkeys(COLUMNS, 100.0) | {f"pcie_{way}_per_sec": ceiling for way in ("rx", "tx")}
    rooted = []
    for name, whole in wholes.items():
        if track.has(name):
            values = filled(track.numbers[name])
            means = [statistics.fmean(values[at : at + size]) for at in range(0, len(values), size)]
            rooted.append([max(0.0, mean / whole) ** 0.5 for mean in means])
    return list(zip(*rooted, strict=True))


def _stretches(is_busy: Sequence[bool], pause: int) -> Iterator[tuple[int, int]]:
    """Stretches of work with its short pauses, and long pauses, in turn."""
    busy = [at for at, is_at_work in enumerate(is_busy) if is_at_work]
    edges = [-1, *busy, len(is_busy)]
    start = 0
    for before, after in pairwise(edges):
        if after - before - 1 >= max(1, pause):
            if before + 1 > start:
                yield start, before + 1
            yield before + 1, after
            start = after
    if start < len(is_busy):
        yield start, len(is_busy)


def _workloads(vectors: Sequence[Vector], busy: Sequence[int], gap: int) -> list[list[int]]:
    """Rows at work, parted at those stops after which something else runs than before.

    A program that stops and goes on shows the same numbers again; another one never shows quite the same.
    """
    bursts = [[busy[0]]]
    for at in busy[1:]:
        if at - bursts[-1][-1] <= max(1, gap):
            bursts[-1].append(at)
        else:
            bursts.append([at])
    found, last = [list(bursts[0])], bursts[0]
    for burst in bursts[1:]:
        if _is_other([vectors[at] for at in last[1:-1]], [vectors[at] for at in burst[1:-1]]):
            found.append([])
        found[-1] += burst
        last = burst if len(burst) >= LEAST_BURST else last
    return found


def _is_other(before: Sequence[Vector], after: Sequence[Vector]) -> bool:
    """Whether two bursts differ by more than their rows scatter; their first and last rows are cut off by the stop."""
    if min(len(before), len(after)) < LEAST_BURST - 2:
        return False
    sums, cut, end = _Sums([*before, *after]), len(before), len(before) + len(after)
    gain, scatter = sums.gain(0, cut, end), (sums.scatter(0, cut) + sums.scatter(cut, end)) / end
    distance = gain * end / (len(before) * len(after))
    return distance > limits()["other_least"] and gain > limits()["other_over_scatter"] * scatter


def _with_pauses(parts: Sequence[range], whole: range, *, shortest: int) -> Iterator[range]:
    """The parts, and the pauses around them that are long enough; shorter ones belong to nothing."""
    end = whole.start
    for part in (*parts, range(whole.stop, whole.stop)):
        if part.start - end >= max(1, shortest):
            yield range(end, part.start)
        if part:
            yield part
        end = part.stop


def _cuts(vectors: Sequence[Vector], shortest: int) -> list[int]:
    """Where pieces begin, and the end."""
    sums = _Sums(vectors)
    found, waiting = {0, len(vectors)}, [(0, len(vectors))]
    while waiting and len(found) <= MOST_PIECES:
        low, high = waiting.pop()
        cut = _best(sums, low + shortest, high - shortest, low=low, high=high)
        if cut is not None and _is_change(sums, low, cut=cut, high=high, shortest=shortest):
            found.add(cut)
            waiting += [(low, cut), (cut, high)]
    return sorted(found)


def _best(sums: _Sums, first: int, last: int, *, low: int, high: int) -> int | None:
    """The place that explains most, looked for in large steps and then around the best of them."""
    step = max(1, (last - first) // TRIED)
    places: Sequence[int] = range(first, last + 1, step)
    while places:
        best = max(places, key=lambda cut: sums.gain(low, cut, high))
        if step == 1:
            return best
        near, step = step, 1
        places = range(max(first, best - near), min(last, best + near) + 1)
    return None


def _is_change(sums: _Sums, low: int, *, cut: int, high: int, shortest: int) -> bool:
    """Large enough to matter, and far more than the rows just before and after it scatter."""
    low, high = max(low, cut - NEAR * shortest), min(high, cut + NEAR * shortest)
    gain = sums.gain(low, cut, high)
    scatter = (sums.scatter(low, cut) + sums.scatter(cut, high)) / (high - low)
    return gain > limits()["change_least"] * shortest and gain > limits()["change_over_scatter"] * scatter


class _Sums:
    """Sums from the start, so that means and scatter of any stretch cost the same."""

    def __init__(self, vectors: Sequence[Vector]) -> None:
        self._sums: list[Vector] = [[0.0] * len(vectors[0])]
        self._squares = [0.0]
        for vector in vectors:
            self._sums.append([total + value for total, value in zip(self._sums[-1], vector, strict=True)])
            self._squares.append(self._squares[-1] + sum(value * value for value in vector))

    def gain(self, low: int, cut: int, high: int) -> float:
        """By how much two means fit better than one, in squared shares."""
        left, right, total = cut - low, high - cut, 0.0
        for a, b, c in zip(self._sums[low], self._sums[cut], self._sums[high], strict=True):
            difference = (b - a) / left - (c - b) / right
            total += difference * difference
        return total * left * right / (left + right)

    def scatter(self, low: int, high: int) -> float:
        """Squared distance from the mean, over all rows."""
        squares = self._squares[high] - self._squares[low]
        means = sum((b - a) ** 2 for a, b in zip(self._sums[low], self._sums[high], strict=True)) / (high - low)
        return max(0.0, squares - means)
