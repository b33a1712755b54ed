"""The driver of a Slurm cluster whose commands this machine does not have: drain and resume through slurmrestd.

It is the driver of `slurm` with another way to slurmctld. slurmrestd changes nodes from Slurm 23.02 on (interface
v0.0.39), and has no call that requeues, holds or notifies a job: those actions are refused with the way out, and the
jobs of a drain are waited for. `choices` takes it where [fleet] names a slurmrestd and PATH has no scontrol.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from watchkeeper.config import settings as config
from watchkeeper.errors import ActionFailed, ActionRefused, CollectError
from watchkeeper.model.actions import Action, ActionKind
from watchkeeper.model.fleet import Place
from watchkeeper.net import slurm_access, sync_http
from watchkeeper.readers import json_facts as facts
from watchkeeper.readers.clusters import slurm_records as records
from watchkeeper.remediate.driver import ActionOutcome
from watchkeeper.remediate.drivers import cluster_driver, slurm
from watchkeeper.remediate.drivers.cluster_driver import ClusterUnavailable
from watchkeeper.remediate.drivers.dry_run import describe_by_hand

# The list of interfaces is a megabyte; the jobs of a large cluster are a hundred.
MOST_ANSWER_BYTES = 256 * 1024 * 1024
ERRORS = re.compile(r'"errors"\s*:\s*')
# 24.11 says so of a node that it does not know; of a slurmctld that is away it names the error.
NOT_FOUND = re.compile(r"Invalid node name|Failure to query node \S+: No error")
NODE_PATH, FIRST_VERSION = "/node/{node_name}", "v0.0.39"
NO_CALL = "slurmrestd has no call that requeues, holds or notifies a job"
REMEDY = "Install Slurm's commands on the hub's machine, or set remediate.slurm_commands"
PERFORMED: Mapping[ActionKind, Callable[[slurm.SlurmDriver, Action], ActionOutcome]] = {
    kind: slurm.PERFORMED[kind] for kind in (ActionKind.CORDON, ActionKind.UNCORDON, ActionKind.DRAIN)
}


def of_settings(settings: config.Settings, *, is_stopped: Callable[[], bool] = lambda: False) -> slurm.SlurmDriver:
    """Slurm by its commands, which can do more, or through slurmrestd where there are none."""
    fleet, own = settings.fleet, settings.remediate
    if own.slurm_commands is not None or fleet.slurm_rest_url is None or shutil.which("scontrol") is not None:
        return slurm.of_settings(settings, is_stopped=is_stopped)
    token = None if fleet.slurm_token_file is None else Path(fleet.slurm_token_file)
    rest = SlurmRestClient(fleet.slurm_rest_url, token, fleet.slurm_user, own.call_timeout_seconds)
    return SlurmRestDriver(running_jobs=own.running_jobs, is_stopped=is_stopped, rest=rest)


@dataclass(slots=True)
class SlurmRestClient:
    """slurmrestd, over HTTP with the JWT in `token_file`, or over its socket, `unix:///run/slurmrestd.sock`."""

    url: str
    token_file: Path | None = None
    user: str | None = None
    timeout_seconds: float = 5.0
    _version: str | None = None

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, str]:
        """Status and text of the answer to a path below `/slurm/VERSION`; NotNow where there is none."""
        answer = self._send(f"/slurm/{self.version()}{path}", body)
        if answer[0] != 404:
            return answer
        # An upgraded slurmrestd drops the interface of two versions ago.
        before, self._version = self._version, None
        return answer if self.version() == before else self._send(f"/slurm/{self.version()}{path}", body)

    def version(self) -> str:
        """The newest interface that can change a node."""
        if self._version is None:
            status, text = self._send("/openapi/v3", None)
            able, others = _versions(text)
            if not able:
                spoken = f"it speaks {', '.join(others)}" if others else f"it answered {status} and names no interface"
                raise ActionRefused(
                    f"this slurmrestd cannot change a node: {spoken}; {FIRST_VERSION} of Slurm 23.02 is the first",
                    where=self.url,
                    now="Nothing was touched",
                    remedy=REMEDY,
                )
            self._version = able[-1]
        return self._version

    def address(self, path: str) -> str:
        """Where a path is asked for; its version stands in it as soon as slurmrestd has named it."""
        return f"/slurm/{self._version or 'VERSION'}{path}"

    def _send(self, path: str, body: Mapping[str, Any] | None) -> tuple[int, str]:
        content = None if body is None else json.dumps(body).encode()
        request = sync_http.Request("GET" if body is None else "POST", path, content, self._headers())
        limits = sync_http.HttpLimits(total_seconds=self.timeout_seconds, answer_bytes=MOST_ANSWER_BYTES)
        try:
            answer = sync_http.HttpClient(self.url, limits=limits).send(request)
        except CollectError as error:
            what = f"slurmrestd did not take {path}: {error.problem}"
            raise ClusterUnavailable(what, where=self.url, remedy="It is asked again") from error
        return answer.status, answer.body.decode("utf-8", "replace")

    def _headers(self) -> dict[str, str]:
        try:
            return slurm_access.headers(self.user, self.token_file) | {"Content-Type": "application/json"}
        except OSError as error:
            raise ClusterUnavailable(f"cannot be read: {error.strerror}", where=str(self.token_file)) from error


@dataclass(frozen=True, slots=True)
class SlurmRestDriver(slurm.SlurmDriver):
    """A Slurm that is asked and changed over HTTP."""

    rest: SlurmRestClient = field(default_factory=lambda: SlurmRestClient("unix:///run/slurmrestd.sock"))

    def describe(self, action: Action) -> str:
        """The calls in their order, without making any."""
        if action.kind not in PERFORMED:
            return (
                f"{describe_by_hand(action)}: refused, {NO_CALL}"
                if action.kind in slurm.PERFORMED
                else describe_by_hand(action)
            )
        name = slurm.name_of(action.place)
        if action.kind is ActionKind.DRAIN:
            return f"GET {self.rest.address('/jobs')}, until none is on {name}"
        call, told = f"POST {self.rest.address(f'/node/{name}')}", {"state": ["DRAIN"], "reason": action.mark}
        if action.kind is ActionKind.CORDON:
            return f"{call} {json.dumps(told)}"
        return f'{call} {{"state": ["RESUME"]}}, if its reason is of {action.incident}'

    def perform(self, action: Action) -> ActionOutcome:
        is_requeue = action.kind is ActionKind.DRAIN and self._policy(action) is config.RunningJobs.REQUEUE
        if is_requeue or (action.kind in slurm.PERFORMED and action.kind not in PERFORMED):
            raise ActionRefused(NO_CALL, where=action.place.node, now="Nothing was touched", remedy=REMEDY)
        return cluster_driver.perform(self, action, PERFORMED, lacks=f"Slurm has no call for {action.kind} that we use")

    def _node(self, place: Place) -> records.NodeRecord | None:
        name = slurm.name_of(place)
        status, text = self.rest.ask(f"/node/{quote(name, safe='')}")
        said = _said(text)
        if NOT_FOUND.search(said):
            return None
        if status >= 300 or said:
            raise self._failed(said or f"HTTP {status}", place)
        return next((node for node in _listed(text, records.nodes_of_json, self.rest.url) if node.name == name), None)

    def _jobs(self, node: records.NodeRecord) -> list[slurm.SlurmJob]:
        """slurmrestd lists the jobs of the whole cluster, so it is asked only while the node has any."""
        if not records.BUSY.intersection(node.states):
            return []
        status, text = self.rest.ask("/jobs")
        said = _said(text)
        if status >= 300 or said:
            raise self._failed(said or f"HTTP {status}", None)
        return [
            slurm.SlurmJob(job.array or job.id, job.states[0], job.user, str(job.started_at or ""))
            for job in _listed(text, records.jobs_of_json, self.rest.url)
            if node.name in job.nodes and slurm.PRESENT_STATES.intersection(job.states)
        ]

    def _set_state(self, place: Place, name: str, state: str, *, reason: str = "") -> None:
        self._refuse_stopped(place)
        told = {"state": [state], **({"reason": reason} if reason else {})}
        status, text = self.rest.ask(f"/node/{quote(name, safe='')}", told)
        said = _said(text)
        if status >= 300 or said:
            raise self._failed(said or f"HTTP {status}", place)


def _versions(text: str) -> tuple[list[str], list[str]]:
    """The interfaces of a list of paths that can change a node, and the others; oldest first."""
    try:
        paths = facts.mapping(json.loads(text), "paths")
    except (ValueError, RecursionError):
        return [], []
    found: dict[str, bool] = {}
    for path, calls in paths.items():
        start, _, rest = path.removeprefix("/slurm/").partition("/")
        if path.startswith("/slurm/v") and f"/{rest}".rstrip("/") == NODE_PATH:
            found[start] = isinstance(calls, dict) and "post" in calls
    ordered = sorted(found, key=lambda one: [int(part) if part.isdigit() else 0 for part in one.split(".")])
    return [one for one in ordered if found[one]], [one for one in ordered if not found[one]]


def _said(text: str) -> str:
    """What slurmrestd says is wrong: the texts of its `errors`; what has none is no answer of slurmrestd.

    Only that list is decoded: ten thousand jobs as Python objects take a gigabyte.
    """
    try:
        start = ERRORS.search(text)
        found, _ = json.JSONDecoder().raw_decode(text, start.end()) if start is not None else (None, 0)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list):
        return text.strip()[: slurm.LONGEST_MESSAGE] or "nothing"
    listed = [facts.mapping(one) for one in found]
    words = [": ".join(str(one[name]) for name in ("description", "error") if one.get(name)) for one in listed]
    return "; ".join(word for word in words if word)[: slurm.LONGEST_MESSAGE]


def _listed(text: str, read: Callable[..., list[Any]], where: str) -> list[Any]:
    try:
        return read(text, where=where)
    except CollectError as error:
        raise ActionFailed(f"its answer cannot be read: {error}", where=where) from error
