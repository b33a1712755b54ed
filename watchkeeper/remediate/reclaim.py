"""Check whether allocated GPUs are idle, and which workloads are exempt from reclaiming.

Rules find idle GPUs (packs/rules/usage.yaml); a plan with `warn_owner` and `reclaim` reclaims them, with the same
modes, guards and journal as a repair. `IdleCheck` runs repeatedly while the owner has time, and again before the
reclaim: any kernel since the warning, on any GPU of the workload, ends it.
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
from watchkeeper.remediate.proposal import named_workloads
from watchkeeper.remediate.trust_rules import ModeDecision
from watchkeeper.remediate.validation import CheckResult, CheckState

SM_ACTIVE, UTILISATION = "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_DEV_GPU_UTIL"
# As in the rules: a real workload uses at least 1 % of the SMs, and its utilisation is not 0.
IDLE_SM_SHARE, IDLE_PERCENT = 0.01, 1.0
# A rank that waits in a collective for a lost rank spins: high utilisation, almost no SM activity.
SPINNING_SM_SHARE, SPINNING_PERCENT = 0.2, 90.0
# Long enough for several samples of an exporter with the default interval of 30 s.
MIN_WINDOW = timedelta(minutes=2)
CHECK_NAME = "idle"
TEAM_PREFIX = "team="

Gpu = tuple[str, str]


@dataclass(frozen=True, slots=True)
class IdleCheck:
    """Reads the samples of all GPUs that are allocated to the workloads of an action."""

    engine: engines.Engine

    def check(self, action: actions.Action, since: datetime, now: datetime) -> CheckResult:
        """Pass if all were idle since `since`, fail if one is in use; unknown without samples."""
        window = max(MIN_WINDOW, now - since)
        names = sorted(named_workloads((action,)))
        try:
            results = [self._check_workload(name, action.place.cluster, window=window, now=now) for name in names]
        except WatchkeeperError as error:
            return CheckResult(CHECK_NAME, CheckState.UNKNOWN, f"the idle check failed to run: {error}")
        conclusive = [result for result in results if result.state is not CheckState.UNKNOWN]
        if not conclusive:
            text = f"no samples of the GPUs of {', '.join(names) or 'any workload'}"
            return CheckResult(CHECK_NAME, CheckState.UNKNOWN, text)
        return next((result for result in conclusive if result.state is CheckState.FAILED), conclusive[0])

    def _check_workload(self, workload: str, cluster: str, *, window: timedelta, now: datetime) -> CheckResult:
        seconds = max(1, round(window.total_seconds()))
        queries = (_holder_query(name, workload, cluster, seconds=seconds) for name in (SM_ACTIVE, UTILISATION))
        active, busy = (self._query_by_gpu(f"max by (Hostname, UUID) ({query})", now) for query in queries)
        gpus = {*active, *busy}
        if not gpus:
            return CheckResult(CHECK_NAME, CheckState.UNKNOWN, f"no samples of the GPUs of {workload}")
        idle = [gpu for gpu in gpus if _is_idle(active.get(gpu), busy.get(gpu))]
        working = [gpu for gpu in gpus if gpu not in idle and not _is_spinning(active.get(gpu), busy.get(gpu))]
        summary = f"{workload}: {len(idle)} of {len(gpus)} GPUs idle for {window.total_seconds() / 60:.0f} min"
        if working or not idle:
            return CheckResult(CHECK_NAME, CheckState.FAILED, f"{summary}, {len(gpus) - len(idle)} in use")
        waiting = f", {len(gpus) - len(idle)} spinning" if len(idle) < len(gpus) else ""
        return CheckResult(CHECK_NAME, CheckState.PASSED, summary + waiting)

    def _query_by_gpu(self, expr: str, now: datetime) -> Mapping[Gpu, float]:
        rows = self.engine.instant(expr, clock.to_ms(now)).latest().items()
        return {(labels.get("Hostname", ""), labels.get("UUID", "")): value for labels, value in rows}


def _is_idle(active: float | None, busy: float | None) -> bool:
    """Whether every metric that has samples reads idle: broken profiling reads 0 on a GPU in use."""
    return (active is None or active < IDLE_SM_SHARE) and (busy is None or busy < IDLE_PERCENT)


def _is_spinning(active: float | None, busy: float | None) -> bool:
    return active is not None and busy is not None and active < SPINNING_SM_SHARE and busy > SPINNING_PERCENT


def _holder_query(metric: str, workload: str, cluster: str, *, seconds: int) -> str:
    """Return the query for a metric of the GPUs of a pod or Slurm job, for each label that exporters use for it."""
    namespace, _, name = workload.rpartition("/")
    selectors = []
    for namespace_label, name_label in fleet.HOLDER_LABELS:
        if bool(namespace_label) == bool(namespace):
            matchers = {"cluster": cluster, name_label: name}
            matchers |= {namespace_label: namespace} if namespace_label else {}
            selectors.append(",".join(f'{key}="{own_metrics.escape(value)}"' for key, value in matchers.items()))
    return " or ".join(f"max_over_time({metric}{{{selector}}}[{seconds}s])" for selector in selectors)


@dataclass(frozen=True, slots=True)
class Exemptions:
    """The patterns of `remediate.reclaim_exempt`: `research/*` by workload name, `team=infra` by team."""

    patterns: Sequence[str] = ()
    team_of: Callable[[str], str] = lambda _: ""

    def exemption_reason(self, workloads: Iterable[str]) -> str | None:
        for name in sorted(workloads):
            for pattern in self.patterns:
                is_team = pattern.startswith(TEAM_PREFIX)
                if self.team_of(name) == pattern.removeprefix(TEAM_PREFIX) if is_team else fnmatchcase(name, pattern):
                    return f"{name} is exempt from reclaiming: remediate.reclaim_exempt has `{pattern}`"
        return None

    def limit_mode(self, mode_decision: ModeDecision, steps: Iterable[actions.Action]) -> ModeDecision:
        """Lower the mode to observe if a step reclaims from an exempt workload."""
        reclaim_steps = [step for step in steps if step.kind is actions.ActionKind.RECLAIM]
        why = self.exemption_reason(named_workloads(reclaim_steps))
        return mode_decision if why is None else ModeDecision(trust.Mode.OBSERVE, why)
