"""Drain and resume nodes of a Slurm cluster through slurmrestd, on machines without Slurm's commands.

The driver extends that of `slurm`. slurmrestd can change nodes since Slurm 23.02 (API version v0.0.39), and has no call
that requeues, holds or notifies a job: those actions are refused, and a drain waits for jobs.
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
from watchkeeper.errors import ActionFailed, CollectError
from watchkeeper.model.actions import Action, ActionKind
from watchkeeper.model.fleet import Place
from watchkeeper.net import access, sync_http
from watchkeeper.readers import json_facts as facts
from watchkeeper.readers.clusters import slurm_records as records
from watchkeeper.remediate.driver import ActionOutcome
from watchkeeper.remediate.drivers import cluster_driver, slurm
from watchkeeper.remediate.drivers.cluster_driver import ClusterUnavailable, describe_manual_command

# The API description is 1 MB; the jobs of a large cluster are 100 MB.
MAX_RESPONSE_BYTES = 256 * 1024 * 1024
ERRORS = re.compile(r'"errors"\s*:\s*')
# The messages of 24.11 for an unknown node; for an unreachable slurmctld it names the error.
NOT_FOUND = re.compile(r"Invalid node name|Failure to query node \S+: No error")
NODE_PATH, FIRST_VERSION = "/node/{node_name}", "v0.0.39"
NO_CALL = "slurmrestd has no call that requeues, holds or notifies a job"

SUPPORTED_ACTIONS: Mapping[ActionKind, Callable[[slurm.SlurmDriver, Action], ActionOutcome]] = {
    kind: slurm.SUPPORTED_ACTIONS[kind] for kind in (ActionKind.CORDON, ActionKind.UNCORDON, ActionKind.DRAIN)
}


def build_driver(settings: config.Settings, *, is_stopped: Callable[[], bool] = lambda: False) -> slurm.SlurmDriver:
    """Return the driver with Slurm's commands, which can do more, or with slurmrestd if there are none."""
    fleet, remediate = settings.fleet, settings.remediate
    if remediate.slurm_commands is not None or fleet.slurm_rest_url is None or shutil.which("scontrol") is not None:
        return slurm.build_driver(settings, is_stopped=is_stopped)
    token = None if fleet.slurm_token_file is None else Path(fleet.slurm_token_file)
    rest = SlurmRestClient(fleet.slurm_rest_url, token, fleet.slurm_user, remediate.call_timeout_seconds)
    return SlurmRestDriver(running_jobs=remediate.running_jobs, is_stopped=is_stopped, rest=rest)


@dataclass(slots=True)
class SlurmRestClient:
    """Calls slurmrestd over HTTP with the JWT in `token_file`, or over a socket, `unix:///run/slurmrestd.sock`."""

    url: str
    token_file: Path | None = None
    user: str | None = None
    timeout_seconds: float = 5.0
    _version: str | None = None

    def call(self, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, str]:
        """Call a path below `/slurm/VERSION`; return status and text, ClusterUnavailable if there is no response."""
        response = self._send(f"/slurm/{self.version()}{path}", body)
        if response[0] != 404:
            return response
        # An upgraded slurmrestd drops the API version of two releases before.
        previous, self._version = self._version, None
        return response if self.version() == previous else self._send(f"/slurm/{self.version()}{path}", body)

    def version(self) -> str:
        """Return the newest API version that can change a node."""
        if self._version is None:
            status, text = self._send("/openapi/v3", None)
            supported, unsupported = _split_versions(text)
            if not supported:
                offered = ", ".join(unsupported) or f"none (HTTP {status})"
                problem = f"slurmrestd cannot change nodes: its API versions are {offered}, it needs {FIRST_VERSION}"
                raise cluster_driver.build_refusal(problem, self.url, slurm.INSTALL_COMMANDS)
            self._version = supported[-1]
        return self._version

    def display_path(self, path: str) -> str:
        """Return the full path for the dry run; VERSION stands for a version that is not read yet."""
        return f"/slurm/{self._version or 'VERSION'}{path}"

    def _send(self, path: str, body: Mapping[str, Any] | None) -> tuple[int, str]:
        content = None if body is None else json.dumps(body).encode()
        request = sync_http.Request("GET" if body is None else "POST", path, content, self._headers())
        limits = sync_http.HttpLimits(total_seconds=self.timeout_seconds, answer_bytes=MAX_RESPONSE_BYTES)
        try:
            response = sync_http.HttpClient(self.url, limits=limits).send(request)
        except CollectError as error:
            problem = f"the call of {path} to slurmrestd failed: {error.problem}"
            raise ClusterUnavailable(problem, where=self.url, remedy="It is retried") from error
        return response.status, response.body.decode("utf-8", "replace")

    def _headers(self) -> dict[str, str]:
        try:
            return access.slurm_headers(self.user, self.token_file) | {"Content-Type": "application/json"}
        except OSError as error:
            problem = f"cannot read the token: {error.strerror}"
            raise ClusterUnavailable(problem, where=str(self.token_file)) from error


