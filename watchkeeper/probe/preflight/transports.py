"""How a command gets to the nodes of a preflight: by srun inside an allocation, or by ssh where somebody asks for it.

`cli.node.preflight` chooses; its third way, work orders, needs a hub and lives there. Every command has a deadline, and
Ctrl-C ends all of them. Which nodes: a Slurm job's (`slurm_nodes`) or those of a label selector (`labelled_nodes`).
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
from watchkeeper.probe.preflight.judge import LONGEST_REASON, CommandAnswer, read_json
from watchkeeper.readers import json_facts
from watchkeeper.readers.clusters import hostlist

# slurmctld creates steps one after the other, and each ssh is a process here.
AT_ONCE = 32
# All of them must run at the same time to meet: a process here for each.
MOST_MEETING_BY_SSH = 64
ASK_SECONDS = 30.0
ENDING_SECONDS = 5.0
CONNECT_SECONDS = 10
MEETING_PORT = 29_400


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended; `status` None: it did not start or not end, and `why` says which."""

    status: int | None
    output: str = ""
    why: str = ""

    @property
    def answer(self) -> CommandAnswer:
        """JSON counts whatever the exit status: `diag` ends with 1 when a test fails."""
        if self.status is not None and read_json(self.output) is not None:
            return CommandAnswer(self.output)
        said = " ".join(f"{self.why} {self.output}".split())[-LONGEST_REASON:]
        return CommandAnswer(None, said or f"it ended with {self.status} and said nothing")


class Transport(Protocol):
    """`check` runs `watchkeeper WORDS` on one node; `meet` on all of them at once, and gives what node 0 printed."""

    @property
    def name(self) -> str: ...

    def check(self, node: str, words: Sequence[str]) -> CommandAnswer: ...

    def meet(self, nodes: Sequence[str], words: Sequence[str]) -> CommandAnswer: ...


class RunningCommands:
    """Commands that run now, so that all of them can be ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._is_over = False

    def run(self, command: Sequence[str], seconds: float) -> CommandResult:
        with self._lock:
            if self._is_over:
                return CommandResult(None, why="stopped")
            try:
                child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                )
            except OSError as error:
                return CommandResult(None, why=f"{command[0]}: {error.strerror}")
            self._running.add(child)
        try:
            return _wait(child, seconds)
        finally:
            with self._lock:
                self._running.discard(child)

    def end_all(self) -> None:
        with self._lock:
            self._is_over = True
            for child in self._running:
                child.terminate()


def _wait(child: subprocess.Popen[str], seconds: float) -> CommandResult:
    try:
        output, complaint = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        # srun ends its step when it is asked to end; killed, it would leave the step running.
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=ENDING_SECONDS)
        child.kill()
        child.communicate()
        return CommandResult(None, why=f"no answer within {seconds:g} s")
    return CommandResult(child.returncode, output, complaint)


@dataclass(frozen=True, slots=True)
class Srun:
    """Steps of one job, beside whatever it runs already."""

    job: str
    command: Sequence[str]
    seconds: float
    programs: RunningCommands = field(default_factory=RunningCommands)
    name: str = "srun"

    def check(self, node: str, words: Sequence[str]) -> CommandAnswer:
        return self.programs.run([*self._srun([node]), *self.command, *words], self.seconds).answer

    def meet(self, nodes: Sequence[str], words: Sequence[str]) -> CommandAnswer:
        """One step over all nodes, whose lines carry the number of their task; node 0 has the verdict."""
        ran = self.programs.run([*self._srun(nodes), "--label", *self.command, *words], self.seconds)
        mark = "0" * len(str(len(nodes) - 1)) + ":"
        own = [line.lstrip().removeprefix(mark) for line in ran.output.splitlines() if line.lstrip().startswith(mark)]
        return CommandResult(ran.status, "\n".join(own), ran.why).answer

    def _srun(self, nodes: Sequence[str]) -> list[str]:
        count = len(nodes)
        return [
            "srun",
            f"--jobid={self.job}",
            "--overlap",
            "--quit-on-interrupt",
            "--kill-on-bad-exit=0",
            "--ntasks-per-node=1",
            f"--nodes={count}",
            f"--ntasks={count}",
            f"--nodelist={','.join(nodes)}",
        ]


@dataclass(frozen=True, slots=True)
class Ssh:
    """As whoever calls, with keys that need nobody to type."""

    command: Sequence[str]
    seconds: float
    programs: RunningCommands = field(default_factory=RunningCommands)
    name: str = "ssh"

    def check(self, node: str, words: Sequence[str]) -> CommandAnswer:
        return self.programs.run(self._ssh(node, words), self.seconds).answer

    def meet(self, nodes: Sequence[str], words: Sequence[str]) -> CommandAnswer:
        if len(nodes) > MOST_MEETING_BY_SSH:
            return CommandAnswer(
                None, f"{len(nodes)} nodes by ssh, the limit is {MOST_MEETING_BY_SSH}: use an allocation"
            )

        def rank(node: str) -> CommandAnswer:
            place = (f"--nodes={len(nodes)}", f"--node-rank={nodes.index(node)}", f"--master={nodes[0]}:{MEETING_PORT}")
            return self.check(node, (*words, *place))

        return _each(rank, nodes, at_once=len(nodes))[nodes[0]]

    def _ssh(self, node: str, words: Sequence[str]) -> list[str]:
        options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_SECONDS}"]
        # One text, because a shell over there reads it.
        return ["ssh", *options, "--", node, shlex.join([*self.command, *words])]


def check_all(
    way: Transport, nodes: Sequence[str], words: Sequence[str], *, tell: Callable[[str], None]
) -> dict[str, CommandAnswer]:
    """Every node's answer, in the order of the nodes; `tell` hears each name when its answer is there."""

    def ask(node: str) -> CommandAnswer:
        answer = way.check(node, words)
        tell(node)
        return answer

    return _each(ask, nodes, at_once=AT_ONCE)


