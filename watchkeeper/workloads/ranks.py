"""Compare the ranks of a job: which wait, work, are slow, idle or missing, and which rank the others wait for.

Synchronous ranks finish each step together, so a slow rank shows only in how long it computes before it waits. If ranks
do not export that, their GPUs show it: one that waits in a collective spins in one small kernel (utilisation 100 %, SMs
almost idle, or low power), so the others wait for the one that does not spin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, quantiles

from watchkeeper.model import jobs
from watchkeeper.model.jobs import WAIT_PERCENT, WAIT_SM, GpuActivity, Rank, RankState, Straggler

# As in packs/rules/training.yaml: so much slower than the fastest quarter.
SLOW_SHARE = 0.07
# Means of minutes of healthy synchronous GPUs scatter by one or two hundredths; four times that is significant.
SCATTER_FACTOR = 4.0
MIN_GANG_SIZE = 3
SLOW_STEP_TEXT = "computes {:.0%} longer than the others at each step"
BUSY_SMS_TEXT = "keeps its SMs busy {:.0%} longer than the others, which wait for it"
LATE_WORK_TEXT = "is idle while the others wait for it, which makes each step {:.0%} longer"


@dataclass(frozen=True, slots=True)
class RankReading:
    """Metrics of one rank, as means of some minutes; `rank` None: the job does not number its GPUs."""

    rank: int | None
    node: str = ""
    gpu: str = ""
    uuid: str = ""
    sm_active: float | None = None
    utilisation_percent: float | None = None
    power_watts: float | None = None
    step_seconds: float | None = None
    is_missing: bool = False
    # Its GPU reported before and has stopped.
    is_silent: bool = False
    limit_watts: float | None = None
    usual_watts: float | None = None
    link_bytes: float | None = None
    # Of its node: the share of busy CPUs, and bytes sent over InfiniBand per second.
    cpu_share: float | None = None
    network_bytes: float | None = None

    @property
    def state(self) -> RankState:
        activity = GpuActivity(
            self.utilisation_percent, self.sm_active, self.power_watts, self.limit_watts, self.usual_watts
        )
        return RankState.MISSING if self.is_missing or self.is_silent else activity.state


def compare_ranks(
    readings: Sequence[RankReading], *, is_synchronous: bool = True, is_stuck: bool = False
) -> tuple[tuple[Rank, ...], Straggler | None]:
    """Return every rank with its state and score, and the one that the others wait for.

    Replicas of a service are not synchronous: they do not wait for each other. `is_stuck`: an alert fires for the job,
    so that a rank that works alone, which is normal for a moment, is named.
    """
    compared = [_make_rank(reading) for reading in readings]
    if not is_synchronous or len(compared) < 2:
        return tuple(compared), None
    missing = _find_missing(readings)
    if missing is not None:
        return tuple(compared), missing
    culprit = _find_not_spinning(compared)
    if culprit is None and is_stuck:
        culprit = _find_only_active(compared) or _find_outlier_node(readings)
    if culprit is not None:
        return tuple(compared), _add_cpu_reason(culprit, readings)
    has_steps = any(reading.step_seconds is not None for reading in readings)
    scores, text = _score_by_steps(readings) if has_steps else _score_by_gpus(readings)
    ranked = [replace(rank, score=scores.get(at)) for at, rank in enumerate(compared)]
    slow = [rank for rank in ranked if rank.score is not None and rank.score > SLOW_SHARE]
    # If more than a quarter is slow, it is a part of the model, such as a pipeline stage.
    is_part = len(slow) > max(1, len(ranked) // 4)
    state = RankState.WORKS if is_part else RankState.SLOW
    ranked = [replace(rank, state=state) if rank in slow else rank for rank in ranked]
    if not slow or is_part:
        return tuple(ranked), None
    slowest = max(slow, key=lambda rank: rank.score or 0.0)
    straggler = _make_straggler(slowest, slowest.score or 0.0, text.format(slowest.score or 0.0))
    return tuple(ranked), _add_cpu_reason(straggler, readings)


def group_state(compared: Sequence[Rank]) -> str:
    """Return `hung` if most ranks spin and none works, `idle` if all are idle, else empty."""
    measured = [rank for rank in compared if rank.state is not RankState.UNKNOWN]
    if not measured or any(rank.state in (RankState.WORKS, RankState.SLOW) for rank in measured):
        return ""
    waiting = sum(rank.state is RankState.WAITS for rank in measured)
    return "hung" if len(measured) > 1 and waiting > len(measured) / 2 else "idle" if not waiting else ""


def _make_rank(reading: RankReading) -> Rank:
    return Rank(
        reading.rank, reading.node, reading.gpu, reading.uuid, reading.sm_active, reading.utilisation_percent,
        reading.power_watts, reading.step_seconds, None, reading.state, reading.link_bytes,
    )  # fmt: skip


def _find_missing(readings: Sequence[RankReading]) -> Straggler | None:
    """Return the first missing rank, with the number of others; None if all are missing, because no rank waits."""
    missing = [reading for reading in readings if reading.state is RankState.MISSING]
    if not missing or len(missing) == len(readings):
        return None
    first = min(missing, key=lambda reading: (reading.rank is None, reading.rank or 0, reading.node, reading.gpu))
    symptom = "stopped exporting metrics" if first.is_missing else "has a GPU that stopped reporting"
    place = "" if {reading.node for reading in missing} - {first.node} else " of its node"
    more = f" (and {len(missing) - 1} more{place})" if len(missing) > 1 else ""
    why = f"{symptom}{more}, and the others wait"
    return Straggler(first.rank, first.node, first.gpu, first.uuid, None, why, is_gone=True)


def _find_not_spinning(compared: Sequence[Rank]) -> Straggler | None:
    """Return the rank that does not spin while the others do: it is idle, or still computes."""
    others = [rank for rank in compared if rank.state in (RankState.IDLE, RankState.WORKS)]
    waiting = sum(rank.state is RankState.WAITS for rank in compared)
    if not others or waiting < len(compared) / 2 or len(others) > max(1, len(compared) // 4):
        return None
    culprit = min(others, key=lambda rank: rank.state is not RankState.IDLE)
    activity = "is idle" if culprit.state is RankState.IDLE else "still computes"
    return _make_straggler(culprit, None, f"{activity} while {waiting} of {len(compared)} GPUs spin in a collective")


def _find_only_active(compared: Sequence[Rank]) -> Straggler | None:
    """Return the only active rank while all others are idle: they wait for it without a kernel, as in a barrier."""
    active = [rank for rank in compared if rank.state in (RankState.WAITS, RankState.WORKS)]
    idle = sum(rank.state is RankState.IDLE for rank in compared)
    if len(active) != 1 or idle < max(MIN_GANG_SIZE - 1, len(compared) - 1):
        return None
    activity = "still computes" if active[0].state is RankState.WORKS else "waits in a collective"
    return _make_straggler(active[0], None, f"{activity} while {idle} of {len(compared)} GPUs are idle")


def _find_outlier_node(readings: Sequence[RankReading]) -> Straggler | None:
    """Return the node whose CPU use or InfiniBand traffic differs from that of all others."""
    nodes, cpus = {reading.node for reading in readings} - {""}, _cpu_shares(readings)
    sent = {reading.node: reading.network_bytes for reading in readings if reading.network_bytes is not None}
    sent.pop("", None)
    outlier = jobs.find_outlier_node(cpus, min_difference=jobs.OUTLIER_CPU_SHARE) if len(cpus) == len(nodes) else None
    if outlier is not None:
        why = f"keeps {cpus[outlier]:.0%} of its CPUs busy, the others {median(cpus.values()):.0%}"
        return Straggler(None, outlier, "", "", None, why)
    outlier = jobs.find_outlier_node(sent, min_difference=jobs.OUTLIER_LINK_BYTES) if len(sent) == len(nodes) else None
    if outlier is None:
        return None
    typical = median(sent.values()) / 1e6
    why = f"sends {sent[outlier] / 1e6:.0f} MB/s over InfiniBand, the others {typical:.0f} MB/s"
    return Straggler(None, outlier, "", "", None, why)


def _cpu_shares(readings: Sequence[RankReading]) -> dict[str, float]:
    return {reading.node: reading.cpu_share for reading in readings if reading.node and reading.cpu_share is not None}


def _add_cpu_reason(straggler: Straggler, readings: Sequence[RankReading]) -> Straggler:
    """Add the reason if only the CPUs of the straggler's node are busy."""
    cpus = _cpu_shares(readings)
    if not jobs.is_short_of_cpu(straggler.node, cpus):
        return straggler
    others = median(share for node, share in cpus.items() if node != straggler.node)
    cpu_text = f"the CPUs of its node are {cpus[straggler.node]:.0%} busy, those of the others {others:.0%}"
    return replace(straggler, why=f"{straggler.why}: {cpu_text}", is_short_of_cpu=True)


