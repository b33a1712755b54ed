"""Which pairs exchange at the same time, and what their rates say: the pure half of the fabric check.

`fabric_work` (each rank) walks `rounds`, `fabric_run` judges with `judge`. In a round every rank has one partner, so n
ranks try all pairs in n − 1 rounds. Pairs inside a node and pairs between nodes are held against their own kind. A slow
pair is a link; a rank or a node most of whose pairs are slow has the fault at its own end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from watchkeeper.model.diag import DiagVerdict, TestResult

# Pairs that share a path differ by tens of percent on a healthy fabric; a link at half its lanes or rate has 0.5.
SLOW_SHARE = 0.7
MOST_NAMED = 8
# Not the median: one slow node of three is in two thirds of the pairs between nodes.
USUAL_QUANTILE = 0.9
# With two pairs nobody can say which is slow.
LEAST_PAIRS = 3


@dataclass(frozen=True, slots=True)
class Rank:
    """Where a rank runs; `gpu` is a UUID, or `cpu0` on the processor."""

    node: str
    gpu: str

    def __str__(self) -> str:
        return f"{self.node}/{self.gpu}"


@dataclass(frozen=True, slots=True)
class Pair:
    """What two ranks exchange each way at the same time, in GB/s."""

    one: int
    other: int
    rate: float


@dataclass(frozen=True, slots=True)
class Reduction:
    """An all-reduce of one size; bus bandwidth is nccl-tests' measure, which a link's rate can be held against."""

    size_bytes: int
    seconds: float
    ranks: int

    @property
    def bus_rate(self) -> float:
        return self.size_bytes / self.seconds * 2 * (self.ranks - 1) / self.ranks / 1e9


@dataclass(frozen=True, slots=True)
class FabricReport:
    """One check of the fabric. `ranks` in their order; `pairs` and `reductions` are empty if it did not come so far."""

    ranks: tuple[Rank, ...]
    reductions: tuple[Reduction, ...]
    pairs: tuple[Pair, ...]
    results: tuple[TestResult, ...]

    @property
    def exit_code(self) -> int:
        """0 passed, 1 failed, 3 cannot tell."""
        found = {result.verdict for result in self.results}
        return 1 if DiagVerdict.FAIL in found else 0 if found & {DiagVerdict.PASS, DiagVerdict.WARN} else 3


def rounds(ranks: int) -> list[list[tuple[int, int]]]:
    """Each pair exactly once, in as few rounds as there can be: the circle method of tournaments."""
    seats: list[int | None] = [*range(ranks), *([None] if ranks % 2 else [])]
    found = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        matched = zip(seats[:half], reversed(seats[half:]), strict=True)
        found.append([(min(a, b), max(a, b)) for a, b in matched if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found


def judge(
    ranks: Sequence[Rank], reductions: Sequence[Reduction], pairs: Sequence[Pair], *, expected: float | None = None
) -> tuple[TestResult, ...]:
    results = []
    if reductions:
        best = max(reductions, key=lambda one: one.bus_rate)
        results.append(_judge_reduction(best, expected))
    for kind, chosen in _kinds(ranks, pairs).items():
        if chosen:
            results.append(_judge_pairs(ranks, chosen, kind))
    return tuple(results)


def _judge_reduction(best: Reduction, expected: float | None) -> TestResult:
    words = f"{best.bus_rate:.4g} GB/s bus bandwidth over {best.ranks} ranks at {best.size_bytes >> 20} MiB"
    facts = {"size_bytes": best.size_bytes, "seconds": best.seconds}
    if expected is None:
        return TestResult("allreduce", None, DiagVerdict.PASS, words, best.bus_rate, unit="GB/s", facts=facts)
    verdict = DiagVerdict.FAIL if best.bus_rate < expected else DiagVerdict.PASS
    words += f"; {expected:.4g} is wanted ({best.bus_rate / expected:.0%})"
    return TestResult("allreduce", None, verdict, words, best.bus_rate, expected, unit="GB/s", facts=facts)


def _kinds(ranks: Sequence[Rank], pairs: Iterable[Pair]) -> dict[str, list[Pair]]:
    found: dict[str, list[Pair]] = {"inside": [], "between": []}
    for pair in pairs:
        found["inside" if ranks[pair.one].node == ranks[pair.other].node else "between"].append(pair)
    return found


def _judge_pairs(ranks: Sequence[Rank], pairs: Sequence[Pair], kind: str) -> TestResult:
    rates = sorted(pair.rate for pair in pairs)
    worst, usual = rates[0], rates[int(USUAL_QUANTILE * (len(rates) - 1))]
    slow = sorted((pair for pair in pairs if pair.rate < SLOW_SHARE * usual), key=lambda pair: pair.rate)
    where = "inside nodes" if kind == "inside" else "between nodes"
    verdict = DiagVerdict.PASS
    if len(pairs) < LEAST_PAIRS:
        words = f"{len(pairs)} pairs {where}, {worst:.4g} GB/s each way at least; too few to compare"
    elif not slow:
        words = f"{len(pairs)} pairs {where}: {worst:.4g} GB/s each way at least, good ones reach {usual:.4g}"
    else:
        verdict = DiagVerdict.FAIL
        head = f"{len(slow)} of {len(pairs)} pairs {where} are slow, good ones reach {usual:.4g} GB/s"
        words = f"{head}: {_slow_words(ranks, pairs, slow)}"
    return TestResult(f"pairs_{kind}", None, verdict, words, measured=worst, peers=usual, unit="GB/s")


def _slow_words(ranks: Sequence[Rank], pairs: Sequence[Pair], slow: Sequence[Pair]) -> str:
    culprits = _culprits([rank.node for rank in ranks], pairs, slow) or _culprits([*map(str, ranks)], pairs, slow)
    if culprits:
        return "; ".join(culprits)
    named = [f"{ranks[pair.one]} and {ranks[pair.other]}: {pair.rate:.4g}" for pair in slow[:MOST_NAMED]]
    more = f"; and {len(slow) - MOST_NAMED} more" if len(slow) > MOST_NAMED else ""
    return "; ".join(named) + more


def _culprits(names: Sequence[str], pairs: Sequence[Pair], slow: Sequence[Pair]) -> list[str]:
    """The ends at which the fault is: all of their pairs are slow, several of them, and no other pair is."""
    mine: dict[str, list[Pair]] = {}
    for pair in pairs:
        for end in {names[pair.one], names[pair.other]}:
            mine.setdefault(end, []).append(pair)
    ends = [end for end, own in mine.items() if len(own) > 1 and all(pair in slow for pair in own)]
    is_all = all({names[pair.one], names[pair.other]} & set(ends) for pair in slow)
    if not ends or not is_all or len(ends) == len(mine):
        return []
    return [f"all {len(mine[end])} pairs of {end}, {min(pair.rate for pair in mine[end]):.4g}" for end in ends]
