"""A training job that does not exist, second by second, under the shipped rules: when is what found?"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from watchkeeper import packs
from watchkeeper.kit import clock
from watchkeeper.model.alerts import AlertState
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query import embedded
from watchkeeper.rules import evaluate, rulefile
from watchkeeper.store.head import head

RULES = Path(packs.__file__).parent / "rules" / "training.yaml"
START = 1_800_000_000
TURN_SECONDS = 15
GROUPS = ("training", "training-ranks", "training-learned")
WORKS, SPINS, IDLES = (98.0, 0.8), (100.0, 0.11), (3.0, 0.02)


@dataclass(frozen=True)
class Pause:
    """Each `every` seconds no step for `seconds`, with GPUs that look like `looks`; rank 0's like `first_looks`."""

    every: int
    seconds: int
    looks: tuple[float, float] = IDLES
    first_looks: tuple[float, float] = IDLES


@dataclass(frozen=True)
class Job:
    """Steps of `step` seconds on some ranks, pauses, a stall from `stalls_at` on; `slow` is a rank's extra share."""

    step: float
    ranks: int = 2
    pauses: tuple[Pause, ...] = ()
    stalls_at: int | None = None
    stall_looks: tuple[float, float] = SPINS
    slow_rank: int | None = None
    slow: float = 0.0
    slow_from: int = 0
    noise: float = 0.03
    says_pauses: bool = False
    has_profiling: bool = True
    name: str = "llm"

    def pause_at(self, second: int) -> Pause | None:
        return next(
            (pause for pause in self.pauses if second >= pause.every and second % pause.every < pause.seconds), None
        )

    def steps(self, until: int) -> Iterator[float]:
        """When each step of a run ends."""
        at = 0.0
        while at <= until:
            end = at + self.step
            last = math.floor(end)
            if self.stalls_at is not None and end >= self.stalls_at:
                return
            if self.pause_at(last) is None:
                yield end
            at = end


@dataclass
class Rehearsal:
    """The rules of training jobs over what some jobs say, in turns of 15 s as a hub has them."""

    jobs: tuple[Job, ...]
    engine: embedded.EmbeddedEngine = field(
        default_factory=lambda: embedded.EmbeddedEngine(head.Head(retention_ms=26 * 3600 * 1000))
    )

    def __post_init__(self) -> None:
        self.groups = [group for group in rulefile.load_rules([RULES]).groups if group.name in GROUPS]
        self.state: evaluate.RuleStates = {}
        self.fired: list[tuple[str, str, int]] = []

    def run(self, seconds: int) -> list[tuple[str, str, int]]:
        """Which alerts of which job began to fire, and at which second of the run."""
        ends = {job.name: list(job.steps(seconds)) for job in self.jobs}
        for second in range(0, seconds + 1, TURN_SECONDS):
            # The page is read some seconds before the rules are run.
            read_at = second - 4
            for job in self.jobs:
                steps = bisect.bisect_right(ends[job.name], read_at)
                if steps:
                    self.engine.appender.append(_page(job, read_at, last=ends[job.name][steps - 1], steps=steps))
            self._evaluate(second)
        return self.fired

    def seconds_after(self, job: Job, alert: str, *, since: int) -> list[int]:
        return [second - since for name, fired, second in self.fired if (name, fired) == (job.name, alert)]

    def _evaluate(self, second: int) -> None:
        now = clock.from_ms((START + second) * 1000)
        for group in self.groups:
            if second % (group.interval_seconds or TURN_SECONDS):
                continue
            for result in evaluate.evaluate_each(group, self.engine, self.state, now=now):
                assert result.state.health is evaluate.RuleHealth.OK, result.state.last_error
                self.engine.appender.append(result.samples)
                self.state = {**self.state, result.key: result.state}
                self.fired += [
                    (change.labels["job_name"], change.labels["alertname"], second)
                    for change in result.changes
                    if change.state is AlertState.FIRING
                ]


def _page(job: Job, second: int, *, last: float, steps: int) -> Iterator[Sample]:
    at_ms, pause = (START + second) * 1000, job.pause_at(second)
    stalled = job.stalls_at is not None and second >= job.stalls_at
    checkpoints = sum(1 for pause in job.pauses for _ in range(pause.every, second, pause.every))
    for rank in range(job.ranks):
        who = {"cluster": "sim", "job_name": job.name, "rank": str(rank)}
        uuid = f"GPU-{job.name}-{rank}"
        looks = WORKS if pause is None else pause.first_looks if rank == 0 else pause.looks
        util, active = job.stall_looks if stalled else looks
        late = job.slow if rank == job.slow_rank and second >= job.slow_from else 0.0
        compute = 0.8 * job.step * (1 + late) * (1 + job.noise * math.sin(rank + steps))
        series = {
            "training_last_step_timestamp_seconds": START + last,
            "training_step_compute_seconds": compute,
            "training_iterations_total": float(steps),
            "training_world_size": float(job.ranks),
            "training_checkpoint_writes_total": float(checkpoints),
        }
        if job.says_pauses:
            series["training_paused"] = float(pause is not None and not stalled)
        # Without profiling fields only watts tell: 120 of a GPU that is awake, and what its SMs draw.
        watts = {"DCGM_FI_DEV_POWER_USAGE": 120 + 600 * active, "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": 700.0}
        gpu = {"DCGM_FI_DEV_GPU_UTIL": util, **({"DCGM_FI_PROF_SM_ACTIVE": active} if job.has_profiling else watts)}
        yield from (Sample(Labels({"__name__": name, **who}), at_ms, value) for name, value in series.items())
        yield Sample(Labels({"__name__": "training_rank_info", **who, "UUID": uuid, "Hostname": "n1"}), at_ms, 1.0)
        place = {"cluster": "sim", "UUID": uuid, "Hostname": "n1"}
        yield from (Sample(Labels({"__name__": name, **place}), at_ms, value) for name, value in gpu.items())
