"""Cordon, drain and uncordon the nodes of a Kubernetes cluster, and restart or reclaim pods.

`repairs` calls `perform` repeatedly. Each call reads the cluster first, so that a hub that was killed continues from
the current state. Ownership is the annotation `watchkeeper.dev/cordoned-by`. A node that another user or tool has
cordoned, tainted or maintains is not changed; a node that another user has uncordoned stays uncordoned.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path

from watchkeeper.config import settings as config
from watchkeeper.errors import ActionFailed, ActionRefused, SettingsError
from watchkeeper.model.actions import Action, ActionKind
from watchkeeper.model.fleet import Place
from watchkeeper.model.repairs import RECLAIM_KINDS
from watchkeeper.readers import json_facts as facts
from watchkeeper.readers.clusters import kubeconfig
from watchkeeper.remediate.driver import ActionOutcome, NodeObservation
from watchkeeper.remediate.drivers import cluster_driver, kubernetes_reclaim
from watchkeeper.remediate.drivers import kubernetes_node as nodes
from watchkeeper.remediate.drivers import kubernetes_pods as pods
from watchkeeper.remediate.drivers.cluster_driver import ClusterUnavailable, describe_manual_command
from watchkeeper.remediate.drivers.kubernetes_client import ApiCall, ApiClient, ApiResponse, IsThrottle, require_success
from watchkeeper.remediate.drivers.kubernetes_pods import DrainDecision, EvictionRules, PodState
from watchkeeper.remediate.drivers.kubernetes_reclaim import PodReclaimer

# Kubelet and controllers update a node now and then; more conflicts in a row mean that a client fights ours.
MAX_CONFLICTS = 5
# Actions whose evictions are remembered, so that a new pod of the same name is not evicted as well.
MAX_TRACKED_ACTIONS = 256
# Without this limit, a slow API server and a full node could occupy a thread for minutes.
MAX_PERFORM_SECONDS = 10.0
STRICT_RULES = EvictionRules()
UNKNOWN_VERSION_TEXTS = ("no kind", "no matches for kind", "could not find the requested resource")


def build_driver(settings: config.Settings, *, is_stopped: Callable[[], bool] = lambda: False) -> KubernetesDriver:
    """Return the driver of the cluster in [remediate], else in [fleet]; SettingsError if neither names one."""
    remediate, fleet = settings.remediate, settings.fleet
    if remediate.kubeconfig is not None:
        server = kubeconfig.load_kubeconfig(Path(remediate.kubeconfig), remediate.kubernetes_context)
    elif fleet.kubeconfig is not None:
        server = kubeconfig.load_kubeconfig(Path(fleet.kubeconfig), fleet.kubernetes_context)
    elif fleet.kubernetes:
        server = kubeconfig.load_in_cluster()
    else:
        raise SettingsError(
            "the driver `kubernetes` needs a cluster",
            where="remediate.driver",
            remedy="Set remediate.kubeconfig to a file, or set fleet.kubernetes if the hub runs in the cluster",
        )
    rules = EvictionRules(remediate.evict_unmanaged, remediate.delete_empty_dirs)
    client = ApiClient(server, timeout_seconds=remediate.call_timeout_seconds)
    return KubernetesDriver(client, rules, is_stopped=is_stopped)


class KubernetesDriver:
    name = "kubernetes"

    def __init__(
        self, client: ApiClient, rules: EvictionRules = STRICT_RULES, *, is_stopped: Callable[[], bool] = lambda: False
    ) -> None:
        self.client = client
        self.rules = rules
        self._is_stopped = is_stopped
        self._eviction_version = pods.EVICTION_VERSIONS[0]
        self._evicted: dict[str, set[str]] = {}
        self._lock = threading.Lock()
        self._reclaimer = PodReclaimer(client.send, self._send_change, self._evict_all, self._classify_pods)

    def close(self) -> None:
        self.client.close()

    def keep_connected(self) -> None:
        """Keep a connection open: a new one takes 0.1 s, too long before an urgent cordon."""
        with contextlib.suppress(ActionFailed):
            self.client.send(ApiCall("GET", "/version"))

    def observe(self, place: Place) -> NodeObservation:
        node = self._find_node(place)
        if node is None:
            return NodeObservation(place, exists=False)
        is_foreign = node.is_cordoned and node.mark is None
        evictable = [pod for pod in self._pods(place, node) if pod.decision is not DrainDecision.LEAVE]
        return NodeObservation(
            place,
            exists=True,
            is_schedulable=not node.is_cordoned,
            cordoned_by=node.mark,
            workloads=tuple(str(pod) for pod in evictable),
            maintained_by=(*(("another user's cordon",) if is_foreign else ()), *node.maintained_by),
            health_problems=node.health_problems,
            incarnation=node.uid or None,
        )

    def describe(self, action: Action) -> str:
        if action.kind not in SUPPORTED_ACTIONS:
            return describe_manual_command(action)
        return "; ".join(_describe_calls(action, self._eviction_version))

    def perform(self, action: Action) -> ActionOutcome:
        unsupported = f"the Kubernetes API has no call for {action.kind}"
        return cluster_driver.perform(self, action, SUPPORTED_ACTIONS, unsupported=unsupported)

    def _cordon(self, action: Action) -> ActionOutcome:
        def plan_patch(node: nodes.NodeSnapshot) -> ApiCall | None:
            if node.mark is None:
                _refuse_maintained(node)
                return nodes.build_cordon(node, action)
            cluster_driver.check_mark(node.mark, action)
            self._release_if_uncordoned(node, action)
            return None

        node, is_changed = self._patch_node(self._get_node(action), action, plan_patch)
        text = f"cordoned {node.name} as {action.mark}"
        if not is_changed:
            text = f"{node.name} is already cordoned by {node.mark}"
        return ActionOutcome(text + self._report_on_node(node, action, reason="WatchkeeperCordoned", is_unhealthy=True))

    def _uncordon(self, action: Action) -> ActionOutcome:
        maintained_by: tuple[str, ...] = ()

        def plan_patch(node: nodes.NodeSnapshot) -> ApiCall | None:
            nonlocal maintained_by
            maintained_by = node.maintained_by
            if node.mark is None and node.is_cordoned and not maintained_by:
                raise _build_refusal(node, "the cordon is not Watchkeeper's", "Its owner must uncordon the node")
            if node.mark is None:
                return None
            cluster_driver.check_mark(node.mark, action)
            return _build_uncordon(node)

        current = self._find_node(action.place)
        if current is None:
            return ActionOutcome(f"{action.place.node} has left the cluster: nothing to uncordon")
        node, is_changed = self._patch_node(current, action, plan_patch)
        text = f"uncordoned {node.name}" if is_changed else f"{node.name} has no cordon of Watchkeeper's"
        if is_changed and maintained_by:
            text = f"removed our annotation from {node.name}; it stays cordoned by {', '.join(maintained_by)}"
        note = self._report_on_node(node, action, reason="WatchkeeperUncordoned", is_unhealthy=False)
        return ActionOutcome(text + note)

    def _patch_node(
        self, node: nodes.NodeSnapshot, action: Action, plan_patch: Callable[[nodes.NodeSnapshot], ApiCall | None]
    ) -> tuple[nodes.NodeSnapshot, bool]:
        """Patch the version that was read, and read again after each conflict; False: nothing had to change."""
        for _ in range(MAX_CONFLICTS):
            call = plan_patch(node)
            if call is None:
                return node, False
            response = self._send_change(call)
            if response.status != 409:
                return nodes.parse_node(require_success(response, action.place).body, response.at), True
            node = self._get_node(action)
        raise ClusterUnavailable(
            f"another client changed the node between read and patch, {MAX_CONFLICTS} times",
            where=action.place.node,
            remedy="It is retried",
        )

    def _drain(self, action: Action) -> ActionOutcome:
        node = self._get_node(action)
        if action.place.gpu is not None:
            return self._drain_gpu(node, action)
        # The cordon of any incident of ours is enough; only the uncordon needs that of this incident.
        if node.mark is None:
            raise _build_refusal(node, "our cordon is gone: it was removed, or the node was replaced", "Check the node")
        self._release_if_uncordoned(node, action)
        outcome = self._evict_all(self._pods(action.place, node), action)
        if not outcome.is_complete:
            return outcome
        pod_states = self._pods(action.place, node, is_exact=True)
        outcome = self._evict_all(pod_states, action)
        returning = [str(pod) for pod in pod_states if pod.is_returning]
        if returning and outcome.is_complete:
            note = f"not evicted again, because they tolerate the cordon: {', '.join(returning)}"
            return ActionOutcome(f"{outcome.text}; {note}")
        return outcome

    def _drain_gpu(self, node: nodes.NodeSnapshot, action: Action) -> ActionOutcome:
        """Evict only the pods that hold the faulty GPU, which the action must name."""
        if node.mark is None:
            _refuse_maintained(node)
        self._release_if_uncordoned(node, action)
        pod_names = set(pods.read_pod_names(action))
        on_node = [raw for raw in self._raw_pods(action.place, is_exact=True) if pods.full_name(raw) in pod_names]
        return self._evict_all(self._classify_pods(on_node, node.at, action), action)

    def _restart_app(self, action: Action) -> ActionOutcome:
        return self._evict_all(self._classify_pods(self._get_named_pods(action)[0], None, action), action)

    def _get_named_pods(self, action: Action) -> tuple[list[pods.Raw], datetime | None]:
        """Return the pods that an action names and that still exist, and the API server's time."""
        raw_pods, server_time = [], None
        for name in pods.read_pod_names(action):
            response = self.client.send(ApiCall("GET", pods.pod_path(*name.split("/", 1))))
            server_time = response.at
            if response.status != 404:
                raw_pods.append(require_success(response, action.place).body)
        return raw_pods, server_time

    def _warn_owner(self, action: Action) -> ActionOutcome:
        return self._reclaimer.warn_owner(action, *self._get_named_pods(action))

    def _reclaim(self, action: Action) -> ActionOutcome:
        return self._reclaimer.reclaim(action, self._get_named_pods(action)[0])

    def _classify_pods(self, raw_pods: list[pods.Raw], at: datetime | None, action: Action) -> list[PodState]:
        """Classify the pods of the plan, without newer pods that a StatefulSet gave the same names."""
        before = action.arguments.get("before")
        with self._lock:
            evicted = frozenset(self._evicted.get(action.mark, ()))
        planned = [
            pods.classify_pod(raw, self.rules, at=at)
            for raw in raw_pods
            if not pods.is_newer(facts.mapping(raw, "metadata"), before)
        ]
        evicted_names = {name for name, _ in (entry.split(" ") for entry in evicted)}
        return [pod for pod in planned if str(pod) not in evicted_names or f"{pod} {pod.uid}" in evicted]

    def _evict_all(self, pod_states: list[PodState], action: Action) -> ActionOutcome:
        blockers = [pod.status_text for pod in pod_states if pod.decision in (DrainDecision.WAIT, DrainDecision.ENDING)]
        evicted, until = 0, time.monotonic() + MAX_PERFORM_SECONDS
        for pod in pod_states:
            if pod.decision is not DrainDecision.EVICT:
                continue
            try:
                blocker = self._evict(pod, action) if time.monotonic() < until else "evicted by the next call"
            except ClusterUnavailable as error:
                # The pods evicted so far terminate meanwhile; the next call continues with the rest.
                return ActionOutcome(f"evicted {evicted} pods", is_complete=False, waits_for=(*blockers, str(error)))
            evicted += blocker is None
            blockers.append(f"pod {pod}: {blocker or 'terminating'}")
        if not blockers:
            return ActionOutcome(COMPLETED_TEXTS[action.kind])
        text = f"evicted {evicted} pods, {len(blockers)} remaining"
        return ActionOutcome(text, is_complete=False, waits_for=tuple(blockers))

    def _evict(self, pod: PodState, action: Action) -> str | None:
        """Evict a pod; return what blocks the eviction, or None if the pod terminates or is gone."""
        response = self._send_eviction(pod)
        if response.status in (404, 409):
            return None
        budget_message = pods.read_budget_message(response.body) if response.status in (429, 500) else None
        if budget_message is not None:
            return f"blocked by a disruption budget: {budget_message}"
        require_success(response, action.place)
        with self._lock:
            self._evicted.setdefault(action.mark, set()).add(f"{pod} {pod.uid}")
            while len(self._evicted) > MAX_TRACKED_ACTIONS:
                del self._evicted[next(iter(self._evicted))]
        return None

    def _send_eviction(self, pod: PodState) -> ApiResponse:
        """Send an eviction with the API version that worked last, else with the next one that the server supports."""

        def is_throttle(response: ApiResponse) -> bool:
            return pods.read_budget_message(response.body) is None

        for version in (self._eviction_version, *pods.EVICTION_VERSIONS):
            response = self._send_change(pods.build_eviction(pod, version), is_throttle=is_throttle)
            is_unknown = any(text in response.message for text in UNKNOWN_VERSION_TEXTS)
            if response.status not in (400, 404) or not is_unknown:
                self._eviction_version = version
                return response
        return response

    def _release_if_uncordoned(self, node: nodes.NodeSnapshot, action: Action) -> None:
        """End the repair if another user has uncordoned the node: remove our taint, and do not cordon again."""
        if node.is_cordoned or node.mark is None:
            return

        def plan_patch(current: nodes.NodeSnapshot) -> ApiCall | None:
            return _build_uncordon(current) if current.mark == node.mark else None

        released, _ = self._patch_node(node, action, plan_patch)
        self._report_on_node(released, action, reason="WatchkeeperLetGo", is_unhealthy=False)
        raise ActionRefused(
            "another user uncordoned the node during the repair",
            where=node.name,
            now="The node stays schedulable; our annotation and taint were removed",
            remedy="Ask that user, or start a new repair with `watchkeeper act again`",
        )

    def _report_on_node(self, node: nodes.NodeSnapshot, action: Action, *, reason: str, is_unhealthy: bool) -> str:
        """Write a condition and an event on the node for other tools; return a note if the permission is missing."""
        denied = []
        condition = nodes.build_condition(node, action, is_unhealthy=is_unhealthy)
        event = nodes.build_event(node, action, reason=reason, is_warning=is_unhealthy)
        for name, call in (("condition", condition), ("event", event)):
            if call is None:
                continue
            response = self._send_change(call)
            if response.status == 403:
                denied.append(name)
            elif response.status not in (404, 409):
                require_success(response, action.place)
        return f" (no permission to write its {' and '.join(denied)})" if denied else ""

    def _send_change(self, call: ApiCall, *, is_throttle: IsThrottle = lambda _: True) -> ApiResponse:
        """Send a call that changes something; ClusterUnavailable while repairs are halted."""
        cluster_driver.check_not_halted(self._is_stopped, self.client.server.url)
        return self.client.send(call, is_throttle=is_throttle)

    def _get_node(self, action: Action) -> nodes.NodeSnapshot:
        node = self._find_node(action.place)
        if node is None:
            raise cluster_driver.build_missing_node(action.place, self.client.server.url)
        return node

    def _find_node(self, place: Place) -> nodes.NodeSnapshot | None:
        response = self.client.send(ApiCall("GET", nodes.node_path(_require_node_name(place))))
        return None if response.status == 404 else nodes.parse_node(require_success(response, place).body, response.at)

    def _pods(self, place: Place, node: nodes.NodeSnapshot, *, is_exact: bool = False) -> list[PodState]:
        raw_pods = self._raw_pods(place, is_exact=is_exact)
        return [pods.classify_pod(raw, self.rules, at=node.at, since=node.cordoned_at) for raw in raw_pods]

    def _raw_pods(self, place: Place, *, is_exact: bool) -> list[pods.Raw]:
        call = ApiCall("GET", pods.node_pods_path(_require_node_name(place), is_exact=is_exact))
        response = require_success(self.client.send(call), place)
        return [raw_pod for raw_pod in facts.items(response.body, "items") if isinstance(raw_pod, dict)]


