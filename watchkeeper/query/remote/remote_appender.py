"""The way of samples to a server: an appender over its remote write.

`prometheus` has one, and hands it to whoever writes: the scraper, rules, and those who push to the hub. The scraper's
series get numbers here, so that the labels of each are written into bytes once.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Mapping, Sequence

from watchkeeper import errors
from watchkeeper.config import settings
from watchkeeper.model.labels import Labels
from watchkeeper.query.remote import remote_write
from watchkeeper.query.remote.http import ServerClient
from watchkeeper.query.remote.parcel import Parcel
from watchkeeper.query.remote.sender import Sender
from watchkeeper.store.interfaces import AnySample, Appended


class RemoteAppender:
    """Implements `store.interfaces.Appender` over one server, whose own targets tell it of metrics and exemplars."""

    metadata = None
    exemplars = None

    def __init__(self, access: settings.QuerySettings, *, server: str) -> None:
        self._max_series, self._server = access.max_series, server
        self.sender: Sender | None = None
        if access.write_url is not None:
            self.sender = Sender(ServerClient(access, access.write_url, key="query.write_url"))
        self._lock = threading.Lock()
        self._ids: dict[Labels, int] = {}
        # The labels of each series that the scraper knows, as they go over the wire.
        self._numbered: list[bytes] = []
        self._first_id = 0

    def append(self, samples: Iterable[AnySample], *, group_key: str | None = None) -> Appended:  # noqa: ARG002
        """Write samples to the server and wait for its word; StoreError when it cannot be reached."""
        return self.writer().send(samples)

    def series_id(self, labels: Labels) -> int:
        with self._lock:
            known = self._ids.get(labels)
            if known is not None:
                return known
            if len(self._numbered) >= self._max_series:
                # Old numbers lose their meaning; the scraper hears `forgotten` and asks anew for living series.
                self._first_id += len(self._numbered)
                self._numbered, self._ids = [], {}
            number = self._first_id + len(self._numbered)
            self._numbered.append(remote_write.label_bytes(labels))
            self._ids[labels] = number
            return number

    def append_scrape(self, _: Hashable, ids: Sequence[int], at_ms: int, values: Sequence[float]) -> Appended:
        """Queue one scrape of a target for the server, without waiting; which target it was does not matter there."""
        writer = self.writer()
        with self._lock:
            first, numbered = self._first_id, self._numbered
            names = [numbered[id - first] for id in ids if id >= first]
        forgotten = len(ids) - len(names)
        if forgotten:
            values = [value for id, value in zip(ids, values, strict=True) if id >= first]
        taken = writer.offer(Parcel.scrape(names, at_ms, values))
        return Appended(taken.kept, {**taken.dropped, **({"forgotten": forgotten} if forgotten else {})})

    def active_series(self, _: Hashable, __: int) -> Mapping[int, Labels]:
        return {}

    def sync(self) -> int:
        """The disk is the server's."""
        return 0

    def writer(self) -> Sender:
        if self.sender is None:
            raise errors.StoreError(
                "samples cannot be written, because the server has no address for it",
                where=self._server,
                remedy="Write its remote-write address into query.write_url",
            )
        return self.sender

    def close(self) -> None:
        if self.sender is not None:
            self.sender.close()
