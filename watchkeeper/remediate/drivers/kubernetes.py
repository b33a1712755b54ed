"""The driver of a Kubernetes cluster: cordon, drain by eviction, restart of pods, and uncordon of what we cordoned.

The state machine calls `perform` again and again; each call looks at the cluster first, so that a hub that was killed
in between goes on where things are. Ownership is the annotation `watchkeeper.dev/cordoned-by`. A node that somebody
else has cordoned, tainted or is working on is left alone; one that somebody else has uncordoned stays uncordoned. What
the API server cannot do at the moment is something that is waited for; what it forbids is a failure.
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
from watchkeeper.model.repairs import RECLAIMS
from watchkeeper.readers import json_facts as facts
from watchkeeper.readers.clusters import kubeconfig
from watchkeeper.remediate.driver import ActionOutcome, NodeObservation
from watchkeeper.remediate.drivers import cluster_driver
from watchkeeper.remediate.drivers import kubernetes_idle as idle
from watchkeeper.remediate.drivers import kubernetes_node as nodes
from watchkeeper.remediate.drivers import kubernetes_pods as pods
from watchkeeper.remediate.drivers.cluster_driver import ClusterUnavailable
from watchkeeper.remediate.drivers.dry_run import describe_by_hand
from watchkeeper.remediate.drivers.kubernetes_client import ApiCall, ApiClient, ApiResponse, good
from watchkeeper.remediate.drivers.kubernetes_pods import DrainDecision, EvictionRules, PodState
from watchkeeper.remediate.drivers.kubernetes_reclaim import PodReclaimer

# Kubelet and controllers write a node now and then; more conflicts in a row than this mean a fight.
MOST_CONFLICTS = 5
# Actions whose evictions are remembered, so that a pod's successor of the same name is not evicted as well.
MOST_REMEMBERED = 256
# A slow API server and a full node would otherwise keep a thread for minutes.
MOST_PERFORM_SECONDS = 10.0
STRICT = EvictionRules()
UNKNOWN_VERSION = ("no kind", "no matches for kind", "could not find the requested resource")


def of_settings(settings: config.Settings, *, is_stopped: Callable[[], bool] = lambda: False) -> KubernetesDriver:
    """The cluster under [remediate], else the one that [fleet] watches; SettingsError where neither names one."""
    own, fleet = settings.remediate, settings.fleet
    if own.kubeconfig is not None:
        server = kubeconfig.load_kubeconfig(Path(own.kubeconfig), own.kubernetes_context)
    elif fleet.kubeconfig is not None:
        server = kubeconfig.load_kubeconfig(Path(fleet.kubeconfig), fleet.kubernetes_context)
    elif fleet.kubernetes:
        server = kubeconfig.load_in_cluster()
    else:
        raise SettingsError(
            "the driver `kubernetes` needs a cluster",
            where="remediate.driver",
            remedy="Set remediate.kubeconfig to a file, or fleet.kubernetes where the hub runs in the cluster",
        )
    rules = EvictionRules(own.evict_unmanaged, own.delete_empty_dirs)
    return KubernetesDriver(ApiClient(server, timeout_seconds=own.call_timeout_seconds), rules, is_stopped=is_stopped)


class KubernetesDriver:
    """One cluster, changed through its API server."""

    name = "kubernetes"

    def __init__(
        self, client: ApiClient, rules: EvictionRules = STRICT, *, is_stopped: Callable[[], bool] = lambda: False
    ) -> None:
        self.client = client
        self.rules = rules
        self._is_stopped = is_stopped
        self._eviction_version = pods.EVICTION_VERSIONS[0]
        self._evicted: dict[str, set[str]] = {}
        self._lock = threading.Lock()
        self._idle_pods = PodReclaimer(client.send, self._change_by, self._evict_all, self._sorted)

    def close(self) -> None:
        self.client.close()

    def keep_connected(self) -> None:
        """Keep a connection open: a new one takes a tenth of a second, and the first cordon should not wait for it."""
        with contextlib.suppress(ActionFailed):
            self.client.send(ApiCall("GET", "/version"))

    def observe(self, place: Place) -> NodeObservation:
        node = self._find(place)
        if node is None:
            return NodeObservation(place, exists=False)
        is_foreign = node.is_cordoned and node.mark is None
        moved = [pod for pod in self._pods(place, node) if pod.fate is not DrainDecision.LEAVE]
        return NodeObservation(
            place,
            exists=True,
            is_schedulable=not node.is_cordoned,
            cordoned_by=node.mark,
            workloads=tuple(str(pod) for pod in moved),
            held_by=(*(("somebody's cordon",) if is_foreign else ()), *node.held_by),
            unhealthy=node.unhealthy,
            incarnation=node.uid or None,
        )

    def describe(self, action: Action) -> str:
        """The calls in their order, without making any; what depends on the cluster is said in words."""
        if action.kind not in PERFORMED:
            return describe_by_hand(action)
        return "; ".join(_described(action, self._eviction_version))

    def perform(self, action: Action) -> ActionOutcome:
        return cluster_driver.perform(
            self, action, PERFORMED, lacks=f"the Kubernetes API has no call for {action.kind}"
        )

    def _cordon(self, action: Action) -> ActionOutcome:
        def decide(node: nodes.NodeSnapshot) -> ApiCall | None:
            if node.mark is None:
                _refuse_held(node)
                return nodes.cordon(node, action)
            _refuse_foreign(node, action)
            self._let_go_if_uncordoned(node, action)
            return None

        node, is_changed = self._change(self._look(action), action, decide)
        text = f"cordoned {node.name} as {action.mark}" if is_changed else f"{node.name} is cordoned by {node.mark}"
        return ActionOutcome(text + self._tell(node, action, reason="WatchkeeperCordoned", is_unhealthy=True))

    def _uncordon(self, action: Action) -> ActionOutcome:
        held: tuple[str, ...] = ()

        def decide(node: nodes.NodeSnapshot) -> ApiCall | None:
            nonlocal held
            held = node.held_by
            if node.mark is None and node.is_cordoned and not held:
                raise _refusal(node, "the cordon is not ours", "Whoever set it takes it off")
            _refuse_foreign(node, action)
            return _taken_off(node) if node.mark is not None else None

        first = self._find(action.place)
        if first is None:
            return ActionOutcome(f"{action.place.node} has left the cluster, and our cordon with it")
        node, is_changed = self._change(first, action, decide)
        text = f"uncordoned {node.name}" if is_changed else f"{node.name} has no cordon of ours"
        if is_changed and held:
            text = f"took our mark off {node.name}, which stays cordoned for {', '.join(held)}"
        return ActionOutcome(text + self._tell(node, action, reason="WatchkeeperUncordoned", is_unhealthy=False))

    def _change(
        self, node: nodes.NodeSnapshot, action: Action, decide: Callable[[nodes.NodeSnapshot], ApiCall | None]
    ) -> tuple[nodes.NodeSnapshot, bool]:
        """Patch the version that was looked at, from a fresh look after each conflict; False: nothing was to change."""
        for _ in range(MOST_CONFLICTS):
            call = decide(node)
            if call is None:
                return node, False
            answer = self._change_by(call)
            if answer.status != 409:
                return nodes.read(good(answer, action.place).body, answer.at), True
            node = self._look(action)
        raise ClusterUnavailable(
            f"somebody else changed the node between each look and each patch, {MOST_CONFLICTS} times",
            where=action.place.node,
            remedy="It is tried again",
        )

    def _drain(self, action: Action) -> ActionOutcome:
        node = self._look(action)
        if action.place.gpu is not None:
            return self._drain_gpu(node, action)
        # Any incident's cordon will do: which of ours a node is out for matters when it is given back.
        if node.mark is None:
            raise _refusal(node, "our cordon is gone: it was taken off, or the node is a new one", "Look at the node")
        self._let_go_if_uncordoned(node, action)
        done = self._evict_all(self._pods(action.place, node), action)
        if not done.is_complete:
            return done
        found = self._pods(action.place, node, is_exact=True)
        done = self._evict_all(found, action)
        left = [str(pod) for pod in found if pod.is_back]
        if left and done.is_complete:
            return ActionOutcome(f"{done.text}; left, because they tolerate the cordon: {', '.join(left)}")
        return done

    def _drain_gpu(self, node: nodes.NodeSnapshot, action: Action) -> ActionOutcome:
        """Only the pods that hold the sick GPU; who they are is the caller's knowledge, never a guess of ours."""
        if node.mark is None:
            _refuse_held(node)
        self._let_go_if_uncordoned(node, action)
        wanted = set(pods.named_by(action))
        on_node = [raw for raw in self._raw_pods(action.place, is_exact=True) if pods.name_of(raw) in wanted]
        return self._evict_all(self._sorted(on_node, node, action), action)

    def _restart_app(self, action: Action) -> ActionOutcome:
        return self._evict_all(self._sorted(self._named(action)[0], None, action), action)

    def _named(self, action: Action) -> tuple[list[pods.Raw], datetime | None]:
        """The pods that an action names and that still are there, and the API server's time."""
        found, at = [], None
        for name in pods.named_by(action):
            answer = self.client.send(ApiCall("GET", pods.path(*name.split("/", 1))))
            at = answer.at
            if answer.status != 404:
                found.append(good(answer, action.place).body)
        return found, at

    def _warn_owner(self, action: Action) -> ActionOutcome:
        return self._idle_pods.warn_owner(action, *self._named(action))

    def _reclaim(self, action: Action) -> ActionOutcome:
        return self._idle_pods.reclaim(action, self._named(action)[0])

    def _sorted(self, raws: list[pods.Raw], node: nodes.NodeSnapshot | None, action: Action) -> list[PodState]:
        """The pods that were meant, not the successors that a StatefulSet gives their names to."""
        before = action.arguments.get("before")
        known = self._remembered(action)
        at = node.at if node is not None else None
        meant = [
            pods.sort(raw, self.rules, at=at)
            for raw in raws
            if not pods.is_after(facts.mapping(raw, "metadata"), before)
        ]
        gone = {name for name, _ in (one.split(" ") for one in known)}
        return [pod for pod in meant if str(pod) not in gone or f"{pod} {pod.uid}" in known]

    def _evict_all(self, found: list[PodState], action: Action) -> ActionOutcome:
        waits = [pod.waits for pod in found if pod.fate in (DrainDecision.WAIT, DrainDecision.ENDING)]
        evicted, until = 0, time.monotonic() + MOST_PERFORM_SECONDS
        for pod in found:
            if pod.fate is not DrainDecision.EVICT:
                continue
            try:
                why = self._evict(pod, action) if time.monotonic() < until else "it is asked for by the next call"
            except ClusterUnavailable as error:
                # What was evicted so far ends meanwhile; the next call goes on with the rest.
                return ActionOutcome(f"evicted {evicted} pods", is_complete=False, waits_for=(*waits, str(error)))
            evicted += why is None
            waits.append(f"pod {pod}: {why or 'it ends'}")
        if not waits:
            return ActionOutcome(ENDED[action.kind])
        return ActionOutcome(f"evicted {evicted} pods, {len(waits)} to go", is_complete=False, waits_for=tuple(waits))

    def _evict(self, pod: PodState, action: Action) -> str | None:
        """None where the pod ends now or is gone; else what does not let it go."""
        answer = self._send_eviction(pod)
        if answer.status in (404, 409):
            return None
        budget = pods.budget_of(answer.body) if answer.status in (429, 500) else None
        if budget is not None:
            return f"a disruption budget does not let it go: {budget}"
        good(answer, action.place)
        self._remember(action, f"{pod} {pod.uid}")
        return None

    def _send_eviction(self, pod: PodState) -> ApiResponse:
        """By the version of the API that worked last, else by whichever this server knows."""
        for version in (self._eviction_version, *pods.EVICTION_VERSIONS):
            call = pods.eviction(pod, version)
            answer = self._change_by(call, is_throttle=lambda one: pods.budget_of(one.body) is None)
            is_unknown = answer.status in (400, 404) and any(word in answer.message for word in UNKNOWN_VERSION)
            if not is_unknown:
                self._eviction_version = version
                return answer
        return answer

    def _let_go_if_uncordoned(self, node: nodes.NodeSnapshot, action: Action) -> None:
        """A person who uncordons under our hands is right: our taint goes too, and nothing is cordoned again."""
        if node.is_cordoned or node.mark is None:
            return
        left, _ = self._change(node, action, lambda one: _taken_off(one) if one.mark == node.mark else None)
        self._tell(left, action, reason="WatchkeeperLetGo", is_unhealthy=False)
        raise ActionRefused(
            "somebody has uncordoned it since we cordoned it",
            where=node.name,
            now="It stays schedulable, and our mark and taint were taken off",
            remedy="Ask them, or start a new repair",
        )

    def _tell(self, node: nodes.NodeSnapshot, action: Action, *, reason: str, is_unhealthy: bool) -> str:
        """Condition and event, for others to read. Without the right to write them, the rest counts all the same."""
        untold = []
        condition = nodes.condition(node, action, is_unhealthy=is_unhealthy)
        event = nodes.event(node, action, reason=reason, is_warning=is_unhealthy)
        for what, call in (("condition", condition), ("event", event)):
            if call is None:
                continue
            answer = self._change_by(call)
            if answer.status == 403:
                untold.append(what)
            elif answer.status not in (404, 409):
                good(answer, action.place)
        return f" (without the right to write its {' and '.join(untold)})" if untold else ""

    def _change_by(self, call: ApiCall, *, is_throttle: Callable[[ApiResponse], bool] = lambda _: True) -> ApiResponse:
        """A call that changes something, unless a person has stopped everything in the middle of an action."""
        if self._is_stopped():
            raise ClusterUnavailable(
                "everything is stopped", where=self.client.server.url, remedy="`watchkeeper act resume` goes on"
            )
        return self.client.send(call, is_throttle=is_throttle)

    def _look(self, action: Action) -> nodes.NodeSnapshot:
        node = self._find(action.place)
        if node is None:
            raise ActionFailed(
                f"the cluster has no node {action.place.node}",
                where=self.client.server.url,
                now="Nothing was touched",
                remedy="It has left the cluster, or has another name there",
            )
        return node

    def _find(self, place: Place) -> nodes.NodeSnapshot | None:
        answer = self.client.send(ApiCall("GET", nodes.path(_node(place))))
        return None if answer.status == 404 else nodes.read(good(answer, place).body, answer.at)

    def _pods(self, place: Place, node: nodes.NodeSnapshot, *, is_exact: bool = False) -> list[PodState]:
        found = self._raw_pods(place, is_exact=is_exact)
        return [pods.sort(raw, self.rules, at=node.at, since=node.cordoned_at) for raw in found]

    def _raw_pods(self, place: Place, *, is_exact: bool) -> list[pods.Raw]:
        answer = good(self.client.send(ApiCall("GET", pods.on_node(_node(place), is_exact=is_exact))), place)
        return [one for one in facts.items(answer.body, "items") if isinstance(one, dict)]

    def _remember(self, action: Action, evicted: str) -> None:
        with self._lock:
            self._evicted.setdefault(action.mark, set()).add(evicted)
            while len(self._evicted) > MOST_REMEMBERED:
                del self._evicted[next(iter(self._evicted))]

    def _remembered(self, action: Action) -> frozenset[str]:
        with self._lock:
            return frozenset(self._evicted.get(action.mark, ()))


