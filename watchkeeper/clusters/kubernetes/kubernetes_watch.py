"""Watching a Kubernetes API server: nodes, pods, quotas, jobs, claims and warnings, kept up to date by their changes.

Each kind is a `kubernetes_kind.Watched` of its own. The hub runs `KubernetesWatch.run` beside its loops;
`kubernetes_view`, `kubernetes_series` and `kubernetes_discovery` read what is kept. A kind that cannot be read keeps
what it had, and says since when and why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime
from typing import Any, TypeVar

from watchkeeper.clusters.kubernetes.kubernetes_resource import (
    WATCH_SECONDS,
    ResourceKind,
    ResourceWatch,
    WatchMetrics,
    key_of,
)
from watchkeeper.kit import clock, own_metrics
from watchkeeper.readers import json_facts
from watchkeeper.readers.clusters import kubernetes_objects as objects
from watchkeeper.readers.clusters.kubeconfig import ApiServer

T = TypeVar("T")

Selectors = tuple[tuple[str, str], ...]
"""Label names with the value they must have; pods with one of them are read by the scraper."""

# Dynamic resources are stable since Kubernetes 1.34.
CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"
MAX_WARNINGS = 2_000


class KubernetesWatch:
    """One cluster's API server, watched. `targets` select the pods whose address is wanted."""

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
        counted = WatchMetrics.declare(metrics)

        def watched(kind: ResourceKind[T]) -> ResourceWatch[T]:
            return ResourceWatch(kind, server, time=time, metrics=counted)

        self._nodes = watched(ResourceKind("nodes", "/api/v1/nodes", objects.read_node, key_of))
        self._pods = watched(_pods(targets))
        self._quotas = watched(ResourceKind("resourcequotas", "/api/v1/resourcequotas", objects.read_quota, key_of))
        self._jobs = watched(ResourceKind("jobs", "/apis/batch/v1/jobs", objects.read_job, key_of, keeps=_is_open))
        self._claims = watched(ResourceKind("resourceclaims", CLAIMS, objects.read_claim, key_of, may_be_absent=True))
        self._warnings = watched(_warnings())

    @property
    def _needed(self) -> tuple[ResourceWatch[Any], ...]:
        """Without these there is no picture; the others only add to it."""
        return self._nodes, self._pods

    @property
    def kinds(self) -> tuple[ResourceWatch[Any], ...]:
        return (*self._needed, self._quotas, self._jobs, self._claims, self._warnings)

    async def run(self) -> None:
        """Watch for ever."""
        async with asyncio.TaskGroup() as group:
            for kind in self.kinds:
                group.create_task(kind.run())

    @property
    def is_synced(self) -> bool:
        """True once nodes and pods have been read whole."""
        return all(kind.is_synced for kind in self._needed)

    @property
    def synced_at(self) -> datetime | None:
        """When nodes and pods were last known to be as they are kept."""
        heard = [kind.synced_at for kind in self._needed]
        return None if None in heard else min(at for at in heard if at is not None)

    @property
    def revision(self) -> int:
        """Rises with each change."""
        return sum(kind.revision for kind in self.kinds)

    def problems(self) -> Iterator[str]:
        """What cannot be read now, since when, and what is true meanwhile: one sentence for each reason."""
        alike: dict[tuple[str, str, bool], list[str]] = {}
        for kind in self.kinds:
            if len(kind.items) >= kind.kind.limit and not kind.kind.forgets_oldest:
                yield f"{kind.kind.name}: {kind.kind.limit} are kept, and there are more"
            if kind.problem and kind.problem_since is not None:
                reason = (f"{kind.problem_since:%H:%M} UTC", kind.problem, kind.is_synced)
                alike.setdefault(reason, []).append(kind.kind.name)
        for (since, problem, is_known), names in alike.items():
            kept = "What was known before stays" if is_known else "Nothing of it is known"
            yield f"{', '.join(names)} since {since}: {problem}. {kept}"

    def nodes(self) -> list[objects.KubernetesNode]:
        return list(self._nodes.items.values())

    def pods(self) -> list[objects.KubernetesPod]:
        return list(self._pods.items.values())

    def quotas(self) -> list[objects.Quota]:
        return list(self._quotas.items.values())

    def jobs(self) -> list[objects.KubernetesJob]:
        return list(self._jobs.items.values())

    def gpus_of(self, pod: objects.KubernetesPod) -> int:
        """GPUs that a pod asks for: counted resources, and claims that are counted for it."""
        claims = (self._claims.items.get((pod.namespace, name)) for name in pod.claims)
        return pod.gpus + sum(claim.gpus for claim in claims if claim is not None and claim.pod in ("", pod.name))

    def warning(self, kind: str, namespace: str, name: str) -> objects.WarningEvent | None:
        """The last warning about an object, if it is among the newest."""
        return self._warnings.items.get((kind, namespace, name))


def _pods(targets: Selectors) -> ResourceKind[objects.KubernetesPod]:
    def read(raw: Any) -> objects.KubernetesPod:
        named = json_facts.mapping(json_facts.mapping(raw, "metadata"), "labels")
        return objects.read_pod(raw, is_target=any(named.get(name) == value for name, value in targets))

    # A pod that has ended holds nothing, and a busy cluster keeps thousands of them.
    return ResourceKind("pods", "/api/v1/pods", read, key_of, fields="status.phase!=Succeeded,status.phase!=Failed")


def _warnings() -> ResourceKind[objects.WarningEvent]:
    return ResourceKind(
        "events",
        "/api/v1/events",
        objects.read_warning,
        _warned_key,
        fields="type=Warning",
        limit=MAX_WARNINGS,
        forgets_oldest=True,
        quiet_seconds=WATCH_SECONDS + 30.0,
    )


def _warned_key(raw: Any) -> tuple[str, ...]:
    about = json_facts.mapping(raw, "involvedObject")
    return json_facts.text(about, "kind"), json_facts.text(about, "namespace"), json_facts.require_name(about)


def _is_open(raw: Any) -> bool:
    return not objects.is_job_done(raw)
