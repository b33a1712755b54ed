"""Reports of nodes become go, no-go or cannot tell."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.probe.preflight.nodes import report
from watchkeeper.probe.preflight import judge
from watchkeeper.probe.preflight.judge import CommandOutput, NodeVerdict, PreflightReport, PreflightVerdict

WELL = CommandOutput(report())
PAIRS = [{"one": 0, "other": 1, "rate": 40.0}]


def links(*results: tuple[str, str], pairs: object = PAIRS) -> NodeVerdict:
    rows = [{"test": test, "verdict": verdict, "why": f"because of {test}"} for test, verdict in results]
    return judge.judge_links(CommandOutput(json.dumps({"pairs": pairs, "results": rows})))


def test_a_node_that_passed_is_a_go_and_its_warnings_are_kept() -> None:
    checked = judge.judge_node("a", CommandOutput(report(persistence_mode="warn")))
    assert (checked.verdict, checked.gpus, checked.reasons) == (PreflightVerdict.GO, 8, ())
    assert checked.warnings == ("gpu 0: persistence_mode: because of persistence_mode",)


def test_a_failed_test_is_a_no_go_with_its_gpu_and_reason() -> None:
    checked = judge.judge_node("a", CommandOutput(report(verdict="failed", pcie_link="fail")))
    assert (checked.verdict, checked.reasons) == (PreflightVerdict.NO_GO, ("gpu 0: pcie_link: because of pcie_link",))


def test_the_same_fault_of_several_gpus_is_one_reason() -> None:
    rows = [{"test": "ecc", "gpu": f"GPU-{number}", "verdict": "fail", "why": "off"} for number in range(2)]
    plain = json.loads(report(verdict="failed")) | {"results": rows}
    assert judge.judge_node("a", CommandOutput(json.dumps(plain))).reasons == ("gpu 0, gpu 1: ecc: off",)


@pytest.mark.parametrize("text", ["", "command not checked", "{}", "[1]", '{"results": 3}', report(verdict="?")])
def test_output_that_is_no_report_is_never_a_go(text: str) -> None:
    assert judge.judge_node("a", CommandOutput(text)).verdict is PreflightVerdict.CANNOT_TELL


def test_a_node_without_gpus_is_cannot_tell_and_lists_skipped_tests() -> None:
    checked = judge.judge_node("a", CommandOutput(report(gpus=0, verdict="cannot tell", nvml="skip")))
    assert (checked.verdict, checked.reasons) == (PreflightVerdict.CANNOT_TELL, ("nvml: because of nvml",))


def test_lines_of_a_shell_around_the_report_are_ignored() -> None:
    assert (
        judge.judge_node("a", CommandOutput(f"Last login: today\n{report()}\nlogout\n")).verdict is PreflightVerdict.GO
    )


def test_a_node_with_fewer_gpus_than_most_is_a_no_go() -> None:
    checked = judge.judge_nodes({"a": WELL, "b": CommandOutput(report(gpus=7)), "c": WELL})
    assert [node.verdict for node in checked] == [PreflightVerdict.GO, PreflightVerdict.NO_GO, PreflightVerdict.GO]
    assert checked[1].reasons == ("GPUs that answer: 7, most nodes here have 8",)


def test_every_node_must_have_the_expected_number_of_gpus() -> None:
    checked = judge.judge_nodes({"a": WELL, "b": WELL}, expected_gpus=16)
    assert {node.verdict for node in checked} == {PreflightVerdict.NO_GO}


def test_a_slow_link_is_a_no_go() -> None:
    checked = links(("allreduce", "pass"), ("pairs_between", "fail"))
    assert (checked.verdict, checked.reasons) == (PreflightVerdict.NO_GO, ("pairs_between: because of pairs_between",))


def test_links_are_a_go_only_if_a_pair_was_measured() -> None:
    assert links(("pairs_between", "pass")).verdict is PreflightVerdict.GO
    assert links(("fabric_work", "skip"), pairs=[]).reasons == ("fabric_work: because of fabric_work",)
    assert links(("fabric_work", "pass"), pairs=[]).verdict is PreflightVerdict.CANNOT_TELL
    assert judge.judge_links(CommandOutput(None, "no answer")).verdict is PreflightVerdict.CANNOT_TELL


WORDS = st.sampled_from(PreflightVerdict)


@given(st.lists(WORDS), st.none() | WORDS)
def test_all_must_be_go_and_a_single_no_go_decides(
    words: list[PreflightVerdict], link: PreflightVerdict | None
) -> None:
    nodes = tuple(NodeVerdict(str(number), word) for number, word in enumerate(words))
    checked = PreflightReport(nodes, None if link is None else NodeVerdict("links", link)).verdict
    all_verdicts = {*words, *([link] if link is not None else [])}
    assert (checked is PreflightVerdict.GO) == (bool(words) and all_verdicts == {PreflightVerdict.GO})
    assert (checked is PreflightVerdict.NO_GO) == (bool(words) and PreflightVerdict.NO_GO in all_verdicts)


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_any_text_gets_a_verdict(text: str) -> None:
    assert judge.judge_node("a", CommandOutput(text)).verdict is PreflightVerdict.CANNOT_TELL
    assert judge.judge_links(CommandOutput(text)).verdict is PreflightVerdict.CANNOT_TELL
