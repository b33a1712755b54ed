"""A job that hangs or lost a rank: who came first, who is missing, and whether ranks disagree.

The rank that prints a time-out is mostly the one that waited. So the time-outs of all ranks are compared:
different operations at one sequence number are a disagreement, a rank without a time-out is the suspect, and
any rank with an error of its own is the cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from watchkeeper.catalogue import tables
from watchkeeper.doctor.facts import DoctorFacts, Sighting, values
from watchkeeper.doctor.opinion import MAX_EVIDENCE, Opinion, opinion
from watchkeeper.doctor.signatures import lookup
from watchkeeper.readers.flight_recorder import Collective, Dump

MAX_RANKS_NAMED = 32
MAX_NAMED = 4
# Operations whose sizes do not differ by design, and how sure a difference is: sharded training uses the last two in
# several groups of ranks at once, and a line does not say in which.
SAME_ON_ALL_RANKS = {
    "ALLREDUCE": 0.85,
    "ALLGATHER": 0.85,
    "REDUCE_SCATTER": 0.85,
    "_ALLGATHER_BASE": 0.66,
    "_REDUCE_SCATTER_BASE": 0.66,
}
# Lines of torchrun's block about one rank, after its heading.
BLOCK_LINES = 7
ABORTED = -6
ENDED_BY_ITSELF = {
    ABORTED: "aborted",
    -11: "crashed",
    -4: "died of an illegal instruction",
    -8: "died of an arithmetic fault",
}


@dataclass(frozen=True, slots=True)
class Timeout:
    rank: str
    sequence: str
    operation: str
    size: str
    sighting: Sighting


def hang(facts: DoctorFacts) -> Iterable[Opinion]:
    """What the watchdogs of all ranks say together."""
    timeouts = [_timeout(sighting) for sighting in facts.of("watchdog-timeout")]
    if not timeouts:
        return
    disagreement = _disagreement(timeouts)
    if disagreement is not None:
        yield disagreement
        return
    ranks = sorted({timeout.rank for timeout in timeouts if timeout.rank}, key=_as_number)
    missing = _missing(facts, ranks)
    behind = _behind(facts)
    waited = _waited(timeouts)
    first = next(iter(waited))
    waits = "; ".join(
        f"rank {', '.join(waiting_ranks)} waited in {what}" for what, waiting_ranks in list(waited.items())[:MAX_NAMED]
    )
    why = f"{waits[0].upper()}{waits[1:]} until the time-out."
    where: list[tuple[str, str]] = [("collective", first)] if timeouts[0].sequence else []
    if missing:
        why += f" Rank {', '.join(missing)} of {_world(facts)} never timed out: look there first."
        where += [("missing_rank", rank) for rank in missing] + _places_of(facts, missing)
    elif behind:
        why += f" Rank {behind[0]} has enqueued only {behind[1]} collectives, the others {behind[2]}:"
        why += " it lags on the CPU side."
        where += [("missing_rank", behind[0]), *_places_of(facts, behind[:1])]
    elif facts.has("progress-bar"):
        why += " Another rank's progress bar still moves: ranks have uneven work."
    elif len(ranks) == 1:
        why += " The others are not in these lines: hand in the logs of all ranks to name the one that is missing."
    if first_ranks := values(facts.of("dump-signal-from"), "first"):
        why += f" The others were told of it by rank {first_ranks[0]}, which timed out first."
    confidence = 0.72 if missing or behind else 0.6
    network = "nccl_ib_link_error: no RDMA completion error in these lines"
    yield opinion(
        "nccl_timeout_straggler",
        confidence,
        why,
        on=[timeout.sighting for timeout in timeouts][:MAX_EVIDENCE],
        where=where,
        ruled_out=() if facts.has("nccl-ib-completion") else (network,),
    )


def _timeout(sighting: Sighting) -> Timeout:
    rank = sighting.fields.get("rank") or sighting.fields.get("rank2", "")
    size = sighting.fields.get("numel") or sighting.fields.get("shape", "")
    return Timeout(rank, sighting.fields.get("seq", ""), sighting.fields.get("op", ""), size, sighting)


def _waited(timeouts: Sequence[Timeout]) -> dict[str, list[str]]:
    """Which ranks stood in which collective when they gave up; a rank counts where it did so first."""
    by_rank: dict[str, Timeout] = {}
    for timeout in timeouts:
        by_rank.setdefault(timeout.rank, timeout)
    ranks_by_collective: dict[str, list[str]] = {}
    for first_timeout in by_rank.values():
        what = (
            f"{first_timeout.operation or 'a collective'} number {first_timeout.sequence}"
            if first_timeout.sequence
            else "a collective"
        )
        ranks_by_collective.setdefault(what, []).append(first_timeout.rank or "unknown")
    return {what: sorted(ranks, key=_as_number) for what, ranks in ranks_by_collective.items()}


def _disagreement(timeouts: Sequence[Timeout]) -> Opinion | None:
    """Different operations or sizes of different ranks at one sequence number."""
    by_sequence: dict[str, dict[str, Timeout]] = {}
    for timeout in timeouts:
        if timeout.rank and timeout.sequence:
            by_sequence.setdefault(timeout.sequence, {}).setdefault(timeout.rank, timeout)
    for sequence, by_rank in by_sequence.items():
        kinds = {(timeout.operation, timeout.size) for timeout in by_rank.values()}
        # Gather and scatter have other sizes on their root by design.
        operations = {operation for operation, _ in kinds}
        if len(operations) > 1 or (len(kinds) > 1 and operations <= SAME_ON_ALL_RANKS.keys()):
            details = "; ".join(
                f"rank {entry.rank}: {entry.operation} of {entry.size or '?'}"
                for entry in list(by_rank.values())[:MAX_NAMED]
            )
            return opinion(
                "nccl_shape_or_collective_mismatch",
                0.85 if len(operations) > 1 else min(SAME_ON_ALL_RANKS[name] for name in operations),
                f"At sequence number {sequence} the ranks wait in different collectives: {details}.",
                on=[entry.sighting for entry in by_rank.values()][:MAX_EVIDENCE],
            )
    return None


def _world(facts: DoctorFacts) -> int | None:
    sizes = [int(size) for size in values(facts.of("nccl-rank"), "nranks")]
    return max(sizes) if sizes else None


def missing_ranks(facts: DoctorFacts) -> list[str]:
    """Ranks of the job that did not time out while the others did, or that lag behind; empty if nobody can tell."""
    ranks = sorted({timeout.rank for timeout in map(_timeout, facts.of("watchdog-timeout")) if timeout.rank})
    behind = _behind(facts)
    return _missing(facts, ranks) or ([behind[0]] if behind else [])


def _missing(facts: DoctorFacts, ranks: Sequence[str]) -> list[str]:
    """Ranks of the job that did not time out; only known where the size of the job is, and most others did."""
    world = _world(facts)
    if world is None or len(ranks) < max(1, world // 2):
        return []
    present = set(ranks)
    absent = [str(rank) for rank in range(world) if str(rank) not in present]
    return absent[:MAX_RANKS_NAMED]


def _behind(facts: DoctorFacts) -> tuple[str, int, int] | None:
    """The rank that has enqueued least, if it differs from the others and has not completed more than one of them."""
    status = {
        sighting.fields["rank"]: sighting.fields for sighting in facts.of("pg-status") if "rank" in sighting.fields
    }
    enqueued = {rank: int(fields["enqueued"]) for rank, fields in status.items()}
    if len(enqueued) < 2 or len(set(enqueued.values())) < 2:
        return None
    rank = min(enqueued, key=lambda name: enqueued[name])
    completed = {name: int(fields["completed"]) for name, fields in status.items()}
    if completed[rank] > min(completed.values()):
        return None
    return rank, enqueued[rank], max(enqueued.values())


def _places_of(facts: DoctorFacts, ranks: Sequence[str]) -> list[tuple[str, str]]:
    """Node and GPU of these ranks, as they announced themselves at the start."""
    places: list[tuple[str, str]] = []
    for sighting in facts.of("nccl-rank"):
        if sighting.fields["rank"] in ranks:
            places += [
                (f"missing_{name}", sighting.fields[name]) for name in ("node", "gpu") if name in sighting.fields
            ]
    return list(dict.fromkeys(places))


def _as_number(text: str) -> int:
    return int(text) if text.isdigit() else -1


def ended_ranks(facts: DoctorFacts) -> Iterable[Opinion]:
    """Exit codes as torchrun prints them: the first rank with a code of its own, not one that was told to stop."""
    failures = [
        sighting
        for sighting in facts.of("elastic-failed", "elastic-block-exit")
        if sighting.fields["code"] not in ("0", "-15", "143")
    ]
    if not failures:
        return
    root = _first_observed(facts)
    first = next((sighting for sighting in failures if _is_in_block(sighting, root)), failures[0])
    code = int(first.fields["code"])
    row = tables.find_exit_code(code)
    named = [(name, sighting.fields[name]) for sighting in root for name in ("node", "rank") if name in sighting.fields]
    if code == ABORTED and any(sighting.order < first.order for sighting in facts.of("watchdog-timeout")):
        why = "A rank aborted after its watchdog had waited in vain, as the watchdog does on purpose."
        yield opinion("nccl_rank_died", 0.3, why, on=[*root, *failures[:MAX_EVIDENCE]], where=named)
    elif code in ENDED_BY_ITSELF:
        why = f"A rank {ENDED_BY_ITSELF[code]} (exit code {code}); the others failed because it was gone."
        yield opinion("nccl_rank_died", 0.55, why, on=[*root, *failures[:MAX_EVIDENCE]], where=named)
    elif code != -9:
        meaning = row.meaning if row is not None else "no more is known"
        why = f"A rank ended with exit code {code}: {meaning}. "
        raised = _raised(facts, first)
        why += _describe_error(raised) if raised is not None else "Its own log, before this line, has the reason."
        on = [*([raised] if raised is not None else []), *root, *failures[:MAX_EVIDENCE]]
        yield opinion("nccl_rank_died", 0.35, why, on=on, where=named)


def _raised(facts: DoctorFacts, ended: Sighting) -> Sighting | None:
    """The Python error before a rank's end, where those of one rank alone are in the log."""
    errors = [
        sighting
        for sighting in facts.of("python-exception")
        if sighting.input == ended.input and sighting.line < ended.line
    ]
    return errors[-1] if errors and len({sighting.fields.get("rank") for sighting in errors}) == 1 else None


