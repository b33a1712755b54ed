"""Schedule the pairs of the fabric test and judge their rates, without I/O.

In a round every rank has one partner, so n ranks measure all pairs in n − 1 rounds. Pairs inside a node and pairs
between nodes are compared separately: a single slow pair points to a link, a rank or node whose pairs are all slow has
the fault itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from watchkeeper.model.diag import DiagVerdict, TestResult

# In a healthy fabric, pairs that share a path differ by tens of percent; a link at half its lanes or rate reaches 0.5.
SLOW_SHARE = 0.7
MAX_LISTED = 8
# Not the median: one slow node of three affects two thirds of the pairs between nodes.
REFERENCE_QUANTILE = 0.9
# Two pairs do not show which one is slow.
MIN_PAIRS = 3


@dataclass(frozen=True, slots=True)
class Rank:
    """Where a rank runs; `gpu` is a UUID, or `cpu0` with Gloo."""

    node: str
    gpu: str

    def __str__(self) -> str:
        return f"{self.node}/{self.gpu}"


@dataclass(frozen=True, slots=True)
class Pair:
    """The rate of two ranks that send to each other at the same time, in GB/s for each direction."""

    first: int = field(metadata={"json_key": "one"})
    second: int = field(metadata={"json_key": "other"})
    gb_per_second: float = field(metadata={"json_key": "rate"})


@dataclass(frozen=True, slots=True)
class Reduction:
    """An all-reduce of one size, with bus bandwidth as in nccl-tests, comparable with the rate of a link."""

    size_bytes: int
    seconds: float
    ranks: int

    @property
    def bus_gb_per_second(self) -> float:
        return self.size_bytes / self.seconds * 2 * (self.ranks - 1) / self.ranks / 1e9


@dataclass(frozen=True, slots=True)
class FabricReport:
    """The result of a fabric test; `reductions` and `pairs` are empty if it failed before they were measured."""

    ranks: tuple[Rank, ...]
    reductions: tuple[Reduction, ...]
    pairs: tuple[Pair, ...]
    results: tuple[TestResult, ...]

    @property
    def exit_code(self) -> int:
        """0 passed, 1 failed, 3 cannot tell."""
        verdicts = {result.verdict for result in self.results}
        return 1 if DiagVerdict.FAIL in verdicts else 0 if verdicts & {DiagVerdict.PASS, DiagVerdict.WARN} else 3


def schedule_rounds(ranks: int) -> list[list[tuple[int, int]]]:
    """Each pair exactly once in the fewest rounds: the circle method of round-robin tournaments."""
    seats: list[int | None] = [*range(ranks), *([None] if ranks % 2 else [])]
    schedule = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        matched = zip(seats[:half], reversed(seats[half:]), strict=True)
        schedule.append([(min(a, b), max(a, b)) for a, b in matched if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return schedule


def judge_fabric(
    ranks: Sequence[Rank], reductions: Sequence[Reduction], pairs: Sequence[Pair], *, expected: float | None = None
) -> tuple[TestResult, ...]:
    results = []
    if reductions:
        best = max(reductions, key=lambda reduction: reduction.bus_gb_per_second)
        results.append(_judge_reduction(best, expected))
    for kind in ("inside", "between"):
        is_inside = kind == "inside"
        alike = [pair for pair in pairs if (ranks[pair.first].node == ranks[pair.second].node) == is_inside]
        if alike:
            results.append(_judge_pairs(ranks, alike, kind))
    return tuple(results)


def _judge_reduction(best: Reduction, expected: float | None) -> TestResult:
    text = f"{best.bus_gb_per_second:.4g} GB/s bus bandwidth over {best.ranks} ranks at {best.size_bytes >> 20} MiB"
    facts = {"size_bytes": best.size_bytes, "seconds": best.seconds}
    if expected is None:
        return TestResult("allreduce", None, DiagVerdict.PASS, text, best.bus_gb_per_second, unit="GB/s", facts=facts)
    verdict = DiagVerdict.FAIL if best.bus_gb_per_second < expected else DiagVerdict.PASS
    text += f"; {expected:.4g} is required ({best.bus_gb_per_second / expected:.0%})"
    return TestResult("allreduce", None, verdict, text, best.bus_gb_per_second, expected, unit="GB/s", facts=facts)


def _judge_pairs(ranks: Sequence[Rank], pairs: Sequence[Pair], kind: str) -> TestResult:
    rates = sorted(pair.gb_per_second for pair in pairs)
    slowest, reference = rates[0], rates[int(REFERENCE_QUANTILE * (len(rates) - 1))]
    slow = [pair for pair in pairs if pair.gb_per_second < SLOW_SHARE * reference]
    slow.sort(key=lambda pair: pair.gb_per_second)
    kind_text = f"{kind} nodes"
    verdict = DiagVerdict.PASS
    if len(pairs) < MIN_PAIRS:
        text = f"{len(pairs)} pairs {kind_text}: at least {slowest:.4g} GB/s each way; too few to compare"
    elif not slow:
        text = f"{len(pairs)} pairs {kind_text}: at least {slowest:.4g} GB/s each way, normal is {reference:.4g}"
    else:
        verdict = DiagVerdict.FAIL
        summary = f"{len(slow)} of {len(pairs)} pairs {kind_text} are slow, normal is {reference:.4g} GB/s"
        text = f"{summary}: {_describe_slow_pairs(ranks, pairs, slow)}"
    return TestResult(f"pairs_{kind}", None, verdict, text, measured=slowest, peers=reference, unit="GB/s")


def _describe_slow_pairs(ranks: Sequence[Rank], pairs: Sequence[Pair], slow: Sequence[Pair]) -> str:
    for names in ([rank.node for rank in ranks], [str(rank) for rank in ranks]):
        if slow_ends := _find_slow_ends(names, pairs, slow):
            return "; ".join(slow_ends)
    listed = [f"{ranks[pair.first]} and {ranks[pair.second]}: {pair.gb_per_second:.4g}" for pair in slow[:MAX_LISTED]]
    omitted = f"; and {len(slow) - MAX_LISTED} more" if len(slow) > MAX_LISTED else ""
    return "; ".join(listed) + omitted


def _find_slow_ends(names: Sequence[str], pairs: Sequence[Pair], slow: Sequence[Pair]) -> list[str]:
    """The ranks or nodes with the fault: all of their pairs are slow, more than one, and no other pair is slow."""
    by_end: dict[str, list[Pair]] = {}
    for pair in pairs:
        for end in {names[pair.first], names[pair.second]}:
            by_end.setdefault(end, []).append(pair)
    ends = [end for end, own in by_end.items() if len(own) > 1 and all(pair in slow for pair in own)]
    explains_all = all({names[pair.first], names[pair.second]} & set(ends) for pair in slow)
    if not ends or not explains_all or len(ends) == len(by_end):
        return []
    return [
        f"all {len(by_end[end])} pairs of {end}, {min(pair.gb_per_second for pair in by_end[end]):.4g}" for end in ends
    ]
