"""Decide go or no-go before a job, from the `diag -r 1` report of each node and the fabric test of their links.

`cli.node.preflight` runs the commands through `transports` and passes their outputs; nothing here runs a command. A
node without a readable report is never a go.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from watchkeeper.model.diag import DiagOutcome, DiagVerdict
from watchkeeper.readers import json_facts

MAX_REASONS = 8
MAX_REASON_CHARS = 300


class PreflightVerdict(StrEnum):
    """From best to worst."""

    GO = "go"
    CANNOT_TELL = "cannot tell"
    NO_GO = "no-go"


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """The output of a command on a node; `text` is None if it failed, for the reason in `problem`."""

    text: str | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """The verdict for one node, or for the links between nodes; `gpus` is None if unknown."""

    name: str
    verdict: PreflightVerdict = field(metadata={"json_key": "word"})
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    gpus: int | None = None


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """The verdicts of all nodes; `links` is None if links were not tested."""

    nodes: tuple[NodeVerdict, ...]
    links: NodeVerdict | None = None

    @property
    def verdict(self) -> PreflightVerdict:
        verdicts = [node.verdict for node in (*self.nodes, *([self.links] if self.links is not None else []))]
        return max(verdicts, key=list(PreflightVerdict).index) if self.nodes else PreflightVerdict.CANNOT_TELL


def judge_nodes(outputs: Mapping[str, CommandOutput], *, expected_gpus: int | None = None) -> tuple[NodeVerdict, ...]:
    """Judge each node by its tests and its number of GPUs: the expected number, or that of most nodes."""
    nodes = [judge_node(node, output) for node, output in outputs.items()]
    min_count, source = expected_gpus or 0, "expected:"
    if expected_gpus is None:
        counts = [node.gpus for node in nodes if node.gpus is not None]
        # The higher number if two are equally frequent.
        min_count, source = max(statistics.multimode(counts)) if len(counts) > 1 else 0, "most nodes here have"
    for position, node in enumerate(nodes):
        if node.gpus is not None and node.gpus < min_count:
            reason = f"GPUs that answer: {node.gpus}, {source} {min_count}"
            nodes[position] = replace(node, verdict=PreflightVerdict.NO_GO, reasons=(*node.reasons, reason))
    return tuple(nodes)


def judge_node(node: str, output: CommandOutput) -> NodeVerdict:
    if output.text is None:
        return NodeVerdict(node, PreflightVerdict.CANNOT_TELL, (output.problem,))
    report = parse_json_object(output.text)
    if report is None or not isinstance(report.get("results"), list):
        excerpt = " ".join(output.text.split())[-MAX_REASON_CHARS:] or "empty output"
        return NodeVerdict(node, PreflightVerdict.CANNOT_TELL, (f"the output is not a `diag` report: {excerpt}",))
    gpus = [*map(json_facts.mapping, json_facts.items(report, "gpus"))]
    gpu_names = {str(gpu.get("uuid")): f"gpu {gpu.get('index')}" for gpu in gpus}
    results = [*map(json_facts.mapping, json_facts.items(report, "results"))]
    failed, warned, skipped = (
        _group_reasons(results, verdict, gpu_names)
        for verdict in (DiagVerdict.FAIL, DiagVerdict.WARN, DiagVerdict.SKIP)
    )
    outcome = report.get("verdict")
    if failed or outcome == DiagOutcome.FAILED:
        reasons = failed or ("`diag` failed without a reason",)
        return NodeVerdict(node, PreflightVerdict.NO_GO, reasons, warned, len(gpus))
    if outcome != DiagOutcome.PASSED:
        stop_reasons = (f"`diag` stopped early: {report['stopped']}",) if report.get("stopped") else ()
        reasons = stop_reasons or skipped or ("the verdict of `diag` is `cannot tell`",)
        return NodeVerdict(node, PreflightVerdict.CANNOT_TELL, reasons, warned, len(gpus))
    return NodeVerdict(node, PreflightVerdict.GO, (), warned, len(gpus))


def judge_links(output: CommandOutput) -> NodeVerdict:
    """Judge the links by the report of `diag fabric --json` on node 0, which has the results of all ranks."""
    report = None if output.text is None else parse_json_object(output.text)
    if report is None:
        problem = output.problem or " ".join((output.text or "").split())[-MAX_REASON_CHARS:] or "no answer"
        return NodeVerdict("links", PreflightVerdict.CANNOT_TELL, (problem,))
    results = [*map(json_facts.mapping, json_facts.items(report, "results"))]
    failed = _group_reasons(results, DiagVerdict.FAIL, {})
    if failed:
        return NodeVerdict("links", PreflightVerdict.NO_GO, failed)
    if not report.get("pairs"):
        reasons = _group_reasons(results, DiagVerdict.SKIP, {}) or ("no pair was measured",)
        return NodeVerdict("links", PreflightVerdict.CANNOT_TELL, reasons)
    return NodeVerdict("links", PreflightVerdict.GO, (), _group_reasons(results, DiagVerdict.WARN, {}))


def parse_json_object(text: str) -> Mapping[str, Any] | None:
    """The JSON object in a text; schedulers and shells may write lines before and after it."""
    start, end = text.find("{"), text.rfind("}")
    try:
        plain = json.loads(text[start : end + 1])
    except ValueError:
        return None
    return plain if isinstance(plain, dict) else None


def _group_reasons(
    results: Iterable[Mapping[str, Any]], verdict: DiagVerdict, gpu_names: Mapping[str, str]
) -> tuple[str, ...]:
    """One text for each test and reason, with all GPUs that it applies to."""
    gpus_by_reason: dict[tuple[str, str], list[str]] = {}
    for result in results:
        if result.get("verdict") == verdict:
            key = (str(result.get("test")), str(result.get("why"))[:MAX_REASON_CHARS])
            gpu = result.get("gpu")
            gpus_by_reason.setdefault(key, []).extend([] if gpu is None else [gpu_names.get(str(gpu), str(gpu))])
    reasons = [f"{', '.join(gpus)}{': ' if gpus else ''}{test}: {why}" for (test, why), gpus in gpus_by_reason.items()]
    omitted = len(reasons) - MAX_REASONS
    return (*reasons[:MAX_REASONS], *([f"and {omitted} more"] if omitted > 0 else []))
