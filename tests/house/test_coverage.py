"""Every item of the courses has a state and a proof, and every proof holds."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter

import pytest

from tests.house import coverage, coverage_proofs

COMMANDS = ("command", "doctor", "rule")
ITEMS = coverage.items()


def problems(items: list[coverage.Item]) -> list[str]:
    return [f"{item.id} ({item.proof}): {text}" for item in items if (text := coverage_proofs.problem_of(item))]


def test_every_row_says_what_the_item_is_and_how_far_it_is_covered() -> None:
    assert len(ITEMS) > 500
    assert not [item_id for item_id, count in Counter(item.id for item in ITEMS).items() if count > 1]
    assert not [item.id for item in ITEMS if item.state not in coverage.STATES]
    assert not [item.id for item in ITEMS if not re.fullmatch(r"[a-z]+-\d{3}", item.id) or not item.item]


def test_what_is_not_fully_covered_has_a_reason_and_all_else_a_proof() -> None:
    assert not [item.id for item in ITEMS if item.state != "full" and not item.note]
    assert not [item.id for item in ITEMS if item.state == "full" and not item.proof]
    assert not [item.id for item in ITEMS if item.proof and item.kind not in coverage_proofs.KINDS]
    needs_text = {*COMMANDS, "page"}
    assert not [item.id for item in ITEMS if (item.kind in needs_text) != bool(item.shows)]


def test_the_names_pages_and_places_that_prove_an_item_exist() -> None:
    assert not problems([item for item in ITEMS if item.proof and item.kind not in COMMANDS])


@pytest.mark.slow
def test_the_commands_that_prove_an_item_print_what_they_should() -> None:
    assert not problems([item for item in ITEMS if item.kind == "command"])


@pytest.mark.slow
def test_rules_of_the_courses_that_cannot_work_are_refused_with_the_reason() -> None:
    assert not problems([item for item in ITEMS if item.kind == "rule"])


@pytest.mark.slow
def test_the_doctor_finds_the_causes_that_the_courses_describe() -> None:
    assert not problems([item for item in ITEMS if item.kind == "doctor"])


@pytest.mark.parametrize(
    ("proof", "shows"),
    [
        ("alert NoSuchAlert", ""),
        ("metric DCGM_FI_NO_SUCH_FIELD", ""),
        ("panel GPU: No such panel", ""),
        ("console /nowhere", ""),
        ("page docs/learn/nccl.md#no-such-heading", "NCCL"),
        ("page docs/learn/nccl.md", "words that no page has"),
        ("command watchkeeper explain xid 79", "double-bit"),
        ("command watchkeeper no-such-command", "Usage"),
        ("rule DCGM_FI_DEV_GPU_TEMP > 80", "a bit mask"),
        ("doctor CUDA out of memory", "gpu_fell_off_bus"),
    ],
)
def test_a_proof_that_does_not_hold_is_found(proof: str, shows: str) -> None:
    assert coverage_proofs.problem_of(dataclasses.replace(ITEMS[0], proof=proof, shows=shows))
