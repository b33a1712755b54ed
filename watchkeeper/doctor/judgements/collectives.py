"""Judge a job that hangs or lost a rank: the first failure, the missing rank, and mismatched collectives.

The rank that logs a timeout is mostly one that waited. So the timeouts of all ranks are compared: different operations
with the same sequence number are a mismatch, a rank without a timeout is the suspect, and a rank with an error of its
own is the cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from watchkeeper.catalogue import tables
from watchkeeper.doctor.facts import MAX_EVIDENCE, DoctorFacts, Opinion, Sighting, field_values, opinion, sign_opinions
from watchkeeper.doctor.signatures import lookup
from watchkeeper.readers.flight_recorder import Collective, RankDump

MAX_RANKS_NAMED = 32
MAX_NAMED = 4
# Operations with the same size on all ranks, and the confidence of a difference: sharded training uses the last two in
# several groups of ranks at once, and a line does not name its group.
SAME_ON_ALL_RANKS = {
    "ALLREDUCE": 0.85,
    "ALLGATHER": 0.85,
    "REDUCE_SCATTER": 0.85,
    "_ALLGATHER_BASE": 0.66,
    "_REDUCE_SCATTER_BASE": 0.66,
}
# Lines of torchrun's block about one rank, after the heading.
BLOCK_LINES = 7
ABORTED = -6
CRASH_TEXTS = {
    ABORTED: "aborted", -11: "crashed", -4: "died with an illegal instruction", -8: "died with an arithmetic fault",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CollectiveTimeout:
    rank: str
    sequence: str
    operation: str
    size: str
    sighting: Sighting


def hang(facts: DoctorFacts) -> Iterable[Opinion]:
    """Judge the watchdog timeouts of all ranks together."""
    timeouts = [_timeout(sighting) for sighting in facts.find("watchdog-timeout")]
    if not timeouts:
        return
    mismatch = _mismatch(timeouts)
    if mismatch is not None:
        yield mismatch
        return
    ranks = sorted({timeout.rank for timeout in timeouts if timeout.rank}, key=_as_number)
    missing = _ranks_without_timeout(facts, ranks)
    lagging = _lagging_rank(facts)
    ranks_by_collective = _waiting_ranks(timeouts)
    first = next(iter(ranks_by_collective))
    waits = (f"rank {', '.join(waiting)} waited in {name}" for name, waiting in ranks_by_collective.items())
    waits_text = "; ".join(islice(waits, MAX_NAMED))
    why = f"{waits_text[0].upper()}{waits_text[1:]} until the timeout."
    where: list[tuple[str, str]] = [("collective", first)] if timeouts[0].sequence else []
    if missing:
        why += f" Rank {', '.join(missing)} of {_world_size(facts)} has no timeout: check it first."
        where += [("missing_rank", rank) for rank in missing] + _places_of_ranks(facts, missing)
    elif lagging:
        why += f" Rank {lagging[0]} has enqueued only {lagging[1]} collectives, the others {lagging[2]}:"
        why += " its program is slow on the CPU side."
        where += [("missing_rank", lagging[0]), *_places_of_ranks(facts, lagging[:1])]
    elif facts.has("progress-bar"):
        why += " The progress bar of another rank advances: the ranks have uneven work."
    elif len(ranks) == 1:
        why += " The other ranks are not in these logs: add the logs of all ranks to find the missing one."
    if first_ranks := field_values(facts.find("dump-signal-from"), "first"):
        why += f" Rank {first_ranks[0]} timed out first and notified the others."
    confidence = 0.72 if missing or lagging else 0.6
    network = () if facts.has("nccl-ib-completion") else ("nccl_ib_link_error: no RDMA completion error in the logs",)
    on = [timeout.sighting for timeout in timeouts[:MAX_EVIDENCE]]
    yield opinion("nccl_timeout_straggler", confidence, why, on=on, where=where, ruled_out=network)


def _timeout(sighting: Sighting) -> CollectiveTimeout:
    rank = sighting.fields.get("rank") or sighting.fields.get("rank2", "")
    size = sighting.fields.get("numel") or sighting.fields.get("shape", "")
    return CollectiveTimeout(rank, sighting.fields.get("seq", ""), sighting.fields.get("op", ""), size, sighting)


def _waiting_ranks(timeouts: Sequence[CollectiveTimeout]) -> dict[str, list[str]]:
    """The ranks by the collective of their first timeout."""
    by_rank: dict[str, CollectiveTimeout] = {}
    for timeout in timeouts:
        by_rank.setdefault(timeout.rank, timeout)
    ranks_by_collective: dict[str, list[str]] = {}
    for first in by_rank.values():
        name = f"{first.operation or 'a collective'} number {first.sequence}" if first.sequence else "a collective"
        ranks_by_collective.setdefault(name, []).append(first.rank or "unknown")
    return {what: sorted(ranks, key=_as_number) for what, ranks in ranks_by_collective.items()}


def _mismatch(timeouts: Sequence[CollectiveTimeout]) -> Opinion | None:
    """An opinion if ranks have different operations or sizes at the same sequence number."""
    by_sequence: dict[str, dict[str, CollectiveTimeout]] = {}
    for timeout in timeouts:
        if timeout.rank and timeout.sequence:
            by_sequence.setdefault(timeout.sequence, {}).setdefault(timeout.rank, timeout)
    for sequence, by_rank in by_sequence.items():
        kinds = {(timeout.operation, timeout.size) for timeout in by_rank.values()}
        # Gather and scatter have different sizes on their root by design.
        operations = {operation for operation, _ in kinds}
        if len(operations) > 1 or (len(kinds) > 1 and operations <= SAME_ON_ALL_RANKS.keys()):
            differing = list(by_rank.values())
            details = (
                f"rank {timeout.rank}: {timeout.operation} of {timeout.size or '?'}"
                for timeout in differing[:MAX_NAMED]
            )
            why = f"At sequence number {sequence} the ranks are in different collectives: {'; '.join(details)}."
            confidence = 0.85 if len(operations) > 1 else min(SAME_ON_ALL_RANKS[name] for name in operations)
            on = [timeout.sighting for timeout in differing[:MAX_EVIDENCE]]
            return opinion("nccl_shape_or_collective_mismatch", confidence, why, on=on)
    return None


def _world_size(facts: DoctorFacts) -> int | None:
    sizes = [int(size) for size in field_values(facts.find("nccl-rank"), "nranks")]
    return max(sizes) if sizes else None


def missing_ranks(facts: DoctorFacts) -> list[str]:
    """The ranks without a timeout while the others have one, or the lagging rank; empty if unknown."""
    ranks = sorted({timeout.rank for timeout in map(_timeout, facts.find("watchdog-timeout")) if timeout.rank})
    behind = _lagging_rank(facts)
    return _ranks_without_timeout(facts, ranks) or ([behind[0]] if behind else [])


def _ranks_without_timeout(facts: DoctorFacts, ranks: Sequence[str]) -> list[str]:
    """The ranks without a timeout; empty if the world size is unknown or less than half of the ranks have one."""
    world = _world_size(facts)
    if world is None or len(ranks) < max(1, world // 2):
        return []
    present = set(ranks)
    return [str(rank) for rank in range(world) if str(rank) not in present][:MAX_RANKS_NAMED]


def _lagging_rank(facts: DoctorFacts) -> tuple[str, int, int] | None:
    """The rank with the fewest enqueued collectives, if it has not completed more than the slowest rank."""
    status = {line.fields["rank"]: line.fields for line in facts.find("pg-status") if "rank" in line.fields}
    enqueued = {rank: int(fields["enqueued"]) for rank, fields in status.items()}
    if len(enqueued) < 2 or len(set(enqueued.values())) < 2:
        return None
    rank = min(enqueued, key=lambda name: enqueued[name])
    completed = {name: int(fields["completed"]) for name, fields in status.items()}
    if completed[rank] > min(completed.values()):
        return None
    return rank, enqueued[rank], max(enqueued.values())


def _places_of_ranks(facts: DoctorFacts, ranks: Sequence[str]) -> list[tuple[str, str]]:
    """Node and GPU of these ranks from their NCCL lines at the start."""
    named = [sighting.fields for sighting in facts.find("nccl-rank") if sighting.fields["rank"] in ranks]
    places = ((f"missing_{name}", fields[name]) for fields in named for name in ("node", "gpu") if name in fields)
    return list(dict.fromkeys(places))


def _as_number(text: str) -> int:
    return int(text) if text.isdigit() else -1


def ended_ranks(facts: DoctorFacts) -> Iterable[Opinion]:
    """Judge the exit codes in torchrun's output: the first rank that failed on its own, not by a stop signal."""
    lines = facts.find("elastic-failed", "elastic-block-exit")
    failures = [line for line in lines if line.fields["code"] not in ("0", "-15", "143")]
    if not failures:
        return
    # The lines of torchrun's block about the first failed rank: heading, host and rank.
    root = facts.find("elastic-root")[:1]
    block_lines = [*facts.find("elastic-block-host"), *facts.find("elastic-block-rank")]
    root += [line for line in block_lines if _is_in_block(line, root)]
    first = next((failure for failure in failures if _is_in_block(failure, root)), failures[0])
    code = int(first.fields["code"])
    row = tables.find_exit_code(code)
    places = [(name, line.fields[name]) for line in root for name in ("node", "rank") if name in line.fields]
    if code == ABORTED and any(sighting.order < first.order for sighting in facts.find("watchdog-timeout")):
        why = "A rank aborted after the timeout of its watchdog, which aborts the process by design."
        yield opinion("nccl_rank_died", 0.3, why, on=[*root, *failures[:MAX_EVIDENCE]], where=places)
    elif code in CRASH_TEXTS:
        why = f"A rank {CRASH_TEXTS[code]} (exit code {code}); the other ranks failed after it."
        yield opinion("nccl_rank_died", 0.55, why, on=[*root, *failures[:MAX_EVIDENCE]], where=places)
    elif code != -9:
        meaning = row.meaning if row is not None else "unknown"
        why, reason = f"A rank ended with exit code {code}: {meaning}.", "The reason is in its log before this line."
        on = [*root, *failures[:MAX_EVIDENCE]]
        if (error := _error_before(facts, first)) is not None:
            subject = f"Rank {error.fields['rank']}" if "rank" in error.fields else "The program"
            reason = f"{subject} failed with {error.text[error.text.index(error.fields['kind']) :]}"
            on = [error, *on]
        why = f"{why} {reason}"
        yield opinion("nccl_rank_died", 0.35, why, on=on, where=places)


