"""Which rank it was: the first to diverge, the one that disagrees with all others, the one that says nothing.

Logs of a job that failed are full of ranks that only followed. So the ranks are compared, and what is different about
one of them names it; where two could be meant, nobody is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from watchkeeper.doctor.facts import DoctorFacts, Sighting
from watchkeeper.doctor.opinion import MAX_EVIDENCE, Opinion, opinion
from watchkeeper.readers import flight_recorder

# [rank2] step 1200 loss: nan     step=1200 | loss: nan
STEP = re.compile(r"(?i)\b(?:step|iteration|iter|global_step)\b\W{0,3}(\d{1,12})")
LEFT_ALONE = ("store-peer-closed", "nccl-peer-closed", "nccl-remote-error")
FOLLOWED = (*LEFT_ALONE, "gloo-timeout", "watchdog-timeout", "monitored-barrier")
# With two ranks nobody can say which of them is the odd one.
LEAST_RANKS = 3
# A little above the sign alone, because the ranks agree about who it was.
FIRST, DISAGREES, SILENT = 0.9, 0.96, 0.75


def first_to_diverge(facts: DoctorFacts) -> Iterable[Opinion]:
    """A gradient that is no number reaches the others with the next all-reduce: a step later, or a moment later."""
    firsts: dict[str, Sighting] = {}
    for sighting in facts.of("loss-nan"):
        if "rank" in sighting.fields:
            firsts.setdefault(sighting.fields["rank"], sighting)
    if len(firsts) < 2:
        return
    steps = {rank: int(match[1]) for rank, sighting in firsts.items() if (match := STEP.search(sighting.text))}
    if len(steps) < len(firsts):
        return
    first = min(steps.values())
    ranks = [rank for rank, step in steps.items() if step == first]
    if len(ranks) == 1:
        why = f"Rank {ranks[0]} was the first, at step {first}; the others got it from the next all-reduce."
        on = [firsts[ranks[0]]]
        yield opinion("training_diverged", FIRST, why, on=on, where=[("culprit_rank", ranks[0])])


def disagrees_with_all(facts: DoctorFacts) -> Iterable[Opinion]:
    """Each rank names another one that runs something else; the odd one is in every such pair."""
    sightings = [sighting for sighting in facts.of("collectives-differ") if sighting.fields.get("peer")]
    pairs = {frozenset((sighting.fields["rank"], sighting.fields["peer"])) for sighting in sightings}
    if not pairs or len(frozenset.union(*pairs)) < LEAST_RANKS:
        return
    in_all = frozenset.intersection(*pairs)
    if len(in_all) == 1:
        (rank,) = in_all
        why = f"Rank {rank} is the one that differs: every pair of ranks that disagree has it."
        own = [sighting for sighting in sightings if sighting.fields["rank"] == rank] or sightings
        yield opinion("nccl_shape_or_collective_mismatch", DISAGREES, why, on=own[:1], where=[("culprit_rank", rank)])


def fell_silent(facts: DoctorFacts) -> Iterable[Opinion]:
    """Ranks whose logs were handed in and that do not complain, while the others say that a peer is gone."""
    names = (flight_recorder.RANK_OF_NAME.search(given.name.rsplit("/", 1)[-1]) for given in facts.inputs)
    ranks = {match[1] for match in names if match}
    alone = facts.of(*LEFT_ALONE)
    followed = {sighting.fields["rank"] for sighting in facts.of(*FOLLOWED) if "rank" in sighting.fields}
    silent = sorted(ranks - followed, key=int)
    if not alone or len(ranks) < LEAST_RANKS or len(silent) != 1:
        return
    why = f"The other {len(followed & ranks)} ranks lost their connection; rank {silent[0]} alone does not say so."
    yield opinion(
        "nccl_rank_died", SILENT, why, on=alone[:MAX_EVIDENCE],
        where=[("culprit_rank", silent[0]), ("missing_rank", silent[0])],
    )  # fmt: skip
