"""The driver of a Slurm cluster: drain with our reason, wait for jobs or requeue them, and resume what we drained.

Everything goes through `scontrol` and `squeue` of this machine, as a list of arguments and never through a shell; a
node's name is checked first, because Slurm takes `n[1-100]` for a hundred nodes. Ownership is the node's reason,
`watchkeeper:<incident>/<action>`. Slurm has no version to compare: between our look and our update somebody else may
set another reason, so each update is looked at again. `slurm_rest` is the same through slurmrestd, where there are no
commands.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from watchkeeper.config import settings as config
from watchkeeper.errors import ActionFailed, ActionRefused
from watchkeeper.model.actions import Action, ActionKind
from watchkeeper.model.fleet import Place
from watchkeeper.readers import json_facts as facts
from watchkeeper.readers.clusters import slurm_records as records
from watchkeeper.remediate.driver import ActionOutcome, NodeObservation
from watchkeeper.remediate.drivers import cluster_driver
from watchkeeper.remediate.drivers.cluster_driver import ClusterUnavailable
from watchkeeper.remediate.drivers.dry_run import describe_by_hand

NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
JOB_ID = re.compile(r"\d+(_\d+)?")
DRAINS = frozenset({"DRAIN", "DRAINED", "DRAINING"})
MAINTENANCE = frozenset({"MAINT", "MAINTENANCE", "REBOOT_ISSUED", "REBOOT_REQUESTED", "POWERING_DOWN", "POWERED_DOWN"})
# Jobs that are on the node, also those that are stopped there or on their way out.
PRESENT = "RUNNING,COMPLETING,SUSPENDED,STOPPED,CONFIGURING,STAGE_OUT,SIGNALING"
PRESENT_STATES = frozenset(PRESENT.split(","))
ENDING = frozenset({"COMPLETING", "SIGNALING", "STAGE_OUT"})
# Job, state, user, start: `17|RUNNING|ada|2026-11-15T09:00:00`.
JOB_FORMAT = "%i|%T|%u|%S"
LONGEST_MESSAGE = 300
# What slurmctld cannot do now, but may in a minute.
# slurm_update error: Unable to contact slurm controller (connect failure)
AWAY = re.compile(r"Unable to contact slurm controller|Socket timed out|Connection (?:refused|timed out)|Zero Bytes")
NOT_FOUND = re.compile(r"^Node \S+ not found|Invalid node name", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SlurmJob:
    id: str
    state: str
    user: str
    started: str

    @property
    def waits(self) -> str:
        return f"job {self.id} of {self.user}: {self.state.lower()}"


def of_settings(settings: config.Settings, *, is_stopped: Callable[[], bool] = lambda: False) -> SlurmDriver:
    own = settings.remediate
    folder = None if own.slurm_commands is None else Path(own.slurm_commands)
    return SlurmDriver(
        folder, running_jobs=own.running_jobs, timeout_seconds=own.call_timeout_seconds, is_stopped=is_stopped
    )


@dataclass(frozen=True, slots=True)
class SlurmDriver:
    """`folder` holds scontrol and squeue; `environment` is added to ours, for a configuration of another cluster."""

    folder: Path | None = None
    running_jobs: config.RunningJobs = config.RunningJobs.WAIT
    timeout_seconds: float = 5.0
    environment: Mapping[str, str] = field(default_factory=dict)
    is_stopped: Callable[[], bool] = lambda: False
    name: str = "slurm"

    def observe(self, place: Place) -> NodeObservation:
        node = self._node(place)
        if node is None:
            return NodeObservation(place, exists=False)
        mark = mark_of(node)
        return NodeObservation(
            place,
            exists=True,
            is_schedulable=node.is_schedulable,
            cordoned_by=mark,
            workloads=tuple(job.id for job in self._jobs(node)),
            held_by=held_by(node),
            unhealthy=(f"Slurm ({node.state_name}: {node.reason or 'no reason given'})",)
            if node.is_ready is False
            else (),
        )

    def describe(self, action: Action) -> str:
        """The commands in their order, without running any."""
        if action.kind is ActionKind.RESTART_APP:
            return "; ".join(" ".join(self._requeue(job)) for job in _named_jobs(action))
        if action.kind is ActionKind.WARN_OWNER:
            return "; ".join(shlex.join(self._notify(job, action)) for job in _named_jobs(action))
        if action.kind is ActionKind.RECLAIM:
            return "; ".join(" ".join(self._taken_back(job, action)) for job in _named_jobs(action))
        if action.kind not in PERFORMED:
            return describe_by_hand(action)
        name = name_of(action.place)
        if action.kind is ActionKind.CORDON:
            return " ".join(self._update(name, "State=DRAIN", f"Reason={action.mark}"))
        if action.kind is ActionKind.UNCORDON:
            return f"{' '.join(self._update(name, 'State=RESUME'))}, if its reason is of {action.incident}"
        waits = " ".join(self._squeue(name))
        if self._policy(action) is config.RunningJobs.REQUEUE:
            return f"{waits}; {' '.join(self._requeue('JOB'))} for each of them"
        return f"{waits}, until there are none"

    def perform(self, action: Action) -> ActionOutcome:
        return cluster_driver.perform(
            self, action, PERFORMED, lacks=f"Slurm has no command for {action.kind} that we use"
        )

    def _cordon(self, action: Action) -> ActionOutcome:
        node = self._look(action)
        mark = mark_of(node)
        if mark is not None:
            _refuse_foreign(mark, action)
            return ActionOutcome(f"{node.name} is already drained by {mark}")
        _refuse_held(node)
        # What Slurm itself gave as the reason of a node that is down is kept behind our mark.
        before = f" (was: {node.reason})" if node.reason and not node.reason.startswith("watchkeeper:") else ""
        self._set_state(action.place, node.name, "DRAIN", reason=f"{action.mark}{before}")
        after = self._look(action)
        if mark_of(after) != action.mark:
            raise ActionFailed(
                f"it was drained, but its reason is `{after.reason}` and not ours",
                where=node.name,
                now=f"It is {after.state_name}",
                remedy="Whoever set that reason resumes it",
            )
        return ActionOutcome(f"drained {node.name} with the reason {action.mark}")

    def _uncordon(self, action: Action) -> ActionOutcome:
        node = self._node(action.place)
        if node is None:
            return ActionOutcome(f"Slurm knows {action.place.node} no more, nor our drain")
        mark = mark_of(node)
        if mark is None:
            if DRAINS.intersection(node.states):
                raise _refusal(node, "the drain is not ours", "Whoever set it resumes it")
            return ActionOutcome(f"{node.name} has no drain of ours")
        _refuse_foreign(mark, action)
        if "NOT_RESPONDING" in node.states:
            why = f"slurmd of {node.name} does not answer ({node.state_name})"
            return ActionOutcome("resume has to wait", is_complete=False, waits_for=(why,))
        self._set_state(action.place, node.name, "RESUME")
        return ActionOutcome(f"resumed {node.name}")

    def _drain(self, action: Action) -> ActionOutcome:
        node = self._look(action)
        if mark_of(node) is None:
            raise _refusal(node, "our drain is gone: somebody has resumed the node or given another reason", "Ask them")
        jobs = self._jobs(node)
        if action.place.gpu is not None:
            wanted = set(_named_jobs(action))
            jobs = [job for job in jobs if job.id in wanted]
        if not jobs:
            return ActionOutcome(f"{node.name} is drained: no job is left on it")
        if self._policy(action) is config.RunningJobs.WAIT:
            waits = tuple(job.waits for job in jobs)
            return ActionOutcome(f"{len(jobs)} jobs to go", is_complete=False, waits_for=waits)
        return self._requeue_all(jobs, action)[1]

    def _restart_app(self, action: Action) -> ActionOutcome:
        """Requeue the jobs that were meant: one that has started again since is not started once more."""
        jobs = self._meant(action)
        requeued, done = self._requeue_all(jobs, action)
        # A job that waits or starts again elsewhere is not asked for once more.
        return ActionOutcome(done.text) if requeued == len(jobs) else done

    def _meant(self, action: Action) -> list[SlurmJob]:
        """The jobs that an action names, without those that have started again since."""
        before = facts.time(action.arguments.get("before"))
        return [
            job
            for id in _named_jobs(action)
            for job in self._listed([*self._program("squeue"), "-h", "-j", id, "-t", PRESENT, "-o", JOB_FORMAT], action)
            if not _is_after(job, before)
        ]

    def _warn_owner(self, action: Action) -> ActionOutcome:
        """A line on the job's own output, as `scontrol notify` writes it."""
        jobs = self._meant(action)
        self._refuse_kept(jobs, action)
        for job in jobs:
            self._run(self._notify(job.id, action), action.place)
        owners = ", ".join(f"{job.id} of {job.user}" for job in jobs)
        return ActionOutcome(f"told the owners of {owners or 'nothing: the jobs are gone'}")

    def _reclaim(self, action: Action) -> ActionOutcome:
        jobs = self._meant(action)
        self._refuse_kept(jobs, action)
        for job in jobs:
            # A job on its way out was asked already.
            if job.state not in ENDING and (why := self._complaint(self._taken_back(job.id, action), action.place)):
                raise ActionRefused(
                    f"job {job.id} of {job.user} cannot be taken back: {why}",
                    where=action.place.node,
                    now=f"It is {job.state.lower()}",
                    remedy='Only a batch job can wait again; `how = "cancel"` in the policy ends any',
                )
        if not jobs:
            return ActionOutcome("the jobs hold nothing any more")
        return ActionOutcome(
            f"took {len(jobs)} jobs back", is_complete=False, waits_for=tuple(job.waits for job in jobs)
        )

    def _refuse_kept(self, jobs: list[SlurmJob], action: Action) -> None:
        for job in jobs:
            text, is_good = self._ask([*self._program("squeue"), "-h", "-j", job.id, "-o", "%k"])
            if not is_good:
                raise self._failed(text, action.place)
            if cluster_driver.KEEP in text:
                raise cluster_driver.refuse_kept(f"job {job.id} of {job.user}", f"its comment is `{text.strip()[:80]}`")

    def _requeue_all(self, jobs: list[SlurmJob], action: Action) -> tuple[int, ActionOutcome]:
        """How many jobs were requeued, and what is to be said while they end."""
        waits, requeued = [], 0
        for job in jobs:
            why = ""
            if job.state == "RUNNING":
                why = self._complaint(self._requeue(job.id), action.place)
                requeued += not why
            waits.append(f"{job.waits}, and cannot be requeued: {why}" if why else job.waits)
        text = f"requeued {requeued} jobs, {len(jobs)} to go"
        return requeued, ActionOutcome(text, is_complete=False, waits_for=tuple(waits))

    def _policy(self, action: Action) -> config.RunningJobs:
        told = action.arguments.get("running_jobs")
        try:
            return self.running_jobs if told is None else config.RunningJobs(told)
        except ValueError:
            raise ActionRefused(f"running_jobs is `{told}`, not wait or requeue", where=action.place.node) from None

    def _look(self, action: Action) -> records.NodeRecord:
        node = self._node(action.place)
        if node is None:
            raise ActionFailed(
                f"Slurm has no node {action.place.node}",
                where="scontrol",
                now="Nothing was touched",
                remedy="It has left the cluster, or has another name there",
            )
        return node

    def _node(self, place: Place) -> records.NodeRecord | None:
        name = name_of(place)
        text, is_good = self._ask([*self._program("scontrol"), "-o", "show", "node", name])
        if not is_good and NOT_FOUND.search(text):
            return None
        if not is_good:
            raise self._failed(text, place)
        return next((node for node in records.nodes_of_text(text) if node.name == name), None)

    def _jobs(self, node: records.NodeRecord) -> list[SlurmJob]:
        return self._listed(self._squeue(node.name), None)

    def _listed(self, command: list[str], action: Action | None) -> list[SlurmJob]:
        text, is_good = self._ask(command)
        if not is_good:
            # squeue says so of a job that ended a while ago.
            if "Invalid job id specified" in text:
                return []
            raise self._failed(text, action.place if action is not None else None)
        rows = (line.strip().split("|") for line in text.splitlines())
        return [SlurmJob(*row) for row in rows if len(row) == 4]

    def _set_state(self, place: Place, name: str, state: str, *, reason: str = "") -> None:
        told = [f"Reason={reason}"] if reason else []
        self._run(self._update(name, f"State={state}", *told), place)

    def _run(self, command: list[str], place: Place) -> None:
        if complaint := self._complaint(command, place):
            raise ActionFailed(f"{' '.join(command)}: {complaint}", where=place.node)

    def _complaint(self, command: list[str], place: Place) -> str:
        """What a command that changes something says when it does not do it; empty when it did."""
        self._refuse_stopped(place)
        text, is_good = self._ask(command)
        if is_good:
            return ""
        if AWAY.search(text):
            raise self._failed(text, place)
        return text or "it said nothing"

    def _refuse_stopped(self, place: Place) -> None:
        if self.is_stopped():
            raise ClusterUnavailable(
                "everything is stopped", where=place.node, remedy="`watchkeeper act resume` goes on"
            )

    def _ask(self, command: list[str]) -> tuple[str, bool]:
        """What a command printed and whether it succeeded, within the deadline."""
        # A time of another zone or a coloured table would not be read.
        environment = {**os.environ, "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard", **self.environment}
        try:
            ran = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self.timeout_seconds,
                env=environment,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ClusterUnavailable(f"no answer within {self.timeout_seconds:g} s", where=" ".join(command)) from error
        except OSError as error:
            raise ActionFailed(
                f"cannot be run: {error.strerror}",
                where=command[0],
                now="Nothing was touched",
                remedy="Install Slurm's commands on the hub's machine, or set remediate.slurm_commands",
            ) from error
        if ran.returncode == 0:
            return ran.stdout.decode("utf-8", "replace"), True
        return (ran.stderr or ran.stdout).decode("utf-8", "replace").strip()[:LONGEST_MESSAGE], False

    def _failed(self, text: str, place: Place | None) -> ActionFailed:
        error = ClusterUnavailable if AWAY.search(text) else ActionFailed
        return error(f"Slurm said: {text or 'nothing'}", where=place.node if place is not None else None)

    def _program(self, name: str) -> list[str]:
        return [str(self.folder / name) if self.folder is not None else name]

    def _update(self, name: str, *changes: str) -> list[str]:
        return [*self._program("scontrol"), "update", f"NodeName={name}", *changes]

    def _requeue(self, job: str) -> list[str]:
        return [*self._program("scontrol"), "requeue", job]

    def _notify(self, job: str, action: Action) -> list[str]:
        told = cluster_driver.told(action, f"scontrol update JobId={job} Comment={cluster_driver.KEEP}")
        return [*self._program("scontrol"), "notify", job, told]

    def _taken_back(self, job: str, action: Action) -> list[str]:
        """Held in the queue until its owner releases it, queued again, or ended."""
        how = cluster_driver.how_of(action)
        if how == "cancel":
            return [*self._program("scancel"), job]
        return self._requeue(job) if how == "requeue" else [*self._program("scontrol"), "requeuehold", job]

    def _squeue(self, name: str) -> list[str]:
        return [*self._program("squeue"), "-h", "-w", name, "-t", PRESENT, "-o", JOB_FORMAT]


