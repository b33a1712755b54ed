"""From answers of nodes to go, no-go or cannot tell."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.probe.preflight.nodes import report
from watchkeeper.probe.preflight import judge
from watchkeeper.probe.preflight.judge import CommandAnswer, NodeVerdict, Preflight, PreflightVerdict

WELL = CommandAnswer(report())
PAIRS = [{"one": 0, "other": 1, "rate": 40.0}]


def links(*results: tuple[str, str], pairs: object = PAIRS) -> NodeVerdict:
    rows = [{"test": test, "verdict": verdict, "why": f"because of {test}"} for test, verdict in results]
    return judge.judge_links(CommandAnswer(json.dumps({"pairs": pairs, "results": rows})))


def test_a_node_that_passed_is_a_go_and_its_warnings_are_kept() -> None:
    found = judge.judge_node("a", CommandAnswer(report(persistence_mode="warn")))
    assert (found.word, found.gpus, found.reasons) == (PreflightVerdict.GO, 8, ())
    assert found.warnings == ("gpu 0: persistence_mode: because of persistence_mode",)


def test_a_failed_test_is_a_no_with_its_gpu_and_reason() -> None:
    found = judge.judge_node("a", CommandAnswer(report(verdict="failed", pcie_link="fail")))
    assert (found.word, found.reasons) == (PreflightVerdict.NO_GO, ("gpu 0: pcie_link: because of pcie_link",))


def test_the_same_trouble_of_several_gpus_is_one_sentence() -> None:
    rows = [{"test": "ecc", "gpu": f"GPU-{number}", "verdict": "fail", "why": "off"} for number in range(2)]
    plain = json.loads(report(verdict="failed")) | {"results": rows}
    assert judge.judge_node("a", CommandAnswer(json.dumps(plain))).reasons == ("gpu 0, gpu 1: ecc: off",)


@pytest.mark.parametrize("text", ["", "command not found", "{}", "[1]", '{"results": 3}', report(verdict="?")])
def test_an_answer_that_is_no_report_is_never_a_go(text: str) -> None:
    assert judge.judge_node("a", CommandAnswer(text)).word is PreflightVerdict.CANNOT_TELL


def test_a_node_without_gpus_cannot_tell_and_says_what_was_skipped() -> None:
    found = judge.judge_node("a", CommandAnswer(report(gpus=0, verdict="cannot tell", nvml="skip")))
    assert (found.word, found.reasons) == (PreflightVerdict.CANNOT_TELL, ("nvml: because of nvml",))


def test_words_of_a_shell_around_the_report_do_not_matter() -> None:
    assert judge.judge_node("a", CommandAnswer(f"Last login: today\n{report()}\nlogout\n")).word is PreflightVerdict.GO


def test_a_node_with_fewer_gpus_than_most_is_a_no() -> None:
    found = judge.judge_nodes({"a": WELL, "b": CommandAnswer(report(gpus=7)), "c": WELL})
    assert [node.word for node in found] == [PreflightVerdict.GO, PreflightVerdict.NO_GO, PreflightVerdict.GO]
    assert found[1].reasons == ("GPUs that answer: 7, most nodes here have 8",)


def test_every_node_is_held_against_the_number_that_is_expected() -> None:
    found = judge.judge_nodes({"a": WELL, "b": WELL}, expected_gpus=16)
    assert {node.word for node in found} == {PreflightVerdict.NO_GO}


def test_a_slow_link_is_a_no() -> None:
    found = links(("allreduce", "pass"), ("pairs_between", "fail"))
    assert (found.word, found.reasons) == (PreflightVerdict.NO_GO, ("pairs_between: because of pairs_between",))


def test_links_are_a_go_only_if_a_pair_was_tried() -> None:
    assert links(("pairs_between", "pass")).word is PreflightVerdict.GO
    assert links(("fabric_work", "skip"), pairs=[]).reasons == ("fabric_work: because of fabric_work",)
    assert links(("fabric_work", "pass"), pairs=[]).word is PreflightVerdict.CANNOT_TELL
    assert judge.judge_links(CommandAnswer(None, "no answer")).word is PreflightVerdict.CANNOT_TELL


WORDS = st.sampled_from(PreflightVerdict)


@given(st.lists(WORDS), st.none() | WORDS)
def test_all_must_go_one_no_is_enough_and_nothing_asked_is_no_go(
    words: list[PreflightVerdict], link: PreflightVerdict | None
) -> None:
    nodes = tuple(NodeVerdict(str(number), word) for number, word in enumerate(words))
    found = Preflight(nodes, None if link is None else NodeVerdict("links", link)).word
    said = {*words, *([link] if link is not None else [])}
    assert (found is PreflightVerdict.GO) == (bool(words) and said == {PreflightVerdict.GO})
    assert (found is PreflightVerdict.NO_GO) == (bool(words) and PreflightVerdict.NO_GO in said)


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_no_text_breaks_the_judge(text: str) -> None:
    assert judge.judge_node("a", CommandAnswer(text)).word is PreflightVerdict.CANNOT_TELL
    assert judge.judge_links(CommandAnswer(text)).word is PreflightVerdict.CANNOT_TELL
