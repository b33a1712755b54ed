"""A GPU that breaks before any page has told of it: what its incident is called, then and later."""

from __future__ import annotations

from tests.support.hub_stories import Line, gpu, later, xid

BY_UUID, BY_NAME = "GPU-3 on n1 fell off the bus", "GPU 3 on n1 fell off the bus"


def title(line: Line) -> str:
    (incident,) = line.pipeline.incidents.open_incidents()
    kept = line.journal.incident(incident.id)
    assert kept is not None
    assert kept.title == incident.title
    return incident.title


def test_an_incident_of_an_unscraped_gpu_is_renamed_when_its_index_is_known(line: Line) -> None:
    line.pipeline.ingest_events([xid(79, gpu(3), 0)], later(0))
    line.pipeline.tick(later(15))
    assert title(line) == BY_UUID
    line.read("DCGM_FI_DEV_GPU_TEMP", 50.0, 20, index=3)
    (renamed,) = line.pipeline.tick(later(30))
    assert (renamed.title, renamed.place, title(line)) == (BY_NAME, gpu(3), BY_NAME)
    assert [entry.text for entry in line.journal.timeline("INC-1")][-1] == f"Renamed: {BY_NAME}"
    assert line.pipeline.tick(later(45)) == []
    assert line.journal.verify() is None


def test_it_is_renamed_also_after_a_restart_of_the_hub(line: Line) -> None:
    line.pipeline.ingest_events([xid(79, gpu(3), 0)], later(0))
    line.restart(10)
    line.read("DCGM_FI_DEV_GPU_TEMP", 50.0, 20, index=3)
    line.pipeline.tick(later(30))
    assert title(line) == BY_NAME


def test_its_diagnosis_is_renamed_with_it(line: Line) -> None:
    line.pipeline.ingest_events([xid(79, gpu(3), 0)], later(0))
    (incident,) = line.pipeline.incidents.open_incidents()
    line.pipeline.diagnose(incident, later(1))
    line.read("DCGM_FI_DEV_GPU_TEMP", 50.0, 20, index=3)
    (renamed,) = line.pipeline.tick(later(30))
    line.pipeline.diagnose(renamed, later(31))
    diagnosis = line.journal.diagnosis("INC-1")
    assert diagnosis is not None
    assert diagnosis.best is not None
    assert diagnosis.best.title == BY_NAME


def test_a_diagnosis_does_not_go_back_to_the_uuid_after_a_restart(line: Line) -> None:
    line.read("DCGM_FI_DEV_GPU_TEMP", 50.0, 0, index=3)
    line.pipeline.ingest_events([xid(79, gpu(3), 0)], later(0))
    line.pipeline.diagnose(line.pipeline.incidents.open_incidents()[0], later(1))
    line.restart(10, keeps_samples=True)
    line.pipeline.diagnose(line.pipeline.incidents.open_incidents()[0], later(11))
    diagnosis = line.journal.diagnosis("INC-1")
    assert diagnosis is not None
    assert diagnosis.best is not None
    assert diagnosis.best.title == BY_NAME


def test_signals_under_the_name_of_a_gpu_join_the_incident_under_its_uuid(line: Line) -> None:
    line.pipeline.ingest_events([xid(79, gpu(3), 0)], later(0))
    line.read("DCGM_FI_DEV_GPU_TEMP", 50.0, 20, index=3)
    line.pipeline.tick(later(30))
    line.pipeline.ingest_events([xid(79, gpu(3), 31), xid(48, gpu(2), 31)], later(31))
    assert [incident.place for incident in line.pipeline.incidents.open_incidents()] == [gpu(3), gpu(2)]
