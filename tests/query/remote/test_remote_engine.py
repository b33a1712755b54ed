"""The remote engine over a server that misbehaves on purpose: retries, words, limits, credentials."""

from __future__ import annotations

import gzip
import logging
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

from tests import servers
from tests.support import engines
from tests.support.scripted import Asked, Reply, failure, serving, success, vector
from watchkeeper import errors
from watchkeeper.config.settings import QueryEngine, QuerySettings
from watchkeeper.model.exemplars import Exemplar
from watchkeeper.model.histograms import Histogram
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query import engine as interface
from watchkeeper.query.prometheus import PrometheusEngine
from watchkeeper.query.remote import http

ONE = vector(({"__name__": "up"}, 1.0))
UP = Labels({"__name__": "up"})


def pauses_of(url: str, **more: object) -> tuple[list[float], http.ServerClient]:
    """A client that notes its pauses instead of taking them."""
    pauses: list[float] = []
    return pauses, http.ServerClient(engines.settings(url, **more), url, pause=pauses.append)


def test_the_remote_engine_is_an_engine() -> None:
    engine: interface.Engine = PrometheusEngine(QuerySettings(engine=QueryEngine.PROMETHEUS, url="http://127.0.0.1:1"))
    assert engine.limits().lookback_ms == 300_000


def test_a_question_carries_its_time_to_the_millisecond_and_our_deadline() -> None:
    with serving(ONE) as server, engines.engine_of(server.url, tenant="gpu-team") as engine:
        assert engine.instant("up", 1_705_276_800_007).latest() == {UP: 1.0}
    [asked] = server.asked
    assert (asked.method, asked.path, asked.headers["X-Scope-OrgID"]) == ("POST", "/api/v1/query", "gpu-team")
    assert asked.form == {"query": ["up"], "time": ["1705276800.007"], "nocache": ["1"], "timeout": ["20s"]}


def test_a_busy_server_is_retried_with_backoff() -> None:
    with serving(Reply(503), Reply(502), Reply(429, headers={"Retry-After": "7"}), ONE) as server:
        pauses, client = pauses_of(server.url)
        assert client.send(http.Request("GET", "/")).status == 200
        client.close()
    assert 0.1 <= pauses[0] <= 0.2 <= pauses[1] <= 0.4
    assert pauses[2:] == [7.0]


def test_retries_are_limited_and_the_last_response_is_reported() -> None:
    with serving(Reply(503, b"overloaded")) as server, engines.engine_of(server.url, retries=1) as engine:
        with pytest.raises(errors.StoreError, match=r"answered 503\. The response says 'overloaded'"):
            engine.instant("up", 0)
        assert len(server.asked) == 2


def test_a_pause_longer_than_the_deadline_is_not_begun() -> None:
    with serving(Reply(429, headers={"Retry-After": "3600"})) as server:
        pauses, client = pauses_of(server.url)
        assert client.send(http.Request("GET", "/")).status == 429
        client.close()
    assert (pauses, len(server.asked)) == ([], 1)


def test_a_retry_date_counts_from_the_servers_own_clock() -> None:
    headers = {"Date": "Mon, 15 Jan 2024 00:00:00 GMT", "Retry-After": "Mon, 15 Jan 2024 00:00:05 GMT"}
    assert http._retry_after({name.lower(): value for name, value in headers.items()}) == 5.0
    assert http._retry_after({"retry-after": "soon"}) is None
    assert http._retry_after({"retry-after": "9" * 5000}) == 3600.0


@pytest.mark.parametrize("status", [400, 401, 404, 422, 500, 501])
def test_a_permanent_error_is_not_retried(status: int) -> None:
    with serving(Reply(status)) as server, engines.engine_of(server.url) as engine:
        with pytest.raises(errors.StoreError, match=f"answered {status}"):
            engine.instant("up", 0)
        assert len(server.asked) == 1


def test_a_query_timeout_is_not_retried() -> None:
    reply = Reply(503, b'{"status":"error","errorType":"timeout","error":"query timed out in query execution"}')
    with serving(reply) as server, engines.engine_of(server.url) as engine:
        with pytest.raises(errors.QueryError, match="timed out in query execution"):
            engine.instant("up", 0)
        assert len(server.asked) == 1


