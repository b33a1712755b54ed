"""Run the fabric test on this node: start its ranks, collect their messages, and judge.

With several nodes, the same command starts the ranks of each node, and all ranks join at one address. Rank 0 has all
measurements, so node 0 has the verdict; the report names a rank that exits or does not join in time.
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
from watchkeeper.probe.fabric.pairwise import FabricReport, Pair, Rank, Reduction, judge_fabric

MIB = 1 << 20
GPU_SIZES = (16 * MIB, 256 * MIB, 1024 * MIB)
CPU_SIZES = (1 * MIB, 16 * MIB)
JOIN_TIMEOUT_SECONDS = 120.0
# torch raises its own timeout after `join_timeout_seconds`; importing it takes time before that.
GRACE_SECONDS = 30.0
# Ranks report progress more often unless the fabric hangs.
PROGRESS_TIMEOUT_SECONDS = 120.0

ReportStep = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class FabricPlan:
    """The ranks of this node; `gpus` are their UUIDs, or any names with Gloo. Every node has as many ranks."""

    gpus: tuple[str, ...]
    backend: str = "nccl"
    node: str = "localhost"
    nodes: int = 1
    node_rank: int = 0
    host: str = "127.0.0.1"
    port: int = 0
    expected: float | None = None
    join_timeout_seconds: float = JOIN_TIMEOUT_SECONDS
    progress_timeout_seconds: float = PROGRESS_TIMEOUT_SECONDS
    python: str = sys.executable
    # For tests: two ranks whose exchange is slowed down.
    slow_pair: tuple[int, ...] = ()

    @property
    def world_size(self) -> int:
        return self.nodes * len(self.gpus)


@dataclass(slots=True)
class _RankMessages:
    joined: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    measured: Mapping[str, Any] | None = None
    failed: list[str] = field(default_factory=list)
    torch_problem: str = ""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(plan: FabricPlan, report_step: ReportStep = lambda _: None) -> FabricReport:
    """Run all-reduce and the pairwise test; only node 0 has the rates, other nodes report that their ranks finished."""
    port = plan.port or free_port()
    with child_processes.Children() as children:
        for local in range(len(plan.gpus)):
            children.start(_rank_name(plan, local), _rank_program(plan, local, port))
        state = _collect_messages(children, plan, report_step)
    return _create_report(plan, state)


def _rank_name(plan: FabricPlan, local: int) -> str:
    return f"rank {plan.node_rank * len(plan.gpus) + local}"


def _rank_program(plan: FabricPlan, local: int, port: int) -> child_processes.ChildProgram:
    rank_options = {
        "rank": plan.node_rank * len(plan.gpus) + local,
        "world": plan.world_size,
        "local": local,
        "backend": plan.backend,
        "host": plan.host,
        "port": port,
        "node": plan.node,
        "gpu": plan.gpus[local],
        "join_seconds": plan.join_timeout_seconds,
        "sizes": GPU_SIZES if plan.backend == "nccl" else CPU_SIZES,
        "pair_bytes": 256 * MIB if plan.backend == "nccl" else 4 * MIB,
        "slow_pair": plan.slow_pair,
    }
    environment = {"CUDA_VISIBLE_DEVICES": ",".join(plan.gpus)} if plan.backend == "nccl" else {}
    program = child_processes.module_program("fabric.rank_child", json.dumps(rank_options), python=plan.python)
    return replace(program, environment=environment)


def _collect_messages(children: child_processes.Children, plan: FabricPlan, report_step: ReportStep) -> _RankMessages:
    state, names = _RankMessages(), {_rank_name(plan, local) for local in range(len(plan.gpus))}
    deadline = time.monotonic() + plan.join_timeout_seconds + GRACE_SECONDS
    while names - state.ended and not state.failed and not state.torch_problem:
        message = children.next_message(deadline)
        if message is None:
            if time.monotonic() >= deadline:
                not_joined = ", ".join(sorted(names - state.joined))
                reason = f"no progress for {plan.progress_timeout_seconds:g} s: the fabric hangs"
                if not_joined:
                    reason = f"{not_joined} did not join at {plan.host} within {plan.join_timeout_seconds:g} s"
                state.failed.append(reason)
            continue
        has_joined = state.joined >= names
        deadline = time.monotonic()
        deadline += plan.progress_timeout_seconds if has_joined else plan.join_timeout_seconds + GRACE_SECONDS
        _add_message(state, message, report_step)
    return state


def _add_message(state: _RankMessages, message: child_processes.ChildMessage, report_step: ReportStep) -> None:
    body = message.body
    if body is None:
        if message.child not in state.ended:
            state.failed.append(f"{message.child} exited ({message.exit_reason})")
    elif body["type"] == "joined":
        state.joined.add(message.child)
    elif body["type"] == "no_torch":
        state.torch_problem = str(body["why"])
    elif body["type"] == "failed":
        state.failed.append(f"{message.child}: {body['why']}")
    elif body["type"] == "measured":
        state.measured = body
    elif body["type"] == "end":
        state.ended.add(message.child)
    elif body["type"] == "progress" and message.child.endswith(" 0"):
        report_step(str(body["test"]))


def _create_report(plan: FabricPlan, state: _RankMessages) -> FabricReport:
    if state.torch_problem:
        why = f"{state.torch_problem} in {plan.python}; install torch, or set --python to an interpreter with torch"
        return FabricReport((), (), (), (TestResult("fabric_work", None, DiagVerdict.SKIP, why),))
    if state.failed:
        failed = tuple(TestResult("fabric_work", None, DiagVerdict.FAIL, why) for why in state.failed[:8])
        return FabricReport((), (), (), failed)
    if state.measured is None:
        why = "the ranks of this node finished; node 0 has the results"
        return FabricReport((), (), (), (TestResult("fabric_work", None, DiagVerdict.PASS, why),))
    ranks = tuple(Rank(row["node"], row["gpu"]) for row in state.measured["ranks"])
    reductions = tuple(Reduction(**row) for row in state.measured["reductions"])
    pairs = tuple(Pair(**row) for row in state.measured["pairs"])
    return FabricReport(ranks, reductions, pairs, judge_fabric(ranks, reductions, pairs, expected=plan.expected))