def _describe_error(raised: Sighting) -> str:
    who = f"Rank {raised.fields['rank']}" if "rank" in raised.fields else "The program"
    return f"{who} ended with {raised.text[raised.text.index(raised.fields['kind']) :]}"


def dead_workers(facts: DoctorFacts) -> Iterable[Opinion]:
    """Workers that others report as gone: the cause, unless their watchdogs had given up before and ended them."""
    reports = facts.of("worker-died")
    if not reports:
        return
    sign = lookup("worker-died")
    if any(
        sighting.input == reports[0].input and sighting.line < reports[0].line
        for sighting in facts.of("watchdog-timeout")
    ):
        why = "A worker was gone after its watchdog had waited in vain, which ends the process on purpose."
        yield opinion(sign.cause, 0.3, why, on=reports[:MAX_EVIDENCE])
        return
    for cause, confidence in {sign.cause: sign.confidence, **sign.also}.items():
        yield opinion(cause, confidence, sign.why, on=reports[:MAX_EVIDENCE])


def _first_observed(facts: DoctorFacts) -> list[Sighting]:
    """The lines of torchrun's block about the rank that failed first: its heading, host and rank."""
    heading = facts.of("elastic-root")[:1]
    return heading + [
        sighting
        for name in ("elastic-block-host", "elastic-block-rank")
        for sighting in facts.of(name)
        if _is_in_block(sighting, heading)
    ]


