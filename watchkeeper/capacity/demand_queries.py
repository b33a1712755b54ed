"""What a hub's own samples say about demand: the PromQL behind a forecast and behind capacity now.

Schedulers know best who holds and who waits (`collect/cluster_series`); where none is watched, exporters' labels count
the GPUs that belong to someone (packs/rules/usage.yaml), and nobody is known to wait. `web/capacity_api` asks.
"""

from __future__ import annotations

import re

from watchkeeper.errors import QueryError

ABOUT = ("demand", "allocated", "queued", "used")
CLUSTER_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}")


def demand_expression(about: str, *, cluster: str | None = None) -> str:
    """PromQL of one number: GPUs asked for (held and waiting), held, waiting, or worth of work."""
    only = _only(cluster)
    state = f'{{{only}{"," if only else ""}state="allocated"}}'
    allocated = f"(sum(watchkeeper_scheduler_gpus{state}) or sum(watchkeeper:gpus_allocated:count{{{only}}}))"
    # Nobody waits where somebody is known to hold and no series of waiting exists; without either nothing is known.
    queued = f"(sum(watchkeeper_pending_gpus{{{only}}}) or 0 * {allocated})"
    used = f"sum(watchkeeper:gpu_sm_active:avg{{{only}}} * on (cluster) watchkeeper:gpus_reporting:count{{{only}}})"
    return {"demand": f"{allocated} + {queued}", "allocated": allocated, "queued": queued, "used": used}[about]


def capacity_expression(*, cluster: str | None = None) -> str:
    """GPUs that new work could have or already has."""
    only = _only(cluster)
    state = f'{{{only}{"," if only else ""}state="in_service"}}'
    return f"sum(watchkeeper_scheduler_gpus{state}) or sum(watchkeeper:gpus_reporting:count{{{only}}})"


def step_mean(expr: str, *, step: str, inner: str) -> str:
    """The mean of each step rather than the moment at its end."""
    return f"avg_over_time(({expr})[{step}:{inner}])"


def activity_expressions(window: str, *, cluster: str | None = None) -> dict[str, str]:
    """What each held GPU did over a window: mean and p95 of SM activity, and the most memory held."""
    only = _only(cluster)
    active = f"DCGM_FI_PROF_SM_ACTIVE{{{only}}}"
    return {
        "mean": f"avg_over_time({active}[{window}])",
        "p95": f"quantile_over_time(0.95, {active}[{window}])",
        "memory": f"max_over_time(DCGM_FI_DEV_FB_USED{{{only}}}[{window}])",
        "free_memory": f"DCGM_FI_DEV_FB_FREE{{{only}}} + DCGM_FI_DEV_FB_USED{{{only}}}",
    }


def held_minutes_expression(window: str, *, cluster: str | None = None) -> str:
    """Minutes of a window in which each workload held each GPU or slice, as packs/rules/usage-hours.yaml saw them."""
    held = f"count_over_time(watchkeeper:gpu_holder:group{{{_only(cluster)}}}[{window}])"
    return f"sum by (cluster, UUID, GPU_I_ID, namespace, workload) ({held})"


def _only(cluster: str | None) -> str:
    if cluster is None:
        return ""
    if CLUSTER_NAME.fullmatch(cluster) is None:
        raise QueryError(f"`{cluster[:40]}` is not the name of a cluster")
    return f'cluster="{cluster}"'
