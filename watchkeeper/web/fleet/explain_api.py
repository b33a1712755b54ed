"""GET /api/explain/pod|node: explain the state of a pod or node from the current data of the hub.

This module collects the data; `diagnose` decides what to say. `job_page_api` explains jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypedDict

from starlette.exceptions import HTTPException
from starlette.requests import Request

from watchkeeper.clusters.kubernetes import kubernetes_source
from watchkeeper.diagnose import explain_result, job, node, pending, place_context, pod
from watchkeeper.diagnose.checks import pod_placement
from watchkeeper.diagnose.explain_result import ExplainResult
from watchkeeper.errors import WatchkeeperError
from watchkeeper.hub import services
from watchkeeper.incidents import signals
from watchkeeper.kit import own_metrics
from watchkeeper.model import cluster, diagnosis, fleet, incidents, workloads
from watchkeeper.model.fleet import Place
from watchkeeper.model.labels import Labels
from watchkeeper.web.endpoint import get
from watchkeeper.workloads import identity

MAX_INCIDENTS = 1000
MAX_NAME_CHARACTERS = 300
IncidentAndFinding = tuple[incidents.Incident, diagnosis.Finding | None]


class ExplainAnswer(TypedDict):
    explained: ExplainResult
    text: str


@dataclass(frozen=True, slots=True)
class ExplainApi:
    hub: services.Services

    @get("/api/explain/pod/{name}", summary="Explain the state of a pod; the hub finds its namespace")
    @get("/api/explain/pod/{namespace}/{name}", summary="Explain the state of a pod")
    async def pod(self, request: Request) -> ExplainAnswer:
        name = check_name(request.path_params["name"])
        namespace = request.path_params.get("namespace")
        if namespace is None:
            namespaces = await asyncio.to_thread(self._find_namespaces, name, await self._open_incidents())
            if len(namespaces) > 1:
                listed = ", ".join(namespaces[:8])
                raise HTTPException(400, f"{len(namespaces)} namespaces have a pod {name}; name one of them: {listed}")
            namespace = next(iter(namespaces), "default")
        namespace = check_name(namespace)
        explanation = await asyncio.to_thread(self._explain_pod, namespace, name)
        related = await self.pod_incidents([f"{namespace}/{name}"])
        explanation = explain_result.with_incidents(explanation, f"{namespace}/{name}", related)
        if explanation is None:
            raise HTTPException(404, f"no pod or job {namespace}/{name} found")
        return to_answer(explanation)

    def _explain_pod(self, namespace: str, name: str) -> explain_result.ExplainResult | None:
        """Explain a pod from its cluster's API server, else from kube-state-metrics."""
        for source in self._kubernetes_sources():
            if (explanation := pod.explain(namespace, name, _cluster_objects(source))) is not None:
                return explanation
        return self._explain_from_series(namespace, name)

    async def _open_incidents(self) -> list[incidents.Incident]:
        journal = self.hub.journal
        return await journal.read(lambda: journal.incidents(open_only=True, limit=MAX_INCIDENTS))

    async def pod_incidents(self, pods: Iterable[str], incident_ids: Iterable[str] = ()) -> list[IncidentAndFinding]:
        """Open incidents with these ids, about these pods, or that affect them."""
        names, ids = set(pods), set(incident_ids)
        places = {f"pod={name}" for name in names}

        def is_related(incident: incidents.Incident) -> bool:
            return incident.id in ids or incident.place.domain in places or bool(names & set(incident.workloads))

        return await self._with_findings(filter(is_related, await self._open_incidents()))

    async def _with_findings(self, related: Iterable[incidents.Incident]) -> list[IncidentAndFinding]:
        """These incidents, each with its best finding."""

        def read_findings() -> list[IncidentAndFinding]:
            diagnosed = ((incident, self.hub.journal.diagnosis(incident.id)) for incident in related)
            return [(incident, None if result is None else result.best) for incident, result in diagnosed]

        return await self.hub.journal.read(read_findings)

    def _find_namespaces(self, name: str, open_incidents: Iterable[incidents.Incident]) -> list[str]:
        """Namespaces with a pod or job of this name, from clusters, kube-state-metrics and open incidents."""
        watches = [source.watch for source in self._kubernetes_sources()]
        namespaces = {kube_pod.namespace for watch in watches for kube_pod in watch.pods() if kube_pod.name == name}
        namespaces |= {kube_job.namespace for watch in watches for kube_job in watch.jobs() if kube_job.name == name}
        selector = f'__name__=~"kube_pod_info|kube_pod_status_phase",pod="{own_metrics.escape(name)}"'
        expr = f"group by (namespace) ({{{selector}}})"
        with contextlib.suppress(WatchkeeperError):
            series = self._query(expr)
            namespaces |= {labels.get("namespace", "") for labels in series}
        for incident in open_incidents:
            kind, _, full_name = (incident.place.domain or "").partition("=")
            namespace, _, pod_name = full_name.partition("/")
            namespaces |= {namespace} if (kind, pod_name) == ("pod", name) else set()
        return sorted(namespaces - {""})

    @get("/api/explain/node/{name}", summary="Explain the state of a node")
    async def node(self, request: Request) -> ExplainAnswer:
        name = check_name(request.path_params["name"])
        expected = next((node for node in self.hub.fleet.nodes() if name in (node.name, *node.aliases)), None)
        names = {name} if expected is None else {expected.name, *expected.aliases}
        scheduled_nodes = [node for view in self.hub.cluster_views() for node in view.nodes if node.name in names]
        if expected is None and not scheduled_nodes:
            raise HTTPException(404, f"no node {name} found in the inventory or in a scheduler")
        place = fleet.Place(scheduled_nodes[0].cluster, node=name) if expected is None else expected.place
        opened = await self._open_incidents()
        places = (place,) if expected is None else signals.places_of_node(expected)
        on_node = [incident for incident in opened if any(at.whole_node in places for at in incident.places)]
        gpus = None if expected is None else expected.expected_gpus
        explain = partial(self._explain_node, expected_gpus=gpus, related=await self._with_findings(on_node))
        return to_answer(await asyncio.to_thread(explain, place, scheduled_nodes))

    def _explain_node(
        self,
        place: Place,
        scheduled_nodes: list[cluster.ScheduledNode],
        *,
        expected_gpus: int | None,
        related: list[IncidentAndFinding],
    ) -> explain_result.ExplainResult:
        place_queries = self._place_queries(place)
        context = place_context.gather_context(place_queries)
        reporting = place_queries.reporting_gpus("DCGM_FI_DEV_GPU_TEMP")
        node_name = place.node or ""
        gpus_by_workload = {
            str(workload.workload): workload.nodes[node_name]
            for view in self.hub.cluster_views()
            for workload in view.workloads
            if node_name in workload.nodes
        }
        problems = [view.problem for view in self.hub.cluster_views() if view.problem]
        return node.explain(
            node.NodeSummary(
                self.hub.fleet.place_name(place),
                scheduled_nodes,
                sorted(gpus_by_workload.items()),
                None if reporting is None else len(reporting),
                expected_gpus,
                related,
                context.changes,
                (*place_queries.failures, *problems, *(() if scheduled_nodes else ("no scheduler reports this node",))),
            )
        )

    def _explain_from_series(self, namespace: str, name: str) -> explain_result.ExplainResult | None:
        """Explain a pod from kube-state-metrics, for clusters whose API server is not watched."""
        place = fleet.Place(self.hub.runtime.settings.fleet.cluster, domain=f"pod={namespace}/{name}")
        context = place_context.gather_context(self._place_queries(place))
        if not context.rows("kube_pod_info") and not context.rows("kube_pod_status_phase"):
            return None
        subject = f"{namespace}/{name}"
        request = pod_placement.pod_request(context, subject)
        node_name = next(filter(None, (labels.get("node") for labels, _ in context.rows("kube_pod_info"))), None)
        if node_name and request.gpus:
            return explain_result.ExplainResult(subject, f"runs on {node_name} with {sum(request.gpus.values())} GPUs")
        placement = pending.judge_placement(request, pod_placement.node_offers(context))
        lines = tuple(explain_result.ExplainLine(verdict.node, verdict.text) for verdict in placement.nodes)
        gaps = ("the API server; this explanation uses kube-state-metrics",)
        headline = f"runs on {node_name} and requests no GPU" if node_name else "is pending"
        steps = pod.next_steps(placement.cause, subject)
        return explain_result.ExplainResult(
            subject, headline, placement.cause, placement.why, lines, placement.smallest_change, steps, gaps
        )

    def pending_workloads(self, scheduled: list[workloads.ScheduledWorkload]) -> list[workloads.ScheduledWorkload]:
        with contextlib.suppress(WatchkeeperError):
            return identity.read_pending_pods(self._query(identity.PENDING_PODS_QUERY), scheduled)
        return []

    def _query(self, expr: str) -> Mapping[Labels, float]:
        return self.hub.queries.engine.instant(expr, self.hub.queries.now_ms).latest()

    def _place_queries(self, place: Place) -> place_context.PlaceQueries:
        queries = self.hub.queries
        return place_context.PlaceQueries(queries.engine, place, queries.now_ms, window=job.LOOKBACK)

    def _kubernetes_sources(self) -> list[kubernetes_source.KubernetesSource]:
        schedulers = () if self.hub.clusters is None else self.hub.clusters.schedulers
        return [scheduler for scheduler in schedulers if isinstance(scheduler, kubernetes_source.KubernetesSource)]


def _cluster_objects(source: kubernetes_source.KubernetesSource) -> pod.ClusterObjects:
    watch = source.watch
    return pod.ClusterObjects(
        watch.nodes(),
        watch.pods(),
        watch.quotas(),
        watch.jobs(),
        watch.warning,
        lambda cluster_node: watch.gpus_of(cluster_node) - cluster_node.gpus,
        tuple(source.problems()),
    )


def check_name(text: str) -> str:
    if not text or len(text) > MAX_NAME_CHARACTERS or not text.isprintable():
        raise HTTPException(400, f"the name must have 1 to {MAX_NAME_CHARACTERS} printable characters")
    return text


def to_answer(explanation: explain_result.ExplainResult) -> ExplainAnswer:
    return ExplainAnswer(explained=explanation, text="\n".join(explain_result.as_text(explanation)))
