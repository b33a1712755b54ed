"""What the drivers of clusters share: a table of calls, a cluster that is away, and the workloads that are meant.

A driver is one function for each kind of action, in a table; `perform` finds it, refuses what is not there, and makes
of a cluster that cannot be asked at the moment something that is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from watchkeeper.errors import ActionFailed, ActionRefused
from watchkeeper.kit import durations
from watchkeeper.model.actions import Action, ActionKind
from watchkeeper.remediate.driver import ActionOutcome

D = TypeVar("D")
# How what is idle is taken back: kept for its owner, put back into the queue, or ended.
RECLAIM_WAYS = ("scale_down", "requeue", "cancel")
# An annotation of a pod, or a word in the comment of a Slurm job: it is kept, whatever it does.
KEEP = "watchkeeper.dev/keep"


class ClusterUnavailable(ActionFailed):
    """The cluster cannot be asked at the moment; the same call may succeed later."""


def perform(
    driver: D, action: Action, table: Mapping[ActionKind, Callable[[D, Action], ActionOutcome]], *, lacks: str
) -> ActionOutcome:
    """Do it by the table; `lacks` says what this cluster has not, for an action that is not in it."""
    if action.kind not in table:
        raise ActionRefused(
            lacks,
            where=action.place.node,
            now="Nothing was touched",
            remedy="The node's agent or a person has to do it",
        )
    try:
        return table[action.kind](driver, action)
    except ClusterUnavailable as error:
        return ActionOutcome(f"{action.kind} has to wait", is_complete=False, waits_for=(str(error),))


def named(action: Action, sort: str, *, is_name: Callable[[str], bool], like: str, asks: str) -> list[str]:
    """The pods or jobs that the action names, with commas between them; none is an answer, unknown is not."""
    told = action.arguments.get(sort)
    if told is None:
        raise ActionRefused(
            f"nobody knows which {sort} {'hold the GPU' if action.place.gpu else 'are meant'}",
            where=action.place.node,
            now="Nothing was touched; the whole node is not drained for it",
            remedy=f"Run the agent on the node, which asks {asks}, or drain the node",
        )
    names = [name.strip() for name in told.split(",") if name.strip()]
    for name in names:
        if not is_name(name):
            raise ActionRefused(f"`{name}` is not {like}", where=action.place.node)
    return names


def how_of(action: Action) -> str:
    """The way in which a policy wants something taken back."""
    how = action.arguments.get("how", RECLAIM_WAYS[0])
    if how not in RECLAIM_WAYS:
        raise ActionRefused(f"how is `{how}`, none of {', '.join(RECLAIM_WAYS)}", where=action.place.node)
    return how


def refuse_kept(workload: str, why: str) -> ActionRefused:
    return ActionRefused(
        f"{workload} is to be kept: {why}",
        where=workload,
        now="Nothing was touched",
        remedy="Whoever marked it takes the mark off",
    )


def told(action: Action, keep: str) -> str:
    """What the owner reads: why, until when, and how to keep it."""
    waits = action.arguments.get("wait")
    when = f" within {durations.format_seconds(durations.parse_seconds(waits))}" if waits else ""
    return f"{action.why}. Use it{when}, or: {keep} ({action.mark})"
