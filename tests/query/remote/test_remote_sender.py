"""Samples on their way to a server: batches, order, repetition, refusals, and a queue that cannot grow for ever."""

from __future__ import annotations

import threading

import pytest

from tests.query.remote.remote_writing import TAKEN, arrived, refusing, writing
from tests.support import engines
from tests.support.scripted import Asked, Reply, serving
from tests.support.waiting import until
from watchkeeper import errors
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query.remote.sender import BATCH_SAMPLES, drop_reason
from watchkeeper.store.interfaces import Appended

SERIES = Labels({"__name__": "x"})


def numbered(count: int, first: int = 0) -> list[Sample]:
    return [Sample(SERIES, first + number, float(first + number)) for number in range(count)]


def test_samples_are_sent_in_batches_and_in_order() -> None:
    with writing(TAKEN) as (server, sender):
        assert sender.send(numbered(2 * BATCH_SAMPLES + 1)) == Appended(2 * BATCH_SAMPLES + 1, {})
        assert len(server.asked) == 3
        assert arrived(server) == [float(number) for number in range(2 * BATCH_SAMPLES + 1)]
        assert server.asked[0].headers["X-Prometheus-Remote-Write-Version"] == "0.1.0"


def test_only_the_samples_that_are_refused_are_lost() -> None:
    with writing(refusing(3.0, 900.0)) as (server, sender):
        assert sender.send(numbered(1000)) == Appended(998, {"out_of_order": 2})
        assert len(server.asked) < 50


def test_a_batch_of_nothing_but_refusals_ends_after_a_bounded_number_of_requests() -> None:
    with writing(Reply(400, b"per-user series limit of 10 exceeded")) as (server, sender):
        assert sender.send(numbered(1000)) == Appended(0, {"limit": 1000})
        assert len(server.asked) < 140


def test_a_server_error_reports_the_samples_already_written() -> None:
    with (
        writing(TAKEN, Reply(500, b"disk full")) as (_, sender),
        pytest.raises(
            errors.StoreError, match=r"answered 500\. 2000 samples were written before. The response says 'disk"
        ),
    ):
        sender.send(numbered(3000))


def test_a_busy_server_gets_the_same_samples_again() -> None:
    with writing(Reply(429, headers={"Retry-After": "0"}), TAKEN, retries=1) as (server, sender):
        assert sender.send(numbered(3)) == Appended(3, {})
        assert arrived(server) == [0.0, 1.0, 2.0] * 2


def test_wrong_credentials_are_no_reason_to_drop_samples() -> None:
    with writing(Reply(401)) as (_, sender), pytest.raises(errors.StoreError, match=r"query\.bearer_token_file"):
        sender.send(numbered(1))


def test_queued_samples_arrive_in_order_without_blocking() -> None:
    with writing(TAKEN) as (server, sender):
        for turn in range(50):
            assert sender.enqueue(numbered(10, first=10 * turn)) == Appended(10, {})
        assert sender.flush(60)
        assert arrived(server) == [float(number) for number in range(500)]
        assert (sender.kept, sender.queued, sender.problem) == (500, 0, None)


def test_a_full_queue_loses_its_oldest_samples_and_counts_them() -> None:
    gate = threading.Event()

    def hold(_: Asked) -> Reply:
        gate.wait(60)
        return TAKEN

    with writing(hold, TAKEN, max_queued=20) as (server, sender):
        sender.enqueue(numbered(1))
        until(lambda: bool(server.asked))
        assert sender.enqueue(numbered(15, first=100)) == Appended(15, {})
        assert sender.enqueue(numbered(15, first=200)) == Appended(0, {"queue_full": 15})
        gate.set()
        assert sender.flush(60)
        assert arrived(server) == [0.0, *(float(number) for number in range(200, 215))]
        assert sender.dropped == {"queue_full": 15}


@pytest.mark.slow
def test_the_queue_waits_for_a_server_that_is_down() -> None:
    with writing(Reply(500), Reply(500), TAKEN) as (server, sender):
        sender.enqueue(numbered(3))
        until(lambda: sender.problem is not None)
        assert sender.flush(60)
        assert (arrived(server)[-3:], sender.problem, sender.kept) == ([0.0, 1.0, 2.0], None, 3)


def test_closing_does_not_wait_for_a_server_that_is_down_and_counts_dropped_samples() -> None:
    with writing(Reply(500)) as (server, sender):
        sender.enqueue(numbered(3))
        until(lambda: bool(server.asked))
        sender.close()
        assert sender.dropped == {"closed": 3}
        assert sender.enqueue(numbered(1)) == Appended(0, {"closed": 1})


def test_a_scrape_is_queued_and_forgotten_ids_are_counted() -> None:
    with serving(TAKEN) as server, engines.engine_of(server.url, max_series=2) as engine:
        ids = [engine.appender.series_id(SERIES.with_labels(gpu=gpu)) for gpu in ("0", "1")]
        assert engine.appender.series_id(SERIES.with_labels(gpu="0")) == ids[0]
        assert engine.appender.append_scrape("node", ids, 1000, [5.0, 6.0]) == Appended(2, {})
        assert engine.remote.sender is not None
        assert engine.remote.sender.flush(60)
        third = engine.appender.series_id(SERIES.with_labels(gpu="2"))
        assert engine.appender.append_scrape("node", [*ids, third], 2000, [5.0, 6.0, 7.0]) == Appended(
            1, {"forgotten": 2}
        )
        assert engine.remote.sender.flush(60)
    assert arrived(server) == [5.0, 6.0, 7.0]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("out of order sample", "out_of_order"),
        ("duplicate sample for timestamp", "duplicate"),
        ("out of bounds", "too_old"),
        ("received a series whose label value length exceeds the limit", "limit"),
        ("label name is not valid", "refused"),
    ],
)
def test_a_refusal_is_counted_under_the_reason_that_appends_know(message: str, reason: str) -> None:
    assert drop_reason(message) == reason
