"""Find the rank that failed: the first to diverge, the one that differs from all others, or the silent one.

The logs of a failed job are mostly about ranks that failed afterwards. So the ranks are compared, and the one that
differs is named; if two ranks differ, none is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from watchkeeper.doctor.facts import DoctorFacts, Sighting
from watchkeeper.doctor.opinion import MAX_EVIDENCE, Opinion, opinion
from watchkeeper.readers import flight_recorder

# [rank2] step 1200 loss: nan     step=1200 | loss: nan
STEP = re.compile(r"(?i)\b(?:step|iteration|iter|global_step)\b\W{0,3}(\d{1,12})")
CONNECTION_LOST = ("store-peer-closed", "nccl-peer-closed", "nccl-remote-error")
FOLLOWING_SIGNS = (*CONNECTION_LOST, "gloo-timeout", "watchdog-timeout", "monitored-barrier")
# With two ranks, it is unknown which of them differs.
MIN_RANKS = 3
# Slightly above the sign alone, because the ranks agree which one it is.
FIRST, DISAGREES, SILENT = 0.9, 0.96, 0.75


def first_to_diverge(facts: DoctorFacts) -> Iterable[Opinion]:
    """The rank whose loss was NaN first; the next all-reduce spreads NaN to the other ranks."""
    first_by_rank: dict[str, Sighting] = {}
    for sighting in facts.find("loss-nan"):
        if "rank" in sighting.fields:
            first_by_rank.setdefault(sighting.fields["rank"], sighting)
    if len(first_by_rank) < 2:
        return
    steps = {rank: int(match[1]) for rank, sighting in first_by_rank.items() if (match := STEP.search(sighting.text))}
    if len(steps) < len(first_by_rank):
        return
    first = min(steps.values())
    ranks = [rank for rank, step in steps.items() if step == first]
    if len(ranks) == 1:
        why = f"Rank {ranks[0]} was the first, at step {first}; the next all-reduce spread it to the other ranks."
        on = [first_by_rank[ranks[0]]]
        yield opinion("training_diverged", FIRST, why, on=on, where=[("culprit_rank", ranks[0])])


def disagrees_with_all(facts: DoctorFacts) -> Iterable[Opinion]:
    """The rank that is in every pair of ranks with different collectives."""
    sightings = [sighting for sighting in facts.find("collectives-differ") if sighting.fields.get("peer")]
    pairs = {frozenset((sighting.fields["rank"], sighting.fields["peer"])) for sighting in sightings}
    if not pairs or len(frozenset.union(*pairs)) < MIN_RANKS:
        return
    in_all = frozenset.intersection(*pairs)
    if len(in_all) == 1:
        (rank,) = in_all
        why = f"Rank {rank} differs from the others: it is in every pair of ranks that disagree."
        own = [sighting for sighting in sightings if sighting.fields["rank"] == rank] or sightings
        yield opinion("nccl_shape_or_collective_mismatch", DISAGREES, why, on=own[:1], where=[("culprit_rank", rank)])


def silent_rank(facts: DoctorFacts) -> Iterable[Opinion]:
    """The only rank whose log has no connection error, while the other ranks lost a peer."""
    names = (flight_recorder.RANK_OF_NAME.search(given.name.rsplit("/", 1)[-1]) for given in facts.inputs)
    ranks = {match[1] for match in names if match}
    disconnected = facts.find(*CONNECTION_LOST)
    following_ranks = {
        sighting.fields["rank"] for sighting in facts.find(*FOLLOWING_SIGNS) if "rank" in sighting.fields
    }
    silent_ranks = sorted(ranks - following_ranks, key=int)
    if not disconnected or len(ranks) < MIN_RANKS or len(silent_ranks) != 1:
        return
    why = f"The other {len(following_ranks & ranks)} ranks lost a connection; only rank {silent_ranks[0]} did not."
    yield opinion(
        "nccl_rank_died", SILENT, why, on=disconnected[:MAX_EVIDENCE],
        where=[("culprit_rank", silent_ranks[0]), ("missing_rank", silent_ranks[0])],
    )  # fmt: skip
