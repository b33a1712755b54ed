"""GET /api/jobs/{id} and /api/explain/job: one job in full, with the same verdict on its page and in `explain job`.

`jobs_api` makes the report, `diagnose.job` the diagnosis, and `workloads.verdict` decides on what both say first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from starlette.exceptions import HTTPException
from starlette.requests import Request

from watchkeeper.catalogue import causes
from watchkeeper.diagnose import explain_result, job
from watchkeeper.diagnose.checks import training
from watchkeeper.diagnose.explain_result import ExplainResult
from watchkeeper.hub import services
from watchkeeper.model import jobs
from watchkeeper.web import shapes
from watchkeeper.web.endpoint import get
from watchkeeper.web.fleet import explain_api, jobs_api
from watchkeeper.workloads import verdict


@dataclass(frozen=True, slots=True)
class JobPageApi:
    hub: services.Services
    list: jobs_api.JobsApi
    explain: explain_api.ExplainApi

    @get("/api/jobs/{id:path}", shapes.CLUSTER)
    async def get_job(self, request: Request) -> jobs.JobReport:
        """One job with its verdict, efficiency, goodput, ranks and hardware events; the id may contain a slash."""
        id = explain_api.check_name(request.path_params["id"])
        report, _ = await self._load(id, request.query_params.get("cluster"))
        if report is None:
            raise HTTPException(404, f"no job {id} found: no scheduler, rank or GPU reports it")
        return report

    @get("/api/explain/job/{name}", summary="Explain the state of a job")
    @get("/api/explain/job/{namespace}/{name}", summary="Explain the state of a job in a Kubernetes namespace")
    async def explain_job(self, request: Request) -> explain_api.ExplainAnswer:
        parts = (request.path_params.get("namespace"), request.path_params["name"])
        name = explain_api.check_name("/".join(part for part in parts if part))
        _, explanation = await self._load(name)
        if explanation is None:
            raise HTTPException(404, f"no job {name} found: no scheduler, rank or GPU reports it")
        return explain_api.to_answer(explanation)

    async def _load(self, name: str, cluster: str | None = None) -> tuple[jobs.JobReport | None, ExplainResult | None]:
        """The report and the explanation of a job, with the same verdict; None if nothing reports it."""
        scheduled = [workload for view in self.hub.cluster_views() for workload in view.workloads]
        scheduled += await asyncio.to_thread(self.explain.pending_workloads, scheduled)
        report = await self.list.load_report(name, cluster)
        line = None if report is None else report.job
        pods = job.workloads_of_job(name if line is None else line.id, scheduled)
        own_cluster = self.hub.runtime.settings.fleet.cluster if line is None else line.cluster
        query = job.JobQuery(pods[0].cluster if pods else own_cluster, name, pods, "" if line is None else line.name)
        explanation = await self._diagnose(query)
        if report is not None:
            explanation = explanation or ExplainResult(name, report.why)
        names = [str(scheduled_pod.workload) for scheduled_pod in pods]
        related = await self.explain.pod_incidents(names, () if line is None else line.incidents)
        explanation = explain_result.with_incidents(explanation, name, related)
        if report is None or explanation is None:
            return report, explanation
        decided = verdict.decide_verdict(report, self.hub.runtime.clock.now(), _find_cause(explanation, related))
        return replace(report, verdict=decided), replace(explanation, headline=decided.sentence)

    async def _diagnose(self, query: job.JobQuery) -> ExplainResult | None:
        now = self.hub.runtime.clock.now()
        job_facts = await asyncio.to_thread(job.read_job, self.hub.queries.engine, query, now)
        if job_facts is None:
            return None
        since, nodes = now - job.LOOKBACK, job_facts.nodes
        events = await self.hub.journal.read(
            lambda: [event for node in nodes for event in self.hub.journal.events_at(node, since, now)], is_long=True
        )
        explain = partial(job.explain, node_events=events, names=self.hub.fleet.place_name)
        return await asyncio.to_thread(explain, query, job_facts, now)


def _find_cause(
    explanation: ExplainResult, related: Sequence[explain_api.IncidentAndFinding]
) -> verdict.JobCause | None:
    """The cause of the explanation, in the words of its incident if that is about hardware or a pod."""
    if explanation.cause is None:
        return None
    incident = next((incident for incident, _ in related if incident.id == explanation.incident), None)
    is_elsewhere = incident is not None and not (incident.place.domain or "").startswith("job=")
    text = incident.title if incident is not None and is_elsewhere else explanation.reason or explanation.why
    is_of_job = causes.lookup(explanation.cause).family in training.FAMILIES
    return verdict.JobCause(explanation.cause, text, explanation.incident, is_of_job=is_of_job)
