"""An appender that sends samples to a server by remote write.

`prometheus` creates one for the scraper, rules, and clients that push to the hub. It assigns ids to the scraper's
series, so that the labels of each series are encoded once.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Mapping, Sequence

from watchkeeper import errors
from watchkeeper.config import settings
from watchkeeper.model.labels import Labels
from watchkeeper.query.remote import remote_write
from watchkeeper.query.remote.http import ServerClient
from watchkeeper.query.remote.sender import ScrapeBatch, Sender
from watchkeeper.store.interfaces import AnySample, Appended


class RemoteAppender:
    """Implements `store.interfaces.Appender` over one server; it sends no metadata and no exemplars."""

    metadata = None
    exemplars = None

    def __init__(self, access: settings.QuerySettings, *, server: str) -> None:
        self._max_series, self._server = access.max_series, server
        self.sender: Sender | None = None
        if access.write_url is not None:
            self.sender = Sender(ServerClient(access, access.write_url, key="query.write_url"))
        self._lock = threading.Lock()
        self._ids: dict[Labels, int] = {}
        # The encoded labels of each series of the scraper, by id.
        self._encoded_labels: list[bytes] = []
        self._first_id = 0

    def append(self, samples: Iterable[AnySample], *, group_key: str | None = None) -> Appended:  # noqa: ARG002
        """Write samples to the server and wait for its response; StoreError if the server is unreachable."""
        return self.require_sender().send(samples)

    def series_id(self, labels: Labels) -> int:
        with self._lock:
            current_id = self._ids.get(labels)
            if current_id is not None:
                return current_id
            if len(self._encoded_labels) >= self._max_series:
                # Old ids become invalid: the scraper gets `forgotten` and requests new ids for its current series.
                self._first_id += len(self._encoded_labels)
                self._encoded_labels, self._ids = [], {}
            new_id = self._first_id + len(self._encoded_labels)
            self._encoded_labels.append(remote_write.encode_labels(labels))
            self._ids[labels] = new_id
            return new_id

    def append_scrape(self, _: Hashable, ids: Sequence[int], at_ms: int, values: Sequence[float]) -> Appended:
        """Queue one scrape of a target for the server, without waiting."""
        sender = self.require_sender()
        with self._lock:
            first, encoded = self._first_id, self._encoded_labels
            encoded_labels = [encoded[id - first] for id in ids if id >= first]
        forgotten = len(ids) - len(encoded_labels)
        if forgotten:
            values = [value for id, value in zip(ids, values, strict=True) if id >= first]
        queued = sender.enqueue(ScrapeBatch.from_scrape(encoded_labels, at_ms, values))
        return Appended(queued.kept, {**queued.dropped, **({"forgotten": forgotten} if forgotten else {})})

    def active_series(self, _: Hashable, __: int) -> Mapping[int, Labels]:
        return {}

    def sync(self) -> int:
        """Nothing to write to disk here: the server stores the samples."""
        return 0

    def require_sender(self) -> Sender:
        if self.sender is None:
            raise errors.StoreError(
                "cannot write samples: query.write_url is not set",
                where=self._server,
                remedy="Set query.write_url to the remote-write address of the server",
            )
        return self.sender

    def close(self) -> None:
        if self.sender is not None:
            self.sender.close()