def test_a_refused_connection_names_the_address_and_the_setting() -> None:
    url = f"http://127.0.0.1:{servers.free_port()}"
    with engines.engine_of(url, retries=0) as engine, pytest.raises(errors.StoreError) as caught:
        engine.instant("up", 0)
    remedy = "Check query.url and that the server is up"
    assert str(caught.value) == f"{url}: connection refused. Failed after 1 attempt. {remedy}"


def test_a_server_that_never_finishes_is_given_up_at_the_deadline() -> None:
    patience = threading.Event()

    def stall(_: Asked) -> Reply:
        patience.wait(60)
        return ONE

    with serving(stall) as server, engines.engine_of(server.url, timeout="200ms") as engine:
        with pytest.raises(errors.StoreError, match=r"no answer within 0.2 s"):
            engine.instant("up", 0)
        patience.set()


def test_connections_are_kept_and_a_dead_one_is_replaced_silently() -> None:
    with serving(ONE, ONE, Reply(200, ONE.body, {"Connection": "close"}), ONE) as server:
        with engines.engine_of(server.url, retries=0) as engine:
            assert [engine.instant("up", 0).latest()[UP] for _ in range(5)] == [1.0] * 5
        assert len(server.connections) == 2


def test_an_answer_above_the_limit_is_cut_off_even_when_packed() -> None:
    bomb = gzip.compress(b"[" + b" " * 3_000_000)
    assert len(bomb) < 10_000
    for reply in (Reply(200, b" " * 1_100_000), Reply(200, bomb, {"Content-Encoding": "gzip"})):
        with (
            serving(reply) as server,
            engines.engine_of(server.url, max_answer_mebibytes=1) as engine,
            pytest.raises(errors.QueryLimit, match=r"has \d+ bytes or more, the limit is 1048576"),
        ):
            engine.instant("up", 0)


def test_a_packed_answer_is_unpacked() -> None:
    reply = Reply(200, gzip.compress(ONE.body), {"Content-Encoding": "gzip"})
    with serving(reply) as server, engines.engine_of(server.url) as engine:
        assert engine.instant("up", 0).latest() == {UP: 1.0}


def test_warnings_and_a_partial_answer_are_passed_on() -> None:
    reply = vector(
        ({"__name__": "up"}, 1.0),
        warnings=["store gateway 3 is away", "PromQL info: told by an old server"],
        infos=["no counter"],
        isPartial=True,
    )
    with serving(reply) as server, engines.engine_of(server.url) as engine:
        answer = engine.instant("up", 0)
    assert answer.warnings == (
        "the result is partial: the server could not reach all of its storage",
        "store gateway 3 is away",
    )
    assert answer.infos == ("PromQL info: told by an old server", "no counter")


def test_warnings_about_a_list_of_series_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    selector = [[interface.Matcher("__name__", interface.MatchOp.EQUAL, 'a"\\\n')]]
    with (
        serving(success([{"a": "b"}], warnings=["truncated"])) as server,
        engines.engine_of(server.url) as engine,
        caplog.at_level(logging.WARNING),
    ):
        assert engine.series(selector, 0, 1000) == [Labels({"a": "b"})]
    assert server.asked[0].form["match[]"] == ['{__name__="a\\"\\\\\\n"}']
    assert caplog.records[0].fields["warning"] == "truncated"  # type: ignore[attr-defined]


def test_an_exemplar_of_a_time_that_no_clock_has_is_the_servers_fault() -> None:
    row = {"seriesLabels": {"a": "1"}, "exemplars": [{"labels": {"t": "x"}, "value": "2.5", "timestamp": 1e308}]}
    with (
        serving(success([row])) as server,
        engines.engine_of(server.url) as engine,
        pytest.raises(errors.StoreError, match="does not match the Prometheus HTTP API"),
    ):
        engine.exemplars([[interface.Matcher("a", interface.MatchOp.EQUAL, "1")]], 1000, 9000)


