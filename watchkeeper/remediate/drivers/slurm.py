"""Drain and resume nodes of a Slurm cluster, and requeue or cancel jobs, with Slurm's commands.

The driver runs `scontrol`, `squeue` and `scancel` on this machine, without a shell. It checks node names first, because
Slurm expands `n[1-100]` to a hundred nodes. Ownership is the node's reason, `watchkeeper:<incident>/<action>`. Slurm
has no conditional update: another client may set another reason between our read and our update, so the node is read
again after each update.
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
from watchkeeper.remediate.drivers.cluster_driver import ClusterUnavailable, describe_manual_command

NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# The mark of a repair's action, and the reason of `watchkeeper scan --drain`: "watchkeeper: unhealthy: GPU 3 …".
MARK = re.compile(r"watchkeeper:[^\s/]+/\S+")
SCAN_REASON = "watchkeeper: "
JOB_ID = re.compile(r"\d+(_\d+)?")
DRAIN_STATES = frozenset({"DRAIN", "DRAINED", "DRAINING"})
MAINTENANCE_STATES = {"MAINT", "MAINTENANCE", "REBOOT_ISSUED", "REBOOT_REQUESTED", "POWERING_DOWN", "POWERED_DOWN"}
# Jobs on a node, including suspended and terminating ones.
PRESENT_FILTER = "RUNNING,COMPLETING,SUSPENDED,STOPPED,CONFIGURING,STAGE_OUT,SIGNALING"
PRESENT_STATES = frozenset(PRESENT_FILTER.split(","))
ENDING_STATES = frozenset({"COMPLETING", "SIGNALING", "STAGE_OUT"})
# Job, state, user, start: `17|RUNNING|ada|2026-11-15T09:00:00`.
JOB_FORMAT = "%i|%T|%u|%S"
MAX_MESSAGE_LENGTH = 300
INSTALL_COMMANDS = "Install Slurm's commands on the hub's machine, or set remediate.slurm_commands"
# Temporary failures of slurmctld.
# slurm_update error: Unable to contact slurm controller (connect failure)
UNREACHABLE = re.compile(
    "Unable to contact slurm controller|Socket timed out|Connection (refused|timed out)|Zero Bytes"
)
NOT_FOUND = re.compile(r"^Node \S+ not found|Invalid node name", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SlurmJob:
    id: str
    state: str
    user: str
    started: str

    @property
    def status_text(self) -> str:
        return f"job {self.id} of {self.user}: {self.state.lower()}"


def build_driver(settings: config.Settings, *, is_stopped: Callable[[], bool] = lambda: False) -> SlurmDriver:
    remediate = settings.remediate
    folder = None if remediate.slurm_commands is None else Path(remediate.slurm_commands)
    return SlurmDriver(
        folder,
        running_jobs=remediate.running_jobs,
        timeout_seconds=remediate.call_timeout_seconds,
        is_stopped=is_stopped,
    )


@dataclass(frozen=True, slots=True)
class SlurmDriver:
    """`folder` has Slurm's commands; `environment` is added to ours, such as SLURM_CONF of another cluster."""

    folder: Path | None = None
    running_jobs: config.RunningJobs = config.RunningJobs.WAIT
    timeout_seconds: float = 5.0
    environment: Mapping[str, str] = field(default_factory=dict)
    is_stopped: Callable[[], bool] = lambda: False
    name: str = "slurm"

    def observe(self, place: Place) -> NodeObservation:
        node = self._find_node(place)
        if node is None:
            return NodeObservation(place, exists=False)
        mark = read_mark(node)
        return NodeObservation(
            place,
            exists=True,
            is_schedulable=node.is_schedulable,
            cordoned_by=mark,
            workloads=tuple(job.id for job in self._list_node_jobs(node)),
            maintained_by=read_maintainers(node),
            health_problems=(f"Slurm ({node.state_name}: {node.reason or 'no reason given'})",)
            if node.is_ready is False
            else (),
        )

    def describe(self, action: Action) -> str:
        if action.kind is ActionKind.RESTART_APP:
            return "; ".join(" ".join(self._command("scontrol", "requeue", job)) for job in _read_job_ids(action))
        if action.kind is ActionKind.WARN_OWNER:
            return "; ".join(shlex.join(self._notify_command(job, action)) for job in _read_job_ids(action))
        if action.kind is ActionKind.RECLAIM:
            return "; ".join(" ".join(self._reclaim_command(job, action)) for job in _read_job_ids(action))
        if action.kind not in SUPPORTED_ACTIONS:
            return describe_manual_command(action)
        name = require_node_name(action.place)
        if action.kind is ActionKind.CORDON:
            return " ".join(self._update_command(name, "State=DRAIN", f"Reason={action.mark}"))
        if action.kind is ActionKind.UNCORDON:
            return f"{' '.join(self._update_command(name, 'State=RESUME'))}, only if its reason names {action.incident}"
        squeue = " ".join(self._squeue_command("-w", name))
        if self._running_jobs_policy(action) is config.RunningJobs.REQUEUE:
            return f"{squeue}; {' '.join(self._command('scontrol', 'requeue', 'JOB'))} for each job"
        return f"{squeue}, until no job is left"

    def perform(self, action: Action) -> ActionOutcome:
        unsupported = f"this driver has no Slurm command for {action.kind}"
        return cluster_driver.perform(self, action, SUPPORTED_ACTIONS, unsupported=unsupported)

    def _cordon(self, action: Action) -> ActionOutcome:
        node = self._get_node(action)
        mark = read_mark(node)
        if mark is not None:
            cluster_driver.check_mark(mark, action)
            return ActionOutcome(f"{node.name} is already drained by {mark}")
        if maintainers := read_maintainers(node):
            raise _build_refusal(node, f"it is maintained by {', '.join(maintainers)}", "Wait until that is finished")
        # The reason that Slurm gave to a node that is down is kept after our mark.
        before = f" (was: {node.reason})" if node.reason and not MARK.match(node.reason) else ""
        self._set_state(action.place, node.name, "DRAIN", reason=f"{action.mark}{before}")
        updated = self._get_node(action)
        if read_mark(updated) != action.mark:
            raise ActionFailed(
                f"the node was drained, but another client changed its reason to `{updated.reason}`",
                where=node.name,
                now=f"It is {updated.state_name}",
                remedy="The owner of that reason must resume the node",
            )
        return ActionOutcome(f"drained {node.name} with the reason {action.mark}")

    def _uncordon(self, action: Action) -> ActionOutcome:
        node = self._find_node(action.place)
        if node is None:
            return ActionOutcome(f"{action.place.node} has left the cluster: nothing to resume")
        mark = read_mark(node)
        if mark is None:
            if DRAIN_STATES.intersection(node.states):
                raise _build_refusal(node, "the drain is not Watchkeeper's", "Its owner must resume the node")
            return ActionOutcome(f"{node.name} has no drain of Watchkeeper's")
        cluster_driver.check_mark(mark, action)
        if "NOT_RESPONDING" in node.states:
            why = f"slurmd of {node.name} does not answer ({node.state_name})"
            return ActionOutcome("resume is blocked", is_complete=False, waits_for=(why,))
        self._set_state(action.place, node.name, "RESUME")
        return ActionOutcome(f"resumed {node.name}")

    def _drain(self, action: Action) -> ActionOutcome:
        node = self._get_node(action)
        if read_mark(node) is None:
            problem = "our drain is gone: another user resumed the node or set another reason"
            raise _build_refusal(node, problem, "Check the node")
        jobs = self._list_node_jobs(node)
        if action.place.gpu is not None:
            job_ids = set(_read_job_ids(action))
            jobs = [job for job in jobs if job.id in job_ids]
        if not jobs:
            return ActionOutcome(f"{node.name} is drained: no job is left")
        if self._running_jobs_policy(action) is config.RunningJobs.WAIT:
            blockers = tuple(job.status_text for job in jobs)
            return ActionOutcome(f"{len(jobs)} jobs remaining", is_complete=False, waits_for=blockers)
        return self._requeue_all(jobs, action)[1]

    def _restart_app(self, action: Action) -> ActionOutcome:
        """Requeue the jobs of the plan, except those that have started again since."""
        jobs = self._find_planned_jobs(action)
        requeued, outcome = self._requeue_all(jobs, action)
        # A requeued job is pending or starts elsewhere: do not requeue it again.
        return ActionOutcome(outcome.text) if requeued == len(jobs) else outcome

    def _find_planned_jobs(self, action: Action) -> list[SlurmJob]:
        """Return the jobs that an action names, without those that have started again since."""
        before = facts.time(action.arguments.get("before"))
        return [
            job
            for id in _read_job_ids(action)
            for job in self._list_jobs(self._squeue_command("-j", id), action)
            if before is None or (started := facts.time(job.started)) is None or started <= before
        ]

    def _warn_owner(self, action: Action) -> ActionOutcome:
        jobs = self._find_planned_jobs(action)
        self._refuse_keep_mark(jobs, action)
        for job in jobs:
            self._run_change(self._notify_command(job.id, action), action.place)
        owners = ", ".join(f"{job.id} of {job.user}" for job in jobs)
        return ActionOutcome(f"warned the owners of {owners or 'no jobs: all have ended'}")

    def _reclaim(self, action: Action) -> ActionOutcome:
        jobs = self._find_planned_jobs(action)
        self._refuse_keep_mark(jobs, action)
        for job in jobs:
            # A terminating job was reclaimed by an earlier call.
            if job.state in ENDING_STATES:
                continue
            if problem := self._try_change(self._reclaim_command(job.id, action), action.place):
                raise ActionRefused(
                    f"job {job.id} of {job.user} cannot be reclaimed: {problem}",
                    where=action.place.node,
                    now=f"It is {job.state.lower()}",
                    remedy='Only batch jobs can be requeued; set `how = "cancel"` in the policy to end any job',
                )
        if not jobs:
            return ActionOutcome("the jobs have ended")
        blockers = tuple(job.status_text for job in jobs)
        return ActionOutcome(f"reclaimed {len(jobs)} jobs", is_complete=False, waits_for=blockers)

    def _refuse_keep_mark(self, jobs: list[SlurmJob], action: Action) -> None:
        for job in jobs:
            text, is_success = self._run_command(self._command("squeue", "-h", "-j", job.id, "-o", "%k"))
            if not is_success:
                raise self._build_failure(text, action.place)
            if cluster_driver.KEEP_MARK in text:
                comment = f"its comment is `{text.strip()[:80]}`"
                raise cluster_driver.build_keep_refusal(f"job {job.id} of {job.user}", comment)

    def _requeue_all(self, jobs: list[SlurmJob], action: Action) -> tuple[int, ActionOutcome]:
        """Requeue running jobs; return how many were requeued, and the outcome while they end."""
        blockers, requeued = [], 0
        for job in jobs:
            problem = ""
            if job.state == "RUNNING":
                problem = self._try_change(self._command("scontrol", "requeue", job.id), action.place)
                requeued += not problem
            blockers.append(f"{job.status_text}, cannot be requeued: {problem}" if problem else job.status_text)
        text = f"requeued {requeued} jobs, {len(jobs)} remaining"
        return requeued, ActionOutcome(text, is_complete=False, waits_for=tuple(blockers))

    def _running_jobs_policy(self, action: Action) -> config.RunningJobs:
        value = action.arguments.get("running_jobs")
        try:
            return self.running_jobs if value is None else config.RunningJobs(value)
        except ValueError:
            raise ActionRefused(f"running_jobs is `{value}`; use wait or requeue", where=action.place.node) from None

    def _get_node(self, action: Action) -> records.NodeRecord:
        node = self._find_node(action.place)
        if node is None:
            raise cluster_driver.build_missing_node(action.place, "scontrol")
        return node

    def _find_node(self, place: Place) -> records.NodeRecord | None:
        name = require_node_name(place)
        text, is_success = self._run_command(self._command("scontrol", "-o", "show", "node", name))
        if not is_success and NOT_FOUND.search(text):
            return None
        if not is_success:
            raise self._build_failure(text, place)
        return next((node for node in records.read_nodes_text(text) if node.name == name), None)

    def _list_node_jobs(self, node: records.NodeRecord) -> list[SlurmJob]:
        return self._list_jobs(self._squeue_command("-w", node.name), None)

    def _list_jobs(self, command: list[str], action: Action | None) -> list[SlurmJob]:
        text, is_success = self._run_command(command)
        if not is_success:
            # The error of squeue for a job that ended a while ago.
            if "Invalid job id specified" in text:
                return []
            raise self._build_failure(text, action.place if action is not None else None)
        rows = (line.strip().split("|") for line in text.splitlines())
        return [SlurmJob(*row) for row in rows if len(row) == 4]

    def _set_state(self, place: Place, name: str, state: str, *, reason: str = "") -> None:
        reason_argument = [f"Reason={reason}"] if reason else []
        self._run_change(self._update_command(name, f"State={state}", *reason_argument), place)

    def _run_change(self, command: list[str], place: Place) -> None:
        if problem := self._try_change(command, place):
            raise ActionFailed(f"{' '.join(command)}: {problem}", where=place.node)

    def _try_change(self, command: list[str], place: Place) -> str:
        """Run a command that changes something; return its error message, or empty if it succeeded."""
        cluster_driver.check_not_halted(self.is_stopped, place.node)
        text, is_success = self._run_command(command)
        if is_success:
            return ""
        if UNREACHABLE.search(text):
            raise self._build_failure(text, place)
        return text or "no error message"

    def _run_command(self, command: list[str]) -> tuple[str, bool]:
        """Return the output of a command, and whether it succeeded within the timeout."""
        # Fix the locale and the time format, which the parser depends on.
        environment = {**os.environ, "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard", **self.environment}
        try:
            completed = subprocess.run(
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
                f"cannot run the command: {error.strerror}",
                where=command[0],
                now="Nothing was changed",
                remedy=INSTALL_COMMANDS,
            ) from error
        if completed.returncode == 0:
            return completed.stdout.decode("utf-8", "replace"), True
        return (completed.stderr or completed.stdout).decode("utf-8", "replace").strip()[:MAX_MESSAGE_LENGTH], False

    def _build_failure(self, text: str, place: Place | None) -> ActionFailed:
        error = ClusterUnavailable if UNREACHABLE.search(text) else ActionFailed
        return error(f"Slurm failed: {text or 'no error message'}", where=place.node if place is not None else None)

    def _command(self, program: str, *arguments: str) -> list[str]:
        return [str(self.folder / program) if self.folder is not None else program, *arguments]

    def _update_command(self, name: str, *changes: str) -> list[str]:
        return self._command("scontrol", "update", f"NodeName={name}", *changes)

    def _notify_command(self, job: str, action: Action) -> list[str]:
        keep_command = f"scontrol update JobId={job} Comment={cluster_driver.KEEP_MARK}"
        return self._command("scontrol", "notify", job, cluster_driver.format_owner_warning(action, keep_command))

    def _reclaim_command(self, job: str, action: Action) -> list[str]:
        """Return the command of a reclaim: requeue and hold until the owner releases the job, requeue, or cancel."""
        method = cluster_driver.read_reclaim_method(action)
        if method == "cancel":
            return self._command("scancel", job)
        return (
            self._command("scontrol", "requeue", job)
            if method == "requeue"
            else self._command("scontrol", "requeuehold", job)
        )

    def _squeue_command(self, option: str, value: str) -> list[str]:
        return self._command("squeue", "-h", option, value, "-t", PRESENT_FILTER, "-o", JOB_FORMAT)


