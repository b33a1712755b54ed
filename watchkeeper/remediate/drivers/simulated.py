"""Change nodes of the simulator's cluster.

Every call names its owner (`by`), and a cordon is removed only if the mark on the node is of the same incident.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from watchkeeper.errors import ActionFailed, CollectError
from watchkeeper.model.actions import Action, ActionKind
from watchkeeper.model.fleet import Place
from watchkeeper.net import sync_http
from watchkeeper.remediate.driver import ActionOutcome, NodeObservation
from watchkeeper.remediate.drivers import cluster_driver
from watchkeeper.remediate.drivers.cluster_driver import describe_manual_command

# The simulator answers from memory, so a longer call does not reach the simulator.
LIMITS = sync_http.HttpLimits(total_seconds=5.0, answer_bytes=1024 * 1024)
CALL_NAMES = {
    ActionKind.CORDON: "cordon",
    ActionKind.UNCORDON: "uncordon",
    ActionKind.DRAIN: "drain",
    ActionKind.REBOOT: "reboot",
    ActionKind.RESET_GPU: "reset",
    ActionKind.LOWER_POWER: "lower_power",
    ActionKind.WARN_OWNER: "warn",
    ActionKind.RECLAIM: "reclaim",
}
ON_GPU = frozenset({ActionKind.RESET_GPU, ActionKind.WARN_OWNER, ActionKind.RECLAIM})


@dataclass(frozen=True, slots=True)
class SimulatedDriver:
    """`url` is the simulator's, such as http://127.0.0.1:9481."""

    url: str
    name: str = "simulator"

    def observe(self, place: Place) -> NodeObservation:
        body = self._call("GET", _node_path(place), missing={"exists": False})
        return NodeObservation(
            place=place,
            exists=bool(body.get("exists", True)),
            is_schedulable=body.get("schedulable"),
            cordoned_by=body.get("cordoned_by"),
            workloads=tuple(body.get("workloads", ())),
        )

    def describe(self, action: Action) -> str:
        if action.kind not in CALL_NAMES:
            return describe_manual_command(action)
        arguments = "".join(f" {name}={text}" for name, text in _power_arguments(action).items())
        return f"POST {_action_path(action)}{arguments} by {action.mark}"

    def perform(self, action: Action) -> ActionOutcome:
        if action.kind not in CALL_NAMES:
            raise cluster_driver.build_refusal(f"the simulator has no call for {action.kind}", action.place.node)
        mark = self._find_own_mark(action) if action.kind is ActionKind.UNCORDON else action.mark
        response_body = self._call("POST", _action_path(action), body={**_power_arguments(action), "by": mark})
        return ActionOutcome(f"POST {_action_path(action)} by {mark}: {response_body.get('text', 'done')}")

    def _find_own_mark(self, action: Action) -> str:
        """Return the mark of our cordon, which an earlier action of the same incident wrote."""
        owner = self.observe(action.place).cordoned_by
        if owner is not None:
            cluster_driver.check_mark(owner, action)
        return owner or action.mark

    def _call(
        self, method: str, path: str, *, body: dict[str, str] | None = None, missing: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the answer; `missing` is returned for a status of 404."""
        content = None if body is None else json.dumps(body).encode()
        request = sync_http.Request(method, path, content, {"Content-Type": "application/json"})
        try:
            response = sync_http.HttpClient(self.url, limits=LIMITS).send(request)
            answer = _decode_object(response.body)
        except CollectError as error:
            raise self._build_failure(method, path, problem=error.problem) from error
        if response.status == 404 and missing is not None:
            return missing
        if response.status != 200:
            reason = str(answer.get("error", "no reason given"))[:200]
            raise self._build_failure(method, path, problem=f"it answered {response.status}: {reason}")
        return answer

    def _build_failure(self, method: str, path: str, *, problem: str) -> ActionFailed:
        return ActionFailed(
            f"{method} {path} failed: {problem}",
            where=self.url,
            now="It is unknown whether anything changed",
            remedy="Check that the simulator is running",
        )


def _power_arguments(action: Action) -> dict[str, str]:
    names = ("percent", "restore") if action.kind is ActionKind.LOWER_POWER else ()
    return {name: action.arguments[name] for name in names if name in action.arguments}


def _action_path(action: Action) -> str:
    is_on_gpu = action.kind in ON_GPU or (action.kind is ActionKind.LOWER_POWER and action.place.gpu is not None)
    gpu = f"/gpus/{quote(action.place.gpu or '', safe='')}" if is_on_gpu else ""
    return f"{_node_path(action.place)}{gpu}/{CALL_NAMES[action.kind]}"


def _node_path(place: Place) -> str:
    return f"/cluster/nodes/{quote(place.node or '', safe='')}"


def _decode_object(content: bytes) -> dict[str, Any]:
    try:
        decoded = json.loads(content)
    except ValueError:
        decoded = None
    if not isinstance(decoded, dict):
        raise CollectError(f"the answer is not a JSON object: {content[:80]!r}")
    return decoded