PERFORMED: Mapping[ActionKind, Callable[[KubernetesDriver, Action], ActionOutcome]] = {
    ActionKind.CORDON: KubernetesDriver._cordon,
    ActionKind.UNCORDON: KubernetesDriver._uncordon,
    ActionKind.DRAIN: KubernetesDriver._drain,
    ActionKind.RESTART_APP: KubernetesDriver._restart_app,
    ActionKind.WARN_OWNER: KubernetesDriver._warn_owner,
    ActionKind.RECLAIM: KubernetesDriver._reclaim,
}

# What a drain or a restart says when nothing is waited for any more.
ENDED = {
    ActionKind.DRAIN: "drained: no pod is left that a drain moves",
    ActionKind.RESTART_APP: "the pods have ended, and their controllers start others",
    ActionKind.RECLAIM: "the pods have ended",
}


def _described(action: Action, version: str) -> Iterator[str]:
    if action.kind in RECLAIMS:
        for name in pods.named_by(action):
            namespace, _, pod = name.partition("/")
            yield idle.described(action, namespace, pod, version)
        return
    if action.kind is ActionKind.RESTART_APP or (action.kind is ActionKind.DRAIN and action.place.gpu is not None):
        for name in pods.named_by(action):
            namespace, _, pod = name.partition("/")
            yield str(pods.eviction(PodState(namespace, pod, "", DrainDecision.EVICT), version))
        return
    node = nodes.read({"metadata": {"name": _node(action.place)}}, None)
    if action.kind is ActionKind.DRAIN:
        yield f"GET {pods.on_node(node.name, is_exact=True)}"
        yield f"POST /api/v1/namespaces/NAMESPACE/pods/POD/eviction ({version}) for each pod that may be moved"
        return
    is_cordon = action.kind is ActionKind.CORDON
    if is_cordon:
        yield f"{nodes.cordon(node, action)} beside the taints of others"
    else:
        yield f"{nodes.uncordon(node)} without the taint {pods.TAINT}, if the mark is of {action.incident}"
    yield f"PATCH {nodes.path(node.name)}/status with the condition {nodes.CONDITION}={is_cordon}"
    yield f"POST {nodes.EVENTS} with reason {'WatchkeeperCordoned' if is_cordon else 'WatchkeeperUncordoned'}"


