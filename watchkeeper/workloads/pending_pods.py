"""Read pods that wait for GPUs from kube-state-metrics, for hubs without access to the API server.

`board` lists them as pending jobs, and `web.fleet.explain_api` as parts of a job. Pods that a scheduler also reports
are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from watchkeeper.model import workloads
from watchkeeper.model.labels import Labels

# packs/rules/platform.yaml
QUERY = "watchkeeper:pending_gpu_pods:requests"


def read_pending_pods(
    requests: Mapping[Labels, float], scheduled: Iterable[workloads.ScheduledWorkload]
) -> list[workloads.ScheduledWorkload]:
    names = {(part.cluster, part.workload.namespace, part.workload.name) for part in scheduled}
    return [
        workloads.ScheduledWorkload(
            cluster,
            workloads.Workload(workloads.WorkloadKind.POD, pod, namespace),
            workloads.WorkloadState.PENDING,
            round(gpus),
        )
        for labels, gpus in requests.items()
        for cluster, namespace, pod in [(labels.get("cluster", ""), labels.get("namespace", ""), labels.get("pod", ""))]
        if pod and math.isfinite(gpus) and gpus >= 1 and (cluster, namespace, pod) not in names
    ]
