"""The outbox when things go wrong: a full disk, a stop at the wrong moment, receivers that come, go and refuse."""

from __future__ import annotations

import pytest

from tests.notify.mail import HOOK, LEAD, ROUTE, ROUTING, Mail
from tests.support.incident_stories import NODES, RACK, Room, alert, gpu, later, node, xid
from watchkeeper.errors import StoreError
from watchkeeper.model.notices import NoticeState
from watchkeeper.notify import message, routing


@pytest.fixture
def mail(room: Room) -> Mail:
    return Mail(room)


def test_a_full_disk_during_sending_loses_nothing(mail: Mail) -> None:
    mail.room.push(xid(79, gpu(3), 0))
    mail.look(1)
    mail.room.break_journal()
    with pytest.raises(StoreError):
        mail.box.next_batch("hook", later(10), incident=mail.room.journal.incident)
    mail.room.break_journal(False)
    assert mail.deliver(11) == [("INC-1", "opened")]


def test_a_full_disk_during_a_decision_loses_nothing(mail: Mail) -> None:
    mail.room.push(xid(79, gpu(3), 0))
    mail.room.incidents.tick(later(1))
    mail.room.break_journal()
    with pytest.raises(StoreError):
        mail.box.update(mail.room.incidents.recent(), later(1))
    mail.room.break_journal(False)
    assert mail.deliver(10) == [("INC-1", "opened")]


def test_a_message_keeps_its_key_through_a_restart(mail: Mail) -> None:
    mail.room.push(xid(79, gpu(3), 0))
    first = mail.take(10)
    mail.room.push(xid(48, gpu(5), 11))
    mail.restart(12)
    mail.look(13)
    fresh, again = mail.take(30), mail.take(31)
    assert first is not None
    assert fresh is not None
    assert again is not None
    assert again.key == first.key
    assert [notice.incident for notice in again.notices] == [notice.incident for notice in first.notices]
    assert fresh.key != first.key


def test_a_message_that_always_fails_blocks_no_other(mail: Mail) -> None:
    mail.room.push(xid(79, gpu(3), 0))
    refused = mail.take(10)
    assert refused is not None
    mail.box.mark_failed(refused, "answered 500", later(10))
    mail.room.push(xid(48, gpu(5), 11))
    mail.look(12)
    assert mail.deliver(21) == [("INC-2", "opened")]
    assert mail.deliver(22) == [("INC-1", "opened")]


def test_a_notified_receiver_gets_the_end_also_after_a_long_stop(mail: Mail) -> None:
    mail.room.hear(alert("agent_down", node(), 0))
    assert mail.deliver(10) == [("INC-1", "opened")]
    mail.room.hear(alert("agent_down", node(), 0, ends=60))
    mail.room.tick(120)
    mail.restart(120 + 7200)
    assert mail.deliver(7330) == [("INC-1", "resolved")]
    assert mail.deliver(7340) == []
    assert mail.box._unsettled == {}


def test_a_removed_receiver_gets_nothing_and_a_new_one_does(mail: Mail) -> None:
    mail.room.push(xid(79, gpu(3), 0))
    mail.look(1)
    mail.box.set_routing(routing.Routing((LEAD,), (routing.Route(("lead",)),)), later(2))
    assert [notice.answer for notice in mail.room.journal.notices_of("INC-1")] == [
        "the receiver is no longer configured"
    ]
    assert mail.deliver(20, "lead") == [("INC-1", "opened")]


def test_the_most_severe_incident_is_notified_first(mail: Mail) -> None:
    for at in range(60):
        mail.room.hear(alert("thermal_throttle", gpu(at % 8, f"n{at // 8}"), 0, severity="warning"))
    mail.room.push(xid(79, gpu(1, "x1"), 1))
    batch = mail.take(20)
    assert batch is not None
    assert batch.incidents[0].cause == "gpu_fell_off_bus"


def test_nodes_that_become_a_rack_are_notified_as_the_rack(rack: Room) -> None:
    mail = Mail(rack, routing.Routing((HOOK, LEAD), (ROUTE,)))
    for at, place in enumerate(NODES[:2]):
        rack.incidents.apply_alerts([alert("node_down", place, at)], later(at))
    assert mail.deliver(15) == [("INC-1", "opened"), ("INC-2", "opened")]
    rack.incidents.apply_alerts([alert("node_down", place, 20) for place in NODES[2:]], later(20))
    batch = mail.take(21)
    assert batch is not None
    composed = message.compose_message(batch, message.MessageContext())
    assert RACK in [notice.place for notice in batch.incidents]
    assert "scope widened: Rack r1 is down" in composed.body
    assert "[PART OF INC-1] n2 is down (INC-2)" in composed.body
    assert "Not resolved: merged into INC-1" in composed.body
    mail.box.mark_sent(batch, "200", later(21))
    assert mail.deliver(40) == []


