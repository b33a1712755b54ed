"""Run commands on the nodes of a preflight: with srun inside an allocation, or with ssh on request.

The third transport, work orders, is in `cli.node.preflight`, because it needs a hub. Every command has a timeout, and
Ctrl-C ends all of them.
"""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from watchkeeper.errors import CollectError
from watchkeeper.probe.preflight.judge import MAX_REASON_CHARS, CommandOutput, parse_json_object
from watchkeeper.readers import json_facts
from watchkeeper.readers.clusters import hostlist

# slurmctld creates steps one at a time, and each ssh is a local process.
MAX_PARALLEL = 32
# All ranks must run at the same time, with one local ssh process for each.
MAX_SSH_LINK_NODES = 64
QUERY_TIMEOUT_SECONDS = 30.0
TERMINATE_SECONDS = 5.0
CONNECT_TIMEOUT_SECONDS = 10
MASTER_PORT = 29_400


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The exit status and output of a command; `status` is None if it did not start or timed out (see `error_text`)."""

    status: int | None
    output: str = ""
    error_text: str = ""

    @property
    def command_output(self) -> CommandOutput:
        """JSON is accepted with any exit status, because `diag` exits with 1 when a test fails."""
        if self.status is not None and parse_json_object(self.output) is not None:
            return CommandOutput(self.output)
        problem = " ".join(f"{self.error_text} {self.output}".split())[-MAX_REASON_CHARS:]
        return CommandOutput(None, problem or f"exit status {self.status} without output")


class Transport(Protocol):
    """Runs `watchkeeper ARGUMENTS` on one node, or on all nodes at once, where the output is that of node 0."""

    @property
    def name(self) -> str: ...

    def run_on_node(self, node: str, arguments: Sequence[str]) -> CommandOutput: ...

    def run_on_all(self, nodes: Sequence[str], arguments: Sequence[str]) -> CommandOutput: ...


class RunningCommands:
    """The commands that run now, so that all of them can be terminated."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._is_stopped = False

    def run(self, command: Sequence[str], timeout_seconds: float) -> CommandResult:
        with self._lock:
            if self._is_stopped:
                return CommandResult(None, error_text="stopped")
            try:
                child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                )
            except OSError as error:
                return CommandResult(None, error_text=f"{command[0]}: {error.strerror}")
            self._running.add(child)
        try:
            return _wait_for_exit(child, timeout_seconds)
        finally:
            with self._lock:
                self._running.discard(child)

    def terminate_all(self) -> None:
        with self._lock:
            self._is_stopped = True
            for child in self._running:
                child.terminate()


def _wait_for_exit(child: subprocess.Popen[str], timeout_seconds: float) -> CommandResult:
    try:
        output, error_text = child.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        # srun ends its step on SIGTERM; if it is killed, the step keeps running.
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=TERMINATE_SECONDS)
        child.kill()
        child.communicate()
        return CommandResult(None, error_text=f"no answer within {timeout_seconds:g} s")
    return CommandResult(child.returncode, output, error_text)


