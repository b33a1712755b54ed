"""A hub as Python values: one method per question, which the command line, `top`, MCP and other programs ask.

    from watchkeeper.client.hub import Client
    for card in Client("http://127.0.0.1:9480").incidents():
        print(card.id, card.severity, card.title, card.next_step)

Answers are the dataclasses of model/ and of `client.answers`; times are aware UTC, unknown is None. `plain` of an
answer is the JSON as it came. A hub that cannot be reached or says no raises HubError with what to do about it.
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

# A query may scan hours of a large fleet; anything longer is the server's fault, not patience.
TIMEOUT_SECONDS = 30.0
PIECE_BYTES = 64 * 1024
JSON = "application/json"
T = TypeVar("T")


class Client:
    """One hub at one address, with an optional bearer token, and certificates where it speaks TLS."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        access: Access = NO_ACCESS,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise HubError(f"`{url}` is not an address", remedy="Write it like http://127.0.0.1:9480")
        self.url = url.rstrip("/")
        self._token = token
        self._timeout_seconds = timeout_seconds
        self._access = access

    def status(self) -> answers.Status:
        return self._get(answers.Status, "/api/status")

    def fleet(self) -> answers.FleetInventory:
        """The inventory in the order of the map, and who holds which GPU now."""
        return self._get(answers.FleetInventory, "/api/fleet")

    def list_nodes(self, *, state: str | None = None, pool: str | None = None) -> answers.NodeList:
        """Every node with its states, GPUs and holders; `total` counts those that the filters left out too."""
        return self._get(answers.NodeList, "/api/nodes", state=state, pool=pool)

    def nodes(self, *, state: str | None = None, pool: str | None = None) -> tuple[NodeLine, ...]:
        return self.list_nodes(state=state, pool=pool).nodes

    def gpu(self, uuid: str) -> answers.GpuDetail:
        """One GPU: its node, who holds it, what happened to it."""
        return self._get(answers.GpuDetail, f"/api/gpu/{_quoted(uuid)}")

    def who(self, name: str) -> answers.Who:
        """Who holds a GPU or node, and what a job, pod, user or team holds."""
        return self._get(answers.Who, "/api/who", name=name)

    def explain(self, kind: str, name: str) -> answers.ExplainAnswer:
        """Why a pod (`namespace/name`), a node or a job is as it is; `text` for people."""
        return self._get(answers.ExplainAnswer, f"/api/explain/{kind}/{urllib.parse.quote(name)}")

    def topology(
        self, *, rack: str | None = None, leaf: str | None = None, node: str | None = None
    ) -> answers.Topology:
        """Racks, leaves, nodes, GPUs and links with their states; all of them, or those that are named."""
        return self._get(answers.Topology, "/api/topology", rack=rack, leaf=leaf, node=node)

    def push_sweep(self, sweep: dict[str, Any]) -> answers.SweepAccepted:
        """Hand over a sweep of the InfiniBand fabric; see docs/howto/fabric.md."""
        return self._post(answers.SweepAccepted, "/api/fabric", sweep)

    def incidents(self, *, all: bool = False) -> tuple[answers.IncidentCard, ...]:
        """Open incidents, newest first; with `all`, resolved ones too."""
        return self._get(answers.IncidentList, "/api/incidents", open="0" if all else "1").incidents

    def incident(self, id: str) -> answers.FullIncidentDetail:
        """One incident with its diagnosis, plan and timeline."""
        return self._get(answers.FullIncidentDetail, _of(id))

    def acknowledge(self, id: str) -> answers.IncidentDetail:
        return self._post(answers.IncidentDetail, _of(id, "acknowledge"))

    def resolve(self, id: str, *, why: str) -> answers.IncidentDetail:
        return self._post(answers.IncidentDetail, _of(id, "resolve"), {"why": why})

    def note(self, id: str, *, text: str) -> answers.IncidentDetail:
        return self._post(answers.IncidentDetail, _of(id, "note"), {"text": text})

    def assign(self, id: str, *, to: str) -> Incident:
        return self._post(answers.IncidentAssigned, _of(id, "assign"), {"to": to}).incident

    def correct(self, id: str, cause: str, *, why: str = "") -> answers.CauseCorrected:
        """Say what an incident was, or with the same cause that the hub was right."""
        return self._post(answers.CauseCorrected, _of(id, "cause"), {"cause": cause, "why": why})

    def silence_incident(self, id: str, *, duration: str, reason: str) -> answers.SilenceView:
        """Silence everything at the place of an incident."""
        return self._post(answers.SilenceChanged, _of(id, "silence"), {"for": duration, "reason": reason}).silence

    def report(self, id: str) -> dict[str, Any]:
        """The whole story of an incident, as it is written into files."""
        return self.request("GET", f"{_of(id, 'report')}?format=json")

    def report_text(self, id: str) -> str:
        """The same as Markdown."""
        with self._open("GET", _of(id, "report"), accept="text/markdown") as answer:
            return answer.read().decode(errors="replace")

    def notices(self, id: str) -> tuple[Notice, ...]:
        """Who was told about an incident, when, and what they answered."""
        return self._get(answers.NoticeList, _of(id, "notices")).notices

    def digest(self, *, days: int = 7) -> answers.DigestText:
        """A review of the incidents of some days, with `text` for people."""
        return self._get(answers.DigestText, "/api/digest", days=days)

    def list_silences(self) -> answers.SilenceList:
        """Those that are, will be, or were in force within the last day; `problem` says why some are unknown."""
        return self._get(answers.SilenceList, "/api/silences")

    def silences(self) -> tuple[answers.ListedSilence, ...]:
        return self.list_silences().silences

    def silence(
        self, matchers: Sequence[str], *, reason: str, duration: str | None = None, **when: Any
    ) -> answers.SilenceView:
        """Silence what fits all matchers, such as node="gpu-r01-01", for a time such as 2h.

        `when` has `starts_at`, `ends_at` and `maintenance`.
        """
        asked = {"matchers": list(matchers), "reason": reason, "for": duration, **when}
        body = {name: value for name, value in asked.items() if value is not None}
        return self._post(answers.SilenceChanged, "/api/silences", body).silence

    def end_silence(self, id: str) -> answers.SilenceView:
        return self._read(answers.SilenceChanged, self.request("DELETE", f"/api/silences/{_quoted(id)}")).silence

    def repairs(self, *, all: bool = False) -> answers.RepairList:
        """Repairs that wait, run or hold a node, with `switch`; with `all`, the newest that ended too."""
        return self._get(answers.RepairList, "/api/repairs", all="1" if all else "0")

    def repair(self, incident: str) -> answers.ExplainedRepair:
        """Why an incident has this plan and this mode, who would object now, and how far its repair is."""
        return self._get(answers.ExplainedRepair, _of(incident, "repair"))

    def approve(self, incident: str, *, digest: str) -> answers.RepairView:
        """Approve the plan that has this digest, and no other."""
        return self._repair(incident, "approve", digest=digest)

    def reject(self, incident: str, *, why: str) -> answers.RepairView:
        return self._repair(incident, "reject", why=why)

    def finish_step(self, incident: str) -> answers.RepairView:
        """Say that the step that only a person can do is done."""
        return self._repair(incident, "step-done")

    def retry_repair(self, incident: str) -> answers.RepairView:
        return self._repair(incident, "again")

    def stop_repairs(self, *, why: str) -> answers.RepairSwitchView:
        return self._post(answers.SwitchChanged, "/api/repairs/stop", {"why": why}).switch

    def resume_repairs(self) -> answers.RepairSwitchView:
        return self._post(answers.SwitchChanged, "/api/repairs/resume").switch

    def reset_breaker(self) -> answers.RepairSwitchView:
        return self._post(answers.SwitchChanged, "/api/repairs/reset").switch

    def repair_log(self, *, limit: int = 1000) -> tuple[answers.JournalEntry, ...]:
        """The audit of repairs, oldest first: who, what, why, and what came of it."""
        return self._get(answers.RepairLog, "/api/repairs/log", limit=limit).entries

    def test_policy(self, text: str) -> tuple[answers.ReplayedIncident, ...]:
        """Which plan each incident of the past would have got under a policy, and what guards would have said."""
        return self._post(answers.PolicyTest, "/api/repairs/test", {"policy": text}).incidents

    def create_order(
        self, node: str, kind: str, arguments: dict[str, str], *, cluster: str | None = None
    ) -> answers.OrderStatus:
        """Have something harmless done by a node's agent; the answer has the order and its state."""
        body = {"node": node, "kind": kind, "arguments": arguments, "cluster": cluster}
        return self._post(answers.OrderStatus, "/api/orders", body)

    def order(self, id: str) -> answers.OrderStatus:
        """One work order, its state, and its receipt once there is one."""
        return self._get(answers.OrderStatus, f"/api/orders/{_quoted(id)}")

    def bundle(
        self, *, incident: str | None = None, node: str | None = None, cluster: str | None = None, hides_names: bool
    ) -> bytes:
        """Evidence about an incident or a node, as a tar.gz; see docs/howto/bundle.md."""
        form = _form(
            {"incident": incident, "node": node, "cluster": cluster, "hide_names": "1" if hides_names else None}
        )
        with self._open("GET", f"/api/bundle{form}", accept="application/gzip") as answer:
            return answer.read()

    def recording(
        self, *, start: str, end: str, matches: Sequence[str] = (), progress: Callable[[int], None] | None = None
    ) -> Iterator[bytes]:
        """A recording of a time window, piece by piece as the hub writes it; see docs/howto/history.md."""
        form = _form({"from": start, "to": end, "match[]": list(matches)})
        with self._open("GET", f"/api/recording{form}", accept="application/gzip") as answer:
            done = 0
            while piece := answer.read(PIECE_BYTES):
                done += len(piece)
                if progress is not None:
                    progress(done)
                yield piece

    def accuracy(self) -> tuple[answers.Accuracy, ...]:
        """For each cause how often it was named, judged by a person, and right."""
        return self._get(answers.CauseAccuracy, "/api/accuracy").accuracy

    def drill_accuracy(self) -> tuple[answers.CauseScore, ...]:
        """For each cause how often it was named rightly in drills, the worst first."""
        return self._get(answers.DrillAccuracy, "/api/drills/accuracy").drills

    def submit_drill_score(self, score: dict[str, Any]) -> answers.DrillAccuracy:
        """Hand over the score of a game day, as `watchkeeper drill --json` prints it."""
        return self._post(answers.DrillAccuracy, "/api/drills/score", score)

    def lemons(self, *, days: int = 90) -> answers.LemonList:
        """Nodes by how often they break against the fleet, and by counters that grow; the most hazardous first."""
        return self._get(answers.LemonList, "/api/lemons", days=days)

    def jobs(self, **asked: str | int | None) -> answers.JobList:
        """The gravest first, by `state`, `team`, `cluster` and `limit`; `total` counts all that fit."""
        return self._get(answers.JobList, "/api/jobs", **asked)

    def job(self, id: str, *, cluster: str | None = None) -> JobReport:
        """One job in full: efficiency, goodput, ranks side by side; the id may hold a slash."""
        return self._get(JobReport, f"/api/jobs/{urllib.parse.quote(id)}", cluster=cluster)

    def replicas(self, **asked: str | None) -> answers.ReplicaList:
        """How many replicas each model needs; with `model` and `window`, what following that would have done."""
        return self._get(answers.ReplicaList, "/api/replicas", **asked)

    def usage(self, **asked: Any) -> answers.UsageReport:
        """GPU-hours by `by`, only `of`, from `since` to `until`; see docs/howto/cost.md."""
        return self._get(answers.UsageReport, "/api/usage", **_window(asked))

    def cost(self, **asked: Any) -> answers.CostReport:
        return self._get(answers.CostReport, "/api/cost", **_window(asked))

    def waste(self, **asked: Any) -> answers.WasteReport:
        """GPUs that are held and not used, with who holds them and what that costs."""
        return self._get(answers.WasteReport, "/api/cost/waste", **_window(asked))

    def budgets(self, **asked: Any) -> answers.BudgetReport:
        """What is left of the budgets of a `month`, by `zone` and `policy`."""
        return self._get(answers.BudgetReport, "/api/cost/budgets", **asked)

    def statements(self, **asked: Any) -> Iterator[answers.Statement]:
        """Each team's statement of a `month`: its money and an HTML page; by `zone`, `policy`, `team` and `of`."""
        with self._open("GET", f"/api/cost/statements{_form(asked)}", accept="application/x-ndjson") as answer:
            for line in answer:
                yield self._read(answers.Statement, self._parsed(line))

    def capacity_now(self, **asked: str | None) -> answers.CapacityNow:
        """What is free, held and stranded now, who waits, and what would fit better; see docs/howto/capacity.md."""
        return self._get(answers.CapacityNow, "/api/capacity/now", **asked)

    def free_capacity(self, *, cluster: str | None = None) -> FleetCapacity:
        return self.capacity_now(cluster=cluster).standing

    def forecast(self, **asked: str | None) -> answers.CapacityForecast:
        """When the fleet is full: `sentence`, `forecast`, or a `reason` for none; see docs/howto/capacity.md."""
        return self._get(answers.CapacityForecast, "/api/capacity/forecast", **asked)

    def whatif(self, **asked: Any) -> answers.WhatIf:
        """Jobs replayed on the hub's fleet after a change: its own of a `window`, or `jobs` as text."""
        body = {name: told for name, told in asked.items() if told}
        return self._post(answers.WhatIf, "/api/capacity/whatif", body)

    def slos(self) -> tuple[answers.SloStatus, ...]:
        """Every service level objective: indicator, error budget left, burn rates; None where nothing is known."""
        return self._get(answers.SloList, "/api/slos").slos

    def reload_rules(self) -> answers.ReloadOutcome:
        """Let the hub read its rule files again; HubError with every problem if they cannot be used."""
        return self._post(answers.ReloadOutcome, "/-/reload")

    def faults(self) -> tuple[answers.SimulatedFault, ...]:
        """What is broken on purpose in the simulated fleet behind this hub; HubError where the fleet is real."""
        return self._read(tuple[answers.SimulatedFault, ...], self._answer("GET", "/api/sim/faults"))

    def inject(self, body: dict[str, Any]) -> answers.SimulatedFault:
        return self._read(answers.SimulatedFault, self._answer("POST", "/api/sim/faults", body))

    def end_fault(self, id: str) -> answers.SimulatedFault:
        return self._read(answers.SimulatedFault, self._answer("DELETE", f"/api/sim/faults/{id}"))

    def rules(self) -> list[dict[str, Any]]:
        """Rule groups with their rules and alerts, as Prometheus shows them."""
        groups: list[dict[str, Any]] = self.prometheus("rules")["groups"]
        return groups

    def query(self, expr: str, *, at: datetime | None = None, limit: int | None = None) -> promql.QueryResult:
        """PromQL at one time; `limit` cuts the series, and the warnings then say so."""
        return promql.parse_result(self.query_data(expr, at=None if at is None else wire.format_time(at), limit=limit))

    def query_range(self, expr: str, *, start: datetime, end: datetime, step: str) -> promql.QueryResult:
        span = {"start": wire.format_time(start), "end": wire.format_time(end), "step": step}
        return promql.parse_result(self.query_range_data(expr, **span))

    def query_data(self, expr: str, *, at: str | None = None, limit: int | None = None) -> answers.QueryData:
        """The same as Prometheus answers it; `plain` has its warnings and infos."""
        return self._queried("query", query=expr, time=at, limit=limit)

    def query_range_data(self, expr: str, *, start: str, end: str, step: str) -> answers.QueryData:
        return self._queried("query_range", query=expr, start=start, end=end, step=step)

    def prometheus(self, endpoint: str, **asked: Any) -> dict[str, Any]:
        """The `data` object of an endpoint under /api/v1, with warnings and infos where there are any."""
        body = self.request("GET", f"/api/v1/{endpoint}{_form(asked)}")
        data = read_answer(dict[str, Any], body.get("data"), step=".data", where=self.url)
        return {**data, **{key: body[key] for key in ("warnings", "infos") if body.get(key)}}

    def _queried(self, endpoint: str, **asked: Any) -> answers.QueryData:
        return read_answer(answers.QueryData, self.prometheus(endpoint, **asked), step=".data", where=self.url)

    def _repair(self, incident: str, word: str, **body: Any) -> answers.RepairView:
        return self._post(answers.RepairChanged, _of(incident, word), body).repair

    def _get(self, kind: type[T], path: str, **asked: Any) -> T:
        return self._read(kind, self.request("GET", path + _form(asked)))

    def _post(self, kind: type[T], path: str, body: dict[str, Any] | None = None) -> T:
        return self._read(kind, self.request("POST", path, body or {}))

    def _read(self, kind: type[T], plain: Any) -> T:
        return read_answer(kind, plain, where=self.url)

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """An answer as it comes, for what this class has no method for."""
        found = self._answer(method, path, body)
        # The fleet API says `ok`, Prometheus' API `status`: whoever says neither has not done what it was asked.
        if not isinstance(found, dict) or (found.get("ok") is not True and found.get("status") != "success"):
            raise HubError(f"the answer has neither `ok` nor `status`: {NOT_A_HUB}", where=self.url)
        return found

    def _answer(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        with self._open(method, path, body) as answer:
            return self._parsed(answer.read())

    def _parsed(self, content: bytes) -> Any:
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise HubError(f"the answer is not JSON: {NOT_A_HUB}", where=self.url) from error

    @contextlib.contextmanager
    def _open(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, accept: str = JSON
    ) -> Iterator[http.client.HTTPResponse]:
        """The answer to a request, while it is read; whatever goes wrong with it is a HubError."""
        headers = {"Accept": accept}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        content = None
        if body is not None:
            content = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        limits = sync_http.HttpLimits(math.inf, idle_seconds=self._timeout_seconds)
        request = sync_http.Request(method, body=content, headers=headers)
        try:
            with sync_http.open_with_redirects(self.url + path, request, limits=limits, access=self._access) as answer:
                self._check_version(answer.headers.get(api_version.HEADER))
                if not 200 <= answer.status < 300:
                    raise self._refusal(answer)
                self._check_kind(answer.headers.get_content_type(), accept)
                yield answer
        except (sync_http.NoAnswer, sync_http.InvalidAddress) as error:
            remedy = "Start one with `watchkeeper up`, or name another with --hub URL"
            raise HubError(f"no hub answers ({error.problem})", where=self.url, remedy=remedy) from error

    def _check_version(self, said: str | None) -> None:
        """HubError where the hub speaks another version of the API; one that says nothing is of the time before."""
        if said is not None and said != str(api_version.API_VERSION):
            problem = f"this hub speaks version {said[:20]} of its API, this client version {api_version.API_VERSION}"
            raise HubError(problem, where=self.url, remedy="Install the Watchkeeper that the hub runs, here as well")

    def _check_kind(self, given: str, wanted: str) -> None:
        """HubError for a page where a file was asked for: it must not be kept, or shown, as a hub's; JSON is read."""
        if wanted not in (JSON, given):
            raise HubError(f"the answer is {given[:80]} and not {wanted}: {NOT_A_HUB}", where=self.url)

    def _refusal(self, refused: http.client.HTTPResponse) -> HubError:
        """What the hub said; words that are not a hub's have no `status`, as no hub has answered."""
        try:
            answer = json.loads(refused.read())
            problem = "\n".join([str(answer["error"]), *(str(one) for one in answer.get("errors", ()))])
        except (ValueError, KeyError, TypeError):
            problem = f"answered {refused.status} {refused.reason}, not in a hub's words: {NOT_A_HUB}"
            return HubError(problem, where=self.url)
        remedy = "Give a token with --token or WATCHKEEPER_TOKEN" if refused.status == 401 else None
        return HubError(problem, status=refused.status, where=self.url, remedy=remedy)


def _of(incident: str, word: str = "") -> str:
    """The path of an incident, or of something about it."""
    return f"/api/incidents/{urllib.parse.quote(incident)}" + (f"/{word}" if word else "")


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")


def _form(asked: Mapping[str, Any]) -> str:
    """The query of a path; what is None is not asked."""
    form = {name: value for name, value in asked.items() if value is not None}
    return f"?{urllib.parse.urlencode(form, doseq=True)}" if form else ""


def _window(asked: Mapping[str, Any]) -> dict[str, Any]:
    names = {"since": "from", "until": "to"}
    return {names.get(name, name): value for name, value in asked.items()}