def _is_in_block(sighting: Sighting, heading: Sequence[Sighting]) -> bool:
    return any(sighting.input == root.input and 0 <= sighting.line - root.line <= BLOCK_LINES for root in heading[:1])


def dumps(facts: DoctorFacts) -> Iterable[Opinion]:
    """The flight-recorder dumps of a job, compared group by group."""
    dumps_by_rank = {dump.rank: (dump, sighting) for dump, sighting in facts.dumps if dump.rank is not None}
    if not dumps_by_rank:
        return
    for group in dict.fromkeys(
        collective.group for dump, _ in dumps_by_rank.values() for collective in dump.collectives
    ):
        last = {rank: _last(dump, group) for rank, (dump, _) in dumps_by_rank.items()}
        stuck = {rank: collective for rank, collective in last.items() if collective is not None}
        if len(stuck) > 1 and any(
            collective.state != "completed" or collective.timed_out for collective in stuck.values()
        ):
            yield from _compare(group, stuck, dumps_by_rank)


def _last(dump: Dump, group: str) -> Collective | None:
    """The collective at which a rank stands: its first that is not complete, else its last."""
    mine = [collective for collective in dump.collectives if collective.group == group and not collective.is_p2p]
    return next((collective for collective in mine if collective.state != "completed"), mine[-1] if mine else None)


