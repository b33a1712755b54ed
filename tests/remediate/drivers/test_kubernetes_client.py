"""Calls to an API server that closes, resets, throttles, forgets us, drips or talks too much."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.scripted_server import Reply, Scripted, serving
from watchkeeper.errors import ActionFailed
from watchkeeper.net import access
from watchkeeper.readers.clusters import kubeconfig
from watchkeeper.remediate.drivers import kubernetes_client
from watchkeeper.remediate.drivers.kubernetes_client import ApiCall, ApiClient, ClusterUnavailable

GET = ApiCall("GET", "/api/v1/nodes/n1")


@contextmanager
def asking(
    *script: Reply, token_file: Path | None = None, seconds: float = 5.0
) -> Iterator[tuple[Scripted, ApiClient, list[float]]]:
    """A server with its script, a client of it, and how long the client has waited each time."""
    waits: list[float] = []
    with serving(*script) as server:
        let_in = access.Access(credentials_file=str(token_file or ""))
        client = ApiClient(
            kubeconfig.ApiServer(server.url, let_in, "test"), timeout_seconds=seconds, sleep=waits.append
        )
        try:
            yield server, client, waits
        finally:
            client.close()


def test_calls_share_a_connection_and_carry_the_servers_time() -> None:
    with asking(Reply(), Reply(body={"kind": "Node"})) as (server, client, _):
        client.send(GET)
        answer = client.send(GET)
        assert (answer.body, server.connections) == ({"kind": "Node"}, 1)
        assert answer.at == datetime(2026, 11, 15, 9, tzinfo=UTC)


def test_a_connection_that_was_closed_between_calls_is_replaced() -> None:
    with asking(Reply(ends=True), Reply(status=201)) as (server, client, _):
        client.send(GET)
        assert client.send(GET).status == 201
        assert server.connections == 2


def test_an_endlessly_nested_response_is_read_as_text() -> None:
    with asking(Reply(body=b"[" * 100_000)) as (_, client, _):
        assert client.send(GET).message.startswith("[[[")


def test_a_connection_reset_is_retried_later() -> None:
    with asking(Reply(cut=True, body={"x": "y" * 1000})) as (_, client, _), pytest.raises(ClusterUnavailable) as raised:
        client.send(GET)
    assert "GET /api/v1/nodes/n1 to the Kubernetes API server failed" in str(raised.value)


def test_an_answer_that_drips_ends_at_the_deadline() -> None:
    began = time.monotonic()
    with asking(Reply(drips=True), seconds=0.2) as (_, client, _):
        with pytest.raises(ClusterUnavailable, match=r"no answer within 0\.2 s"):
            client.send(GET)
        assert time.monotonic() - began < 30.0


def test_an_unreachable_server_is_retried_later() -> None:
    with serving() as server:
        url = server.url
    client = ApiClient(kubeconfig.ApiServer(url, access.NO_ACCESS, "test"))
    with pytest.raises(ClusterUnavailable, match="connection refused"):
        client.send(GET)
    assert issubclass(ClusterUnavailable, ActionFailed)


def test_a_token_that_was_renewed_is_read_again(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    with asking(Reply(), Reply(status=401), Reply(status=401), Reply(), token_file=token) as (server, client, _):
        client.send(GET)
        with pytest.raises(ClusterUnavailable, match="rejected our credentials"):
            client.send(GET)
        token.write_text("new")
        client.send(GET)
        assert server.header("Authorization") == "Bearer new"


def test_a_missing_token_file_is_retried_later_and_never_shown(tmp_path: Path) -> None:
    with (
        asking(Reply(), token_file=tmp_path / "gone") as (_, client, _),
        pytest.raises(ClusterUnavailable, match="secret"),
    ):
        client.send(GET)


def test_a_busy_server_is_retried_after_its_retry_after() -> None:
    busy = Reply(status=429, body=b"Too many requests, please try again later.", headers={"Retry-After": "2"})
    with asking(busy, Reply(status=503), Reply()) as (_, client, waits):
        assert client.send(GET).status == 200
        assert waits == [2.0, 1.0]


def test_a_retry_after_beyond_the_deadline_is_retried_later() -> None:
    busy = Reply(status=429, body=b"Too many requests", headers={"Retry-After": "60"})
    with asking(busy) as (_, client, waits):
        with pytest.raises(ClusterUnavailable, match="Retry-After 60 s: Too many requests"):
            client.send(GET)
        assert waits == []


def test_a_server_that_stays_busy_is_retried_later() -> None:
    busy = Reply(status=429, headers={"Retry-After": "0"})
    with asking(*[busy] * 9) as (server, client, _):
        with pytest.raises(ClusterUnavailable):
            client.send(GET)
        assert len(server.requests) == kubernetes_client.MAX_TRIES


def test_an_answer_that_is_too_long_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_client, "MAX_RESPONSE_BYTES", 1000)
    with (
        asking(Reply(body={"x": "y" * 2000})) as (_, client, _),
        pytest.raises(ClusterUnavailable, match="the limit is 1000"),
    ):
        client.send(GET)


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b"\xff\xfe", b""])
def test_an_answer_that_is_not_json_is_an_empty_one(body: bytes) -> None:
    with asking(Reply(body=body)) as (_, client, _):
        assert client.send(GET).body.get("kind") is None