def _error_before(facts: DoctorFacts, ended: Sighting) -> Sighting | None:
    """The last Python error before the exit line, if all errors in the log are of one rank."""
    raised = facts.find("python-exception")
    errors = [error for error in raised if error.input == ended.input and error.line < ended.line]
    return errors[-1] if len({error.fields.get("rank") for error in errors}) == 1 else None


def dead_workers(facts: DoctorFacts) -> Iterable[Opinion]:
    """Workers that others report as dead: the cause, unless their watchdogs had ended them after a timeout."""
    reports, timeouts = facts.find("worker-died"), facts.find("watchdog-timeout")
    sign = lookup("worker-died")
    if reports and any(timeout.input == reports[0].input and timeout.line < reports[0].line for timeout in timeouts):
        why = "A worker died after the timeout of its watchdog, which ends the process by design."
        yield opinion(sign.cause, 0.3, why, on=reports[:MAX_EVIDENCE])
    elif reports:
        yield from sign_opinions(sign, reports)


def _is_in_block(sighting: Sighting, heading: Sequence[Sighting]) -> bool:
    return any(sighting.input == root.input and 0 <= sighting.line - root.line <= BLOCK_LINES for root in heading[:1])


def dumps(facts: DoctorFacts) -> Iterable[Opinion]:
    """Compare the flight recorder dumps of a job, by group of ranks."""
    dumps_by_rank = {dump.rank: (dump, sighting) for dump, sighting in facts.dumps if dump.rank is not None}
    stuck_by_group: dict[str, dict[int, Collective]] = {}
    for rank, (dump, _) in dumps_by_rank.items():
        for group, collective in _current_collectives(dump).items():
            stuck_by_group.setdefault(group, {})[rank] = collective
    for group, stuck in stuck_by_group.items():
        if len(stuck) > 1 and any(entry.state != "completed" or entry.timed_out for entry in stuck.values()):
            yield from _compare_ranks(group, stuck, dumps_by_rank)