SUPPORTED_ACTIONS: Mapping[ActionKind, Callable[[SlurmDriver, Action], ActionOutcome]] = {
    ActionKind.CORDON: SlurmDriver._cordon,
    ActionKind.UNCORDON: SlurmDriver._uncordon,
    ActionKind.DRAIN: SlurmDriver._drain,
    ActionKind.RESTART_APP: SlurmDriver._restart_app,
    ActionKind.WARN_OWNER: SlurmDriver._warn_owner,
    ActionKind.RECLAIM: SlurmDriver._reclaim,
}


def read_mark(node: records.NodeRecord) -> str | None:
    """Return our mark on a drained node; the reason of a node that is no longer drained does not count."""
    mark = MARK.match(node.reason)
    return mark[0] if mark is not None and DRAIN_STATES.intersection(node.states) else None


def read_maintainers(node: records.NodeRecord) -> tuple[str, ...]:
    """Return who else maintains the node: a drain with another reason, a maintenance reservation, a reboot."""
    maintainers = [f"Slurm ({state.lower()})" for state in node.states if state in MAINTENANCE_STATES]
    is_own = read_mark(node) is not None or node.reason.startswith(SCAN_REASON)
    if DRAIN_STATES.intersection(node.states) and not is_own:
        maintainers.append(f"{node.reason_user or 'another user'} ({node.reason or 'no reason given'})")
    return tuple(maintainers)


def _build_refusal(node: records.NodeRecord, problem: str, remedy: str) -> ActionRefused:
    return cluster_driver.build_refusal(problem, node.name, remedy, state=node.state_name)


def require_node_name(place: Place) -> str:
    if place.node is None or not NODE_NAME.fullmatch(place.node):
        problem = f"`{place.node}` is not the name of one node"
        raise cluster_driver.build_refusal(problem, str(place), "Name one node; Slurm expands n[1-3] to several")
    return place.node


def _read_job_ids(action: Action) -> list[str]:
    example = "a job such as 17 or 17_3"
    return cluster_driver.read_workload_names(action, "jobs", JOB_ID, example=example, source="Slurm")
