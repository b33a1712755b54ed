"""Share code among cluster drivers: dispatch by kind of action, unreachable clusters, workload names.

A driver has a table with one function for each kind of action. `perform` calls it, refuses kinds that are not in the
table, and turns an unreachable cluster into an action that is not complete.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from watchkeeper.errors import ActionFailed, ActionRefused
from watchkeeper.kit import durations
from watchkeeper.model.actions import Action, ActionKind
from watchkeeper.model.fleet import Place
from watchkeeper.remediate.driver import ActionOutcome, NodeObservation

DriverT = TypeVar("DriverT")
# How idle workloads are reclaimed: scaled to zero, requeued, or ended.
RECLAIM_METHODS = ("scale_down", "requeue", "cancel")
# An annotation of a pod, or a word in the comment of a Slurm job, that excludes the workload from reclaiming.
KEEP_MARK = "watchkeeper.dev/keep"
MANUAL_COMMANDS = {
    ActionKind.CORDON: "kubectl cordon {node}   (Slurm: scontrol update NodeName={node} State=DRAIN Reason={mark})",
    ActionKind.DRAIN: "kubectl drain {node} --ignore-daemonsets --delete-emptydir-data"
    "   (Slurm: wait until {node} is DRAINED)",
    ActionKind.UNCORDON: "kubectl uncordon {node}   (Slurm: scontrol update NodeName={node} State=RESUME)",
    ActionKind.REBOOT: "on {node}: systemctl reboot   (Slurm: scontrol reboot {node})",
    ActionKind.RESET_GPU: "on {node}: nvidia-smi --gpu-reset -i {gpu}",
    ActionKind.APPLY_MIG: "on {node}: nvidia-mig-parted apply   (then compare the layout)",
    ActionKind.LOWER_POWER: "on {node}: nvidia-smi -i {gpu} --power-limit WATTS",
    ActionKind.RESTART_SERVICE: "on {node}: systemctl restart {service}",
    ActionKind.CHECK_FABRIC: "on {node}: watchkeeper fabric sweep",
    ActionKind.VALIDATE: "on {node}: dcgmi diag -r 2",
    ActionKind.RESTART_APP: "restart the workload that used {place}",
    ActionKind.INSPECT: "Manual: inspect {place}",
    ActionKind.NOTIFY_OWNER: "notify the owner of the workload on {place}",
    ActionKind.WARN_OWNER: "create an event on the idle pods on {place}   (Slurm: scontrol notify JOB)",
    ActionKind.RECLAIM: "kubectl scale --replicas=0 the controllers of the idle pods on {place}"
    "   (Slurm: scontrol requeuehold JOB)",
    ActionKind.HAND_OVER: "Manual: hand {place} over to the vendor, with `watchkeeper bundle` of {node}",
}


class ClusterUnavailable(ActionFailed):
    """The cluster is unreachable or busy; the same call may succeed later."""


def perform(
    driver: DriverT,
    action: Action,
    calls: Mapping[ActionKind, Callable[[DriverT, Action], ActionOutcome]],
    *,
    unsupported: str,
) -> ActionOutcome:
    if action.kind not in calls:
        remedy = "Do it manually, or set hub.order_key_file so that the node's agent does it"
        raise build_refusal(unsupported, action.place.node, remedy)
    try:
        return calls[action.kind](driver, action)
    except ClusterUnavailable as error:
        return ActionOutcome(f"{action.kind} is blocked", is_complete=False, waits_for=(str(error),))


def build_refusal(
    problem: str, where: str | None, remedy: str = "Do it manually", *, state: str | None = None
) -> ActionRefused:
    """Return a refusal before any change; `state` is that of the node."""
    now = "Nothing was changed" if state is None else f"Nothing was changed; the node is {state}"
    return ActionRefused(problem, where=where, now=now, remedy=remedy)


def check_not_halted(is_stopped: Callable[[], bool], where: str | None) -> None:
    if is_stopped():
        raise ClusterUnavailable("repairs are halted", where=where, remedy="`watchkeeper act resume` resumes them")


def check_mark(mark: str, action: Action) -> None:
    """Refuse an action on a node whose cordon belongs to another incident."""
    if not mark.startswith(f"watchkeeper:{action.incident}/"):
        problem = f"the cordon belongs to {mark}, not to {action.incident}"
        raise build_refusal(problem, action.place.node, "Finish that repair first, or uncordon the node yourself")


def build_missing_node(place: Place, where: str) -> ActionFailed:
    return ActionFailed(
        f"the cluster has no node {place.node}",
        where=where,
        now="Nothing was changed",
        remedy="Check whether the node left the cluster or has another name there",
    )


def read_workload_names(
    action: Action, argument: str, pattern: re.Pattern[str], *, example: str, source: str
) -> list[str]:
    """Return the pods or jobs that the action names. An empty list is valid; a missing one is refused."""
    listed = action.arguments.get(argument)
    if listed is None:
        raise ActionRefused(
            f"the {argument} {'that hold the GPU' if action.place.gpu else 'of this step'} are unknown",
            where=action.place.node,
            now="Nothing was changed; the node is not drained instead",
            remedy=f"Run the agent on the node, which reads them from {source}, or drain the node",
        )
    names = [name.strip() for name in listed.split(",") if name.strip()]
    for name in names:
        if pattern.fullmatch(name) is None:
            raise ActionRefused(f"`{name}` is not {example}", where=action.place.node)
    return names


def read_reclaim_method(action: Action) -> str:
    method = action.arguments.get("how", RECLAIM_METHODS[0])
    if method not in RECLAIM_METHODS:
        raise ActionRefused(f"how is `{method}`; use one of {', '.join(RECLAIM_METHODS)}", where=action.place.node)
    return method


def build_keep_refusal(workload: str, why: str) -> ActionRefused:
    return build_refusal(f"{workload} is excluded from reclaiming: {why}", workload, "To reclaim it, remove the mark")


def format_owner_warning(action: Action, keep_command: str) -> str:
    """Return the warning for an owner: why, until when, and how to keep the workload."""
    wait = action.arguments.get("wait")
    deadline = f" within {durations.format_seconds(durations.parse_seconds(wait))}" if wait else ""
    return f"{action.why}. Use the GPU{deadline}, or run: {keep_command} ({action.mark})"


def describe_manual_command(action: Action) -> str:
    place = action.place
    domain = place.domain.replace("=", " ", 1) if place.domain else None
    node = place.node or domain or place.cluster
    return MANUAL_COMMANDS[action.kind].format(
        node=node,
        gpu=place.gpu or "EACH_GPU",
        place=" on ".join(part for part in (place.gpu, node) if part),
        mark=action.mark,
        service=action.arguments.get("service", "the service"),
    )


class DryRunDriver:
    """Assumes that every node exists, and changes none."""

    name = "dry run"

    def observe(self, place: Place) -> NodeObservation:
        return NodeObservation(place, exists=True)

    def describe(self, action: Action) -> str:
        return describe_manual_command(action)

    def perform(self, action: Action) -> ActionOutcome:
        problem = f"this hub has no driver for {action.kind}; it only describes actions"
        raise build_refusal(problem, action.place.node, "Set remediate.driver")