@dataclass(frozen=True, slots=True)
class SlurmRestDriver(slurm.SlurmDriver):
    rest: SlurmRestClient = field(default_factory=lambda: SlurmRestClient("unix:///run/slurmrestd.sock"))

    def describe(self, action: Action) -> str:
        if action.kind not in SUPPORTED_ACTIONS:
            refusal = f": refused, {NO_CALL}" if action.kind in slurm.SUPPORTED_ACTIONS else ""
            return describe_manual_command(action) + refusal
        name = slurm.require_node_name(action.place)
        if action.kind is ActionKind.DRAIN:
            return f"GET {self.rest.display_path('/jobs')}, until no job is on {name}"
        request, body = f"POST {self.rest.display_path(f'/node/{name}')}", {"state": ["DRAIN"], "reason": action.mark}
        if action.kind is ActionKind.CORDON:
            return f"{request} {json.dumps(body)}"
        return f'{request} {{"state": ["RESUME"]}}, only if its reason names {action.incident}'

    def perform(self, action: Action) -> ActionOutcome:
        is_requeue = action.kind is ActionKind.DRAIN and self._running_jobs_policy(action) is config.RunningJobs.REQUEUE
        if is_requeue or (action.kind in slurm.SUPPORTED_ACTIONS and action.kind not in SUPPORTED_ACTIONS):
            raise cluster_driver.build_refusal(NO_CALL, action.place.node, slurm.INSTALL_COMMANDS)
        unsupported = f"this driver has no slurmrestd call for {action.kind}"
        return cluster_driver.perform(self, action, SUPPORTED_ACTIONS, unsupported=unsupported)

    def _find_node(self, place: Place) -> records.NodeRecord | None:
        name = slurm.require_node_name(place)
        status, text = self.rest.call(f"/node/{quote(name, safe='')}")
        errors = _read_errors(text)
        if NOT_FOUND.search(errors):
            return None
        if status >= 300 or errors:
            raise self._build_failure(errors or f"HTTP {status}", place)
        node_records = _parse_records(text, records.read_nodes_json, self.rest.url)
        return next((node for node in node_records if node.name == name), None)

    def _list_node_jobs(self, node: records.NodeRecord) -> list[slurm.SlurmJob]:
        """List the jobs of a busy node; slurmrestd can only list those of the whole cluster."""
        if not records.BUSY.intersection(node.states):
            return []
        return [
            slurm.SlurmJob(job.array or job.id, job.states[0], job.user, str(job.started_at or ""))
            for job in _parse_records(self._call("/jobs", None), records.read_jobs_json, self.rest.url)
            if node.name in job.nodes and slurm.PRESENT_STATES.intersection(job.states)
        ]

    def _set_state(self, place: Place, name: str, state: str, *, reason: str = "") -> None:
        cluster_driver.check_not_halted(self.is_stopped, place.node)
        self._call(f"/node/{quote(name, safe='')}", place, {"state": [state]} | ({"reason": reason} if reason else {}))

    def _call(self, path: str, place: Place | None, body: Mapping[str, Any] | None = None) -> str:
        status, text = self.rest.call(path, body)
        errors = _read_errors(text)
        if status >= 300 or errors:
            raise self._build_failure(errors or f"HTTP {status}", place)
        return text


def _split_versions(text: str) -> tuple[list[str], list[str]]:
    """Return the API versions of a description that can change a node, and the others; oldest first."""
    try:
        paths = facts.mapping(json.loads(text), "paths")
    except (ValueError, RecursionError):
        return [], []
    supports_update: dict[str, bool] = {}
    for path, calls in paths.items():
        version, _, endpoint = path.removeprefix("/slurm/").partition("/")
        if path.startswith("/slurm/v") and f"/{endpoint}".rstrip("/") == NODE_PATH:
            supports_update[version] = isinstance(calls, dict) and "post" in calls

    def numbers(version: str) -> list[int]:
        return [int(part) if part.isdigit() else 0 for part in version.split(".")]

    ordered = sorted(supports_update, key=numbers)
    supported = [version for version in ordered if supports_update[version]]
    return supported, [version for version in ordered if version not in supported]


def _read_errors(text: str) -> str:
    """Return the texts of the response's `errors`; a response without the list is returned as the error.

    Decodes only that list, because ten thousand jobs as Python objects take 1 GB.
    """
    try:
        start = ERRORS.search(text)
        errors, _ = json.JSONDecoder().raw_decode(text, start.end()) if start is not None else (None, 0)
    except (ValueError, RecursionError):
        errors = None
    if not isinstance(errors, list):
        return text.strip()[: slurm.MAX_MESSAGE_LENGTH] or "no error message"
    keys, error_objects = ("description", "error"), map(facts.mapping, errors)
    texts = (": ".join(str(error[name]) for name in keys if error.get(name)) for error in error_objects)
    return "; ".join(text for text in texts if text)[: slurm.MAX_MESSAGE_LENGTH]


def _parse_records(text: str, read: Callable[..., list[Any]], where: str) -> list[Any]:
    try:
        return read(text, where=where)
    except CollectError as error:
        raise ActionFailed(f"cannot parse the response: {error}", where=where) from error
