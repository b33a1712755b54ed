"""The ranks of one job side by side: who waits, who works, who is slow, idle or gone, and whom the others wait for.

Ranks in step finish together, so a slow one does not show in its progress but in how long it computes before it waits.
Where ranks do not tell that, their GPUs do: a GPU that waits in a collective spins in one small kernel (utilisation
100 %, SMs almost idle, or, where those are not measured, little power), so the one that does not spin while most others
do is the one that they wait for. CPUs of its node beside those of the others may tell why it is late; of a job that is
stuck and whose GPUs look alike, CPUs and links of its nodes may tell who. `report` calls `beside`; the limits are those
of packs/rules/training.yaml and of `model.jobs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, quantiles

from watchkeeper.model import jobs
from watchkeeper.model.jobs import SPINS_PERCENT, SPINS_SM, GpuActivity, Rank, RankState, Straggler

# As in packs/rules/training.yaml: a rank that is slower than the quicker quarter.
SLOW_SHARE = 0.07
# Means of minutes of healthy GPUs in step scatter by one or two hundredths; four times that is no chance.
SCATTERS = 4.0
LEAST_GANG = 3


@dataclass(frozen=True, slots=True)
class RankReading:
    """What is known of one rank, means of some minutes; `rank` None: the job does not number its GPUs."""

    rank: int | None
    node: str = ""
    gpu: str = ""
    uuid: str = ""
    sm_active: float | None = None
    utilisation_percent: float | None = None
    power_watts: float | None = None
    step_seconds: float | None = None
    is_missing: bool = False
    # Its GPU was read before and is not any more.
    is_silent: bool = False
    limit_watts: float | None = None
    usual_watts: float | None = None
    link_bytes: float | None = None
    # Of its node: the share of CPUs at work, and what goes out over InfiniBand in a second.
    cpu_share: float | None = None
    network_bytes: float | None = None

    @property
    def state(self) -> RankState:
        shows = GpuActivity(
            self.utilisation_percent, self.sm_active, self.power_watts, self.limit_watts, self.usual_watts
        )
        return RankState.MISSING if self.is_missing or self.is_silent else shows.state


def compare_ranks(
    seen: Sequence[RankReading], *, in_step: bool = True, is_stuck: bool = False
) -> tuple[tuple[Rank, ...], Straggler | None]:
    """Every rank with its state and score, and the one that the others wait for.

    `in_step` False: replicas of a service, which do not wait for each other. `is_stuck`: an alert says that the job
    does not get on, so a rank that works alone, a usual moment of a healthy job, is worth naming.
    """
    shown = [_alone(one) for one in seen]
    if not in_step or len(shown) < 2:
        return tuple(shown), None
    gone = _gone(seen, shown)
    if gone is not None:
        return tuple(shown), gone
    hang = _not_waiting(shown) or (_odd_one(shown) or _odd_node(seen) if is_stuck else None)
    if hang is not None:
        return tuple(shown), _with_cpus(hang, seen)
    scores, why = _by_steps(seen) if any(one.step_seconds is not None for one in seen) else _by_gpus(seen)
    ranked = [_scored(one, scores.get(at)) for at, one in enumerate(shown)]
    slow = [one for one in ranked if one.state is RankState.SLOW]
    # A quarter that is slower alike is a part of the model, such as a stage of a pipeline.
    if not slow or len(slow) > max(1, len(ranked) // 4):
        return tuple(replace(one, state=RankState.WORKS) if one in slow else one for one in ranked), None
    worst = max(slow, key=lambda one: one.score or 0.0)
    named = _named(worst, worst.score or 0.0, why.format(worst.score or 0.0))
    return tuple(ranked), _with_cpus(named, seen)


def group_state(shown: Sequence[Rank]) -> str:
    """`hung` where most ranks spin and none works, `idle` where none does anything, else empty."""
    known = [one for one in shown if one.state is not RankState.UNKNOWN]
    if not known or any(one.state in (RankState.WORKS, RankState.SLOW) for one in known):
        return ""
    waiting = sum(one.state is RankState.WAITS for one in known)
    return "hung" if len(known) > 1 and waiting > len(known) / 2 else "idle" if not waiting else ""


def _alone(one: RankReading) -> Rank:
    return Rank(
        one.rank,
        one.node,
        one.gpu,
        one.uuid,
        one.sm_active,
        one.utilisation_percent,
        one.power_watts,
        one.step_seconds,
        None,
        one.state,
        one.link_bytes,
    )


def _gone(seen: Sequence[RankReading], shown: Sequence[Rank]) -> Straggler | None:
    """The first of those that say nothing any more, with how many there are; where all are gone nobody waits."""
    missing = [one for one, rank in zip(seen, shown, strict=True) if rank.state is RankState.MISSING]
    if not missing or len(missing) == len(shown):
        return None
    first = min(missing, key=lambda one: (one.rank is None, one.rank or 0, one.node, one.gpu))
    says = "says nothing any more" if first.is_missing else "has a GPU that no longer reports"
    others = {one.node for one in missing} - {first.node}
    where = "" if others else " of its node"
    more = f", nor do {len(missing) - 1} more{where}" if len(missing) > 1 else ""
    why = f"{says}{more}, and the others wait"
    return Straggler(first.rank, first.node, first.gpu, first.uuid, None, why, is_gone=True)


def _not_waiting(shown: Sequence[Rank]) -> Straggler | None:
    """The one that does not spin while the others do: idle, or lost in work of its own."""
    others = [one for one in shown if one.state in (RankState.IDLE, RankState.WORKS)]
    waiting = sum(one.state is RankState.WAITS for one in shown)
    if not others or waiting < len(shown) / 2 or len(others) > max(1, len(shown) // 4):
        return None
    culprit = min(others, key=lambda one: one.state is not RankState.IDLE)
    does = "is idle" if culprit.state is RankState.IDLE else "works on"
    return _named(culprit, None, f"{does} while {waiting} of {len(shown)} GPUs spin in a collective")


def _odd_one(shown: Sequence[Rank]) -> Straggler | None:
    """The one that does something while all others are idle: they wait for it without a kernel, as in a barrier."""
    odd = [one for one in shown if one.state in (RankState.WAITS, RankState.WORKS)]
    idle = sum(one.state is RankState.IDLE for one in shown)
    if len(odd) != 1 or idle < max(LEAST_GANG - 1, len(shown) - 1):
        return None
    does = "works on" if odd[0].state is RankState.WORKS else "waits in a collective"
    return _named(odd[0], None, f"{does} while {idle} of {len(shown)} GPUs are idle")


def _odd_node(seen: Sequence[RankReading]) -> Straggler | None:
    """The one node whose CPUs or links do something else than those of all others."""
    nodes, cpus = {one.node for one in seen} - {""}, _cpus(seen)
    sent = {one.node: one.network_bytes for one in seen if one.node and one.network_bytes is not None}
    if len(cpus) == len(nodes) and (odd := jobs.find_outlier_node(cpus, least=jobs.ODD_CPU_SHARE)) is not None:
        why = f"keeps {cpus[odd]:.0%} of its CPUs busy, the others {median(cpus.values()):.0%}"
        return Straggler(None, odd, "", "", None, why)
    if len(sent) == len(nodes) and (odd := jobs.find_outlier_node(sent, least=jobs.ODD_LINK_BYTES)) is not None:
        middle = median(sent.values()) / 1e6
        why = f"sends {sent[odd] / 1e6:.0f} MB/s over InfiniBand, the others {middle:.0f} MB/s"
        return Straggler(None, odd, "", "", None, why)
    return None


def _cpus(seen: Sequence[RankReading]) -> dict[str, float]:
    return {one.node: one.cpu_share for one in seen if one.node and one.cpu_share is not None}


def _with_cpus(one: Straggler, seen: Sequence[RankReading]) -> Straggler:
    """The same with the reason, where the CPUs of its node are taken and those of the other nodes are not."""
    cpus = _cpus(seen)
    if not jobs.is_short_of_cpu(one.node, cpus):
        return one
    others = median(share for node, share in cpus.items() if node != one.node)
    why = f"{one.why}: the CPUs of its node are {cpus[one.node]:.0%} busy, those of the others {others:.0%}"
    return replace(one, why=why, is_short_of_cpu=True)


def _by_steps(seen: Sequence[RankReading]) -> tuple[Mapping[int, float], str]:
    told = {at: one.step_seconds for at, one in enumerate(seen) if one.step_seconds is not None}
    if len(told) < 2:
        return {}, ""
    quick = quantiles(told.values(), n=4, method="inclusive")[0]
    scores = {at: value / quick - 1 for at, value in told.items()} if quick > 0 else {}
    return scores, "computes {:.0%} longer than the others at each step"


def _by_gpus(seen: Sequence[RankReading]) -> tuple[Mapping[int, float], str]:
    """GPUs in step do the same work, so one that is busier than the others never waits for anybody.

    Where none is, one that has nothing to do while the others spin gets its work late: from its CPUs or its input.
    """
    active = {at: one.sm_active for at, one in enumerate(seen) if one.sm_active is not None}
    if len(active) < LEAST_GANG or median(active.values()) < SPINS_SM:
        return {}, ""
    busier = _above(active)
    used = {at: one.utilisation_percent for at, one in enumerate(seen) if one.utilisation_percent}
    if max(busier.values()) <= SLOW_SHARE and len(used) == len(seen) and median(used.values()) >= SPINS_PERCENT:
        return _above({at: 1 / value for at, value in used.items()}), (
            "has nothing to do while the others wait for it, which makes each step {:.0%} longer"
        )
    return busier, "keeps its SMs busy {:.0%} longer than the others, which wait for it"


def _above(told: Mapping[int, float]) -> dict[int, float]:
    """By which share each is above the middle one; what is within the scatter of all of them counts as not slow."""
    middle = median(told.values())
    scatter = median(abs(value - middle) for value in told.values())
    limit = max(SLOW_SHARE, SCATTERS * scatter / middle)
    scores = {at: value / middle - 1 for at, value in told.items()}
    return {at: score if score > limit else min(score, SLOW_SHARE) for at, score in scores.items()}


def _scored(one: Rank, score: float | None) -> Rank:
    is_slow = score is not None and score > SLOW_SHARE
    return replace(one, score=score, state=RankState.SLOW if is_slow else one.state)


def _named(one: Rank, score: float | None, why: str) -> Straggler:
    return Straggler(one.rank, one.node, one.gpu, one.uuid, score, why)
