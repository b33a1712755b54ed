"""Connections that share their buffer: whatever pieces an answer comes in, it is read as it was sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from itertools import pairwise
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.waiting import turns
from watchkeeper.net import streams

T = TypeVar("T")


def read(pieces: Sequence[bytes], use: Callable[[streams.SocketReader], Coroutine[None, None, T]]) -> T:
    """What a reader makes of pieces that arrive one after the other, and then an end."""

    async def story() -> T:
        reader = streams.SocketReader()
        task = asyncio.ensure_future(use(reader))
        for piece in pieces:
            await turns()
            reader.feed_data(piece)
        reader.feed_eof()
        return await task

    return asyncio.run(story())


def cut(content: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(content) + 1) for place in places), len(content)]
    return [content[low:high] for low, high in pairwise(edges)]


@given(st.lists(st.integers(0, 200), max_size=6), st.sampled_from([b"\r\n", b"\n"]), st.integers(0, 3))
def test_a_head_and_a_body_are_the_same_in_any_pieces(places: list[int], end: bytes, headers: int) -> None:
    lines = [b"a%d: b" % number for number in range(headers)]
    content = end.join([b"HTTP/1.1 200 OK", *lines, b"", b"body of it"])

    async def use(reader: streams.SocketReader) -> tuple[bytes, list[bytes], bytes, bytes]:
        return await reader.readline(), await reader.read_block(), await reader.readexactly(7), await reader.read()

    first, block, body, rest = read(cut(content, places), use)
    assert (first, [line.strip() for line in block], body) == (b"HTTP/1.1 200 OK" + end, lines, b"body of")
    assert rest
    assert b" it".startswith(rest)


def test_an_answer_that_ends_early_says_how_far_it_came() -> None:
    with pytest.raises(asyncio.IncompleteReadError) as broken:
        read([b"ab", b"c"], lambda reader: reader.readexactly(4))
    assert broken.value.partial == b"abc"


def test_a_line_without_an_end_is_an_error() -> None:
    with pytest.raises(asyncio.LimitOverrunError):
        read([b"x" * streams.MAX_UNREAD_BYTES, b"xx"], lambda reader: reader.readline())


def test_a_peer_that_sends_unread_data_is_paused_until_it_is_read() -> None:
    async def story() -> tuple[int, bytes]:
        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(bytes(8 << 20))
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        reader, writer = await streams.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
        first = await reader.readexactly(1)
        await turns(100)
        held = reader._unread_bytes
        rest = await reader.readexactly((8 << 20) - 1)
        writer.close()
        await writer.wait_closed()
        server.close()
        return held, first + rest

    held, body = asyncio.run(story())
    assert held <= streams.MAX_UNREAD_BYTES + streams.BUFFER_BYTES
    assert body == bytes(8 << 20)
