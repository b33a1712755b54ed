"""Go or no-go before a job: from what each node's `diag -r 1` and the sweep of links said to one word, with reasons.

`cli.node.preflight` asks the nodes (`preflight_ways`) and hands the answers over; nothing here runs anything. A node
that did not answer, or whose answer cannot be read, is never a go.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from watchkeeper.model.diag import DiagOutcome, DiagVerdict
from watchkeeper.readers import json_facts

MOST_REASONS = 8
LONGEST_REASON = 300


class PreflightVerdict(StrEnum):
    """From good to bad."""

    GO = "go"
    CANNOT_TELL = "cannot tell"
    NO_GO = "no-go"


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """What a command printed on a node; `text` None: nothing, and `why` says what became of it."""

    text: str | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """One node, or the links between them. `gpus` None: it did not say."""

    name: str
    word: PreflightVerdict
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    gpus: int | None = None


@dataclass(frozen=True, slots=True)
class Preflight:
    """The whole check; `links` None: nobody asked for them, or there are none."""

    nodes: tuple[NodeVerdict, ...]
    links: NodeVerdict | None = None

    @property
    def word(self) -> PreflightVerdict:
        found = [checked.word for checked in (*self.nodes, *([self.links] if self.links is not None else []))]
        return max(found, key=list(PreflightVerdict).index) if self.nodes else PreflightVerdict.CANNOT_TELL


def judge_nodes(answers: Mapping[str, CommandAnswer], *, expected_gpus: int | None = None) -> tuple[NodeVerdict, ...]:
    """Each node by its own tests, then by its number of GPUs: as expected, or as many as most nodes have."""
    found = [judge_node(node, answer) for node, answer in answers.items()]
    usual = _usual([checked.gpus for checked in found if checked.gpus is not None])
    wanted, whose = (usual, "most nodes here have") if expected_gpus is None else (expected_gpus, "expected are")
    return tuple(_counted(checked, wanted, whose=whose) for checked in found)


def judge_node(node: str, answer: CommandAnswer) -> NodeVerdict:
    if answer.text is None:
        return NodeVerdict(node, PreflightVerdict.CANNOT_TELL, (answer.why,))
    plain = read_json(answer.text)
    if plain is None or not isinstance(plain.get("results"), list):
        said = " ".join(answer.text.split())[-LONGEST_REASON:] or "nothing"
        return NodeVerdict(node, PreflightVerdict.CANNOT_TELL, (f"its answer is no report of `diag`: {said}",))
    gpus = [*map(json_facts.mapping, json_facts.items(plain, "gpus"))]
    places = {str(gpu.get("uuid")): f"gpu {gpu.get('index')}" for gpu in gpus}
    results = [*map(json_facts.mapping, json_facts.items(plain, "results"))]
    failed, warned, skipped = (
        _sentences(results, verdict, places) for verdict in (DiagVerdict.FAIL, DiagVerdict.WARN, DiagVerdict.SKIP)
    )
    whole = plain.get("verdict")
    if failed or whole == DiagOutcome.FAILED:
        return NodeVerdict(node, PreflightVerdict.NO_GO, failed or ("it failed without saying why",), warned, len(gpus))
    if whole != DiagOutcome.PASSED:
        stopped = (f"it stopped early: {plain['stopped']}",) if plain.get("stopped") else ()
        unknown = stopped or skipped or ("its `diag` cannot tell",)
        return NodeVerdict(node, PreflightVerdict.CANNOT_TELL, unknown, warned, len(gpus))
    return NodeVerdict(node, PreflightVerdict.GO, (), warned, len(gpus))


def judge_links(answer: CommandAnswer) -> NodeVerdict:
    """By the report of node 0 of `diag fabric --json`, which hears all ranks."""
    plain = None if answer.text is None else read_json(answer.text)
    if plain is None:
        why = answer.why or " ".join((answer.text or "").split())[-LONGEST_REASON:] or "no answer"
        return NodeVerdict("links", PreflightVerdict.CANNOT_TELL, (why,))
    results = [*map(json_facts.mapping, json_facts.items(plain, "results"))]
    failed = _sentences(results, DiagVerdict.FAIL, {})
    if failed:
        return NodeVerdict("links", PreflightVerdict.NO_GO, failed)
    if not plain.get("pairs"):
        return NodeVerdict(
            "links", PreflightVerdict.CANNOT_TELL, _sentences(results, DiagVerdict.SKIP, {}) or ("no pair was tried",)
        )
    return NodeVerdict("links", PreflightVerdict.GO, (), _sentences(results, DiagVerdict.WARN, {}))


def read_json(text: str) -> Mapping[str, Any] | None:
    """The one object in a text: schedulers and shells write lines of their own before and after it."""
    start, end = text.find("{"), text.rfind("}")
    try:
        plain = json.loads(text[start : end + 1])
    except ValueError:
        return None
    return plain if isinstance(plain, dict) else None


def _sentences(
    results: Iterable[Mapping[str, Any]], verdict: DiagVerdict, places: Mapping[str, str]
) -> tuple[str, ...]:
    """One sentence for each test and reason, with all GPUs that it is true of."""
    found: dict[tuple[str, str], list[str]] = {}
    for result in results:
        if result.get("verdict") == verdict:
            key = (str(result.get("test")), str(result.get("why"))[:LONGEST_REASON])
            where = result.get("gpu")
            found.setdefault(key, []).extend([] if where is None else [places.get(str(where), str(where))])
    said = [f"{', '.join(where)}{': ' if where else ''}{test}: {why}" for (test, why), where in found.items()]
    more = len(said) - MOST_REASONS
    return (*said[:MOST_REASONS], *([f"and {more} more"] if more > 0 else []))


def _usual(counts: Sequence[int]) -> int | None:
    """How many GPUs most nodes have; with two nodes the higher number, because GPUs get lost and do not appear."""
    return max(statistics.multimode(counts)) if len(counts) > 1 else None


def _counted(checked: NodeVerdict, wanted: int | None, *, whose: str) -> NodeVerdict:
    if wanted is None or checked.gpus is None or checked.gpus >= wanted:
        return checked
    why = f"GPUs that answer: {checked.gpus}, {whose} {wanted}"
    return replace(checked, word=PreflightVerdict.NO_GO, reasons=(*checked.reasons, why))
