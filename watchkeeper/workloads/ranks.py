"""The ranks of one job side by side: who waits, who works, who is slow, idle or gone, and whom the others wait for.

Ranks in step finish together, so a slow one does not show in its progress but in how long it computes before it waits.
Where ranks do not tell that, their GPUs do: a GPU that waits in a collective spins in one small kernel (utilisation
100 %, SMs almost idle), so the one that does not spin while most others do is the one that they wait for. `report`
calls `beside`; the limits are those of packs/rules/training.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, quantiles

from watchkeeper.model.jobs import SPINS_SM, Rank, RankState, Straggler, spins

# As in packs/rules/training.yaml: a rank that is slower than the quicker quarter.
SLOW_SHARE = 0.07
IDLE_PERCENT, IDLE_SM = 5.0, 0.05
# Means of minutes of healthy GPUs in step scatter by one or two hundredths; four times that is no chance.
SCATTERS = 4.0
LEAST_GANG = 3


@dataclass(frozen=True, slots=True)
class Seen:
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


def beside(seen: Sequence[Seen], *, in_step: bool = True) -> tuple[tuple[Rank, ...], Straggler | None]:
    """Every rank with its state and score, and the one that the others wait for.

    `in_step` False: replicas of a service, which do not wait for each other.
    """
    shown = [_alone(one) for one in seen]
    if not in_step or len(shown) < 2:
        return tuple(shown), None
    missing = next((one for one in shown if one.state is RankState.MISSING), None)
    if missing is not None:
        return tuple(shown), _named(missing, 1.0, "says nothing any more, and the others wait for it")
    hang = _not_waiting(shown)
    if hang is not None:
        return tuple(shown), hang
    scores, why = _by_steps(seen) if any(one.step_seconds is not None for one in seen) else _by_gpus(seen)
    ranked = [_scored(one, scores.get(at)) for at, one in enumerate(shown)]
    slow = [one for one in ranked if one.state is RankState.SLOW]
    # A quarter that is slower alike is a part of the model, such as a stage of a pipeline.
    if not slow or len(slow) > max(1, len(ranked) // 4):
        return tuple(replace(one, state=RankState.WORKS) if one in slow else one for one in ranked), None
    worst = max(slow, key=lambda one: one.score or 0.0)
    return tuple(ranked), _named(worst, worst.score or 0.0, why.format(worst.score or 0.0))


def state_of_gang(shown: Sequence[Rank]) -> str:
    """`hung` where most ranks spin and none works, `idle` where none does anything, else empty."""
    known = [one for one in shown if one.state is not RankState.UNKNOWN]
    if not known or any(one.state in (RankState.WORKS, RankState.SLOW) for one in known):
        return ""
    waiting = sum(one.state is RankState.WAITS for one in known)
    return "hung" if len(known) > 1 and waiting > len(known) / 2 else "idle" if not waiting else ""


def _alone(one: Seen) -> Rank:
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
        _state(one),
    )


def _state(one: Seen) -> RankState:
    if one.is_missing:
        return RankState.MISSING
    percent, active = one.utilisation_percent, one.sm_active
    if percent is None or active is None:
        # Utilisation alone does not tell work from waiting; nothing at all is idle all the same.
        return RankState.IDLE if percent is not None and percent < IDLE_PERCENT else RankState.UNKNOWN
    if spins(percent, active):
        return RankState.WAITS
    return RankState.IDLE if percent < IDLE_PERCENT and active < IDLE_SM else RankState.WORKS


def _not_waiting(shown: Sequence[Rank]) -> Straggler | None:
    """The one that does not spin while the others do: idle, or lost in work of its own."""
    others = [one for one in shown if one.state in (RankState.IDLE, RankState.WORKS)]
    waiting = sum(one.state is RankState.WAITS for one in shown)
    if not others or waiting < len(shown) / 2 or len(others) > max(1, len(shown) // 4):
        return None
    culprit = min(others, key=lambda one: one.state is not RankState.IDLE)
    does = "is idle" if culprit.state is RankState.IDLE else "works on"
    return _named(culprit, 1.0, f"{does} while {waiting} of {len(shown)} GPUs spin in a collective")


def _by_steps(seen: Sequence[Seen]) -> tuple[Mapping[int, float], str]:
    told = {at: one.step_seconds for at, one in enumerate(seen) if one.step_seconds is not None}
    if len(told) < 2:
        return {}, ""
    quick = quantiles(told.values(), n=4, method="inclusive")[0]
    scores = {at: value / quick - 1 for at, value in told.items()} if quick > 0 else {}
    return scores, "computes {:.0%} longer than the others at each step"


def _by_gpus(seen: Sequence[Seen]) -> tuple[Mapping[int, float], str]:
    """GPUs in step do the same work; one that is busier than the others never waits for anybody."""
    told = {at: one.sm_active for at, one in enumerate(seen) if one.sm_active is not None}
    if len(told) < LEAST_GANG:
        return {}, ""
    middle = median(told.values())
    scatter = median(abs(value - middle) for value in told.values())
    if middle < SPINS_SM:
        return {}, ""
    scores = {at: value / middle - 1 for at, value in told.items()}
    limit = max(SLOW_SHARE, SCATTERS * scatter / middle)
    return {at: score if score > limit else min(score, SLOW_SHARE) for at, score in scores.items()}, (
        "keeps its SMs busy {:.0%} longer than the others, which wait for it"
    )


def _scored(one: Rank, score: float | None) -> Rank:
    is_slow = score is not None and score > SLOW_SHARE
    return replace(one, score=score, state=RankState.SLOW if is_slow else one.state)


def _named(one: Rank, score: float, why: str) -> Straggler:
    return Straggler(one.rank, one.node, one.gpu, one.uuid, score, why)