def test_an_unchanged_incident_is_not_decided_every_second(mail: Mail) -> None:
    mail.room.push(xid(79, gpu(3), 0))
    mail.look(10)
    decisions = mail.box._decisions
    mail.look(11)
    assert {notice.at for notice in decisions.values()} == {later(10)}
    mail.look(16)
    assert {notice.at for notice in decisions.values()} == {later(16)}


def test_a_failed_notice_to_a_removed_receiver_is_given_up(mail: Mail) -> None:
    mail.room.push(xid(79, gpu(3), 0))
    batch = mail.take(10)
    assert batch is not None
    mail.box.set_routing(routing.Routing(), later(11))
    mail.box.mark_failed(batch, "no answer within 10 s", later(20))
    assert mail.room.journal.notices_of("INC-1")[0].state is NoticeState.GIVEN_UP
    assert ROUTING.receivers == (HOOK, LEAD)


def test_months_of_repetitions_need_no_more_memory_and_keep_counting(mail: Mail) -> None:
    mail.room.push(xid(79, gpu(3), 0))
    assert mail.deliver(10) == [("INC-1", "opened")]
    hour = 3600.0
    for at in range(1, 200):
        mail.deliver(10 + at * hour)
        mail.deliver(10 + at * hour, "lead")
    stored = mail.room.journal.notices_of("INC-1")
    assert len(stored) == len({notice.id for notice in stored}) > 200
    assert len(mail.box._notices["INC-1"]) <= 5
    # A restart reads them all, keeps as few, and continues there.
    mail.restart(11 + 199 * hour)
    assert mail.deliver(10 + 200 * hour) == [("INC-1", "repeated")]
    assert mail.room.journal.notices_of("INC-1")[-1].id == "INC-1/hook/repeated/200"
    assert len(mail.box._notices["INC-1"]) <= 5


def test_a_stop_while_a_receiver_is_down_sends_the_end_once(mail: Mail) -> None:
    mail.room.hear(alert("agent_down", node(), 0))
    for at in (10, 130):
        batch = mail.take(at)
        assert batch is not None
        assert [notice.id for notice in batch.notices] == ["INC-1/hook/opened/1"]
        mail.box.mark_failed(batch, "answered 500", later(at))
        mail.room.hear(alert("agent_down", node(), 0, ends=60))
        mail.room.tick(120)
        mail.look(121)
    mail.restart(200)
    assert mail.deliver(300) == [("INC-1", "opened")]
    assert mail.deliver(310) == [("INC-1", "resolved")]
    assert [notice.id for notice in mail.room.journal.notices_of("INC-1")] == [
        "INC-1/hook/opened/1",
        "INC-1/hook/resolved/1",
    ]


def test_a_clock_set_back_sends_the_end_once_after_a_stop(mail: Mail) -> None:
    mail.room.hear(alert("agent_down", node(), 7200))
    assert mail.deliver(7210) == [("INC-1", "opened")]
    mail.room.hear(alert("agent_down", node(), 7200, ends=7260))
    mail.room.tick(7320)
    assert mail.deliver(60) == [("INC-1", "resolved")]
    mail.restart(120)
    assert mail.deliver(130) == []


def test_a_clock_set_back_while_a_receiver_is_down_sends_the_end_once_after_a_stop(
    mail: Mail,
) -> None:
    mail.room.hear(alert("agent_down", node(), 7200))
    batch = mail.take(7210)
    assert batch is not None
    mail.box.mark_failed(batch, "answered 500", later(7210))
    mail.room.hear(alert("agent_down", node(), 7200, ends=7260))
    mail.room.tick(7320)
    mail.look(60)
    assert mail.deliver(61) == [("INC-1", "opened")]
    mail.restart(120)
    assert mail.deliver(130) == [("INC-1", "resolved")]
    mail.restart(140)
    assert mail.deliver(7400) == mail.deliver(9000) == []
