"""The notifier while it runs: one task and one deadline for each receiver."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tests.support.incident_stories import Room, gpu, xid
from tests.support.waiting import until_async
from tests.support.webhooks import Web, running
from watchkeeper.config import settings
from watchkeeper.incidents import incident_labels
from watchkeeper.kit import clock, own_metrics
from watchkeeper.model.notices import Notice, NoticeState
from watchkeeper.notify import delivery, message

T = TypeVar("T")


async def at_once(work: Callable[[], T]) -> T:
    return work()


def make_notifier(room: Room, folder: Path, **webhooks: str) -> delivery.Notifier:
    made = "\n".join(f'[[receivers]]\nname = "{name}"\nwebhook = "{url}"' for name, url in webhooks.items())
    names = ", ".join(f'"{name}"' for name in webhooks)
    (folder / "notify.toml").write_text(f'{made}\n[[routes]]\nreceivers = [{names}]\nwait = "0s"\n')
    chosen = settings.NotifySettings(via=settings.NotifyVia.RECEIVERS, routes=str(folder / "notify.toml"))
    dependencies = delivery.NotifierDependencies(
        room.journal, incident_labels.InventoryLookup(), message.MessageContext(), own_metrics.Registry()
    )
    return delivery.Notifier(chosen, dependencies, now=clock.ScaledClock().now())


@pytest.mark.slow
def test_a_receiver_that_hangs_is_retried_and_delays_no_other(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "SEND_TIMEOUT_SECONDS", 0.2)
    room.push(xid(79, gpu(3), 0))

    async def story(notifier: delivery.Notifier) -> dict[str, Notice]:
        time = clock.ScaledClock()
        loops = [asyncio.ensure_future(body()) for _, body in notifier.loops(time, at_once)]
        notifier.update(room.incidents.recent(), time.now())
        await until_async(lambda: all(notice.answer for notice in room.journal.notices_of("INC-1")))
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        return {notice.receiver: notice for notice in room.journal.notices_of("INC-1")}

    with running(Web()) as port, socket.create_server(("127.0.0.1", 0)) as silent:
        hung = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        notices = asyncio.run(story(make_notifier(room, tmp_path, good=f"http://127.0.0.1:{port}/", hung=hung)))
    assert (notices["good"].state, notices["good"].tries) == (NoticeState.SENT, 1)
    assert (notices["hung"].state, notices["hung"].answer) == (NoticeState.WAITING, "no answer within 0.2 s")
