"""Asking a hub: one method per question, model values as answers.

The command line uses it, and so can any program: `HubClient("http://127.0.0.1:9480").incidents()`.
A hub that cannot be reached or says no raises HubError with what to do about it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from watchkeeper.client import promise
from watchkeeper.client.address import DEFAULT_URL
from watchkeeper.errors import HubError
from watchkeeper.kit import api_version
from watchkeeper.net import sync_http
from watchkeeper.net.access import NOTHING, Access

# A query may scan hours of a large fleet; anything longer is the server's fault, not patience.
TIMEOUT_SECONDS = 30.0
PIECE_BYTES = 64 * 1024
JSON = "application/json"
NOT_A_HUB = "is this a Watchkeeper hub, or something in front of one?"


class Answer(dict[str, Any]):
    """An object of a hub's answer; what it lacks is a HubError, as a hub that is older than its client may lack it."""

    def __missing__(self, key: str) -> Any:
        problem = f"the hub's answer has no `{key}`: the hub is older than this command, or is none"
        raise HubError(problem, remedy="Install the same version of Watchkeeper on both sides")


class HubClient:
    """One hub at one address, with an optional bearer token, and certificates where it speaks TLS."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        access: Access = NOTHING,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise HubError(f"`{url}` is not an address", remedy="Write it like http://127.0.0.1:9480")
        self.url = url.rstrip("/")
        self._token = token
        self._timeout_seconds = timeout_seconds
        self._access = access

    def query(self, expr: str, *, at: str | None = None) -> dict[str, Any]:
        """An instant query; the answer is Prometheus' `data` object, with warnings and infos where there are any."""
        return self.prometheus("query", {"query": expr, "time": at})

    def query_range(self, expr: str, *, start: str, end: str, step: str) -> dict[str, Any]:
        return self.prometheus("query_range", {"query": expr, "start": start, "end": end, "step": step})

    def status(self) -> dict[str, Any]:
        return self._ask("GET", "/api/status")

    def fleet(self) -> dict[str, Any]:
        """`nodes` in the order of the map with their GPUs, and `workloads`: who holds which GPU now."""
        return self._ask("GET", "/api/fleet")

    def gpu(self, uuid: str) -> dict[str, Any]:
        """One GPU: its node, who holds it, what happened to it."""
        return self._ask("GET", f"/api/gpu/{urllib.parse.quote(uuid, safe='')}")

    def incidents(self, *, all: bool = False) -> list[dict[str, Any]]:
        """Open incidents, newest first; with `all`, resolved ones too."""
        answer: list[dict[str, Any]] = self._ask("GET", f"/api/incidents?open={'0' if all else '1'}")["incidents"]
        return answer

    def incident(self, id: str) -> dict[str, Any]:
        """One incident with its diagnosis, plan and timeline."""
        return self._ask("GET", f"/api/incidents/{urllib.parse.quote(id)}")

    def slos(self) -> list[dict[str, Any]]:
        """Every service level objective: indicator, error budget left, burn rates; None where nothing is known."""
        answer: list[dict[str, Any]] = self._ask("GET", "/api/slos")["slos"]
        return answer

    def reload_rules(self) -> dict[str, Any]:
        """Let the hub read its rule files again; HubError with every problem if they cannot be used."""
        return self._ask("POST", "/-/reload", {})

    def topology(self, *, rack: str | None = None, leaf: str | None = None, node: str | None = None) -> dict[str, Any]:
        """Racks, leaves, nodes, GPUs and links with their states; all of them, or those that are named."""
        asked = {"rack": rack, "leaf": leaf, "node": node}
        form = urllib.parse.urlencode({name: value for name, value in asked.items() if value is not None})
        return self._ask("GET", f"/api/topology?{form}")

    def push_sweep(self, sweep: dict[str, Any]) -> dict[str, Any]:
        """Hand over a sweep of the InfiniBand fabric; see docs/howto/fabric.md."""
        return self._ask("POST", "/api/fabric", sweep)

    def acknowledge(self, id: str) -> dict[str, Any]:
        return self._ask("POST", f"/api/incidents/{urllib.parse.quote(id)}/acknowledge", {})

    def resolve(self, id: str, *, why: str) -> dict[str, Any]:
        return self._ask("POST", f"/api/incidents/{urllib.parse.quote(id)}/resolve", {"why": why})

    def assign(self, id: str, *, to: str) -> dict[str, Any]:
        return self._ask("POST", f"/api/incidents/{urllib.parse.quote(id)}/assign", {"to": to})

    def silence_incident(self, id: str, *, lasting: str, reason: str) -> dict[str, Any]:
        """Silence everything at the place of an incident."""
        body = {"for": lasting, "reason": reason}
        return self._ask("POST", f"/api/incidents/{urllib.parse.quote(id)}/silence", body)

    def silences(self) -> dict[str, Any]:
        """`silences` that are, will be, or were in force within the last day; `problem` says why some are unknown."""
        return self._ask("GET", "/api/silences")

    def silence(self, matchers: Sequence[str], *, reason: str, **when: Any) -> dict[str, Any]:
        """A silence of what fits all matchers; `when` has `for`, `starts_at`, `ends_at` and `maintenance`."""
        return self._ask("POST", "/api/silences", {"matchers": list(matchers), "reason": reason, **when})

    def end_silence(self, id: str) -> dict[str, Any]:
        return self._ask("DELETE", f"/api/silences/{urllib.parse.quote(id, safe='')}")

    def report(self, id: str) -> dict[str, Any]:
        """The whole story of an incident."""
        return self._ask("GET", f"/api/incidents/{urllib.parse.quote(id)}/report?format=json")

    def report_text(self, id: str) -> str:
        """The same as Markdown."""
        with self._open("GET", f"/api/incidents/{urllib.parse.quote(id)}/report", accept="text/markdown") as answer:
            return answer.read().decode(errors="replace")

    def notices(self, id: str) -> list[dict[str, Any]]:
        """Who was told about an incident, when, and what they answered."""
        answer: list[dict[str, Any]] = self._ask("GET", f"/api/incidents/{urllib.parse.quote(id)}/notices")["notices"]
        return answer

    def digest(self, *, days: int = 7) -> dict[str, Any]:
        """A review of the incidents of some days, with `text` for people."""
        return self._ask("GET", f"/api/digest?days={days}")

    def note(self, id: str, *, text: str) -> dict[str, Any]:
        return self._ask("POST", f"/api/incidents/{urllib.parse.quote(id)}/note", {"text": text})

    def give_order(
        self, node: str, kind: str, arguments: dict[str, str], *, cluster: str | None = None
    ) -> dict[str, Any]:
        """Have something harmless done by a node's agent; the answer has the order and its state."""
        body = {"node": node, "kind": kind, "arguments": arguments, "cluster": cluster}
        return self._ask("POST", "/api/orders", body)

    def order(self, id: str) -> dict[str, Any]:
        """One work order, its state, and its receipt once there is one."""
        return self._ask("GET", f"/api/orders/{urllib.parse.quote(id, safe='')}")

    def bundle(
        self, *, incident: str | None = None, node: str | None = None, cluster: str | None = None, hides_names: bool
    ) -> bytes:
        """Evidence about an incident or a node, as a tar.gz; see docs/howto/bundle.md."""
        asked = {"incident": incident, "node": node, "cluster": cluster, "hide_names": "1" if hides_names else None}
        form = urllib.parse.urlencode({name: text for name, text in asked.items() if text is not None})
        with self._open("GET", f"/api/bundle?{form}", accept="application/gzip") as answer:
            return answer.read()

    def recording(
        self, *, start: str, end: str, matches: Sequence[str] = (), progress: Callable[[int], None] | None = None
    ) -> Iterator[bytes]:
        """A recording of a time window, piece by piece as the hub writes it; see docs/howto/history.md."""
        form = urllib.parse.urlencode([("from", start), ("to", end), *(("match[]", each) for each in matches)])
        with self._open("GET", f"/api/recording?{form}", accept="application/gzip") as answer:
            done = 0
            while piece := answer.read(PIECE_BYTES):
                done += len(piece)
                if progress is not None:
                    progress(done)
                yield piece

    def nodes(self, *, state: str | None = None, pool: str | None = None) -> dict[str, Any]:
        """Every node with its states, GPUs and holders; `total` counts those that the filters left out too."""
        chosen = {name: value for name, value in (("state", state), ("pool", pool)) if value is not None}
        return self._ask("GET", f"/api/nodes?{urllib.parse.urlencode(chosen)}")

    def who(self, name: str) -> dict[str, Any]:
        """Who holds a GPU or node, and what a job, pod, user or team holds."""
        return self._ask("GET", f"/api/who?{urllib.parse.urlencode({'name': name})}")

    def correct(self, id: str, cause: str, *, why: str = "") -> dict[str, Any]:
        """Say what an incident was, or with the same cause that the hub was right."""
        return self._ask("POST", f"/api/incidents/{urllib.parse.quote(id)}/cause", {"cause": cause, "why": why})

    def accuracy(self) -> list[dict[str, Any]]:
        """For each cause how often it was named, judged by a person, and right."""
        answer: list[dict[str, Any]] = self._ask("GET", "/api/accuracy")["accuracy"]
        return answer

    def drill_accuracy(self) -> list[dict[str, Any]]:
        """For each cause how often it was named rightly in drills, the worst first."""
        answer: list[dict[str, Any]] = self._ask("GET", "/api/drills/accuracy")["drills"]
        return answer

    def tell_drills(self, score: dict[str, Any]) -> dict[str, Any]:
        """Hand over the score of a game day, as `watchkeeper drill --json` prints it."""
        return self._ask("POST", "/api/drills/score", score)

    def lemons(self, *, days: int = 90) -> dict[str, Any]:
        """Nodes by how often they break against the fleet, and by counters that grow; the most hazardous first."""
        return self._ask("GET", f"/api/lemons?days={days}")

    def explain(self, kind: str, name: str) -> dict[str, Any]:
        """Why a pod (`namespace/name`), a node or a job is as it is; `text` for people."""
        return self._ask("GET", f"/api/explain/{kind}/{urllib.parse.quote(name)}")

    def jobs(self, **asked: str | int | None) -> dict[str, Any]:
        """`jobs`, the gravest first, by `state`, `team`, `cluster` and `limit`; `total` counts all that fit."""
        form = urllib.parse.urlencode({name: value for name, value in asked.items() if value is not None})
        return self._ask("GET", f"/api/jobs?{form}")

    def job(self, id: str, *, cluster: str | None = None) -> dict[str, Any]:
        """One job in full: efficiency, goodput, ranks side by side; the id may hold a slash."""
        form = f"?{urllib.parse.urlencode({'cluster': cluster})}" if cluster else ""
        return self._ask("GET", f"/api/jobs/{urllib.parse.quote(id)}{form}")

    def repairs(self, *, all: bool = False) -> dict[str, Any]:
        """Repairs that wait, run or hold a node, with `switch`; with `all`, the newest that ended too."""
        return self._ask("GET", f"/api/repairs?all={'1' if all else '0'}")

    def repair(self, incident: str) -> dict[str, Any]:
        """Why an incident has this plan and this mode, who would object now, and how far its repair is."""
        return self._ask("GET", f"/api/incidents/{urllib.parse.quote(incident)}/repair")

    def repair_word(self, incident: str, word: str, **body: Any) -> dict[str, Any]:
        """Say `approve`, `reject`, `step-done` or `again` about the repair of an incident."""
        path = f"/api/incidents/{urllib.parse.quote(incident)}/{word}"
        answer: dict[str, Any] = self._ask("POST", path, body)["repair"]
        return answer

    def repair_switch(self, word: str, **body: Any) -> dict[str, Any]:
        """`stop` or `resume` everything, or `reset` the circuit breaker."""
        answer: dict[str, Any] = self._ask("POST", f"/api/repairs/{word}", body)["switch"]
        return answer

    def repair_log(self, *, limit: int = 1000) -> list[dict[str, Any]]:
        """The audit of repairs, oldest first: who, what, why, and what came of it."""
        answer: list[dict[str, Any]] = self._ask("GET", f"/api/repairs/log?limit={limit}")["entries"]
        return answer

    def test_policy(self, text: str) -> list[dict[str, Any]]:
        """Which plan each incident of the past would have got under a policy, and what guards would have said."""
        answer: list[dict[str, Any]] = self._ask("POST", "/api/repairs/test", {"policy": text})["incidents"]
        return answer

    def capacity(self, question: str, **asked: str | None) -> dict[str, Any]:
        """`forecast`, `now` or `advice` about the fleet's GPUs; see docs/howto/capacity.md."""
        form = urllib.parse.urlencode({name: value for name, value in asked.items() if value is not None})
        return self._ask("GET", f"/api/capacity/{question}?{form}")

    def whatif(self, **asked: Any) -> dict[str, Any]:
        """Jobs replayed on the hub's fleet after a change: its own of a `window`, or `jobs` as text."""
        return self._ask("POST", "/api/capacity/whatif", {name: told for name, told in asked.items() if told})

    def usage(self, question: str = "usage", **asked: Any) -> dict[str, Any]:
        """`usage`, `cost`, `cost/waste` or `cost/budgets`, by `since`, `until`, `by`, `of`; see docs/howto/cost.md."""
        names = {"since": "from", "until": "to"}
        form = {names.get(name, name): value for name, value in asked.items() if value is not None}
        return self._ask("GET", f"/api/{question}?{urllib.parse.urlencode(form, doseq=True)}")

    def statements(self, **asked: Any) -> Iterator[dict[str, Any]]:
        """Each team's statement of a `month`: its money and an HTML page; by `zone`, `policy`, `team` and `of`."""
        form = {name: value for name, value in asked.items() if value is not None}
        path = f"/api/cost/statements?{urllib.parse.urlencode(form, doseq=True)}"
        with self._open("GET", path, accept="application/x-ndjson") as answer:
            for line in answer:
                yield self._read(line, "GET", path)

    def replicas(self, **asked: str | None) -> dict[str, Any]:
        """How many replicas each model needs; with `model` and `window`, what following that would have done."""
        form = urllib.parse.urlencode({name: value for name, value in asked.items() if value is not None})
        return self._ask("GET", f"/api/replicas?{form}")

    def simulator(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """A request to the simulated fleet behind this hub; HubError where the fleet is real."""
        return self._answer(method, f"/api/sim{path}", body)

    def prometheus(self, endpoint: str, parameters: Mapping[str, str | None] | None = None) -> dict[str, Any]:
        """The `data` object of an endpoint under /api/v1, with warnings and infos where there are any."""
        asked = parameters or {}
        form = urllib.parse.urlencode({name: value for name, value in asked.items() if value is not None})
        body = self._ask("GET", f"/api/v1/{endpoint}?{form}")
        return {**body["data"], **{key: body[key] for key in ("warnings", "infos") if body.get(key)}}

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        found = self._answer(method, path, body)
        # The fleet API says `ok`, Prometheus' API `status`: whoever says neither has not done what it was asked.
        if not isinstance(found, dict) or (found.get("ok") is not True and found.get("status") != "success"):
            raise HubError(f"the answer has neither `ok` nor `status`: {NOT_A_HUB}", where=self.url)
        return found

    def _answer(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        with self._open(method, path, body) as answer:
            return self._read(answer.read(), method, path)

    def _read(self, content: bytes, method: str, path: str) -> Any:
        """JSON of the shape that the API promises of this question."""
        try:
            found = json.loads(content, object_hook=Answer)
        except (ValueError, RecursionError) as error:
            raise HubError(f"the answer is not JSON: {NOT_A_HUB}", where=self.url) from error
        if problem := promise.broken(method, path, found):
            raise HubError(f"{problem}: {NOT_A_HUB}", where=self.url)
        return found

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
        limits = sync_http.Limits(math.inf, wait_seconds=self._timeout_seconds)
        request = sync_http.Request(method, body=content, headers=headers)
        try:
            with sync_http.follow(self.url + path, request, limits=limits, access=self._access) as answer:
                self._check_version(answer.headers.get(api_version.HEADER))
                if not 200 <= answer.status < 300:
                    raise self._refusal(answer)
                self._check_kind(answer.headers.get_content_type(), accept)
                yield answer
        except (sync_http.NoAnswer, sync_http.NoAddress) as error:
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
