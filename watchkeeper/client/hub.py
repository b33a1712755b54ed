"""Call the HTTP API of a hub: one method per endpoint, for the command line, `top`, MCP and other programs.

    from watchkeeper.client.hub import Client
    for card in Client("http://127.0.0.1:9480").incidents():
        print(card.id, card.severity, card.title, card.next_step)

Answers are dataclasses of model/ and of `client.answers`; times are aware UTC, unknown values are None. `plain` of an
answer is its unchanged JSON. If the hub is unreachable or refuses a request, HubError says what to do.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from watchkeeper.client import answers, promql
from watchkeeper.client.address import DEFAULT_URL
from watchkeeper.client.reading import NOT_A_HUB, read_answer
from watchkeeper.errors import HubError
from watchkeeper.kit import api_version, wire
from watchkeeper.model.fleet_capacity import FleetCapacity
from watchkeeper.model.incidents import Incident
from watchkeeper.model.jobs import JobReport
from watchkeeper.model.node_list import NodeLine
from watchkeeper.model.notices import Notice
from watchkeeper.net import sync_http
from watchkeeper.net.access import NO_ACCESS, Access

# Enough for a query over hours of a large fleet.
TIMEOUT_SECONDS = 30.0
CHUNK_BYTES = 64 * 1024
JSON = "application/json"
T = TypeVar("T")

# The most that one answer of the hub has.
MAX_INCIDENTS = 1000


class Client:
    """A hub at a URL, with an optional bearer token and TLS certificates."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        access: Access = NO_ACCESS,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise HubError(f"`{url}` is not an http or https URL", remedy="Use a URL such as http://127.0.0.1:9480")
        self.url = url.rstrip("/")
        self._token = token
        self._timeout_seconds = timeout_seconds
        self._access = access

    def status(self) -> answers.Status:
        return self._get(answers.Status, "/api/status")

    def fleet(self) -> answers.FleetInventory:
        """The inventory in the order of the map, with the current holder of each GPU."""
        return self._get(answers.FleetInventory, "/api/fleet")

    def list_nodes(self, *, state: str | None = None, pool: str | None = None) -> answers.NodeList:
        """Nodes with their states, GPUs and holders; `total` counts the nodes before filtering."""
        return self._get(answers.NodeList, "/api/nodes", state=state, pool=pool)

    def nodes(self, *, state: str | None = None, pool: str | None = None) -> tuple[NodeLine, ...]:
        return self.list_nodes(state=state, pool=pool).nodes

    def gpu(self, uuid: str) -> answers.GpuDetail:
        """A GPU with its node, its holders and its events."""
        return self._get(answers.GpuDetail, f"/api/gpu/{_quote(uuid)}")

    def who(self, name: str) -> answers.Who:
        """The holders of a GPU or node, or the GPUs that a job, pod, user or team holds."""
        return self._get(answers.Who, "/api/who", name=name)

    def explain(self, kind: str, name: str) -> answers.ExplainAnswer:
        """Explain the state of a pod (`namespace/name`), node or job; `text` is for people."""
        return self._get(answers.ExplainAnswer, f"/api/explain/{kind}/{urllib.parse.quote(name)}")

    def topology(
        self, *, rack: str | None = None, leaf: str | None = None, node: str | None = None
    ) -> answers.Topology:
        """Racks, leaves, nodes, GPUs and links with their states, filtered by the arguments."""
        return self._get(answers.Topology, "/api/topology", rack=rack, leaf=leaf, node=node)

    def push_sweep(self, sweep: dict[str, Any]) -> answers.SweepAccepted:
        """Send a sweep of the InfiniBand fabric; see docs/howto/fabric.md."""
        return self._post(answers.SweepAccepted, "/api/fabric", sweep)

    def incidents(self, *, all: bool = False) -> tuple[answers.IncidentCard, ...]:
        """Open incidents, newest first; `all` includes resolved ones."""
        return self.list_incidents(all=all).incidents

    def list_incidents(self, *, all: bool = False) -> answers.IncidentList:
        """As `incidents`, with `has_more`: whether older ones are above the limit of an answer."""
        return self._get(answers.IncidentList, "/api/incidents", open="0" if all else "1", limit=MAX_INCIDENTS)

    def incident(self, id: str) -> answers.FullIncidentDetail:
        """An incident with its diagnosis, plan and timeline."""
        return self._get(answers.FullIncidentDetail, _incident_path(id))

    def acknowledge(self, id: str) -> answers.IncidentDetail:
        return self._post(answers.IncidentDetail, _incident_path(id, "acknowledge"))

    def resolve(self, id: str, *, why: str) -> answers.IncidentDetail:
        return self._post(answers.IncidentDetail, _incident_path(id, "resolve"), {"why": why})

    def note(self, id: str, *, text: str) -> answers.IncidentDetail:
        return self._post(answers.IncidentDetail, _incident_path(id, "note"), {"text": text})

    def assign(self, id: str, *, to: str) -> Incident:
        return self._post(answers.IncidentAssigned, _incident_path(id, "assign"), {"to": to}).incident

    def correct(self, id: str, cause: str, *, why: str = "") -> answers.CauseCorrected:
        """Correct the cause of an incident, or confirm it by passing the same cause."""
        return self._post(answers.CauseCorrected, _incident_path(id, "cause"), {"cause": cause, "why": why})

    def silence_incident(self, id: str, *, duration: str, reason: str) -> answers.SilenceView:
        """Silence all incidents at the place of this incident; `duration` such as 2h."""
        body = {"for": duration, "reason": reason}
        return self._post(answers.SilenceChanged, _incident_path(id, "silence"), body).silence

    def report(self, id: str) -> dict[str, Any]:
        """The report of an incident: timeline, diagnosis, repairs and impact."""
        return self.request("GET", f"{_incident_path(id, 'report')}?format=json")

    def report_text(self, id: str) -> str:
        """The report of an incident as Markdown."""
        with self._open_response("GET", _incident_path(id, "report"), accept="text/markdown") as answer:
            return answer.read().decode(errors="replace")

    def notices(self, id: str) -> tuple[Notice, ...]:
        """The notifications of an incident: receiver, time and result."""
        return self._get(answers.NoticeList, _incident_path(id, "notices")).notices

    def digest(self, *, days: int = 7) -> answers.DigestText:
        """A summary of the incidents of the last days; `text` is for people."""
        return self._get(answers.DigestText, "/api/digest", days=days)

    def list_silences(self) -> answers.SilenceList:
        """Active, scheduled, and recently expired silences; `problem` is set if some could not be read."""
        return self._get(answers.SilenceList, "/api/silences")

    def silences(self) -> tuple[answers.ListedSilence, ...]:
        return self.list_silences().silences

    def silence(
        self, matchers: Sequence[str], *, reason: str, duration: str | None = None, **options: Any
    ) -> answers.SilenceView:
        """Silence incidents that match all matchers, such as node="gpu-r01-01", for a duration such as 2h.

        Options are `starts_at`, `ends_at` and `maintenance`.
        """
        fields = {"matchers": list(matchers), "reason": reason, "for": duration, **options}
        body = {name: value for name, value in fields.items() if value is not None}
        return self._post(answers.SilenceChanged, "/api/silences", body).silence

    def end_silence(self, id: str) -> answers.SilenceView:
        return self._read(answers.SilenceChanged, self.request("DELETE", f"/api/silences/{_quote(id)}")).silence

    def repairs(self, *, all: bool = False) -> answers.RepairList:
        """Repairs that wait, run or keep a node cordoned, and the repair switch; `all` includes ended repairs."""
        return self._get(answers.RepairList, "/api/repairs", all="1" if all else "0")

    def repair(self, incident: str) -> answers.ExplainedRepair:
        """Explain the repair of an incident: plan, mode, refusals and progress."""
        return self._get(answers.ExplainedRepair, _incident_path(incident, "repair"))

    def approve(self, incident: str, *, digest: str) -> answers.RepairView:
        """Approve the repair plan with this digest."""
        return self._repair(incident, "approve", digest=digest)

    def reject(self, incident: str, *, why: str) -> answers.RepairView:
        return self._repair(incident, "reject", why=why)

    def finish_step(self, incident: str) -> answers.RepairView:
        """Confirm that a manual step is done."""
        return self._repair(incident, "step-done")

    def retry_repair(self, incident: str) -> answers.RepairView:
        return self._repair(incident, "again")

    def stop_repairs(self, *, why: str) -> answers.RepairSwitchView:
        return self._post(answers.SwitchChanged, "/api/repairs/stop", {"why": why}).switch

    def stop_repair(self, incident: str, *, why: str) -> answers.RepairView:
        """Stop one repair before its next step."""
        return self._repair(incident, "stop", why=why)

    def resume_repair(self, incident: str) -> answers.RepairView:
        return self._repair(incident, "resume")

    def resume_repairs(self) -> answers.RepairSwitchView:
        return self._post(answers.SwitchChanged, "/api/repairs/resume").switch

    def reset_breaker(self) -> answers.RepairSwitchView:
        return self._post(answers.SwitchChanged, "/api/repairs/reset").switch

    def repair_log(self, *, limit: int = 1000) -> tuple[answers.JournalEntry, ...]:
        """The audit log of repairs, oldest first."""
        return self._get(answers.RepairLog, "/api/repairs/log", limit=limit).entries

    def test_policy(self, text: str) -> tuple[answers.ReplayedIncident, ...]:
        """Simulate a policy on past incidents: the plan of each, and the refusals of guards."""
        return self._post(answers.PolicyTest, "/api/repairs/test", {"policy": text}).incidents

    def create_order(
        self, node: str, kind: str, arguments: dict[str, str], *, cluster: str | None = None
    ) -> answers.OrderStatus:
        """Issue a harmless work order to the agent of a node."""
        body = {"node": node, "kind": kind, "arguments": arguments, "cluster": cluster}
        return self._post(answers.OrderStatus, "/api/orders", body)

    def order(self, id: str) -> answers.OrderStatus:
        """A work order with its state, and its receipt once it has one."""
        return self._get(answers.OrderStatus, f"/api/orders/{_quote(id)}")

    def bundle(
        self, *, incident: str | None = None, node: str | None = None, cluster: str | None = None, hides_names: bool
    ) -> bytes:
        """The evidence about an incident or a node as a tar.gz; see docs/howto/bundle.md."""
        params = {"incident": incident, "node": node, "cluster": cluster, "hide_names": "1" if hides_names else None}
        with self._open_response("GET", f"/api/bundle{_query_string(params)}", accept="application/gzip") as answer:
            return answer.read()

    def recording(
        self, *, start: str, end: str, matches: Sequence[str] = (), progress: Callable[[int], None] | None = None
    ) -> Iterator[bytes]:
        """Stream a recording of a time window in chunks; see docs/howto/history.md."""
        query_string = _query_string({"from": start, "to": end, "match[]": list(matches)})
        with self._open_response("GET", f"/api/recording{query_string}", accept="application/gzip") as answer:
            received_bytes = 0
            while chunk := answer.read(CHUNK_BYTES):
                received_bytes += len(chunk)
                if progress is not None:
                    progress(received_bytes)
                yield chunk

    def accuracy(self) -> tuple[answers.Accuracy, ...]:
        """For each cause: how often it was diagnosed, reviewed by a person, and correct."""
        return self._get(answers.CauseAccuracy, "/api/accuracy").accuracy

    def drill_accuracy(self) -> tuple[answers.CauseScore, ...]:
        """The accuracy of diagnoses in drills for each cause, lowest first."""
        return self._get(answers.DrillAccuracy, "/api/drills/accuracy").drills

    def submit_drill_score(self, score: dict[str, Any]) -> answers.DrillAccuracy:
        """Save the score of a game day, as `watchkeeper drill --json` prints it."""
        return self._post(answers.DrillAccuracy, "/api/drills/score", score)

    def lemons(self, *, days: int = 90) -> answers.LemonList:
        """Nodes that fail more often than the fleet, or whose error counters grow; highest failure rate first."""
        return self._get(answers.LemonList, "/api/lemons", days=days)

    def jobs(self, **params: str | int | None) -> answers.JobList:
        """Jobs, most severe first; filters are `state`, `team`, `cluster` and `limit`; `total` counts all matches."""
        return self._get(answers.JobList, "/api/jobs", **params)

    def job(self, id: str, *, cluster: str | None = None) -> JobReport:
        """The report of a job: efficiency, goodput and ranks; the id may contain a slash."""
        return self._get(JobReport, f"/api/jobs/{urllib.parse.quote(id)}", cluster=cluster)

    def replicas(self, **params: str | None) -> answers.ReplicaList:
        """Replicas that each model needs; `model` and `window` add a simulation of the advice on past load."""
        return self._get(answers.ReplicaList, "/api/replicas", **params)

    def usage(self, **params: Any) -> answers.UsageReport:
        """GPU-hours from `since` to `until`, grouped by `by` and filtered by `of`; see docs/howto/cost.md."""
        return self._get(answers.UsageReport, "/api/usage", **_rename_window(params))

    def cost(self, **params: Any) -> answers.CostReport:
        """The cost of GPU-hours; parameters as of `usage`, and `policy`."""
        return self._get(answers.CostReport, "/api/cost", **_rename_window(params))

    def waste(self, **params: Any) -> answers.WasteReport:
        """GPU-hours allocated and idle, by owner, with their cost."""
        return self._get(answers.WasteReport, "/api/cost/waste", **_rename_window(params))

    def budgets(self, **params: Any) -> answers.BudgetReport:
        """The budgets of teams in a `month`; further parameters are `zone` and `policy`."""
        return self._get(answers.BudgetReport, "/api/cost/budgets", **params)

    def statements(self, **params: Any) -> Iterator[answers.Statement]:
        """The chargeback statements of a `month`; further parameters are `zone`, `policy`, `team` and `of`."""
        path = f"/api/cost/statements{_query_string(params)}"
        with self._open_response("GET", path, accept="application/x-ndjson") as answer:
            for line in answer:
                yield self._read(answers.Statement, self._parse_json(line))

    def capacity_now(self, **params: str | None) -> answers.CapacityNow:
        """Free and fragmented GPUs, queue waits and rightsizing advice now; see docs/howto/capacity.md."""
        return self._get(answers.CapacityNow, "/api/capacity/now", **params)

    def free_capacity(self, *, cluster: str | None = None) -> FleetCapacity:
        return self.capacity_now(cluster=cluster).standing

    def forecast(self, **params: str | None) -> answers.CapacityForecast:
        """The forecast of demand and a `sentence` about it, or a `reason` for none; see docs/howto/capacity.md."""
        return self._get(answers.CapacityForecast, "/api/capacity/forecast", **params)

    def whatif(self, **params: Any) -> answers.WhatIf:
        """Replay jobs on the fleet with changes: those the hub recorded in a `window`, or `jobs` as text."""
        body = {name: value for name, value in params.items() if value}
        return self._post(answers.WhatIf, "/api/capacity/whatif", body)

    def slos(self) -> tuple[answers.SloStatus, ...]:
        """All SLOs with indicator, remaining error budget and burn rates; unknown values are None."""
        return self._get(answers.SloList, "/api/slos").slos

    def reload_rules(self) -> answers.ReloadOutcome:
        """Reload the rule files of the hub; HubError lists all problems if they are invalid."""
        return self._post(answers.ReloadOutcome, "/-/reload")

    def faults(self) -> tuple[answers.SimulatedFault, ...]:
        """The injected faults of the simulated fleet; HubError if the fleet is real."""
        return self._read(tuple[answers.SimulatedFault, ...], self._request_json("GET", "/api/sim/faults"))

    def inject(self, body: dict[str, Any]) -> answers.SimulatedFault:
        return self._read(answers.SimulatedFault, self._request_json("POST", "/api/sim/faults", body))

    def end_fault(self, id: str) -> answers.SimulatedFault:
        return self._read(answers.SimulatedFault, self._request_json("DELETE", f"/api/sim/faults/{id}"))

    def rules(self) -> list[dict[str, Any]]:
        """Rule groups with their rules and alerts, in Prometheus' format."""
        return list(self.prometheus("rules")["groups"])

    def query(self, expr: str, *, at: datetime | None = None, limit: int | None = None) -> promql.QueryResult:
        """Run an instant query; a result truncated at `limit` series has a warning."""
        return promql.parse_result(self.query_data(expr, at=None if at is None else wire.format_time(at), limit=limit))

    def query_range(self, expr: str, *, start: datetime, end: datetime, step: str) -> promql.QueryResult:
        window = {"start": wire.format_time(start), "end": wire.format_time(end), "step": step}
        return promql.parse_result(self.query_range_data(expr, **window))

    def query_data(self, expr: str, *, at: str | None = None, limit: int | None = None) -> answers.QueryData:
        """Run an instant query and return Prometheus' format; `plain` has warnings and infos."""
        return self._query("query", query=expr, time=at, limit=limit)

    def query_range_data(self, expr: str, *, start: str, end: str, step: str) -> answers.QueryData:
        return self._query("query_range", query=expr, start=start, end=end, step=step)

    def prometheus(self, endpoint: str, **params: Any) -> dict[str, Any]:
        """The `data` object of an endpoint under /api/v1, with its warnings and infos if any."""
        body = self.request("GET", f"/api/v1/{endpoint}{_query_string(params)}")
        data = read_answer(dict[str, Any], body.get("data"), path=".data", where=self.url)
        return {**data, **{key: body[key] for key in ("warnings", "infos") if body.get(key)}}

    def _query(self, endpoint: str, **params: Any) -> answers.QueryData:
        return read_answer(answers.QueryData, self.prometheus(endpoint, **params), path=".data", where=self.url)

    def _repair(self, incident: str, action: str, **body: Any) -> answers.RepairView:
        return self._post(answers.RepairChanged, _incident_path(incident, action), body).repair

    def _get(self, kind: type[T], path: str, **params: Any) -> T:
        return self._read(kind, self.request("GET", path + _query_string(params)))

    def _post(self, kind: type[T], path: str, body: dict[str, Any] | None = None) -> T:
        return self._read(kind, self.request("POST", path, body or {}))

    def _read(self, kind: type[T], plain: Any) -> T:
        return read_answer(kind, plain, where=self.url)

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call an endpoint that has no method here, and return its JSON."""
        answer = self._request_json(method, path, body)
        # Watchkeeper's API answers with `ok`, Prometheus' API with `status`; any other server with neither.
        if not isinstance(answer, dict) or (answer.get("ok") is not True and answer.get("status") != "success"):
            raise HubError(f"the answer has neither `ok` nor `status`: {NOT_A_HUB}", where=self.url)
        return answer

    def _request_json(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        with self._open_response(method, path, body) as answer:
            return self._parse_json(answer.read())

    def _parse_json(self, content: bytes) -> Any:
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise HubError(f"the answer is not JSON: {NOT_A_HUB}", where=self.url) from error

    @contextlib.contextmanager
    def _open_response(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, accept: str = JSON
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request and yield the response; every failure becomes a HubError."""
        headers = {"Accept": accept}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        content = None if body is None else json.dumps(body).encode()
        limits = sync_http.HttpLimits(math.inf, idle_seconds=self._timeout_seconds)
        request = sync_http.Request(method, body=content, headers=headers)
        try:
            with sync_http.open_with_redirects(self.url + path, request, limits=limits, access=self._access) as answer:
                self._check_version(answer.headers.get(api_version.HEADER))
                if not 200 <= answer.status < 300:
                    raise self._to_hub_error(answer)
                content_type = answer.headers.get_content_type()
                # JSON is checked by parsing.
                if accept not in (JSON, content_type):
                    problem = f"the content type is {content_type[:80]}, expected {accept}: {NOT_A_HUB}"
                    raise HubError(problem, where=self.url)
                yield answer
        except (sync_http.NoAnswer, sync_http.InvalidAddress) as error:
            remedy = "Start a hub with `watchkeeper up`, or set its URL with --hub"
            raise HubError(f"no hub answers ({error.problem})", where=self.url, remedy=remedy) from error

    def _check_version(self, version: str | None) -> None:
        """Raise HubError if the hub has another version of the API; old hubs send no version."""
        if version is not None and version != str(api_version.API_VERSION):
            problem = f"the hub has API version {version[:20]}, this client has API version {api_version.API_VERSION}"
            raise HubError(problem, where=self.url, remedy="Install the same version of Watchkeeper as on the hub")

    def _to_hub_error(self, response: http.client.HTTPResponse) -> HubError:
        """The error of a refused request; `status` is None unless a hub sent the answer."""
        try:
            answer = json.loads(response.read())
            problem = "\n".join([str(answer["error"]), *(str(error_text) for error_text in answer.get("errors", ()))])
        except (ValueError, KeyError, TypeError):
            problem = f"answered {response.status} {response.reason}, not in the format of a hub: {NOT_A_HUB}"
            return HubError(problem, where=self.url)
        remedy = "Set a token with --token or WATCHKEEPER_TOKEN" if response.status == 401 else None
        return HubError(problem, status=response.status, where=self.url, remedy=remedy)


def _incident_path(incident: str, action: str = "") -> str:
    """The path of an incident, or of an action on it."""
    return f"/api/incidents/{urllib.parse.quote(incident)}" + (f"/{action}" if action else "")


def _quote(name: str) -> str:
    return urllib.parse.quote(name, safe="")


def _query_string(params: Mapping[str, Any]) -> str:
    """The query string of a path; parameters that are None are omitted."""
    pairs = {name: value for name, value in params.items() if value is not None}
    return f"?{urllib.parse.urlencode(pairs, doseq=True)}" if pairs else ""


def _rename_window(params: Mapping[str, Any]) -> dict[str, Any]:
    names = {"since": "from", "until": "to"}
    return {names.get(name, name): value for name, value in params.items()}
