"""Watch a Kubernetes API server: nodes, pods, quotas, jobs, resource claims and warning events.

Each kind has its own `kubernetes_resource.ResourceWatch`. A kind that cannot be read keeps its last objects, and
`problems` says since when and why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime
from typing import Any, TypeVar

from watchkeeper.clusters.kubernetes import kubernetes_resource
from watchkeeper.clusters.kubernetes.kubernetes_resource import ResourceKind, ResourceWatch, key_of
from watchkeeper.kit import clock, own_metrics
from watchkeeper.readers import json_facts
from watchkeeper.readers.clusters import kubernetes_objects as objects
from watchkeeper.readers.clusters.kubeconfig import ApiServer

T = TypeVar("T")

Selectors = tuple[tuple[str, str], ...]
"""Pairs of label name and value; pods with one of these labels are scraped."""

# Dynamic resources are stable since Kubernetes 1.34.
CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"
MAX_WARNINGS = 2_000


class KubernetesWatch:
    """The objects of one cluster. `targets` select the pods to scrape."""

    def __init__(
        self,
        server: ApiServer,
        *,
        cluster: str,
        time: clock.Clock,
        metrics: own_metrics.Registry,
        targets: Selectors = (),
    ) -> None:
        self.cluster = cluster
        self.server = server
        watch_metrics = kubernetes_resource.WatchMetrics.declare(metrics)

        def watch(kind: ResourceKind[T]) -> ResourceWatch[T]:
            return ResourceWatch(kind, server, time=time, metrics=watch_metrics)

        self._nodes = watch(ResourceKind("nodes", "/api/v1/nodes", objects.read_node, key_of))
        self._pods = watch(_pods(targets))
        self._quotas = watch(ResourceKind("resourcequotas", "/api/v1/resourcequotas", objects.read_quota, key_of))
        self._jobs = watch(
            ResourceKind("jobs", "/apis/batch/v1/jobs", objects.read_job, key_of, is_kept=objects.is_job_unfinished)
        )
        self._claims = watch(ResourceKind("resourceclaims", CLAIMS, objects.read_claim, key_of, may_be_absent=True))
        self._warnings = watch(
            ResourceKind(
                "events",
                "/api/v1/events",
                objects.read_warning,
                _warning_key,
                fields="type=Warning",
                limit=MAX_WARNINGS,
                drops_oldest=True,
                idle_seconds=kubernetes_resource.WATCH_SECONDS + 30.0,
            )
        )

    @property
    def _required(self) -> tuple[ResourceWatch[Any], ...]:
        """The kinds without which there is no view; the others only add to it."""
        return self._nodes, self._pods

    @property
    def kinds(self) -> tuple[ResourceWatch[Any], ...]:
        return (*self._required, self._quotas, self._jobs, self._claims, self._warnings)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for kind in self.kinds:
                group.create_task(kind.run())

    @property
    def is_synced(self) -> bool:
        """Whether complete lists of nodes and pods have been read."""
        return all(kind.is_synced for kind in self._required)

    @property
    def synced_at(self) -> datetime | None:
        """The latest time at which nodes and pods were current; None before the first lists."""
        sync_times = [kind.synced_at for kind in self._required]
        return None if None in sync_times else min(at for at in sync_times if at is not None)

    @property
    def revision(self) -> int:
        """A number that increases with each change."""
        return sum(kind.revision for kind in self.kinds)

    def problems(self) -> Iterator[str]:
        """One sentence per reason: which kinds cannot be read, since when, and whether their last objects are kept."""
        names_by_reason: dict[tuple[str, str, bool], list[str]] = {}
        for kind in self.kinds:
            if len(kind.items) >= kind.kind.limit and not kind.kind.drops_oldest:
                yield f"{kind.kind.name}: the limit of {kind.kind.limit} is reached, more are dropped"
            if kind.problem and kind.problem_since is not None:
                reason = (f"{kind.problem_since:%H:%M} UTC", kind.problem, kind.is_synced)
                names_by_reason.setdefault(reason, []).append(kind.kind.name)
        for (since, problem, is_synced), names in names_by_reason.items():
            consequence = "The last objects are kept" if is_synced else "None have been read yet"
            yield f"{', '.join(names)} since {since}: {problem}. {consequence}"

    def nodes(self) -> list[objects.KubernetesNode]:
        return list(self._nodes.items.values())

    def pods(self) -> list[objects.KubernetesPod]:
        return list(self._pods.items.values())

    def quotas(self) -> list[objects.Quota]:
        return list(self._quotas.items.values())

    def jobs(self) -> list[objects.KubernetesJob]:
        return list(self._jobs.items.values())

    def gpus_of(self, pod: objects.KubernetesPod) -> int:
        """The GPUs that a pod requests, by its resources and its resource claims."""
        claims = (self._claims.items.get((pod.namespace, name)) for name in pod.claims)
        return pod.gpus + sum(claim.gpus for claim in claims if claim is not None and claim.pod in ("", pod.name))

    def warning(self, kind: str, namespace: str, name: str) -> objects.WarningEvent | None:
        """The last warning event about an object, if it is still among the newest."""
        return self._warnings.items.get((kind, namespace, name))


def _pods(targets: Selectors) -> ResourceKind[objects.KubernetesPod]:
    def read(raw: Any) -> objects.KubernetesPod:
        labels = json_facts.mapping(json_facts.mapping(raw, "metadata"), "labels")
        return objects.read_pod(raw, is_target=any(labels.get(name) == value for name, value in targets))

    # Ended pods hold no GPU, and a busy cluster has thousands of them.
    return ResourceKind("pods", "/api/v1/pods", read, key_of, fields="status.phase!=Succeeded,status.phase!=Failed")


def _warning_key(raw: Any) -> tuple[str, ...]:
    subject = json_facts.mapping(raw, "involvedObject")
    return json_facts.text(subject, "kind"), json_facts.text(subject, "namespace"), json_facts.require_name(subject)