def _current_collectives(dump: RankDump) -> dict[str, Collective]:
    """The current collective of a rank in each group: its first incomplete one, otherwise its last."""
    current: dict[str, Collective] = {}
    for collective in dump.collectives:
        previous = current.get(collective.group)
        if not collective.is_p2p and (previous is None or previous.state == "completed"):
            current[collective.group] = collective
    return current


def _compare_ranks(
    group: str, stuck: dict[int, Collective], dumps_by_rank: dict[int, tuple[RankDump, Sighting]]
) -> Iterable[Opinion]:
    members = next((dump.ranks[group] for dump, _ in dumps_by_rank.values() if dump.ranks.get(group)), ())
    absent = [rank for rank in members if rank not in dumps_by_rank]
    furthest = max(collective.sequence for collective in stuck.values())
    lagging = [rank for rank, collective in stuck.items() if collective.sequence < furthest]
    kinds = {(entry.operation, entry.sizes) for entry in stuck.values() if entry.sequence == furthest}
    evidence = [sighting for _, sighting in dumps_by_rank.values()][:MAX_EVIDENCE]
    if not lagging and len(kinds) > 1:
        sign = lookup("dump-mismatch")
        details = (f"rank {rank}: {entry.operation} {entry.sizes}" for rank, entry in list(stuck.items())[:4])
        why = f"{sign.why} Group {group}, position {furthest}: {'; '.join(details)}."
        yield opinion(sign.cause, sign.confidence, why, on=evidence)
    elif lagging:
        sign = lookup("dump-lagging")
        rank = min(lagging, key=lambda lagging_rank: stuck[lagging_rank].sequence)
        collective = stuck[rank]
        state = f"its {collective.operation} is {collective.state}"
        if collective.state == "completed":
            state = "its program did not call it (CPU side)"
        at = f"{collective.operation} {collective.sequence} of group {group}"
        why = f"Rank {rank} is at {at}, the other ranks are at {furthest}; {state}."
        yield opinion(sign.cause, sign.confidence, why, on=evidence, where=_missing_ranks(lagging))
    elif absent:
        sign = lookup("dump-missing")
        why = f"{sign.why} Missing: rank {', '.join(map(str, absent[:MAX_RANKS_NAMED]))}."
        for cause in (sign.cause, "nccl_timeout_straggler"):
            yield opinion(cause, sign.causes[cause], why, on=evidence, where=_missing_ranks(absent))
    else:
        operation = next(iter(kinds))[0]
        why = f"All ranks wait in the same {operation} (number {furthest}): the network or a GPU is the cause."
        yield opinion("nccl_ib_link_error", 0.45, why, on=evidence)
        yield opinion("nccl_timeout_straggler", 0.45, why, on=evidence)


def _missing_ranks(ranks: Sequence[int]) -> list[tuple[str, str]]:
    return [("missing_rank", str(rank)) for rank in ranks[:MAX_RANKS_NAMED]]
