"""What a person reads on a phone at 3 a.m."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.notify.mail import Mail
from tests.support.incident_stories import Room, alert, gpu, later, node, xid
from watchkeeper.model.incidents import IncidentState
from watchkeeper.notify import message
from watchkeeper.notify.outbox import NoticeBatch

CONSOLE = "https://hub.example"


@pytest.fixture
def mail(room: Room) -> Mail:
    return Mail(room)


def compose(batch: NoticeBatch | None) -> message.Message:
    assert batch is not None
    return message.compose_message(batch, message.MessageContext(console_url=CONSOLE))


def test_a_message_before_the_diagnosis_has_place_start_cause_impact_and_next_step(mail: Mail) -> None:
    mail.room.push(xid(79, gpu(3), 0))
    assert compose(mail.take(10)).body.splitlines() == [
        "[CRITICAL] GPU 3 on n1 fell off the bus (INC-1)",
        "Since 2026-05-04 12:00 UTC",
        "Signal: xid 79",
        "Cause: The GPU no longer answers over PCIe; a GPU reset cannot reach it, only a restart of the machine can.",
        "Impact: job on n1",
        "Next: Cordon and drain n1, then reboot it; inspect power and seating if it happens again.",
        f"{CONSOLE}/incidents/INC-1",
    ]


def test_a_fault_that_stops_nothing_claims_no_impact(mail: Mail) -> None:
    mail.room.hear(alert("row_remap_pending", gpu(3), 0))
    assert "May affect: job on n1" in compose(mail.take(10)).body


def test_an_incident_of_unknown_cause_is_notified_with_its_signal(mail: Mail) -> None:
    mail.room.hear(
        replace(alert("unheard_of", node(), 0), annotations={"summary": "n1 is odd", "action": "Look at n1"})
    )
    message = compose(mail.take(10))
    assert "[CRITICAL] n1 is odd (INC-1)" in message.body
    assert "Next: Look at n1" in message.body
    [notice] = message.payload["notices"]
    assert (notice["next_step"], notice["alerts"]) == ("Look at n1", ["Alert unheard_of"])


def test_a_repetition_has_the_duration_and_the_assignee(mail: Mail) -> None:
    mail.room.push(xid(79, gpu(3), 0))
    assert mail.deliver(10)
    again = mail.take(3611)
    assert "Since 2026-05-04 12:00 UTC, for 1h" in compose(again).body
    assert again is not None
    taken = replace(again.incidents[0], state=IncidentState.ACKNOWLEDGED, assignee="ann")
    assert "Assigned to ann" in compose(replace(again, incidents=(taken,))).body


def test_a_storm_shows_the_most_severe_in_full_the_rest_as_lines_and_the_number_pending(mail: Mail) -> None:
    for at in range(120):
        mail.room.hear(alert("thermal_throttle", gpu(at % 8, f"n{at // 8}"), 0, severity="warning"))
    mail.room.push(xid(79, gpu(1, "x1"), 1))
    first = compose(mail.take(20))
    assert first.title.startswith("50 incidents (71 more pending): [CRITICAL] GPU 1 on x1 fell off the bus")
    assert first.body.count("Cause: ") == message.MAX_FULL_INCIDENTS
    assert first.body.count("[WARNING]") == 49
    assert len(first.body) < 7_000
    assert max(map(len, first.body.splitlines())) < 250
    assert len(first.payload["notices"]) == 50


def test_a_receiver_that_was_down_gets_the_notices_of_an_incident_in_order(mail: Mail) -> None:
    mail.room.hear(alert("agent_down", node(), 0))
    failed = mail.take(10)
    assert failed is not None
    mail.box.mark_failed(failed, "answered 503", later(10))
    mail.room.hear(alert("agent_down", node(), 0, ends=60))
    mail.room.tick(125)
    titles = []
    for at in (600, 605, 610):
        batch = mail.take(at)
        if batch is not None:
            titles.append(compose(batch).title)
            mail.box.mark_sent(batch, "200", later(at))
    assert titles == [
        "[CRITICAL] resolved meanwhile: The GPU exporter of n1 is down (INC-1)",
        "[RESOLVED] The GPU exporter of n1 is down (INC-1)",
    ]


def test_a_late_end_of_a_reopened_incident_says_open_again(mail: Mail) -> None:
    mail.room.hear(alert("agent_down", node(), 0))
    assert mail.deliver(15)
    mail.room.hear(alert("agent_down", node(), 0, ends=60))
    ended = mail.take(130)
    assert ended is not None
    mail.box.mark_failed(ended, "answered 503", later(130))
    mail.room.hear(alert("agent_down", node(), 140))
    assert compose(mail.take(200)).title == "[RESOLVED] open again: The GPU exporter of n1 is down (INC-1)"