@dataclass(frozen=True, slots=True)
class Srun:
    """Runs commands as Slurm steps of one job, which overlap with its other steps."""

    job: str
    command: Sequence[str]
    timeout_seconds: float
    commands: RunningCommands = field(default_factory=RunningCommands)
    name: str = "srun"

    def run_on_node(self, node: str, arguments: Sequence[str]) -> CommandOutput:
        return self.commands.run([*self._srun([node]), *self.command, *arguments], self.timeout_seconds).command_output

    def run_on_all(self, nodes: Sequence[str], arguments: Sequence[str]) -> CommandOutput:
        """Run one step on all nodes; `--label` puts the task number before each line, and task 0 has the verdict."""
        result = self.commands.run([*self._srun(nodes), "--label", *self.command, *arguments], self.timeout_seconds)
        task_prefix = "0" * len(str(len(nodes) - 1)) + ":"
        lines = map(str.lstrip, result.output.splitlines())
        rank_0_lines = [line.removeprefix(task_prefix) for line in lines if line.startswith(task_prefix)]
        return CommandResult(result.status, "\n".join(rank_0_lines), result.error_text).command_output

    def _srun(self, nodes: Sequence[str]) -> list[str]:
        options = ["--overlap", "--quit-on-interrupt", "--kill-on-bad-exit=0", "--ntasks-per-node=1"]
        options += [f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", f"--nodelist={','.join(nodes)}"]
        return ["srun", f"--jobid={self.job}", *options]


@dataclass(frozen=True, slots=True)
class Ssh:
    """Runs commands with ssh as the current user, with keys that need no passphrase."""

    command: Sequence[str]
    timeout_seconds: float
    commands: RunningCommands = field(default_factory=RunningCommands)
    name: str = "ssh"

    def run_on_node(self, node: str, arguments: Sequence[str]) -> CommandOutput:
        return self.commands.run(self._ssh(node, arguments), self.timeout_seconds).command_output

    def run_on_all(self, nodes: Sequence[str], arguments: Sequence[str]) -> CommandOutput:
        if len(nodes) > MAX_SSH_LINK_NODES:
            problem = f"{len(nodes)} nodes by ssh, the limit is {MAX_SSH_LINK_NODES}: use an allocation"
            return CommandOutput(None, problem)
        shared_options = (*arguments, f"--nodes={len(nodes)}", f"--master={nodes[0]}:{MASTER_PORT}")

        def run_rank(node: str) -> CommandOutput:
            return self.run_on_node(node, (*shared_options, f"--node-rank={nodes.index(node)}"))

        return _run_parallel(run_rank, nodes, max_parallel=len(nodes))[nodes[0]]

    def _ssh(self, node: str, arguments: Sequence[str]) -> list[str]:
        options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_TIMEOUT_SECONDS}"]
        # One argument, because a shell on the node parses it.
        return ["ssh", *options, "--", node, shlex.join([*self.command, *arguments])]


def run_on_each(
    transport: Transport, nodes: Sequence[str], arguments: Sequence[str], *, report_node: Callable[[str], None]
) -> dict[str, CommandOutput]:
    """The output of each node, in the order of the nodes; `report_node` gets each name when it is done."""

    def run_and_report(node: str) -> CommandOutput:
        output = transport.run_on_node(node, arguments)
        report_node(node)
        return output

    return _run_parallel(run_and_report, nodes, max_parallel=MAX_PARALLEL)


def _run_parallel(
    run: Callable[[str], CommandOutput], nodes: Sequence[str], *, max_parallel: int
) -> dict[str, CommandOutput]:
    pool = ThreadPoolExecutor(max(1, min(max_parallel, len(nodes))))
    try:
        return dict(zip(nodes, pool.map(run, nodes), strict=True))
    finally:
        # On Ctrl-C do not wait for the threads: the caller terminates their commands.
        pool.shutdown(wait=False, cancel_futures=True)


def slurm_nodes(job: str | None, environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """A job and its nodes: the given job, or the current allocation."""
    node_list = environment.get("SLURM_JOB_NODELIST", "")
    if job is None or (job == environment.get("SLURM_JOB_ID") and node_list):
        return environment["SLURM_JOB_ID"], hostlist.expand(node_list)
    result = RunningCommands().run(
        ["squeue", "--noheader", f"--jobs={job}", "--format=%i|%T|%N"], QUERY_TIMEOUT_SECONDS
    )
    if result.status != 0:
        raise CollectError(f"squeue failed for job {job}: {' '.join(result.error_text.split())[-MAX_REASON_CHARS:]}")
    rows = [line.split("|") for line in result.output.split() if line.count("|") == 2]
    running = [(job_id, hostlist.expand(nodes)) for job_id, state, nodes in rows if state == "RUNNING"]
    if len(running) != 1:
        states = ", ".join(f"{id} {state}" for id, state, _ in rows) or "no such job"
        raise CollectError(f"job {job} has no nodes now: {states}", remedy="Give one running job")
    return running[0]


def labelled_nodes(selector: str, context: str | None = None) -> list[str]:
    """Names of Kubernetes nodes with these labels, from kubectl with the rights of the current user."""
    command = ["kubectl", "get", "nodes", f"--selector={selector}", "--output=json", "--request-timeout=20s"]
    command += [] if context is None else [f"--context={context}"]
    result = RunningCommands().run(command, QUERY_TIMEOUT_SECONDS)
    node_list = parse_json_object(result.output) if result.status == 0 else None
    if node_list is None:
        problem = " ".join(result.error_text.split())[-MAX_REASON_CHARS:] or f"exit status {result.status}"
        raise CollectError(f"kubectl failed to list nodes with {selector}: {problem}")
    nodes = map(json_facts.mapping, json_facts.items(node_list, "items"))
    return [json_facts.require_name(json_facts.mapping(node, "metadata")) for node in nodes]
