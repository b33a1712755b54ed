"""A repaired GPU closes its incident: what counts as repaired, and what does not."""

from __future__ import annotations

from tests.support.hub_stories import NODE, Line, gpu, later, xid
from watchkeeper.kit import clock
from watchkeeper.model.events import EventKind

TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"
DOUBLE_BIT = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
PENDING = "DCGM_FI_DEV_ROW_REMAP_PENDING"
RECOVERY = "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION"


def report(line: Line, since: int, until: int, metric: str = TEMPERATURE, value: float = 60.0) -> None:
    for seconds in range(since, until + 1, 15):
        line.read(metric, value, seconds)


def vanish(line: Line, at: float) -> None:
    line.fleet.record_page(NODE, {}, at_ms=clock.to_ms(later(at)), source="page")


def test_a_lost_gpu_that_reports_again_for_a_minute_resolves_its_incident(line: Line) -> None:
    report(line, -60, 0)
    line.pipeline.ingest_events([xid(79, gpu(0), 1), xid(154, gpu(0), 2)], later(2))
    vanish(line, 15)
    assert line.recover(120) == []
    report(line, 150, 195)
    assert line.recover(200) == []
    report(line, 210, 210)
    (event,) = line.recover(211)
    assert (event.kind, event.place, event.fields["source"]) == (EventKind.GPU_RESET, gpu(0), "hub")
    line.pipeline.tick(later(271))
    assert line.open() == []
    assert line.journal.event(event.id) is not None


def test_a_gpu_whose_node_is_silent_after_the_fault_is_not_back(line: Line) -> None:
    report(line, -60, 0)
    line.pipeline.ingest_events([xid(79, gpu(0), 1)], later(1))
    assert line.recover(600) == []


def test_a_reset_shows_in_the_counters_that_the_fault_had_set(line: Line) -> None:
    line.pipeline.ingest_events([xid(48, gpu(0), 0), xid(63, gpu(0), 1)], later(1))
    report(line, 15, 60, DOUBLE_BIT, 1.0)
    report(line, 15, 60, PENDING, 1.0)
    assert line.recover(61) == []
    report(line, 75, 90, DOUBLE_BIT, 0.0)
    report(line, 75, 90, PENDING, 1.0)
    assert line.recover(91) == []
    report(line, 105, 120, DOUBLE_BIT, 0.0)
    report(line, 105, 120, PENDING, 0.0)
    assert [event.place for event in line.recover(121)] == [gpu(0)]
    line.pipeline.tick(later(200))
    assert line.open() == []


def test_counters_that_never_showed_the_fault_do_not_show_its_end(line: Line) -> None:
    report(line, -120, -60, RECOVERY, 1.0)
    report(line, -45, 0, RECOVERY, 0.0)
    line.pipeline.ingest_events([xid(119, gpu(0), 5)], later(5))
    report(line, 15, 300, RECOVERY, 0.0)
    assert line.recover(301) == []


def test_the_no_data_marker_of_an_exporter_is_not_a_recovery(line: Line) -> None:
    line.pipeline.ingest_events([xid(48, gpu(0), 0)], later(1))
    report(line, 15, 60, DOUBLE_BIT, 2.0**63 - 16)
    report(line, 75, 120, DOUBLE_BIT, 0.0)
    assert line.recover(121) == []


def test_counters_that_are_no_longer_scraped_are_not_clear(line: Line) -> None:
    line.pipeline.ingest_events([xid(48, gpu(0), 0)], later(1))
    report(line, 15, 60, DOUBLE_BIT, 1.0)
    report(line, 75, 75, DOUBLE_BIT, 0.0)
    assert line.recover(800) == []


def test_a_fault_resolves_once_and_a_new_one_reopens(line: Line) -> None:
    line.pipeline.ingest_events([xid(79, gpu(0), 0)], later(0))
    report(line, 15, 90)
    (first,) = line.recover(91)
    assert line.recover(92) == []
    line.pipeline.ingest_events([xid(79, gpu(0), 100)], later(100))
    report(line, 105, 180)
    (second,) = line.recover(181)
    assert first.id != second.id


def test_a_node_with_a_slow_clock_does_not_show_a_recovery_before_the_fault(line: Line) -> None:
    report(line, -60, 105)
    line.pipeline.ingest_events([xid(79, gpu(0), 0)], later(110))
    assert line.recover(112) == [], "its samples of before the fault are later than the fault's own time"
    vanish(line, 120)
    assert line.recover(300) == []
    assert line.open() == [("INC-1", "gpu_fell_off_bus")]


def test_a_fault_after_the_reset_of_a_node_with_a_slow_clock_is_a_new_one(line: Line) -> None:
    line.pipeline.ingest_events([xid(79, gpu(0), 0)], later(110))
    vanish(line, 120)
    report(line, 400, 470)
    assert len(line.recover(471)) == 1
    line.pipeline.ingest_events([xid(79, gpu(0), 380)], later(490))
    live = [
        member
        for incident in line.pipeline.incidents.open_incidents()
        for member in incident.members
        if member.until is None
    ]
    assert [member.since for member in live] == [later(380)]