def _score_by_steps(readings: Sequence[RankReading]) -> tuple[Mapping[int, float], str]:
    step_seconds = {at: reading.step_seconds for at, reading in enumerate(readings) if reading.step_seconds is not None}
    if len(step_seconds) < 2:
        return {}, ""
    fast_quartile = quantiles(step_seconds.values(), n=4, method="inclusive")[0]
    scores = {at: value / fast_quartile - 1 for at, value in step_seconds.items()} if fast_quartile > 0 else {}
    return scores, SLOW_STEP_TEXT


def _score_by_gpus(readings: Sequence[RankReading]) -> tuple[Mapping[int, float], str]:
    """Score by GPU activity: synchronous GPUs do the same work, so one that is busier than the others never waits.

    If none is busier, one that is idle while the others spin gets its work late, from its CPUs or its input.
    """
    active = {at: reading.sm_active for at, reading in enumerate(readings) if reading.sm_active is not None}
    if len(active) < MIN_GANG_SIZE or median(active.values()) < WAIT_SM:
        return {}, ""
    scores = _score_above_median(active)
    percents = {at: reading.utilisation_percent for at, reading in enumerate(readings) if reading.utilisation_percent}
    most_spin = len(percents) == len(readings) and median(percents.values()) >= WAIT_PERCENT
    if max(scores.values()) <= SLOW_SHARE and most_spin:
        return _score_above_median({at: 1 / percent for at, percent in percents.items()}), LATE_WORK_TEXT
    return scores, BUSY_SMS_TEXT


def _score_above_median(values_by_index: Mapping[int, float]) -> dict[int, float]:
    """Return by which share each value is above the median; a value within the scatter does not count as slow."""
    typical = median(values_by_index.values())
    scatter = median(abs(value - typical) for value in values_by_index.values())
    limit = max(SLOW_SHARE, SCATTER_FACTOR * scatter / typical)
    scores = {at: value / typical - 1 for at, value in values_by_index.items()}
    return {at: score if score > limit else min(score, SLOW_SHARE) for at, score in scores.items()}


def _make_straggler(rank: Rank, score: float | None, why: str) -> Straggler:
    return Straggler(rank.rank, rank.node, rank.gpu, rank.uuid, score, why)
