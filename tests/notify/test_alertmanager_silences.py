"""Alertmanager's own silences: read, shown as its own, compared with the labels it sees, unknown when it is away."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from tests.support.incident_stories import NOON, later
from watchkeeper.errors import ReceiverError
from watchkeeper.kit import wire
from watchkeeper.model.silences import ALERTMANAGER
from watchkeeper.notify import silence_store
from watchkeeper.notify.silence_store import AlertmanagerSilences, read_silences


def silence_json(starts: float = -60, ends: float = 3600, **more: Any) -> dict[str, Any]:
    matchers = [{"name": "node", "value": "n1", "isRegex": False, "isEqual": True}]
    about = {"id": "5a7d", "createdBy": "ada", "comment": "new riser", "matchers": matchers}
    times = {"startsAt": wire.format_time(later(starts)), "endsAt": wire.format_time(later(ends))}
    return about | times | {"status": {"state": "active"}, "updatedAt": wire.format_time(NOON)} | more


def body(*entries: Any) -> bytes:
    return json.dumps(entries).encode()


def test_a_silence_of_alertmanager_is_shown_as_its_own() -> None:
    (silence,) = read_silences(body(silence_json()), NOON).silences
    assert (silence.id, silence.author, silence.reason, silence.keeper) == (
        "alertmanager:5a7d",
        "ada",
        "new riser",
        ALERTMANAGER,
    )
    assert [str(matcher) for matcher in silence.matchers] == ['node="n1"']


def test_empty_and_missing_fields_of_silences_are_accepted() -> None:
    plain = [{"name": "severity", "value": "", "isRegex": False, "isEqual": False}, {"name": "team", "value": "a|b"}]
    (silence,) = read_silences(body(silence_json(createdBy="", comment="", matchers=plain)), NOON).silences
    assert (silence.author, silence.reason) == ("unknown", "no comment")
    assert [str(matcher) for matcher in silence.matchers] == ['severity!=""', 'team="a|b"']


def test_old_silences_are_omitted_and_invalid_ones_are_counted() -> None:
    rubbish = [
        7,
        {},
        silence_json(matchers=[{"name": "x", "value": "(", "isRegex": True}]),
        silence_json(endsAt="tomorrow"),
    ]
    snapshot = read_silences(body(silence_json(-99_999, -90_000), *rubbish, silence_json()), NOON)
    assert len(snapshot.silences) == 1
    assert snapshot.problem == "4 invalid silences were skipped"


def test_too_many_silences_are_reported_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence_store, "MAX_SHOWN", 2)
    snapshot = read_silences(body(*(silence_json(ends=100 * at) for at in (1, 3, 2))), NOON)
    assert [silence.ends_at for silence in snapshot.silences] == [later(300), later(200)]
    assert snapshot.problem == "3 silences, the limit is 2; showing those that end last"


@pytest.mark.parametrize("answer", [b"<html>", b'{"status": "error"}', b"[" * 100_000])
def test_an_answer_that_is_not_a_list_is_refused(answer: bytes) -> None:
    with pytest.raises(ReceiverError, match="answer"):
        read_silences(answer, NOON)


class Away(AlertmanagerSilences):
    """An Alertmanager that answered once and is unreachable now."""

    def __init__(self, at: datetime) -> None:
        super().__init__(["http://127.0.0.1:1"])
        self._snapshot = read_silences(body(silence_json()), at)


def test_while_alertmanager_is_unreachable_its_last_silences_are_shown_for_minutes() -> None:
    theirs = Away(NOON)
    assert theirs.find_match({"node": "n1", "severity": "critical"}, later(60)) is not None
    assert theirs.find_match({"node": "n2"}, later(60)) is None
    theirs.refresh(later(120))
    assert len(theirs.list_silences(later(120))) == 1
    assert theirs.problem(later(120)).endswith("(showing the silences of 12:00:00Z)")
    assert theirs.list_silences(later(600)) == []
    assert theirs.problem(later(600)).endswith("(silences are unknown)")


def test_silences_are_unknown_before_the_first_read_and_empty_without_alertmanager() -> None:
    assert AlertmanagerSilences(["http://127.0.0.1:1"]).problem(NOON) == "Alertmanager's silences not read yet"
    assert AlertmanagerSilences([]).problem(NOON) == ""
