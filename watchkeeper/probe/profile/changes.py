"""Find where one workload ends and the next begins, in a track without labels.

A rhythm of work and pauses is not a change: pauses are removed first. The rest is cut where its values change
permanently: repeatedly at the cut that explains most variance (binary segmentation), while it explains more than noise.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise

from watchkeeper.probe.profile.features import activity
from watchkeeper.probe.profile.recording import GpuTrack
from watchkeeper.probe.profile.verdict import limits

# Shorter segments are transitions, not workloads.
MIN_SEGMENT_SECONDS = 2.0
MAX_SEGMENTS = 128
# Longer tracks are averaged to this many bins; 8,192 are fourteen minutes at ten rows a second.
MAX_BINS = 8192
# A change is judged by this many minimal segments on each side; further away there may be other changes.
NEAR_FACTOR = 2
# Shorter bursts cannot be compared.
MIN_BURST_ROWS = 5
# First this many cuts are tried, then all cuts around the best one.
COARSE_CUTS = 256
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


def find_segments(track: GpuTrack, ceiling: float) -> list[range]:
    """Row ranges of the segments in order; short pauses belong to none. `ceiling` is the PCIe rate in MiB/s."""
    bin_rows = max(1, -(-len(track) // MAX_BINS))
    seconds = bin_rows * sample_interval(track)
    vectors = _bin_vectors(track, bin_rows, ceiling=ceiling)
    quiet_activity = limits()["quiet_activity"]
    levels = fill_gaps(activity(track, ceiling))
    is_busy = [statistics.fmean(levels[at : at + bin_rows]) >= quiet_activity for at in range(0, len(track), bin_rows)]
    segments: list[range] = []
    for low, high in _split_at_pauses(is_busy, round(limits()["pause_seconds"] / seconds)):
        busy_bins = [at for at in range(low, high) if is_busy[at]]
        if not busy_bins:
            segments.append(range(low, high))
            continue
        parts = [
            range(rows[a], rows[b - 1] + 1)
            for rows in _split_at_stops(vectors, busy_bins, round(limits()["gap_seconds"] / seconds))
            for a, b in pairwise(_find_cuts([vectors[at] for at in rows], max(3, round(MIN_SEGMENT_SECONDS / seconds))))
        ]
        segments += _add_pauses(parts, range(low, high), min_length=round(MIN_SEGMENT_SECONDS / seconds))
    return [range(segment.start * bin_rows, min(segment.stop * bin_rows, len(track))) for segment in segments]


def sample_interval(track: GpuTrack) -> float:
    gaps = [b - a for a, b in pairwise(track.times)]
    return max(1e-3, statistics.median(gaps)) if gaps else 1.0


def fill_gaps(values: Sequence[float | None]) -> list[float]:
    last_value: float = 0.0
    filled: list[float] = []
    for value in values:
        last_value = last_value if value is None else value
        filled.append(last_value)
    return filled


def _bin_vectors(track: GpuTrack, bin_rows: int, *, ceiling: float) -> list[Vector]:
    """Square roots of shares for each bin: with these, 0 to 2 % is as large a change as 60 to 85 %."""
    scales = dict.fromkeys(COLUMNS, 100.0) | {f"pcie_{way}_per_sec": ceiling for way in ("rx", "tx")}
    columns = []
    for name, scale in scales.items():
        if track.has(name):
            values = fill_gaps(track.numbers[name])
            means = [statistics.fmean(values[at : at + bin_rows]) for at in range(0, len(values), bin_rows)]
            columns.append([max(0.0, mean / scale) ** 0.5 for mean in means])
    return list(zip(*columns, strict=True))


def _split_at_pauses(is_busy: Sequence[bool], min_pause: int) -> Iterator[tuple[int, int]]:
    """Alternate ranges of work, including its short pauses, and of long pauses."""
    busy_bins = [at for at, is_busy_bin in enumerate(is_busy) if is_busy_bin]
    edges = [-1, *busy_bins, len(is_busy)]
    start = 0
    for before, after in pairwise(edges):
        if after - before - 1 >= max(1, min_pause):
            if before + 1 > start:
                yield start, before + 1
            yield before + 1, after
            start = after
    if start < len(is_busy):
        yield start, len(is_busy)


def _split_at_stops(vectors: Sequence[Vector], busy_bins: Sequence[int], max_gap: int) -> list[list[int]]:
    """Group busy bins, split at stops after which a different workload runs.

    A program that stops and resumes has the same values again; a different program has not.
    """
    bursts = [[busy_bins[0]]]
    for at in busy_bins[1:]:
        if at - bursts[-1][-1] <= max(1, max_gap):
            bursts[-1].append(at)
        else:
            bursts.append([at])
    groups, last_burst = [list(bursts[0])], bursts[0]
    for burst in bursts[1:]:
        if _is_different_workload([vectors[at] for at in last_burst[1:-1]], [vectors[at] for at in burst[1:-1]]):
            groups.append([])
        groups[-1] += burst
        last_burst = burst if len(burst) >= MIN_BURST_ROWS else last_burst
    return groups


def _is_different_workload(before: Sequence[Vector], after: Sequence[Vector]) -> bool:
    """Whether two bursts differ by more than noise; pass them without the first and last row, which are partial."""
    if min(len(before), len(after)) < MIN_BURST_ROWS - 2:
        return False
    sums, cut, end = _PrefixSums([*before, *after]), len(before), len(before) + len(after)
    gain, scatter = sums.gain(0, cut, end), (sums.scatter(0, cut) + sums.scatter(cut, end)) / end
    distance = gain * end / (len(before) * len(after))
    return distance > limits()["other_least"] and gain > limits()["other_over_scatter"] * scatter


def _add_pauses(parts: Sequence[range], whole: range, *, min_length: int) -> Iterator[range]:
    """The parts, and the pauses between them of at least `min_length`."""
    end = whole.start
    for part in (*parts, range(whole.stop, whole.stop)):
        if part.start - end >= max(1, min_length):
            yield range(end, part.start)
        if part:
            yield part
        end = part.stop


def _find_cuts(vectors: Sequence[Vector], min_length: int) -> list[int]:
    sums = _PrefixSums(vectors)
    cuts, remaining = {0, len(vectors)}, [(0, len(vectors))]
    while remaining and len(cuts) <= MAX_SEGMENTS:
        low, high = remaining.pop()
        cut = _best_cut(sums, low + min_length, high - min_length, low=low, high=high)
        if cut is not None and _is_significant(sums, low, cut=cut, high=high, min_length=min_length):
            cuts.add(cut)
            remaining += [(low, cut), (cut, high)]
    return sorted(cuts)


def _best_cut(sums: _PrefixSums, first: int, last: int, *, low: int, high: int) -> int | None:
    """The cut that explains most variance, searched in large steps and then around the best one."""
    step = max(1, (last - first) // COARSE_CUTS)
    candidates: Sequence[int] = range(first, last + 1, step)
    while candidates:
        best = max(candidates, key=lambda cut: sums.gain(low, cut, high))
        if step == 1:
            return best
        radius, step = step, 1
        candidates = range(max(first, best - radius), min(last, best + radius) + 1)
    return None


def _is_significant(sums: _PrefixSums, low: int, *, cut: int, high: int, min_length: int) -> bool:
    """Whether a change is large enough, and far larger than the noise on both sides."""
    low, high = max(low, cut - NEAR_FACTOR * min_length), min(high, cut + NEAR_FACTOR * min_length)
    gain = sums.gain(low, cut, high)
    scatter = (sums.scatter(low, cut) + sums.scatter(cut, high)) / (high - low)
    return gain > limits()["change_least"] * min_length and gain > limits()["change_over_scatter"] * scatter


class _PrefixSums:
    """Prefix sums: the mean and scatter of any range in constant time."""

    def __init__(self, vectors: Sequence[Vector]) -> None:
        self._sums: list[Vector] = [[0.0] * len(vectors[0])]
        self._squares = [0.0]
        for vector in vectors:
            self._sums.append([total + value for total, value in zip(self._sums[-1], vector, strict=True)])
            self._squares.append(self._squares[-1] + sum(value * value for value in vector))

    def gain(self, low: int, cut: int, high: int) -> float:
        """How much better two means fit than one, as a reduction of the squared error."""
        left, right, total = cut - low, high - cut, 0.0
        for a, b, c in zip(self._sums[low], self._sums[cut], self._sums[high], strict=True):
            difference = (b - a) / left - (c - b) / right
            total += difference * difference
        return total * left * right / (left + right)

    def scatter(self, low: int, high: int) -> float:
        squares = self._squares[high] - self._squares[low]
        means = sum((b - a) ** 2 for a, b in zip(self._sums[low], self._sums[high], strict=True)) / (high - low)
        return max(0.0, squares - means)
