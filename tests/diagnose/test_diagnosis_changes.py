"""When a diagnosis gets a new journal entry; old journals have similar incidents as texts."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from watchkeeper.diagnose import corrections
from watchkeeper.model import diagnosis, fleet

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
GPU = fleet.Place("main", node="n1", gpu="GPU-1")
FINDING = diagnosis.Finding("gpu_fell_off_bus", 0.97, GPU, "GPU 1 on n1 fell off the bus", "", ())
BEFORE = diagnosis.Diagnosis("INC-2", NOON, (FINDING,), ("kernel log",))
ALIKE = diagnosis.SimilarIncident("INC-1", "pcie_degraded", "ada", "riser: was (loose)")
WORDS = "people: INC-1 looked like this and was pcie_degraded (ada: riser: was (loose))"


@pytest.mark.parametrize(
    ("current", "is_new"),
    [
        (replace(BEFORE, at=NOON.replace(hour=13), checked_sources=("kernel log", "power")), False),
        (replace(BEFORE, findings=(replace(FINDING, confidence=0.98, why="in other words"),)), False),
        (replace(BEFORE, findings=(replace(FINDING, confidence=0.5),)), True),
        (replace(BEFORE, findings=(replace(FINDING, cause="gpu_missing"),)), True),
        (replace(BEFORE, findings=(replace(FINDING, evidence=(diagnosis.Evidence("kernel", "Xid 79"),)),)), True),
        (replace(BEFORE, checked_sources=("kernel log", WORDS), similar=(ALIKE,)), True),
    ],
)
def test_other_causes_evidence_confidence_or_corrections_are_a_change(
    current: diagnosis.Diagnosis, is_new: bool
) -> None:
    assert corrections.has_changed(current, BEFORE) is is_new


def test_the_first_diagnosis_and_a_gpu_index_instead_of_a_uuid_are_a_change() -> None:
    by_uuid = replace(BEFORE, findings=(replace(FINDING, title="GPU-1 on n1 fell off the bus"),))
    assert corrections.has_changed(BEFORE, None)
    assert (corrections.has_changed(BEFORE, by_uuid), corrections.has_changed(by_uuid, BEFORE)) == (
        True,
        False,
    )


def test_similar_incidents_are_parsed_from_texts_of_old_journals() -> None:
    old = replace(BEFORE, checked_sources=("kernel log", WORDS))
    assert corrections.similar_incidents(old) == (ALIKE,)
    assert not corrections.has_changed(replace(old, similar=(ALIKE,)), old)