SUPPORTED_ACTIONS: Mapping[ActionKind, Callable[[KubernetesDriver, Action], ActionOutcome]] = {
    ActionKind.CORDON: KubernetesDriver._cordon,
    ActionKind.UNCORDON: KubernetesDriver._uncordon,
    ActionKind.DRAIN: KubernetesDriver._drain,
    ActionKind.RESTART_APP: KubernetesDriver._restart_app,
    ActionKind.WARN_OWNER: KubernetesDriver._warn_owner,
    ActionKind.RECLAIM: KubernetesDriver._reclaim,
}

# The result of an action once all its pods have ended.
COMPLETED_TEXTS = {
    ActionKind.DRAIN: "drained: no evictable pod is left",
    ActionKind.RESTART_APP: "the pods have ended; their controllers start new ones",
    ActionKind.RECLAIM: "the pods have ended",
}


def _describe_calls(action: Action, version: str) -> Iterator[str]:
    if action.kind in RECLAIM_KINDS:
        for name in pods.read_pod_names(action):
            yield kubernetes_reclaim.describe_call(action, name, version)
        return
    if action.kind is ActionKind.RESTART_APP or (action.kind is ActionKind.DRAIN and action.place.gpu is not None):
        for name in pods.read_pod_names(action):
            namespace, _, pod = name.partition("/")
            yield str(pods.build_eviction(PodState(namespace, pod, "", DrainDecision.EVICT), version))
        return
    node = nodes.parse_node({"metadata": {"name": _require_node_name(action.place)}}, None)
    if action.kind is ActionKind.DRAIN:
        yield f"GET {pods.node_pods_path(node.name, is_exact=True)}"
        yield f"POST /api/v1/namespaces/NAMESPACE/pods/POD/eviction ({version}) for each pod that may be evicted"
        return
    is_cordon = action.kind is ActionKind.CORDON
    if is_cordon:
        yield f"{nodes.build_cordon(node, action)} and all other taints"
    else:
        uncordon = nodes.build_uncordon(node)
        yield f"{uncordon} without the taint {pods.TAINT}, only if the annotation names {action.incident}"
    yield f"PATCH {nodes.node_path(node.name)}/status with the condition {nodes.CONDITION}={is_cordon}"
    yield f"POST {nodes.EVENTS_PATH} with reason {'WatchkeeperCordoned' if is_cordon else 'WatchkeeperUncordoned'}"