def _node(place: Place) -> str:
    if place.node is None:
        raise ActionRefused("there is no node to act on", where=str(place), now="Nothing was touched")
    return place.node


def _taken_off(node: nodes.NodeSnapshot) -> ApiCall:
    if node.is_settling:
        raise ClusterUnavailable(
            f"somebody has uncordoned it, and the node controller has yet to take off {nodes.UNSCHEDULABLE['key']}",
            where=node.name,
            now="It is schedulable; our taint goes after that, or it would be written back",
            remedy="It is tried again",
        )
    return nodes.uncordon(node)


def _refuse_held(node: nodes.NodeSnapshot) -> None:
    if node.held_by:
        raise _refusal(node, f"it is in the hands of {', '.join(node.held_by)}", "Wait until they are done")
    if node.is_cordoned and node.mark is None:
        raise _refusal(
            node,
            "somebody else has cordoned it",
            "Uncordon it to let Watchkeeper go on, or repair it by hand",
        )


def _refuse_foreign(node: nodes.NodeSnapshot, action: Action) -> None:
    if node.mark is not None and not node.is_ours(action):
        raise _refusal(node, f"the cordon belongs to {node.mark}, not to {action.incident}", "Finish that one first")


def _refusal(node: nodes.NodeSnapshot, what: str, remedy: str) -> ActionRefused:
    state = "cordoned" if node.is_cordoned else "schedulable"
    return ActionRefused(what, where=node.name, now=f"It was left as it is, {state}", remedy=remedy)