PERFORMED: Mapping[ActionKind, Callable[[SlurmDriver, Action], ActionOutcome]] = {
    ActionKind.CORDON: SlurmDriver._cordon,
    ActionKind.UNCORDON: SlurmDriver._uncordon,
    ActionKind.DRAIN: SlurmDriver._drain,
    ActionKind.RESTART_APP: SlurmDriver._restart_app,
    ActionKind.WARN_OWNER: SlurmDriver._warn_owner,
    ActionKind.RECLAIM: SlurmDriver._reclaim,
}


def mark_of(node: records.NodeRecord) -> str | None:
    """Our mark on a node that is drained; a reason that outlived its drain is nobody's."""
    mark = node.reason.partition(" ")[0]
    return mark if mark.startswith("watchkeeper:") and DRAINS.intersection(node.states) else None


def held_by(node: records.NodeRecord) -> tuple[str, ...]:
    """Who else has the node in hand: a drain with another reason, a maintenance reservation, a reboot."""
    held = [f"Slurm ({state.lower()})" for state in node.states if state in MAINTENANCE]
    if DRAINS.intersection(node.states) and mark_of(node) is None:
        held.append(f"{node.reason_user or 'somebody'} ({node.reason or 'no reason given'})")
    return tuple(held)


def _refuse_held(node: records.NodeRecord) -> None:
    if held := held_by(node):
        raise _refusal(node, f"it is in the hands of {', '.join(held)}", "Wait until they are done")


def _refuse_foreign(mark: str, action: Action) -> None:
    if not mark.startswith(f"watchkeeper:{action.incident}/"):
        raise ActionRefused(
            f"the drain belongs to {mark}, not to {action.incident}",
            where=action.place.node,
            now="The node was left as it is",
            remedy="Finish that one first",
        )


def _refusal(node: records.NodeRecord, what: str, remedy: str) -> ActionRefused:
    return ActionRefused(what, where=node.name, now=f"It was left as it is, {node.state_name}", remedy=remedy)


def name_of(place: Place) -> str:
    if place.node is None or not NODE_NAME.fullmatch(place.node):
        raise ActionRefused(
            f"`{place.node}` is not the name of one node",
            where=str(place),
            now="Nothing was touched",
            remedy="A list such as n[1-3] means several nodes to Slurm; name one",
        )
    return place.node


def _named_jobs(action: Action) -> list[str]:
    return cluster_driver.named(
        action,
        "jobs",
        is_name=lambda text: JOB_ID.fullmatch(text) is not None,
        like="a job such as 17 or 17_3",
        asks="Slurm",
    )


def _is_after(job: SlurmJob, before: float | None) -> bool:
    started = facts.time(job.started)
    return before is not None and started is not None and started > before
