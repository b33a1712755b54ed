"""A sender of samples and the scripted server that takes them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from hypothesis import strategies as st

from tests.support import engines
from tests.support.scripted import Asked, Reply, Scripted, serving
from watchkeeper.model.labels import Labels
from watchkeeper.query.remote import http, remote_write
from watchkeeper.query.remote.sender import Sender

TAKEN = Reply(204)


@contextlib.contextmanager
def writing(
    *replies: Reply | Callable[[Asked], Reply], max_queued: int = 10_000, retries: int = 0
) -> Iterator[tuple[Scripted, Sender]]:
    with serving(*replies) as server:
        client = http.ServerClient(engines.settings(server.url, retries=retries, timeout="60s"), server.url)
        sender = Sender(client, max_queued=max_queued)
        try:
            yield server, sender
        finally:
            sender.close()


def arrived(server: Scripted) -> list[float]:
    """Values in the order in which the server got them."""
    requests = [remote_write.decode(asked.body).series for asked in server.asked]
    return [value for series in requests for _, _, values in series for value in values.tolist()]


def refusing(*unwanted: float) -> Callable[[Asked], Reply]:
    """A server that keeps nothing of a request with one of these values in it, as Prometheus does."""

    def answer(asked: Asked) -> Reply:
        values = {value for _, _, row in remote_write.decode(asked.body).series for value in row.tolist()}
        return Reply(400, b"out of order sample") if values & set(unwanted) else TAKEN

    return answer


AT_MS = 1_705_276_800_000
names = st.text(min_size=1, max_size=8)
label_sets = st.dictionaries(names, names, max_size=4).map(lambda pairs: Labels({**pairs, "__name__": "x"}))
points = st.tuples(st.integers(-(2**63), 2**63 - 1) | st.integers(2**35, 2**42 - 1), st.floats())
