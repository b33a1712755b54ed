"""Rules over a server, evaluated on what this hub has read: near where memory reaches, there where it does not."""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterator

import pytest

from tests.support.scripted import Asked, Reply, Scripted, serving, vector
from watchkeeper.config import settings
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query import local_cache
from watchkeeper.query.promql import parser
from watchkeeper.query.remote import remote_write

BEGIN_MS = 1_705_276_800_000
MINUTE_MS = 60_000
THERE = Labels({"said": "there"})
TEMP = Labels({"__name__": "temp", "gpu": "0"})
LOOKBACK_MS = 300_000


@pytest.mark.parametrize(
    ("expr", "minutes"),
    [
        ("temp", 5),
        ("temp > 90 and on (gpu) rate(used[10m]) > 1", 10),
        ("temp offset 7m", 12),
        ("avg_over_time(temp[10m] offset 1h)", 70),
        ("max_over_time(rate(used[2m])[30m:1m])", 32),
        ("max_over_time(temp[30m:1m])", 35),
        ("sum by (gpu) (topk(3, temp))", 5),
        ("vector(1)", 0),
        ("temp offset -1h", 0),
        ("temp @ 1000", None),
        ("rate(used[5m] @ end())", None),
    ],
)
def test_how_far_back_an_expression_looks(expr: str, minutes: int | None) -> None:
    wanted = None if minutes is None else minutes * MINUTE_MS
    assert local_cache.required_lookback_ms(parser.parse(expr), LOOKBACK_MS) == wanted


def answer(asked: Asked) -> Reply:
    return Reply(204) if asked.path == "/write" else vector((dict(THERE), 1.0))


@contextlib.contextmanager
def hub(memory: str = "15m") -> Iterator[tuple[Scripted, local_cache.LocalCacheEngine]]:
    with serving(answer) as server:
        access = settings.QuerySettings(
            engine=settings.QueryEngine.PROMETHEUS,
            url=server.url,
            write_url=f"{server.url}/write",
            near=True,
            memory=memory,
        )
        engine = local_cache.LocalCacheEngine(access)
        try:
            yield server, engine
        finally:
            engine.close()


def scrape(engine: local_cache.LocalCacheEngine, minutes: range, *, labels: Labels = TEMP) -> None:
    """A scrape each minute, whose value is its minute."""
    for minute in minutes:
        ids = array("q", [engine.appender.series_id(labels)])
        taken = engine.appender.append_scrape("node", ids, BEGIN_MS + minute * MINUTE_MS, array("d", [float(minute)]))
        assert (taken.kept, taken.dropped) == (1, {})


def asked(engine: local_cache.LocalCacheEngine, expr: str, minute: int) -> dict[Labels, float]:
    return engine.for_rules().instant(expr, BEGIN_MS + minute * MINUTE_MS).latest()


def questions(server: Scripted) -> int:
    return sum(one.path != "/write" for one in server.asked)


def test_rules_use_the_cache_once_it_covers_their_lookback() -> None:
    with hub() as (server, engine):
        scrape(engine, range(20))
        assert asked(engine, "temp", 5) == {THERE: 1.0}
        assert asked(engine, "temp", 6) == {TEMP: 6.0}
        assert asked(engine, "max_over_time(temp[10m])", 10) == {THERE: 1.0}
        assert asked(engine, "max_over_time(temp[10m])", 19) == {TEMP.without("__name__"): 19.0}
        assert questions(server) == 2


def test_longer_lookbacks_and_other_queries_use_the_server() -> None:
    with hub(memory="15m") as (_, engine):
        scrape(engine, range(40))
        assert asked(engine, "max_over_time(temp[16m])", 39) == {THERE: 1.0}
        assert asked(engine, "temp @ 100", 39) == {THERE: 1.0}
        assert engine.instant("temp", BEGIN_MS + 39 * MINUTE_MS).latest() == {THERE: 1.0}


def test_the_server_gets_every_sample_whether_scraped_or_recorded() -> None:
    with hub() as (server, engine):
        scrape(engine, range(3))
        recorded = Sample(Labels({"__name__": "rule:x"}), BEGIN_MS, 7.0)
        assert engine.appender.append([recorded], group_key="rule x").kept == 1
        assert engine.remote.sender is not None
        assert engine.remote.sender.flush(60)
        rows = [row for one in server.asked for row in remote_write.decode(one.body).series]
    found = sorted((str(labels), value) for labels, _, values in rows for value in values.tolist())
    assert found == [("rule:x", 7.0), *((str(TEMP), float(minute)) for minute in range(3))]


def test_rules_are_evaluated_while_the_server_is_down() -> None:
    with hub() as (server, engine):
        scrape(engine, range(8))
        assert engine.remote.sender is not None
        assert engine.remote.sender.flush(60)
        server.replies[:] = [Reply(503)]
        assert asked(engine, "temp", 7) == {TEMP: 7.0}
        assert engine.appender.append([Sample(Labels({"__name__": "rule:x"}), BEGIN_MS + 7 * MINUTE_MS, 7.0)]).kept == 1
        assert asked(engine, "rule:x", 7) == {Labels({"__name__": "rule:x"}): 7.0}


def test_a_series_that_the_cache_has_forgotten_gets_a_new_id() -> None:
    with hub(memory="15m") as (_, engine):
        other = Labels({"__name__": "temp", "gpu": "1"})
        old = array("q", [engine.appender.series_id(other)])
        engine.appender.append_scrape("other", old, BEGIN_MS, array("d", [1.0]))
        scrape(engine, range(60))
        at_ms = BEGIN_MS + 60 * MINUTE_MS
        assert engine.appender.append_scrape("other", old, at_ms, array("d", [2.0])).dropped == {"forgotten": 1}
        again = array("q", [engine.appender.series_id(other)])
        assert engine.appender.append_scrape("other", again, at_ms, array("d", [2.0])).dropped == {}


def test_a_local_cache_without_a_write_url_is_refused() -> None:
    with pytest.raises(ValueError, match="write_url"):
        settings.QuerySettings(engine=settings.QueryEngine.PROMETHEUS, url="http://x:1", near=True)
