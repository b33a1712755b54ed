"""GPUs that are held and not used: whether they are idle at this moment, and who may keep them whatever they do.

Rules find them (packs/rules/usage.yaml), a plan of `warn_owner` and `reclaim` takes them back, through the same ladder,
guards and journal as a repair. `Idleness` is asked again and again while the owner's time runs, and once more before
anything is taken: one kernel since the warning, on any GPU of the workload, and everything is kept. `rung` is where
`remediate.reclaim_exempt` is heard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase

from watchkeeper.errors import WatchkeeperError
from watchkeeper.kit import clock, own_metrics
from watchkeeper.model import actions, fleet, trust
from watchkeeper.query import engine as engines
from watchkeeper.remediate.ladder import ModeDecision
from watchkeeper.remediate.proposal import workloads_of
from watchkeeper.remediate.validation import CheckResult, CheckState

SM_ACTIVE, UTILISATION = "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_DEV_GPU_UTIL"
# As the rules have it: below one part in a hundred no kernel of a real workload runs, and utilisation reads 0.
IDLE_SM_SHARE, IDLE_PERCENT = 0.01, 1.0
# A rank that waits in a collective for one that is gone spins: any time counts as used, and next to no SM.
SPINNING_SM_SHARE, SPINNING_PERCENT = 0.2, 90.0
# An exporter that samples every 30 s, the default, has spoken several times in it.
SHORTEST_WINDOW = timedelta(minutes=2)
CHECK = "idle"
TEAM = "team="

Gpu = tuple[str, str]


@dataclass(frozen=True, slots=True)
class IdleCheck:
    """Asks the samples of every GPU that the workloads of an action hold."""

    engine: engines.Engine

    def check(self, action: actions.Action, since: datetime, now: datetime) -> CheckResult:
        """`passed` where nothing was done since then; `failed` where somebody works again; unknown is not idle."""
        window = max(SHORTEST_WINDOW, now - since)
        named = sorted(workloads_of((action,)))
        try:
            verdicts = [self._of(name, action.place.cluster, window=window, now=now) for name in named]
        except WatchkeeperError as error:
            return CheckResult(CHECK, CheckState.UNKNOWN, f"could not be asked: {error}")
        known = [one for one in verdicts if one.state is not CheckState.UNKNOWN]
        if not known:
            return CheckResult(CHECK, CheckState.UNKNOWN, f"no samples of the GPUs of {', '.join(named) or 'nobody'}")
        return next((one for one in known if one.state is CheckState.FAILED), known[0])

    def _of(self, workload: str, cluster: str, *, window: timedelta, now: datetime) -> CheckResult:
        seconds = max(1, round(window.total_seconds()))
        active, busy = (
            self._most(f"max by (Hostname, UUID) ({_held(name, workload, cluster, seconds=seconds)})", now)
            for name in (SM_ACTIVE, UTILISATION)
        )
        gpus = {*active, *busy}
        if not gpus:
            return CheckResult(CHECK, CheckState.UNKNOWN, f"no samples of the GPUs of {workload}")
        still = [gpu for gpu in gpus if _is_idle(active.get(gpu), busy.get(gpu))]
        at_work = [gpu for gpu in gpus if gpu not in still and not _spins(active.get(gpu), busy.get(gpu))]
        about = f"{workload}: {len(still)} of its {len(gpus)} GPUs did nothing for {_words(window)}"
        if at_work or not still:
            return CheckResult(CHECK, CheckState.FAILED, f"{about}, the others are at work")
        spins = f", and {len(gpus) - len(still)} wait for them" if len(still) < len(gpus) else ""
        return CheckResult(CHECK, CheckState.PASSED, about + spins)

    def _most(self, expr: str, now: datetime) -> Mapping[Gpu, float]:
        answer = self.engine.instant(expr, clock.to_ms(now))
        return {
            (labels.get("Hostname", ""), labels.get("UUID", "")): value for labels, value in answer.latest().items()
        }


def _is_idle(active: float | None, busy: float | None) -> bool:
    """Both say so where both speak: profiling that broke reads 0 on a GPU at work."""
    return (active is None or active < IDLE_SM_SHARE) and (busy is None or busy < IDLE_PERCENT)


def _spins(active: float | None, busy: float | None) -> bool:
    return active is not None and busy is not None and active < SPINNING_SM_SHARE and busy > SPINNING_PERCENT


def _held(series: str, workload: str, cluster: str, *, seconds: int) -> str:
    """A series of the GPUs that a pod or a Slurm job holds, under each of the labels that exporters name it by."""
    space, _, name = workload.rpartition("/")
    selectors = []
    for of_space, of_name in fleet.HOLDER_LABELS:
        if bool(of_space) == bool(space):
            where = {"cluster": cluster, of_name: name} | ({of_space: space} if of_space else {})
            selectors.append(",".join(f'{key}="{own_metrics.escape(value)}"' for key, value in where.items()))
    return " or ".join(f"max_over_time({series}{{{selector}}}[{seconds}s])" for selector in selectors)


def _words(span: timedelta) -> str:
    return f"{span.total_seconds() / 60:.0f} min"


@dataclass(frozen=True, slots=True)
class Exemptions:
    """`research/*` fits workloads by name, `team=infra` those of a team."""

    patterns: Sequence[str] = ()
    team: Callable[[str], str] = lambda _: ""

    def exemption_reason(self, workloads: Iterable[str]) -> str | None:
        """Which workload may keep its GPU, and by which pattern; None: none of them."""
        for name in sorted(workloads):
            for pattern in self.patterns:
                if pattern.startswith(TEAM):
                    is_exempt = self.team(name) == pattern.removeprefix(TEAM)
                else:
                    is_exempt = fnmatchcase(name, pattern)
                if is_exempt:
                    return f"{name} may keep its GPUs: remediate.reclaim_exempt has `{pattern}`"
        return None

    def limit_mode(self, rung: ModeDecision, steps: Iterable[actions.Action]) -> ModeDecision:
        """How far one may go for such a plan: not at all where it is about somebody who is exempt."""
        named = [step for step in steps if step.kind is actions.ActionKind.RECLAIM]
        why = self.exemption_reason(workloads_of(named))
        return rung if why is None else ModeDecision(trust.Mode.OBSERVE, why)
