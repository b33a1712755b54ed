"""Which receiver gets which notice and when: once, repeated, escalated if not acknowledged, and when it is resolved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.notify.mail import HOOK, LEAD, ROUTE, Mail
from tests.properties import examples
from tests.support.incident_stories import Room, alert, gpu, later, node, xid
from watchkeeper.model import notices, silences
from watchkeeper.model.notices import NoticeState, Occasion
from watchkeeper.notify import decisions, routing, silence_store


@pytest.fixture
def mail(room: Room) -> Mail:
    return Mail(room)


def test_a_receiver_is_notified_once_after_the_wait(mail: Mail) -> None:
    mail.room.push(xid(79, gpu(3), 0))
    assert mail.deliver(5) == []
    assert mail.deliver(10) == [("INC-1", "opened")]
    assert mail.deliver(11) == mail.deliver(600) == []


def test_a_clock_set_back_before_the_first_notice_delays_no_message(mail: Mail) -> None:
    mail.room.push(xid(79, gpu(3), 0), at=7200)
    mail.look(7201)
    assert mail.deliver(1) == [("INC-1", "opened")]


def test_a_notice_sent_before_the_clock_was_set_back_is_repeated_and_escalated_from_there(mail: Mail) -> None:
    mail.room.push(xid(79, gpu(3), 0), at=7200)
    assert mail.deliver(7300) == [("INC-1", "opened")]
    assert mail.deliver(60) == [("INC-1", "repeated")]
    assert mail.deliver(61) == mail.deliver(950, "lead") == []
    assert mail.deliver(960, "lead") == [("INC-1", "escalated")]
    assert mail.deliver(3660) == [("INC-1", "repeated")]


def test_a_retry_pause_ends_when_the_clock_is_set_back(mail: Mail) -> None:
    mail.room.push(xid(79, gpu(3), 0), at=7200)
    refused = mail.take(7300)
    assert refused is not None
    mail.box.mark_failed(refused, "answered 500", later(7300))
    assert mail.deliver(30) == [("INC-1", "opened")]


def test_an_incident_that_resolves_during_the_wait_is_not_notified(mail: Mail) -> None:
    slow = routing.Routing((HOOK,), (replace(ROUTE, wait="5m", escalate_after=None, escalate_to=()),))
    mail.table, mail.box = slow, Mail(mail.room, slow).box
    mail.room.hear(alert("agent_down", gpu(1), 0), alert("agent_down", gpu(1), 0, ends=20))
    mail.look(1)
    assert mail.deliver(100) == mail.deliver(400) == []
    assert mail.room.journal.notices_of("INC-1")[0].answer == "resolved before it was sent"


def test_only_an_unacknowledged_incident_is_repeated(mail: Mail) -> None:
    mail.room.push(xid(79, gpu(3), 0))
    assert mail.deliver(10) == [("INC-1", "opened")]
    assert mail.deliver(3610) == [("INC-1", "repeated")]
    mail.room.incidents.acknowledge("INC-1", "ada", later(3700))
    assert mail.deliver(8000) == mail.deliver(20_000) == []


def test_an_unacknowledged_incident_is_escalated(mail: Mail) -> None:
    mail.room.push(xid(79, gpu(3), 0))
    mail.deliver(10)
    assert mail.deliver(900, "lead") == []
    assert mail.deliver(911, "lead") == [("INC-1", "escalated")]
    assert mail.deliver(5000, "lead") == []


def test_an_acknowledged_incident_is_not_escalated(mail: Mail) -> None:
    mail.room.push(xid(79, gpu(3), 0))
    mail.deliver(10)
    mail.room.incidents.acknowledge("INC-1", "ada", later(20))
    assert mail.deliver(2000, "lead") == []


def test_a_receiver_that_is_down_escalates_too(mail: Mail) -> None:
    mail.room.push(xid(79, gpu(3), 0))
    batch = mail.take(10)
    assert batch is not None
    mail.box.mark_failed(batch, "answered 500", later(10))
    assert mail.deliver(911, "lead") == [("INC-1", "escalated")]


def test_notified_receivers_get_the_resolved_notice(mail: Mail) -> None:
    mail.room.hear(alert("agent_down", gpu(1), 0))
    mail.deliver(10)
    mail.room.hear(alert("agent_down", gpu(1), 0, ends=100))
    assert mail.deliver(120) == []
    assert mail.deliver(161) == [("INC-1", "resolved")]
    assert mail.deliver(162) == []


def test_a_raised_severity_is_notified_immediately(mail: Mail) -> None:
    mail.room.hear(alert("thermal_throttle", gpu(1), 0, severity="warning"))
    mail.deliver(10)
    mail.room.hear(alert("thermal_throttle", gpu(1), 20, severity="critical"))
    assert mail.deliver(21) == [("INC-1", "worse")]


def test_a_flapping_incident_is_notified_once_and_resolved_once(mail: Mail) -> None:
    delivered: list[tuple[str, str]] = []
    for begin in range(0, 1500, 150):
        mail.room.hear(alert("agent_down", gpu(1), begin))
        delivered += mail.deliver(begin + 20)
        mail.room.hear(alert("agent_down", gpu(1), begin, ends=begin + 30))
        delivered += mail.deliver(begin + 100)
        delivered += mail.deliver(begin + 140)
    delivered += [entry for at in range(1500, 6000, 60) for entry in mail.deliver(at)]
    assert delivered[0] == ("INC-1", "opened")
    assert delivered[-1] == ("INC-1", "resolved")
    assert len(delivered) <= 4, delivered


def test_several_incidents_that_open_together_are_one_message(mail: Mail) -> None:
    mail.room.push(xid(48, gpu(1), 0), xid(48, gpu(2), 1), xid(48, gpu(3), 2))
    mail.look(3)
    batch = mail.take(13)
    assert batch is not None
    assert [notice.incident for notice in batch.notices] == ["INC-1", "INC-2", "INC-3"]


def test_messages_per_minute_are_limited(room: Room) -> None:
    table = routing.Routing((replace(HOOK, per_minute=2),), (replace(ROUTE, escalate_after=None, escalate_to=()),))
    mail = Mail(room, table)
    sent = 0
    for at in range(60):
        room.push(xid(48, gpu(at, f"n{at}"), at))
        sent += bool(mail.deliver(at))
    assert sent == 2
    assert len(mail.deliver(140)) == 50


@pytest.mark.parametrize("is_ended", [False, True])
def test_a_silence_mutes_until_it_ends(mail: Mail, is_ended: bool) -> None:
    request = silence_store.SilenceRequest(
        (silences.Matcher("node", "n1"),), "ada", "swapping a fan", later(0), later(600)
    )
    made = mail.silences.add(request, later(0))
    mail.room.push(xid(79, gpu(3), 1))
    assert mail.deliver(100) == []
    if is_ended:
        mail.silences.end(made.id, "ada", later(100))
        mail.look(101)
        assert mail.deliver(112) == [("INC-1", "opened")]
    else:
        mail.look(601)
        assert mail.deliver(612) == [("INC-1", "opened")]


def test_after_a_silence_escalation_counts_from_the_first_notice(mail: Mail) -> None:
    quiet = silence_store.SilenceRequest((silences.parse_matcher('node="n1"'),), "ann", "work", later(0), later(600))
    mail.silences.add(quiet, later(0))
    mail.room.push(xid(79, gpu(3), 1))
    assert mail.deliver(599) == []
    assert mail.deliver(605) == [("INC-1", "opened")]
    assert mail.deliver(605 + 890, "lead") == []
    assert mail.deliver(605 + 901, "lead") == [("INC-1", "escalated")]


def test_an_incident_that_reopens_while_its_end_is_pending_is_notified_once_after_it(mail: Mail) -> None:
    mail.room.hear(alert("agent_down", node(), 0))
    assert mail.deliver(15) == [("INC-1", "opened")]
    mail.room.hear(alert("agent_down", node(), 0, ends=60))
    ended = mail.take(130)
    assert ended is not None
    mail.box.mark_failed(ended, "answered 503", later(130))
    mail.room.hear(alert("agent_down", node(), 140))
    delivered = [mail.deliver(at) for at in range(200, 400, 5)]
    assert [entries for entries in delivered if entries] == [[("INC-1", "resolved")], [("INC-1", "opened")]]


def test_a_silence_of_another_node_mutes_nothing(mail: Mail) -> None:
    request = silence_store.SilenceRequest(
        (silences.Matcher("node", "n2.*", is_regex=True),), "ada", "why", later(0), later(600)
    )
    mail.silences.add(request, later(0))
    mail.room.push(xid(79, gpu(3), 1))
    mail.look(2)
    assert mail.deliver(12) == [("INC-1", "opened")]


def test_a_restart_sends_nothing_twice_and_loses_nothing(mail: Mail) -> None:
    mail.room.push(xid(79, gpu(3), 0), xid(48, gpu(1), 0))
    mail.look(1)
    mail.restart(5)
    assert len(mail.deliver(12)) == 2
    mail.restart(13)
    assert mail.deliver(14) == mail.deliver(500) == []
    mail.restart(3000)
    assert mail.deliver(3612) == [("INC-1", "repeated"), ("INC-2", "repeated")]


def test_a_message_that_was_being_sent_in_a_crash_is_sent_again_with_its_id(mail: Mail) -> None:
    mail.room.push(xid(79, gpu(3), 0))
    before = mail.take(10)
    mail.restart(20)
    after = mail.take(21)
    assert before is not None
    assert after is not None
    assert [notice.id for notice in after.notices] == [notice.id for notice in before.notices]


def test_a_receiver_that_fails_for_a_day_gets_everything_in_the_end(mail: Mail) -> None:
    mail.room.push(xid(79, gpu(3), 0))
    at, tries = 10.0, 0
    while at < 86_400:
        batch = mail.take(at)
        if batch is not None:
            tries += 1
            mail.box.mark_failed(batch, "answered 500", later(at))
        at += 60
    assert 100 < tries < 200
    assert ("INC-1", "opened") in mail.deliver(at + 600)


def test_a_notification_that_is_refused_permanently_is_given_up_with_the_reason(mail: Mail) -> None:
    mail.room.push(xid(79, gpu(3), 0))
    batch = mail.take(10)
    assert batch is not None
    mail.box.mark_failed(batch, "answered 404", later(10), may_retry=False)
    assert mail.room.journal.notices_of("INC-1")[0].state is NoticeState.GIVEN_UP
    assert mail.deliver(700) == []
    assert mail.deliver(3611) == [("INC-1", "repeated")]
    assert "Not notified hook (opened): answered 404" in [entry.text for entry in mail.room.journal.timeline("INC-1")]


def test_an_incident_without_a_route_is_counted(room: Room) -> None:
    mail = Mail(room, routing.Routing((HOOK,), (routing.Route(("hook",), match=('severity="info"',)),)))
    room.push(xid(79, gpu(3), 0))
    mail.look(1)
    assert mail.box.unrouted_count == 1


@pytest.mark.parametrize("is_seen_resolved", [True, False])
def test_the_end_is_notified_although_the_hub_stalled_until_the_incident_was_forgotten(
    mail: Mail, is_seen_resolved: bool
) -> None:
    mail.room.hear(alert("agent_down", gpu(1), 0))
    assert mail.deliver(10) == [("INC-1", "opened")]
    mail.room.hear(alert("agent_down", gpu(1), 0, ends=100))
    mail.room.tick(161)
    mail.room.hear(alert("agent_down", gpu(1), 170))
    mail.room.hear(alert("agent_down", gpu(1), 170, ends=180))
    mail.room.tick(400)
    if is_seen_resolved:
        assert mail.deliver(401) == []
    assert mail.deliver(4000) == [("INC-1", "resolved")]
    mail.room.hear(alert("agent_down", gpu(1), 4010))
    assert mail.deliver(4020) == [("INC-2", "opened")]


def test_an_incident_on_a_route_without_resolved_notifications_is_forgotten(room: Room) -> None:
    mail = Mail(room, routing.Routing((HOOK, LEAD), (replace(ROUTE, notifies_resolved=False),)))
    room.hear(alert("agent_down", gpu(1), 0))
    assert mail.deliver(10) == [("INC-1", "opened")]
    room.hear(alert("agent_down", gpu(1), 0, ends=100))
    assert mail.deliver(200) == mail.deliver(900) == mail.deliver(4000) == []
    assert mail.box._unsettled == {}


STEPS = st.sampled_from(["fault", "end", "acknowledge", "wait", "long wait", "fail", "restart"])


@examples(60)
@given(steps=st.lists(STEPS, max_size=25))
@example(["fault", *["end"] * 4, "fault", "end", "long wait", "long wait", "fault", "fault"])
def test_no_notice_is_sent_twice_in_any_order_of_steps(
    tmp_path_factory: pytest.TempPathFactory, steps: Sequence[str]
) -> None:
    mail = Mail(Room(tmp_path_factory.mktemp("mail")))
    sent_ids: list[str] = []
    at, is_firing = 0.0, False
    for step in steps:
        at += 3000 if step == "long wait" else 20
        if step == "fault" and not is_firing:
            mail.room.hear(alert("agent_down", gpu(1), at))
            is_firing = True
        elif step == "end" and is_firing:
            mail.room.hear(alert("agent_down", gpu(1), at - 1, ends=at))
            is_firing = False
        elif step == "acknowledge" and any(i.state == "open" for i in mail.room.incidents.open_incidents()):
            mail.room.incidents.acknowledge(mail.room.incidents.open_incidents()[0].id, "ada", later(at))
        elif step == "restart":
            mail.restart(at)
        batch = mail.take(at)
        if batch is not None and step == "fail":
            mail.box.mark_failed(batch, "answered 500", later(at))
        elif batch is not None:
            sent_ids += [notice.id for notice in batch.notices]
            mail.box.mark_sent(batch, "200", later(at))
    mail.room.journal.close()
    assert len(sent_ids) == len(set(sent_ids))
    _check_order(sent_ids)


def _check_order(sent_ids: Sequence[str]) -> None:
    """Opened before anything else, and nothing but another opening after resolved."""
    occasions = [id.split("/")[2] for id in sent_ids]
    for before, after in zip([None, *occasions], occasions, strict=False):
        assert (after == Occasion.OPENED) == (before in (None, Occasion.RESOLVED)), occasions


def test_a_resolved_incident_that_was_never_notified_sends_nothing(room: Room) -> None:
    (opened,) = room.push(xid(79, gpu(3), 0))
    over = room.incidents.resolve(opened.id, "ada", why="fixed", now=later(5))
    assert decisions.decide_notices(over, [], [ROUTE], is_silenced=False, now=later(6)) == []


def test_a_notice_says_when_it_was_made(mail: Mail) -> None:
    mail.room.push(xid(79, gpu(3), 0))
    mail.look(1)
    (notice,) = mail.room.journal.notices_of("INC-1")
    assert notice == notices.Notice(
        id="INC-1/hook/opened/1",
        incident="INC-1",
        receiver="hook",
        occasion=Occasion.OPENED,
        severity=notice.severity,
        state=NoticeState.WAITING,
        made_at=later(1),
        due_at=later(0) + timedelta(seconds=10),
        place="main/node=n1/gpu=GPU-n1-3",
    )
