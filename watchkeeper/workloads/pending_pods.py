"""Pods that wait for GPUs, where only kube-state-metrics tells of them: some hubs ask no API server.

`board` lists them as jobs that wait, and `web/explain_api` counts them to the parts of a job. What a scheduler says
itself is worth more, so a pod that one knows is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from watchkeeper.model import workloads
from watchkeeper.model.labels import Labels

# packs/rules/platform.yaml
QUESTION = "watchkeeper:pending_gpu_pods:requests"


def read_pending_pods(
    told: Mapping[Labels, float], known: Iterable[workloads.ScheduledWorkload]
) -> list[workloads.ScheduledWorkload]:
    names = {(part.cluster, part.workload.namespace, part.workload.name) for part in known}
    return [
        workloads.ScheduledWorkload(
            cluster,
            workloads.Workload(workloads.WorkloadKind.POD, pod, namespace),
            workloads.WorkloadState.PENDING,
            round(gpus),
        )
        for labels, gpus in told.items()
        for cluster, namespace, pod in [(labels.get("cluster", ""), labels.get("namespace", ""), labels.get("pod", ""))]
        if pod and math.isfinite(gpus) and gpus >= 1 and (cluster, namespace, pod) not in names
    ]