def test_exemplars_are_those_of_the_server() -> None:
    row = {"seriesLabels": {"a": "1"}, "exemplars": [{"labels": {"t": "x"}, "value": "2.5", "timestamp": 4.5}]}
    matchers = [
        [interface.Matcher("a", interface.MatchOp.EQUAL, "1")],
        [interface.Matcher("b", interface.MatchOp.EQUAL, "2")],
    ]
    with serving(success([row])) as server, engines.engine_of(server.url) as engine:
        found = engine.exemplars(matchers, 1000, 9000)
    assert found == [(Labels({"a": "1"}), [Exemplar(Labels({"t": "x"}), 2.5, 4500)])]
    assert server.asked[0].form["query"] == ['{a="1"} or {b="2"}']


PLAIN = {"count": "4", "sum": "5", "buckets": [[0, "0.5", "1", "1"], [0, "1", "2", "3"]]}


def test_native_histograms_stand_beside_the_numbers_of_an_answer() -> None:
    rows = [{"metric": {"a": "1"}, "histogram": [0, PLAIN]}, {"metric": {"a": "2"}, "value": [0, "+Inf"]}]
    with serving(success({"resultType": "vector", "result": rows})) as server, engines.engine_of(server.url) as engine:
        answer = engine.instant("x", 0)
    assert answer.latest() == {Labels({"a": "2"}): float("inf")}
    assert answer.frame.histograms is not None
    assert answer.frame.histograms.tolist() == [[Histogram(0, 4.0, 5.0, positive=((0, 1.0), (1, 3.0)))], [None]]


def test_histograms_of_a_range_lie_at_their_times() -> None:
    rows = [{"metric": {"a": "1"}, "values": [[0, "7"]], "histograms": [[60, PLAIN]]}]
    with serving(success({"resultType": "matrix", "result": rows})) as server, engines.engine_of(server.url) as engine:
        frame = engine.range("x", interface.QueryRange(0, 60_000, 60_000)).frame
    assert frame.histograms is not None
    [[nothing, histogram]] = frame.histograms.tolist()
    assert (frame.present.tolist(), nothing, histogram.count) == ([[True, False]], None, 4.0)


@pytest.mark.parametrize(
    ("message", "kind", "text"),
    [
        ('invalid parameter "query": 2:5: parse error: unexpected <by>', errors.QueryError, "2:5: parse error: unex"),
        ("query processing would load too many samples into memory", errors.QueryLimit, "too many samples"),
        ("expanding series: boom", errors.QueryError, "expanding series: boom"),
    ],
)
def test_a_server_error_keeps_its_position(message: str, kind: type[errors.QueryError], text: str) -> None:
    with (
        serving(failure(422, "execution", message)) as server,
        engines.engine_of(server.url) as engine,
        pytest.raises(errors.QueryError, match=text) as caught,
    ):
        engine.instant("up", 0)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    "reply",
    [
        Reply(200, b"<html>log in</html>"),
        success({"resultType": "vector", "result": [{"value": [0, "1"]}]}),
        success({"resultType": "tensor", "result": []}),
        success({"resultType": "matrix", "result": [{"metric": {}, "values": [[7, "x"]]}]}),
        success(None),
        Reply(200, b"[]"),
        Reply(302, headers={"Location": "http://elsewhere/"}),
    ],
)
def test_an_answer_of_another_form_is_the_servers_fault(reply: Reply) -> None:
    with serving(reply) as server, engines.engine_of(server.url) as engine, pytest.raises(errors.StoreError):
        engine.instant("up", 0)


def test_times_that_were_not_asked_for_are_refused() -> None:
    rows = [{"metric": {"a": "1"}, "values": [[61, "1"]]}]
    with (
        serving(success({"resultType": "matrix", "result": rows})) as server,
        engines.engine_of(server.url) as engine,
        pytest.raises(errors.StoreError, match="not requested"),
    ):
        engine.range("x", interface.QueryRange(0, 120_000, 60_000))