def _compare(
    group: str, stuck: dict[int, Collective], dumps_by_rank: dict[int, tuple[Dump, Sighting]]
) -> Iterable[Opinion]:
    members = next((dump.ranks[group] for dump, _ in dumps_by_rank.values() if dump.ranks.get(group)), ())
    absent = [rank for rank in members if rank not in dumps_by_rank]
    furthest = max(collective.sequence for collective in stuck.values())
    late = [rank for rank, collective in stuck.items() if collective.sequence < furthest]
    together = {
        (collective.operation, collective.sizes) for collective in stuck.values() if collective.sequence == furthest
    }
    evidence = [sighting for _, sighting in dumps_by_rank.values()][:MAX_EVIDENCE]
    if not late and len(together) > 1:
        sign = lookup("dump-mismatch")
        details = "; ".join(
            f"rank {rank}: {collective.operation} {collective.sizes}" for rank, collective in list(stuck.items())[:4]
        )
        yield opinion(
            sign.cause, sign.confidence, f"{sign.why} Group {group}, position {furthest}: {details}.", on=evidence
        )
    elif late:
        sign = lookup("dump-lagging")
        rank = min(late, key=lambda collective: stuck[collective].sequence)
        collective = stuck[rank]
        side = (
            "its program never called it (CPU side)"
            if collective.state == "completed"
            else f"its {collective.operation} is {collective.state}"
        )
        at = f"{collective.operation} {collective.sequence} of group {group}"
        why = f"Rank {rank} is at {at}, the others at {furthest}; {side}."
        yield opinion(
            sign.cause,
            sign.confidence,
            why,
            on=evidence,
            where=[("missing_rank", str(collective)) for collective in late[:MAX_RANKS_NAMED]],
        )
    elif absent:
        sign = lookup("dump-missing")
        named = ", ".join(map(str, absent[:MAX_RANKS_NAMED]))
        where = [("missing_rank", str(rank)) for rank in absent[:MAX_RANKS_NAMED]]
        yield opinion(sign.cause, sign.confidence, f"{sign.why} Missing: rank {named}.", on=evidence, where=where)
        yield opinion(
            "nccl_timeout_straggler",
            sign.also["nccl_timeout_straggler"],
            f"{sign.why} Missing: rank {named}.",
            on=evidence,
            where=where,
        )
    else:
        operation = next(iter(together))[0]
        why = f"All ranks stand in the same {operation} (number {furthest}): the network or a GPU holds it."
        yield opinion("nccl_ib_link_error", 0.45, why, on=evidence)
        yield opinion("nccl_timeout_straggler", 0.45, why, on=evidence)
