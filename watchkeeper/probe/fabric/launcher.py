"""The fabric check of a node, or of this node among several: starts its ranks, hears them, and judges.

`watchkeeper diag fabric` calls `run`. On each node the same command starts that node's ranks; they meet at one address.
The ranks of node 0 hear everything, so the verdict is there. A rank that dies or does not join in time is named.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from watchkeeper.model.diag import DiagVerdict, TestResult
from watchkeeper.probe.diag import child_processes
from watchkeeper.probe.fabric.pairwise import FabricReport, Pair, Rank, Reduction, judge

MIB = 1 << 20
GPU_SIZES = (16 * MIB, 256 * MIB, 1024 * MIB)
CPU_SIZES = (1 * MIB, 16 * MIB)
JOIN_SECONDS = 120.0
# torch itself gives up after `join_seconds`, with words of its own; importing it takes a while before.
GRACE_SECONDS = 30.0
# Nobody says anything for this long only if the fabric hangs.
SILENT_SECONDS = 120.0

ReportStep = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class FabricPlan:
    """This node's part. `gpus` are the UUIDs of its ranks, or any names on the processor; every node has as many."""

    gpus: tuple[str, ...]
    backend: str = "nccl"
    node: str = "localhost"
    nodes: int = 1
    node_rank: int = 0
    host: str = "127.0.0.1"
    port: int = 0
    expected: float | None = None
    join_seconds: float = JOIN_SECONDS
    silent_seconds: float = SILENT_SECONDS
    python: str = sys.executable
    # For tests: two ranks whose exchange is slowed.
    slow_pair: tuple[int, ...] = ()

    @property
    def world(self) -> int:
        return self.nodes * len(self.gpus)


@dataclass(slots=True)
class _RankMessages:
    joined: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    found: Mapping[str, Any] | None = None
    failed: list[str] = field(default_factory=list)
    absent: str = ""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(plan: FabricPlan, tell: ReportStep = lambda _: None) -> FabricReport:
    """All-reduce and pairwise sweep; where this is not node 0 the report has only what became of its own ranks."""
    port = plan.port or free_port()
    with child_processes.Children() as children:
        for local in range(len(plan.gpus)):
            children.start(_name(plan, local), _program(plan, local, port))
        heard = _hear(children, plan, tell)
    return _report(plan, heard)


def _name(plan: FabricPlan, local: int) -> str:
    return f"rank {plan.node_rank * len(plan.gpus) + local}"


def _program(plan: FabricPlan, local: int, port: int) -> child_processes.ChildProgram:
    order = {
        "rank": plan.node_rank * len(plan.gpus) + local,
        "world": plan.world,
        "local": local,
        "backend": plan.backend,
        "host": plan.host,
        "port": port,
        "node": plan.node,
        "gpu": plan.gpus[local],
        "join_seconds": plan.join_seconds,
        "sizes": GPU_SIZES if plan.backend == "nccl" else CPU_SIZES,
        "pair_bytes": 256 * MIB if plan.backend == "nccl" else 4 * MIB,
        "slow_pair": plan.slow_pair,
    }
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(plan.gpus)} if plan.backend == "nccl" else {}
    program = child_processes.module("fabric.rank_child", json.dumps(order), python=plan.python)
    return replace(program, environment=visible)


def _hear(children: child_processes.Children, plan: FabricPlan, tell: ReportStep) -> _RankMessages:
    heard, names = _RankMessages(), {_name(plan, local) for local in range(len(plan.gpus))}
    until = time.monotonic() + plan.join_seconds + GRACE_SECONDS
    while names - heard.ended and not heard.failed and not heard.absent:
        line = children.hear(until)
        if line is None:
            if time.monotonic() >= until:
                heard.failed.append(_silence(plan, heard, names))
            continue
        until = time.monotonic() + (plan.silent_seconds if heard.joined >= names else plan.join_seconds + GRACE_SECONDS)
        _take(heard, line, tell)
    return heard


def _take(heard: _RankMessages, line: child_processes.ChildMessage, tell: ReportStep) -> None:
    words = line.words
    if words is None:
        if line.child not in heard.ended:
            heard.failed.append(f"{line.child} ended ({line.why})")
    elif words["say"] == "joined":
        heard.joined.add(line.child)
    elif words["say"] == "absent":
        heard.absent = str(words["why"])
    elif words["say"] == "failed":
        heard.failed.append(f"{line.child}: {words['why']}")
    elif words["say"] == "found":
        heard.found = words
    elif words["say"] == "end":
        heard.ended.add(line.child)
    elif words["say"] == "progress" and line.child.endswith(" 0"):
        tell(str(words["test"]))


def _silence(plan: FabricPlan, heard: _RankMessages, names: set[str]) -> str:
    absent = sorted(names - heard.joined)
    if absent:
        return f"{', '.join(absent)} did not join at {plan.host} within {plan.join_seconds:g} s"
    return f"no rank has got on for {plan.silent_seconds:g} s: the fabric hangs"


def _report(plan: FabricPlan, heard: _RankMessages) -> FabricReport:
    if heard.absent:
        why = f"{heard.absent} in {plan.python}; install torch there, or name another interpreter with --python"
        return FabricReport((), (), (), (TestResult("fabric_work", None, DiagVerdict.SKIP, why),))
    if heard.failed:
        failed = tuple(TestResult("fabric_work", None, DiagVerdict.FAIL, why) for why in heard.failed[:8])
        return FabricReport((), (), (), failed)
    if heard.found is None:
        done = TestResult("fabric_work", None, DiagVerdict.PASS, "this node's ranks are done; node 0 has the results")
        return FabricReport((), (), (), (done,))
    ranks = tuple(Rank(row["node"], row["gpu"]) for row in heard.found["ranks"])
    reductions = tuple(Reduction(**row) for row in heard.found["reductions"])
    pairs = tuple(Pair(**row) for row in heard.found["pairs"])
    return FabricReport(ranks, reductions, pairs, judge(ranks, reductions, pairs, expected=plan.expected))