def test_credentials_come_from_files_as_they_are_now_and_appear_in_no_message(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old-secret\n")
    with (
        serving(ONE, Reply(403, b"no")) as server,
        engines.engine_of(server.url, bearer_token_file=str(token), headers=("X-Team: gpu",)) as engine,
    ):
        engine.instant("up", 0)
        token.write_text("new-secret")
        with pytest.raises(errors.StoreError, match="answered 403") as caught:
            engine.instant("up", 0)
    assert [asked.headers["Authorization"] for asked in server.asked] == ["Bearer old-secret", "Bearer new-secret"]
    assert server.asked[0].headers["X-Team"] == "gpu"
    assert "secret" not in str(caught.value)


def test_a_user_name_and_password_are_sent_as_basic_authentication(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("open sesame")
    (tmp_path / "headers").write_text("X-Api-Key: k1\nX-Other: 2\n")
    files = {"password_file": str(tmp_path / "password"), "headers_file": str(tmp_path / "headers")}
    with serving(ONE) as server, engines.engine_of(server.url, username="ali", **files) as engine:
        engine.instant("up", 0)
    sent = server.asked[0].headers
    assert (sent["Authorization"], sent["X-Api-Key"], sent["X-Other"]) == ("Basic YWxpOm9wZW4gc2VzYW1l", "k1", "2")


@pytest.mark.parametrize("content", ["", "two\nlines", "ä"])
def test_a_file_without_one_plain_secret_is_refused_unread(tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text(content)
    with (
        engines.engine_of("http://127.0.0.1:1", bearer_token_file=str(tmp_path / "token")) as engine,
        pytest.raises(errors.StoreError, match="one line of printable ASCII"),
    ):
        engine.instant("up", 0)


def certificate(folder: Path) -> tuple[Path, Path]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    subprocess.run([*command, "-keyout", key, "-out", cert, "-days", "2", *subject], check=True, capture_output=True)
    return cert, key


def test_tls_is_checked_against_the_named_authority_and_may_ask_for_our_certificate(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    tls.load_verify_locations(cert)
    tls.verify_mode = ssl.CERT_REQUIRED
    ours = {"client_cert_file": str(cert), "client_key_file": str(key)}
    with serving(ONE, tls=tls) as server:
        with engines.engine_of(server.url, ca_file=str(cert), **ours) as engine:
            assert engine.instant("up", 0).latest() == {UP: 1.0}
        with engines.engine_of(server.url, insecure_skip_verify=True, **ours) as engine:
            assert engine.instant("up", 0).latest() == {UP: 1.0}
        with (
            engines.engine_of(server.url, retries=0, **ours) as engine,
            pytest.raises(errors.StoreError, match="its certificate is not trusted: self-signed certificate"),
        ):
            engine.instant("up", 0)


def test_a_missing_certificate_file_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(errors.StartRefused, match="certificates for the server cannot be read"):
        PrometheusEngine(engines.settings("https://x", ca_file=str(tmp_path / "none.pem")))


def test_an_append_without_a_write_url_is_refused_with_a_remedy() -> None:
    with (
        engines.engine_of("http://127.0.0.1:1", write_url=None) as engine,
        pytest.raises(errors.StoreError, match=r"query\.write_url is not set"),
    ):
        engine.appender.append([Sample(UP, 0, 1.0)])


def test_metadata_is_read_from_the_server() -> None:
    about = {"power": [{"type": "gauge", "help": "Board power", "unit": "watts"}], "odd": []}
    with serving(success(about)) as server, engines.engine_of(server.url) as engine:
        assert engine.metadata() == {"power": ("gauge", "Board power", "watts")}


def test_url_parameters_are_sent_with_each_request_and_are_in_no_message() -> None:
    with (
        serving(success({}), failure(500, "internal", "boom")) as server,
        engines.engine_of(f"{server.url}/?extra_label=cluster=a") as engine,
    ):
        engine.metadata()
        with pytest.raises(errors.StoreError) as caught:
            engine.instant("up", 0)
    assert server.asked[0].path == "/api/v1/metadata?timeout=20s&extra_label=cluster=a"
    assert server.asked[1].path == "/api/v1/query?extra_label=cluster=a"
    assert caught.value.where == server.url


def test_many_threads_share_an_engine() -> None:
    with serving(ONE) as server, engines.engine_of(server.url) as engine:
        found: list[float] = []
        threads = [
            threading.Thread(target=lambda: found.append(engine.instant("up", 0).latest()[UP])) for _ in range(12)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [1.0] * 12
