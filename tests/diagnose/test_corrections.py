"""Corrections: kept over a restart, first finding of their incident, shown for similar incidents, counted."""

from __future__ import annotations

from pathlib import Path

from tests.diagnose.stories import NOON
from tests.support.hub_stories import Line, gpu, later, xid
from watchkeeper.diagnose.corrections import Correction, Corrections, measure_accuracy


def correction(incident: str, cause: str, *, was: str = "gpu_fell_off_bus") -> Correction:
    return Correction(incident, NOON, "ada", was, cause, "riser was loose", "main/node=n1")


def test_a_corrected_cause_is_the_first_finding_also_after_a_restart(tmp_path: Path) -> None:
    line = Line(tmp_path)
    line.pipeline.ingest_events([xid(79, gpu(0), 0)], later(0))
    (incident,) = line.pipeline.incidents.open_incidents()
    line.pipeline.diagnose(incident, later(1))
    answer = line.pipeline.correct("INC-1", "ada", cause="pcie_degraded", why="riser was loose", now=later(2))
    assert (answer.was, answer.is_confirmation) == ("gpu_fell_off_bus", False)
    line.restart(10)
    line.pipeline.diagnose(line.pipeline.incidents.open_incidents()[0], later(11))
    diagnosis = line.journal.diagnosis("INC-1")
    assert diagnosis is not None
    assert [(finding.cause, finding.confidence) for finding in diagnosis.findings] == [
        ("pcie_degraded", 1.0),
        ("gpu_fell_off_bus", 0.97),
    ]
    assert diagnosis.findings[0].evidence[0].text == "pcie_degraded, not gpu_fell_off_bus: riser was loose"
    assert "cause" in [entry.kind for entry in line.journal.timeline("INC-1")]
    line.journal.close()


def test_a_similar_incident_shows_the_correction(tmp_path: Path) -> None:
    line = Line(tmp_path)
    line.pipeline.ingest_events([xid(79, gpu(0), 0), xid(79, gpu(1), 0)], later(0))
    first, second = line.pipeline.incidents.open_incidents()
    for incident in (first, second):
        line.pipeline.diagnose(incident, later(1))
    line.pipeline.correct(first.id, "ada", cause="pcie_degraded", why="riser was loose", now=later(2))
    line.pipeline.diagnose(second, later(3))
    diagnosis = line.journal.diagnosis(second.id)
    assert diagnosis is not None
    assert "people: INC-1 looked like this and was pcie_degraded (ada: riser was loose)" in diagnosis.checked_sources
    assert diagnosis.findings[0].cause == "gpu_fell_off_bus"
    line.journal.close()


def test_only_the_newest_correction_of_an_incident_counts() -> None:
    lessons = Corrections([correction("INC-1", "pcie_degraded"), correction("INC-1", "gpu_missing")])
    assert [each.cause for each in lessons.all()] == ["gpu_missing"]


def test_accuracy_is_none_without_a_judgement() -> None:
    judgements = [
        correction("INC-1", "gpu_fell_off_bus"),
        correction("INC-2", "pcie_degraded"),
        correction("INC-3", "gpu_fell_off_bus"),
    ]
    first, second = measure_accuracy({"gpu_fell_off_bus": 5, "cuda_oom": 2}, judgements)
    assert (first.cause, first.judged, first.right, first.instead) == ("gpu_fell_off_bus", 3, 2, ("pcie_degraded",))
    assert first.right_share == 2 / 3
    assert (second.cause, second.diagnosed, second.right_share) == ("cuda_oom", 2, None)
