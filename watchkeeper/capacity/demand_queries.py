"""Build the PromQL for demand forecasts and for the current capacity.

Series of schedulers are preferred, because they count allocated GPUs and pending requests. Without them, labels of
exporters count the allocated GPUs (packs/rules/usage.yaml), and pending requests count as 0.
"""

from __future__ import annotations

import re

from watchkeeper.errors import QueryError

DEMAND_KINDS = ("demand", "allocated", "queued", "used")
CLUSTER_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}")


def demand_expression(kind: str, *, cluster: str | None = None) -> str:
    matcher = _cluster_matcher(cluster)
    selector = f'{{{matcher}{"," if matcher else ""}state="allocated"}}'
    allocated = f"(sum(watchkeeper_scheduler_gpus{selector}) or sum(watchkeeper:gpus_allocated:count{{{matcher}}}))"
    # Without a series of pending GPUs, pending is 0 if allocated GPUs are known, and unknown otherwise.
    queued = f"(sum(watchkeeper_pending_gpus{{{matcher}}}) or 0 * {allocated})"
    reporting = f"watchkeeper:gpus_reporting:count{{{matcher}}}"
    used = f"sum(watchkeeper:gpu_sm_active:avg{{{matcher}}} * on (cluster) {reporting})"
    return {"demand": f"{allocated} + {queued}", "allocated": allocated, "queued": queued, "used": used}[kind]


def capacity_expression(*, cluster: str | None = None) -> str:
    matcher = _cluster_matcher(cluster)
    selector = f'{{{matcher}{"," if matcher else ""}state="in_service"}}'
    return f"sum(watchkeeper_scheduler_gpus{selector}) or sum(watchkeeper:gpus_reporting:count{{{matcher}}})"


def step_mean(expr: str, *, step: str, inner: str) -> str:
    """Return the PromQL for the mean of each step, instead of the value at its end."""
    return f"avg_over_time(({expr})[{step}:{inner}])"


def activity_expressions(window: str, *, cluster: str | None = None) -> dict[str, str]:
    matcher = _cluster_matcher(cluster)
    active = f"DCGM_FI_PROF_SM_ACTIVE{{{matcher}}}"
    return {
        "mean": f"avg_over_time({active}[{window}])",
        "p95": f"quantile_over_time(0.95, {active}[{window}])",
        "memory": f"max_over_time(DCGM_FI_DEV_FB_USED{{{matcher}}}[{window}])",
        "free_memory": f"DCGM_FI_DEV_FB_FREE{{{matcher}}} + DCGM_FI_DEV_FB_USED{{{matcher}}}",
    }


def held_minutes_expression(window: str, *, cluster: str | None = None) -> str:
    samples = f"count_over_time(watchkeeper:gpu_holder:group{{{_cluster_matcher(cluster)}}}[{window}])"
    return f"sum by (cluster, UUID, GPU_I_ID, namespace, workload) ({samples})"


def _cluster_matcher(cluster: str | None) -> str:
    if cluster is None:
        return ""
    if CLUSTER_NAME.fullmatch(cluster) is None:
        raise QueryError(f"`{cluster[:40]}` is not a valid cluster name")
    return f'cluster="{cluster}"'