def _require_node_name(place: Place) -> str:
    if place.node is None:
        raise cluster_driver.build_refusal("the action names no node", str(place))
    return place.node


def _build_uncordon(node: nodes.NodeSnapshot) -> ApiCall:
    if node.is_taint_pending:
        raise ClusterUnavailable(
            f"the node was uncordoned, but the node controller has not removed {nodes.UNSCHEDULABLE['key']} yet",
            where=node.name,
            now="It is schedulable; our taint is removed afterwards, otherwise the controller writes it back",
            remedy="It is retried",
        )
    return nodes.build_uncordon(node)


def _refuse_maintained(node: nodes.NodeSnapshot) -> None:
    if node.maintained_by:
        problem = f"it is maintained by {', '.join(node.maintained_by)}"
        raise _build_refusal(node, problem, "Wait until that is finished")
    if node.is_cordoned and node.mark is None:
        remedy = "Uncordon it to let Watchkeeper continue, or repair it manually"
        raise _build_refusal(node, "another user has cordoned it", remedy)


def _build_refusal(node: nodes.NodeSnapshot, problem: str, remedy: str) -> ActionRefused:
    state = "cordoned" if node.is_cordoned else "schedulable"
    return cluster_driver.build_refusal(problem, node.name, remedy, state=state)
