"""The queries of the list of jobs; `board` runs them all for every list.

packs/rules/jobs.yaml and training.yaml record the series by job.
"""

from __future__ import annotations

from collections.abc import Mapping

from watchkeeper.model import clock_reasons
from watchkeeper.query import gpu_errors
from watchkeeper.workloads import identity

# The queries of every list; `usage` and `goodput` cover the last hour.
QUERIES: Mapping[str, str] = {
    "gpus": "watchkeeper:job_gpus:sum",
    "nodes": "watchkeeper:job_nodes:count",
    "recorded_at": "timestamp(watchkeeper:job_nodes:count)",
    # Means of an hour: exchanging gradients for a minute does not mean that the job is bound by it.
    "usage": (
        'avg_over_time(watchkeeper:job_use:ratio{of!="memory"}[1h]) or watchkeeper:job_use:ratio{of="memory"}'
    ),
    "throttle_reasons": f"{gpu_errors.CLOCK_REASONS} >= {clock_reasons.SW_THERMAL}",
    "idle": "watchkeeper:job_idle:seconds",
    # The series of a job whose processes are gone have ended.
    "training_names": (
        "watchkeeper:job_training:group or on (cluster, workload_kind, namespace, job_name) "
        "last_over_time(watchkeeper:job_training:group[30m])"
    ),
    # The rule ran some seconds ago.
    "step_ages": (
        "watchkeeper:training_last_step_age:seconds + time() - timestamp(watchkeeper:training_last_step_age:seconds)"
    ),
    # Seconds since the last step of a job whose ranks have stopped reporting it.
    "ended_steps": (
        "time() - max_over_time((timestamp(watchkeeper:training_last_step_age:seconds) "
        "- watchkeeper:training_last_step_age:seconds)[30m:15s]) unless watchkeeper:training_last_step_age:seconds"
    ),
    "world_sizes": "max by (cluster, job_name) (training_world_size)",
    "training_nodes": (
        "count by (cluster, job_name) (group by (cluster, job_name, Hostname) (training_rank_info))"
    ),
    "goodput": "avg_over_time(watchkeeper:training_productive:ratio[1h])",
    "step_seconds": "watchkeeper:training_step:seconds",
    "paused": "max by (cluster, job_name) (training_paused) == 1",
    "input_waits": "max by (cluster, job_name) (rate(training_data_wait_seconds_total[5m]))",
    "slow_ranks": (
        "watchkeeper:training_rank_slow:ratio * on (cluster, job_name, rank) group_left (Hostname, gpu, UUID) "
        "max by (cluster, job_name, rank, Hostname, gpu, UUID) (training_rank_info)"
        " or watchkeeper:training_rank_slow:ratio"
        " or avg_over_time(watchkeeper:job_gpu_busier:ratio[15m]) > 0.1"
    ),
    "pending": identity.PENDING_PODS_QUERY,
    "alerts": 'ALERTS{alertstate="firing",job_name!=""}',
    "alert_starts": 'ALERTS_FOR_STATE{job_name!=""}',
    "silent_gpus": (
        "sum by (cluster, workload_kind, namespace, job_name) (watchkeeper:job_gpu:share "
        'unless on (cluster, UUID) {__name__=~"DCGM_FI_DEV_GPU_(TEMP|UTIL)"})'
    ),
}  # fmt: skip
# The jobs of the few GPUs that are throttled.
THROTTLED_QUERY = 'count by (cluster, workload_kind, namespace, job_name) (watchkeeper:job_gpu:share{{UUID=~"{}"}})'
# When a job was first recorded: hours of a week, and minutes of the newest hour. Callers cache the result.
FIRST_SEEN_QUERIES = (
    "min_over_time(timestamp(watchkeeper:job_nodes:count)[7d:1h])",
    "min_over_time(timestamp(watchkeeper:job_nodes:count)[1h:1m])",
)
