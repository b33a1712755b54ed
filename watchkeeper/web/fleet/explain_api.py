"""GET /api/explain/pod|node|job: why it is as it is, in words, from everything that the hub knows now.

`watchkeeper explain` asks. What is said is decided in `diagnose`; here the hub's knowledge is put together for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from starlette.exceptions import HTTPException
from starlette.requests import Request

from watchkeeper.clusters.clusters import Clusters
from watchkeeper.clusters.kubernetes import kubernetes_source
from watchkeeper.diagnose import explained, job, node, pending, place_context, pod
from watchkeeper.diagnose.checks import pod_placement
from watchkeeper.diagnose.explained import Explained
from watchkeeper.diagnose.job import JobQuery
from watchkeeper.errors import WatchkeeperError
from watchkeeper.hub import services
from watchkeeper.hub.runtime import Runtime
from watchkeeper.hub.samples import Queries
from watchkeeper.kit import clock, own_metrics
from watchkeeper.model import cluster, diagnosis, fleet, incidents, workloads
from watchkeeper.model.fleet import Place
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import Endpoint
from watchkeeper.web.fleet import jobs_api
from watchkeeper.workloads import pending_pods

MOST_INCIDENTS = 1000
LONGEST_NAME = 300
Trouble = tuple[incidents.Incident, diagnosis.Finding | None]


@dataclass(frozen=True, slots=True)
class ExplainAnswer:
    explained: Explained
    text: str


@dataclass(frozen=True, slots=True)
class ExplainApi:
    runtime: Runtime
    queries: Queries
    journal: services.JournalProtocol
    fleet: services.FleetProtocol
    clusters: Clusters | None
    jobs: jobs_api.JobsApi

    async def pod(self, request: Request) -> ExplainAnswer:
        name = _checked(request.path_params["name"])
        namespace = request.path_params.get("namespace")
        if namespace is None:
            several = await asyncio.to_thread(self._namespaces, name, await self._open())
            if len(several) > 1:
                raise HTTPException(400, f"{len(several)} namespaces have it, say which: {', '.join(several[:8])}")
            namespace = next(iter(several), "default")
        namespace = _checked(namespace)
        found = await asyncio.to_thread(self._pod, namespace, name)
        troubles = await self._troubles_of([f"{namespace}/{name}"])
        told = explained.with_incidents(found, f"{namespace}/{name}", troubles)
        if told is None:
            raise HTTPException(404, f"no pod or job {namespace}/{name} is known here")
        return _answer(told)

    def _pod(self, namespace: str, name: str) -> explained.Explained | None:
        """By what its cluster says, else by kube-state-metrics."""
        known = (pod.explain(namespace, name, _cluster(one)) for one in self._kubernetes())
        return next((one for one in known if one is not None), None) or self._by_series(namespace, name)

    async def _open(self) -> list[incidents.Incident]:
        return list(await self.journal.read(lambda: self.journal.incidents(open_only=True, limit=MOST_INCIDENTS)))

    async def _troubles_of(self, pods: Iterable[str], known: Iterable[str] = ()) -> list[Trouble]:
        """Open incidents about these pods, or that hit them, or of these ids."""
        names, ids = set(pods), set(known)
        places = {f"pod={name}" for name in names}
        return await self._troubles(
            lambda one: one.id in ids or one.place.domain in places or bool(names & set(one.workloads))
        )

    async def _troubles(self, is_meant: Callable[[incidents.Incident], bool]) -> list[Trouble]:
        """Open incidents, each with the best finding."""
        meant = [incident for incident in await self._open() if is_meant(incident)]

        def look() -> list[Trouble]:
            diagnosed = ((incident, self.journal.diagnosis(incident.id)) for incident in meant)
            return [(incident, None if result is None else result.best) for incident, result in diagnosed]

        return await self.journal.read(look)

    def _namespaces(self, name: str, open_now: Iterable[incidents.Incident]) -> list[str]:
        """Where something of that name is: by clusters, kube-state-metrics or an open incident."""
        watches = [one.watch for one in self._kubernetes()]
        found = {one.namespace for watch in watches for one in watch.pods() if one.name == name}
        found |= {one.namespace for watch in watches for one in watch.jobs() if one.name == name}
        told_of = f'__name__=~"kube_pod_info|kube_pod_status_phase",pod="{own_metrics.escape(name)}"'
        expr = f"group by (namespace) ({{{told_of}}})"
        with contextlib.suppress(WatchkeeperError):
            told = self.queries.engine.instant(expr, clock.to_ms(self.runtime.clock.now())).latest()
            found |= {labels.get("namespace", "") for labels in told}
        for incident in open_now:
            kind, _, where = (incident.place.domain or "").partition("=")
            namespace, _, short = where.partition("/")
            found |= {namespace} if (kind, short) == ("pod", name) else set()
        return sorted(found - {""})

    async def node(self, request: Request) -> ExplainAnswer:
        asked = _checked(request.path_params["name"])
        known = next((one for one in self.fleet.nodes() if asked == one.name or asked in one.aliases), None)
        names = {asked} if known is None else {known.name, *known.aliases}
        words = [word for view in self._views() for word in view.nodes if word.name in names]
        if known is None and not words:
            raise HTTPException(404, f"no node {asked} is known here")
        place = fleet.Place(words[0].cluster, node=asked) if known is None else known.place
        troubles = await self._troubles(lambda one: (one.place.node, one.place.cluster) == (place.node, place.cluster))
        expected = None if known is None else known.expected_gpus
        return _answer(await asyncio.to_thread(self._node, place, words, expected=expected, troubles=troubles))

    async def job(self, request: Request) -> ExplainAnswer:
        parts = (request.path_params.get("namespace"), request.path_params["name"])
        name = _checked("/".join(part for part in parts if part))
        scheduled = [workload for view in self._views() for workload in view.workloads]
        scheduled += await asyncio.to_thread(self._waiting, scheduled)
        report = await self.jobs.report(name)
        line = None if report is None else report.job
        pods = job.workloads_of_job(name, scheduled)
        owner = pods[0].cluster if pods else self.runtime.settings.fleet.cluster if line is None else line.cluster
        asked = job.JobQuery(owner, name, pods, "" if line is None else line.name)
        found = await self._job(asked)
        if found is None and report is not None:
            found = explained.Explained(name, report.why)
        elif found is not None and found.cause is None and report is not None and not asked.pending_workloads:
            found = replace(found, headline=f"{found.headline}; {report.why}")
        names = [str(part.workload) for part in pods]
        troubles = await self._troubles_of(names, () if line is None else line.incidents)
        told = explained.with_incidents(found, name, troubles)
        if told is None:
            raise HTTPException(404, f"no job {name} is known here: no scheduler, rank or GPU names it")
        return _answer(told)

    def _node(
        self,
        place: Place,
        words: list[cluster.ScheduledNode],
        *,
        expected: int | None,
        troubles: list[Trouble],
    ) -> explained.Explained:
        now = clock.to_ms(self.runtime.clock.now())
        questions = place_context.PlaceQueries(self.queries.engine, place, now, window=job.AROUND)
        around = place_context.gather_context(questions)
        reporting = questions.reporting_gpus("DCGM_FI_DEV_GPU_TEMP")
        node_name = place.node or ""
        held = {
            str(workload.workload): workload.nodes[node_name]
            for view in self._views()
            for workload in view.workloads
            if node_name in workload.nodes
        }
        problems = [view.problem for view in self._views() if view.problem]
        return node.explain(
            node.NodeSummary(
                self.fleet.place_name(place),
                words,
                sorted(held.items()),
                None if reporting is None else len(reporting),
                expected,
                troubles,
                around.changes,
                (*questions.failures, *problems, *(() if words else ("no scheduler tells about it",))),
            )
        )

    def _by_series(self, namespace: str, name: str) -> explained.Explained | None:
        """Without an API server: what kube-state-metrics says, through the same decisions."""
        place = fleet.Place(self.runtime.settings.fleet.cluster, domain=f"pod={namespace}/{name}")
        now = clock.to_ms(self.runtime.clock.now())
        around = place_context.gather_context(
            place_context.PlaceQueries(self.queries.engine, place, now, window=job.AROUND)
        )
        if not around.rows("kube_pod_info") and not around.rows("kube_pod_status_phase"):
            return None
        subject = f"{namespace}/{name}"
        ask = pod_placement.asked(around, subject)
        on = next((labels.get("node") for labels, _ in around.rows("kube_pod_info") if labels.get("node")), None)
        if on and ask.gpus:
            return explained.Explained(subject, f"runs on {on} with {sum(ask.gpus.values())} GPUs")
        found = pending.judge_placement(ask, pod_placement.offered(around))
        lines = tuple(explained.ExplainedLine(one.node, one.text) for one in found.nodes)
        gap = ("the API server: this is what kube-state-metrics says",)
        headline = f"runs on {on} and asks for no GPU" if on else "waits"
        steps = pod.steps(found.cause, subject)
        return explained.Explained(subject, headline, found.cause, found.why, lines, found.smallest_change, steps, gap)

    def _waiting(self, known: list[workloads.ScheduledWorkload]) -> list[workloads.ScheduledWorkload]:
        with contextlib.suppress(WatchkeeperError):
            told = self.queries.engine.instant(pending_pods.QUESTION, clock.to_ms(self.runtime.clock.now())).latest()
            return pending_pods.read_pending_pods(told, known)
        return []

    def _kubernetes(self) -> list[kubernetes_source.KubernetesSource]:
        schedulers = () if self.clusters is None else self.clusters.schedulers
        return [one for one in schedulers if isinstance(one, kubernetes_source.KubernetesSource)]

    def _views(self) -> list[cluster.ClusterView]:
        return [] if self.clusters is None else self.clusters.views()

    async def _job(self, asked: JobQuery) -> explained.Explained | None:
        now = self.runtime.clock.now()
        looked = await asyncio.to_thread(job.read_job, self.queries.engine, asked, now)
        if looked is None:
            return None
        since, nodes = now - job.AROUND, looked.nodes
        happened = await self.journal.read(
            lambda: [event for node in nodes for event in self.journal.events_at(node, since, now)], is_long=True
        )
        return await asyncio.to_thread(job.explain, asked, looked, now, happened=happened, names=self.fleet.place_name)


def _cluster(source: kubernetes_source.KubernetesSource) -> pod.ClusterObjects:
    watch = source.watch
    return pod.ClusterObjects(
        watch.nodes(),
        watch.pods(),
        watch.quotas(),
        watch.jobs(),
        watch.warning,
        lambda one: watch.gpus_of(one) - one.gpus,
        tuple(source.problems()),
    )


def _checked(text: str) -> str:
    if not text or len(text) > LONGEST_NAME or not text.isprintable():
        raise HTTPException(400, f"a name has at most {LONGEST_NAME} visible characters")
    return text


def _answer(found: explained.Explained) -> ExplainAnswer:
    return ExplainAnswer(found, "\n".join(explained.as_text(found)))


def endpoints(api: ExplainApi) -> list[Endpoint]:
    return [
        Endpoint(("GET",), path, Role.VIEWER, answer, summary=f"Why a {what} is as it is, in words")
        for path, answer, what in (
            ("/api/explain/pod/{name}", api.pod, "pod, whose namespace is looked for,"),
            ("/api/explain/pod/{namespace}/{name}", api.pod, "pod"),
            ("/api/explain/node/{name}", api.node, "node"),
            ("/api/explain/job/{name}", api.job, "job"),
            ("/api/explain/job/{namespace}/{name}", api.job, "job of a namespace"),
        )
    ]
