"""One message to many subscribers."""

from __future__ import annotations

import asyncio

from watchkeeper.kit import broadcast


def received(messages: list[str]) -> list[str]:
    """The queue of a subscriber that reads only after all messages were sent."""

    async def story() -> list[str]:
        sender = broadcast.Broadcast()
        async with sender.subscribe() as queue:
            for message in messages:
                sender.send(message)
            return [queue.get_nowait() for _ in range(queue.qsize())]

    return asyncio.run(story())


def test_a_subscriber_receives_messages_in_order() -> None:
    assert received(["incidents", "fleet", "incidents"]) == ["incidents", "fleet", "incidents"]


def test_a_subscriber_that_falls_behind_gets_resync() -> None:
    messages = [str(number) for number in range(broadcast.QUEUE_LIMIT + 2)]
    assert received(messages) == [broadcast.RESYNC, messages[-1]]


def test_a_slow_subscriber_does_not_delay_the_others() -> None:
    async def story() -> tuple[str, int]:
        sender = broadcast.Broadcast()
        async with sender.subscribe() as slow, sender.subscribe() as quick:
            last = ""
            for number in range(3 * broadcast.QUEUE_LIMIT):
                sender.send(str(number))
                last = quick.get_nowait()
            return last, slow.qsize()

    last, waiting = asyncio.run(story())
    assert last == str(3 * broadcast.QUEUE_LIMIT - 1)
    assert waiting <= broadcast.QUEUE_LIMIT


def test_a_closed_subscription_gets_no_messages() -> None:
    async def story() -> int:
        sender = broadcast.Broadcast()
        async with sender.subscribe() as queue:
            pass
        sender.send("fleet")
        return queue.qsize()

    assert asyncio.run(story()) == 0
