"""One message to many listeners."""

from __future__ import annotations

import asyncio

from watchkeeper.kit import broadcast


def heard(messages: list[str]) -> list[str]:
    """What a listener finds who looks only after everything was said."""

    async def story() -> list[str]:
        speaker = broadcast.Broadcast()
        async with speaker.subscribe() as queue:
            for message in messages:
                speaker.send(message)
            return [queue.get_nowait() for _ in range(queue.qsize())]

    return asyncio.run(story())


def test_a_listener_hears_messages_in_their_order() -> None:
    assert heard(["incidents", "fleet", "incidents"]) == ["incidents", "fleet", "incidents"]


def test_a_listener_that_falls_behind_is_told_to_read_everything_anew() -> None:
    said = [str(number) for number in range(broadcast.QUEUE_LIMIT + 2)]
    assert heard(said) == [broadcast.RESYNC, said[-1]]


def test_a_slow_listener_costs_the_others_nothing() -> None:
    async def story() -> tuple[str, int]:
        speaker = broadcast.Broadcast()
        async with speaker.subscribe() as slow, speaker.subscribe() as quick:
            last = ""
            for number in range(3 * broadcast.QUEUE_LIMIT):
                speaker.send(str(number))
                last = quick.get_nowait()
            return last, slow.qsize()

    last, waiting = asyncio.run(story())
    assert last == str(3 * broadcast.QUEUE_LIMIT - 1)
    assert waiting <= broadcast.QUEUE_LIMIT


def test_who_left_is_not_spoken_to() -> None:
    async def story() -> int:
        speaker = broadcast.Broadcast()
        async with speaker.subscribe() as queue:
            pass
        speaker.send("fleet")
        return queue.qsize()

    assert asyncio.run(story()) == 0
