"""The calls that take idle pods back: tell their owner, scale what starts them to nothing, or end them.

A part of the driver in `kubernetes`, which hands over its ways to ask and to change. A controller that has other pods,
which nobody has found idle, is left alone; so is a pod that its owner has marked to be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from watchkeeper.errors import ActionRefused
from watchkeeper.model.actions import Action
from watchkeeper.readers import json_facts as facts
from watchkeeper.remediate.driver import ActionOutcome
from watchkeeper.remediate.drivers import cluster_driver
from watchkeeper.remediate.drivers import kubernetes_idle as idle
from watchkeeper.remediate.drivers import kubernetes_pods as pods
from watchkeeper.remediate.drivers.kubernetes_client import ApiCall, ApiResponse, good

# What is ended for good may lose what only it had.
ANYTHING = pods.EvictionRules(evict_unmanaged=True, delete_empty_dirs=True)
# Pod, ReplicaSet, Deployment: what stands above those is nobody's that we know.
MOST_STARTERS = 3


@dataclass(frozen=True, slots=True)
class PodReclaimer:
    """`send` asks, `change` changes unless everything is stopped, `sort` and `evict` are those of a drain."""

    send: Callable[[ApiCall], ApiResponse]
    change: Callable[[ApiCall], ApiResponse]
    evict: Callable[[list[pods.PodState], Action], ActionOutcome]
    sort: Callable[[list[pods.Raw], None, Action], list[pods.PodState]]

    def warn_owner(self, action: Action, found: Sequence[pods.Raw], at: datetime | None) -> ActionOutcome:
        meant = [raw for raw in found if not idle.has_ended(raw)]
        for raw in meant:
            _refuse_kept(raw)
        for raw in meant:
            answer = self.change(idle.warning(raw, action, at=at))
            if answer.status != 409:
                good(answer, action.place)
        return ActionOutcome(
            f"told the owners of {', '.join(map(pods.name_of, meant)) or 'nothing: the pods are gone'}"
        )

    def reclaim(self, action: Action, found: Sequence[pods.Raw]) -> ActionOutcome:
        how = cluster_driver.how_of(action)
        meant = [raw for raw in found if not _is_another(raw, action)]
        live = [raw for raw in meant if not idle.has_ended(raw)]
        for raw in live:
            _refuse_kept(raw)
        if how == "requeue":
            return self.evict(self.sort(live, None, action), action)
        starters = {pods.name_of(raw): self._starter(raw, action) for raw in live}
        loose = [raw for raw in live if _path_of(starters[pods.name_of(raw)]) is None]
        if loose and how != "cancel":
            raise _unscalable(loose[0], starters[pods.name_of(loose[0])])
        said = [
            self._still(one, action, {pods.name_of(raw) for raw in live})
            for one in dict.fromkeys(starters.values())
            if one is not None and one.path is not None
        ]
        done = self.evict([pods.sort(raw, ANYTHING) for raw in loose], action)
        waits = (*done.waits_for, *(f"pod {pods.name_of(raw)}: it ends" for raw in live if raw not in loose))
        text = "; ".join(one for one in said if one) or done.text
        return ActionOutcome(text, is_complete=not waits, waits_for=waits)

    def _starter(self, raw: pods.Raw, action: Action) -> idle.OwnerController | None:
        """What starts a pod again, at the top: a ReplicaSet is mostly a Deployment's."""
        starter = idle.starter_of(raw)
        for _ in range(MOST_STARTERS):
            if starter is None or starter.path is None:
                return starter
            above = idle.starter_of(good(self.send(ApiCall("GET", starter.path)), action.place).body)
            if above is None or above.path is None:
                # What a CronJob or an operator made is scaled itself; its maker may make another.
                return starter
            starter = above
        return starter

    def _still(self, starter: idle.OwnerController, action: Action, idle_pods: set[str]) -> str:
        """Scale it to nothing, unless it has pods that nobody has found idle."""
        assert starter.path is not None
        raw = good(self.send(ApiCall("GET", starter.path)), action.place).body
        if idle.is_still(starter, raw):
            return f"{starter} starts no pods"
        listed = good(self.send(ApiCall("GET", idle.siblings(starter, raw))), action.place).body
        found = [one for one in facts.items(listed, "items") if isinstance(one, dict) and not idle.has_ended(one)]
        if others := sorted({pods.name_of(one) for one in found} - idle_pods):
            raise ActionRefused(
                f"{starter} has {len(others)} pods that were not found idle, such as {others[0]}",
                where=str(starter),
                now="Nothing was scaled",
                remedy='`how = "requeue"` in the policy evicts only the idle ones',
            )
        answer = self.change(idle.stilled(starter, raw, action))
        good(answer, action.place)
        return f"{starter} starts no pods any more"


def _is_another(raw: pods.Raw, action: Action) -> bool:
    """A successor under the same name, which was never warned."""
    return pods.is_after(facts.mapping(raw, "metadata"), action.arguments.get("before"))


def _path_of(starter: idle.OwnerController | None) -> str | None:
    return None if starter is None else starter.path


def _refuse_kept(raw: pods.Raw) -> None:
    if idle.is_kept(raw):
        raise cluster_driver.refuse_kept(pods.name_of(raw), f"it is annotated with {cluster_driver.KEEP}")


def _unscalable(raw: pods.Raw, starter: idle.OwnerController | None) -> ActionRefused:
    whose = "no controller" if starter is None else f"{starter}, which has no scale that we know"
    return ActionRefused(
        f"{pods.name_of(raw)} is started by {whose}",
        where=pods.name_of(raw),
        now="Nothing was touched",
        remedy='`how = "cancel"` in the policy ends it for good, `requeue` evicts it',
    )