def _each(ask: Callable[[str], CommandAnswer], nodes: Sequence[str], *, at_once: int) -> dict[str, CommandAnswer]:
    pool = ThreadPoolExecutor(max(1, min(at_once, len(nodes))))
    try:
        return dict(zip(nodes, pool.map(ask, nodes), strict=True))
    finally:
        # On Ctrl-C nobody waits for the threads: whoever called ends what they run.
        pool.shutdown(wait=False, cancel_futures=True)


def slurm_nodes(job: str | None, environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """A job and its nodes: the one that was named, or the allocation that this runs in."""
    listed = environment.get("SLURM_JOB_NODELIST", "")
    if job is None or (job == environment.get("SLURM_JOB_ID") and listed):
        return environment["SLURM_JOB_ID"], hostlist.expand(listed)
    ran = RunningCommands().run(["squeue", "--noheader", f"--jobs={job}", "--format=%i|%T|%N"], ASK_SECONDS)
    if ran.status != 0:
        raise CollectError(f"Slurm does not tell about job {job}: {' '.join(ran.why.split())[-LONGEST_REASON:]}")
    rows = [line.split("|") for line in ran.output.split() if line.count("|") == 2]
    running = [(id, hostlist.expand(nodes)) for id, state, nodes in rows if state == "RUNNING"]
    if len(running) != 1:
        states = ", ".join(f"{id} {state}" for id, state, _ in rows) or "none of that number"
        raise CollectError(f"job {job} has no nodes now: {states}", remedy="Name one job that runs")
    return running[0]


def labelled_nodes(selector: str, context: str | None = None) -> list[str]:
    """Names of Kubernetes nodes, as kubectl with the caller's own rights sees them."""
    chosen = [] if context is None else [f"--context={context}"]
    command = ["kubectl", *chosen, "get", "nodes", f"--selector={selector}", "--output=json", "--request-timeout=20s"]
    ran = RunningCommands().run(command, ASK_SECONDS)
    plain = read_json(ran.output) if ran.status == 0 else None
    if plain is None:
        said = " ".join(ran.why.split())[-LONGEST_REASON:]
        raise CollectError(
            f"kubectl does not tell which nodes have {selector}: {said or f'it ended with {ran.status}'}"
        )
    objects = map(json_facts.mapping, json_facts.items(plain, "items"))
    return [json_facts.name_of(json_facts.mapping(node, "metadata")) for node in objects]
