"""The HTTP client against a server that answers byte for byte as the test wants."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable

import pytest

from tests.support.loopback import Answer, Heard, Loopback, reply, serve
from tests.support.waiting import turns
from watchkeeper.errors import CollectError
from watchkeeper.net.http import Connection, HttpRequest, HttpResponse

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def ask(
    answer: Answer, use: Callable[[Connection, Loopback], Awaitable[HttpResponse]], **options: float
) -> HttpResponse:
    async def story() -> HttpResponse:
        async with serve(answer) as server:
            connection = Connection(
                timeout_seconds=options.get("timeout_seconds", 60.0),
                max_body_bytes=int(options.get("max_body_bytes", 1000)),
            )
            try:
                return await use(connection, server)
            finally:
                await connection.aclose()

    return asyncio.run(story())


def get(answer: Answer, **options: float) -> HttpResponse:
    return ask(answer, lambda connection, server: connection.send(HttpRequest(f"{server.origin}/x?y=1")), **options)


def test_a_body_is_read_by_its_length() -> None:
    response = get(lambda request: reply(f"{request.method} {request.path}", X_Word="yes"))
    assert (response.status, response.body, response.headers["x-word"]) == (200, b"GET /x?y=1", "yes")


def test_a_body_is_read_by_its_chunks() -> None:
    assert get(lambda _: CHUNKED + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n").body == b"abcde"


def test_a_body_is_read_until_the_peer_closes() -> None:
    def answer(request: Heard) -> bytes:
        request.writer.write(b"HTTP/1.0 200 OK\r\n\r\nto the end")
        return b""

    assert get(answer).body == b"to the end"


def test_a_compressed_body_is_unpacked() -> None:
    assert get(lambda _: reply(gzip.compress(b"a 1\n"), Content_Encoding="gzip")).body == b"a 1\n"


def test_requests_share_one_connection_and_a_closed_one_is_replaced() -> None:
    async def use(connection: Connection, server: Loopback) -> HttpResponse:
        for _ in range(3):
            await connection.send(HttpRequest(server.origin))
        assert server.connections == 1
        server.heard[-1].writer.close()
        await turns()
        response = await connection.send(HttpRequest(server.origin))
        assert server.connections == 2
        return response

    assert ask(lambda _: reply("still"), use).body == b"still"


def test_one_redirect_is_followed_and_no_second_one() -> None:
    def answer(request: Heard) -> bytes:
        return reply(status=302, Location="/b") if request.path == "/x?y=1" else reply(status=302, Location="/c")

    assert get(answer).status == 302


def test_a_body_above_the_limit_is_refused_with_both_numbers() -> None:
    bomb = gzip.compress(bytes(500_000))
    with pytest.raises(CollectError, match="has 1001 bytes or more, the limit is 1000"):
        get(lambda _: reply(bomb, Content_Encoding="gzip"))
    with pytest.raises(CollectError, match="has 5000 bytes or more, the limit is 1000"):
        get(lambda _: reply(bytes(5000)))


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "closed before the end"),
        (CHUNKED + b"zz\r\n", "ValueError"),
        # Going back by so many bytes would read the same length again, for ever.
        (CHUNKED + b"-5\r\nabc\r\n0\r\n\r\n", "-5 bytes cannot be read"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\nabcdef", "-3 bytes cannot be read"),
        (b"SSH-2.0-OpenSSH\r\n", "the answer is not HTTP/1.1"),
        (b"", "closed before the end"),
    ],
)
def test_a_broken_answer_says_where_and_what(answer: bytes, problem: str) -> None:
    def once(request: Heard) -> bytes:
        request.writer.write(answer)
        return b""

    with pytest.raises(CollectError, match=rf"http://127.0.0.1:\d+/x.*{problem}"):
        get(once)


async def never(_: Heard) -> bytes:
    await asyncio.Event().wait()
    return b""


def test_a_silent_server_fails_at_the_deadline() -> None:
    with pytest.raises(CollectError, match=r"no answer within 0\.05 s"):
        get(never, timeout_seconds=0.05)


def test_a_stream_that_never_begins_fails_with_its_timeout() -> None:
    async def use(connection: Connection, server: Loopback) -> HttpResponse:
        async for line in connection.stream_lines(HttpRequest(server.origin), idle_seconds=60.0):
            pytest.fail(f"unexpected line {line!r}")
        raise AssertionError("a stream that never begins cannot end")

    with pytest.raises(CollectError, match=r"no data within 0\.05 s"):
        ask(never, use, timeout_seconds=0.05)


def test_a_closed_port_is_connection_refused() -> None:
    async def story() -> None:
        async with serve(lambda _: b"") as server:
            origin = server.origin
        with pytest.raises(CollectError, match="connection refused"):
            await Connection().send(HttpRequest(origin))

    asyncio.run(story())
