"""The driver of the simulator's cluster: the calls it makes are the ones it describes.

Ownership is written with every call (`by`), and a cordon is only taken off when the mark on the node
is of the same incident.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from watchkeeper.errors import ActionFailed, ActionRefused, CollectError
from watchkeeper.model.actions import Action, ActionKind
from watchkeeper.model.fleet import Place
from watchkeeper.net import sync_http
from watchkeeper.remediate.driver import ActionOutcome, NodeObservation
from watchkeeper.remediate.drivers.dry_run import describe_by_hand

# The simulator answers from memory; a call that takes longer has met something else.
LIMITS = sync_http.HttpLimits(total_seconds=5.0, answer_bytes=1024 * 1024)
VERBS = {
    ActionKind.CORDON: "cordon",
    ActionKind.UNCORDON: "uncordon",
    ActionKind.DRAIN: "drain",
    ActionKind.REBOOT: "reboot",
    ActionKind.RESET_GPU: "reset",
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
        status, answer = self._call("GET", _node_path(place))
        if status == 404:
            return NodeObservation(place, exists=False)
        if status != 200:
            raise self._failed("GET", _node_path(place), what=f"it answered {status}: {_reason(answer)}")
        return NodeObservation(
            place=place,
            exists=bool(answer.get("exists", True)),
            is_schedulable=answer.get("schedulable"),
            cordoned_by=answer.get("cordoned_by"),
            workloads=tuple(answer.get("workloads", ())),
        )

    def describe(self, action: Action) -> str:
        if action.kind not in VERBS:
            return describe_by_hand(action)
        return f"POST {_path(action)} by {action.mark}"

    def perform(self, action: Action) -> ActionOutcome:
        if action.kind not in VERBS:
            raise ActionRefused(
                f"the simulator has no call for {action.kind}",
                where=action.place.node,
                now="Nothing was touched",
                remedy="A person has to do it",
            )
        mark = self._own_mark(action) if action.kind is ActionKind.UNCORDON else action.mark
        status, answer = self._call("POST", _path(action), body={"by": mark})
        if status != 200:
            raise self._failed("POST", _path(action), what=f"it answered {status}: {_reason(answer)}")
        return ActionOutcome(f"POST {_path(action)} by {mark}: {answer.get('text', 'done')}")

    def _own_mark(self, action: Action) -> str:
        """The mark of our cordon: an earlier action of the same incident set it."""
        owner = self.observe(action.place).cordoned_by
        if owner is not None and not owner.startswith(f"watchkeeper:{action.incident}/"):
            raise ActionRefused(
                f"the cordon belongs to {owner}, not to {action.incident}",
                where=action.place.node,
                now="The node stays cordoned",
                remedy="Whoever set it takes it off",
            )
        return owner or action.mark

    def _call(self, method: str, path: str, *, body: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
        sent = None if body is None else json.dumps(body).encode()
        request = sync_http.Request(method, path, sent, {"Content-Type": "application/json"})
        try:
            answer = sync_http.HttpClient(self.url, limits=LIMITS).send(request)
            return answer.status, _decode(answer.body)
        except CollectError as error:
            raise self._failed(method, path, what=error.problem) from error

    def _failed(self, method: str, path: str, *, what: str) -> ActionFailed:
        return ActionFailed(
            f"{method} {path} did not succeed: {what}",
            where=self.url,
            now="It is not known to have changed anything",
            remedy="Check that the simulator runs, and try again",
        )


def _path(action: Action) -> str:
    gpu = f"/gpus/{quote(action.place.gpu or '', safe='')}" if action.kind in ON_GPU else ""
    return f"{_node_path(action.place)}{gpu}/{VERBS[action.kind]}"


def _node_path(place: Place) -> str:
    return f"/cluster/nodes/{quote(place.node or '', safe='')}"


def _decode(content: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(content)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise CollectError(f"the answer is not a JSON object: {content[:80]!r}")
    return answer


def _reason(answer: dict[str, Any]) -> str:
    return str(answer.get("error", "no reason given"))[:200]
