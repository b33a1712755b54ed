"""Reads from the kubelet which pod holds which GPU: one gRPC call over its unix socket, with timeout and size limit.

gRPC is HTTP/2 with five bytes before each message, so `h2` is enough; it is imported at the first call, which a node
without a kubelet never makes. Each call opens a new connection, because the socket of a restarted kubelet still looks
open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from watchkeeper.errors import CollectError, quote
from watchkeeper.model import workloads
from watchkeeper.readers.clusters import pod_resources

if TYPE_CHECKING:
    from h2.connection import H2Connection
    from h2.events import Event

SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
LIST_METHOD = "/v1.PodResourcesLister/List"
# Kubelets before 1.20 have only this method; the fields that are read have the same numbers.
OLD_LIST_METHOD = "/v1alpha1.PodResourcesLister/List"
# A healthy kubelet answers from memory in a millisecond.
TIMEOUT_SECONDS = 2.0
# 500 pods with 64 devices and their topology need less than 1 MiB; the kubelet's own limit is 16 MiB.
MAX_ANSWER_BYTES = 16 * 1024 * 1024
OK, UNIMPLEMENTED = "0", "12"
# https://grpc.github.io/grpc/core/md_doc_statuscodes.html
STATUS_NAMES = {
    "4": "deadline exceeded",
    "7": "permission denied",
    "8": "resource exhausted",
    UNIMPLEMENTED: "unimplemented",
    "13": "internal error",
    "14": "unavailable",
}
STREAM_ID = 1
EMPTY_MESSAGE = b"\x00\x00\x00\x00\x00"
PREFIX_BYTES = 5
REQUEST_HEADERS = [(":method", "POST"), (":scheme", "http"), (":authority", "localhost")]
REQUEST_HEADERS += [("content-type", "application/grpc"), ("te", "trailers")]


class _GrpcError(CollectError):
    """The kubelet answered with a gRPC status other than OK."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(f"answered {STATUS_NAMES.get(status, 'gRPC status ' + status)}: {quote(message)}")
        self.status = status


class PodResourcesClient:
    def __init__(
        self, socket: Path = SOCKET, *, timeout_seconds: float = TIMEOUT_SECONDS, max_bytes: int = MAX_ANSWER_BYTES
    ) -> None:
        self._socket = socket
        self._timeout_seconds = timeout_seconds
        self._max_bytes = max_bytes

    def exists(self) -> bool:
        """Whether a kubelet has ever run on this node; without one, `h2` is never imported."""
        return self._socket.is_socket()

    async def read(self) -> Mapping[str, tuple[workloads.Holding, ...]]:
        """Holders by device: the UUID of a GPU or MIG instance, `nvidia3` or `3`; CollectError if the call fails."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return pod_resources.holdings_by_device(pod_resources.read_list(await self._list_pods()))
        except TimeoutError as error:
            raise self._build_error(f"no answer within {self._timeout_seconds:g} s") from error
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise self._build_error("no kubelet listens on this socket") from error
        except PermissionError as error:
            remedy = "Run the agent as root, or as a member of the socket's group"
            raise self._build_error("permission denied", remedy=remedy) from error
        except OSError as error:
            raise self._build_error(error.strerror or type(error).__name__) from error
        except CollectError as error:
            raise self._build_error(error.problem) from error

    async def _list_pods(self) -> bytes:
        try:
            return await self._call(LIST_METHOD)
        except _GrpcError as error:
            if error.status != UNIMPLEMENTED:
                raise
            return await self._call(OLD_LIST_METHOD)

    def _build_error(self, problem: str, *, remedy: str | None = None) -> CollectError:
        return CollectError(problem, where=str(self._socket), remedy=remedy)

    async def _call(self, method: str) -> bytes:
        """Make a unary call with an empty request and return the message of the answer."""
        reader, writer = await asyncio.open_unix_connection(str(self._socket))
        try:
            return await _GrpcCall(reader, writer, self._max_bytes).send(method)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


@dataclass(slots=True)
class _GrpcCall:
    """One call on its own connection, and the part of its answer that has arrived."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    max_bytes: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    has_ended: bool = False

    async def send(self, method: str) -> bytes:
        from h2 import config, connection, exceptions

        http2 = connection.H2Connection(config.H2Configuration(client_side=True, header_encoding="utf-8"))
        try:
            http2.initiate_connection()
            http2.send_headers(STREAM_ID, [(":path", method), *REQUEST_HEADERS])
            http2.send_data(STREAM_ID, EMPTY_MESSAGE, end_stream=True)
            while not self.has_ended:
                self.writer.write(http2.data_to_send())
                await self.writer.drain()
                received = await self.reader.read(65536)
                if not received:
                    raise CollectError("the connection was closed before the end of the answer")
                for event in http2.receive_data(received):
                    self._receive(event, http2)
        except (exceptions.ProtocolError, UnicodeDecodeError) as error:
            raise CollectError(f"does not speak gRPC: {type(error).__name__} {error}".rstrip()) from error
        return self._unwrap_message()

    def _receive(self, event: Event, http2: H2Connection) -> None:
        from h2 import events

        if isinstance(event, (events.ResponseReceived, events.TrailersReceived)):
            self.headers |= {str(name): str(value) for name, value in event.headers}
        elif isinstance(event, events.DataReceived):
            self.body += event.data
            if len(self.body) > self.max_bytes + PREFIX_BYTES:
                raise CollectError(f"the answer has {len(self.body)} bytes or more, the limit is {self.max_bytes}")
            http2.acknowledge_received_data(event.flow_controlled_length, STREAM_ID)
        elif isinstance(event, (events.StreamReset, events.ConnectionTerminated)):
            raise CollectError(f"aborted the call with HTTP/2 error {event.error_code}")
        self.has_ended = self.has_ended or isinstance(event, events.StreamEnded)

    def _unwrap_message(self) -> bytes:
        """The message without its prefix: a byte for compression and four bytes for the length."""
        status = self.headers.get("grpc-status")
        if status is None:
            raise CollectError(f"does not speak gRPC: HTTP status {self.headers.get(':status', 'missing')}")
        if status != OK:
            raise _GrpcError(status, self.headers.get("grpc-message", ""))
        length = int.from_bytes(self.body[1:PREFIX_BYTES], "big")
        if len(self.body) != PREFIX_BYTES + length or self.body[0] != 0:
            raise CollectError(f"expected an uncompressed message of {length} bytes, received {len(self.body)} bytes")
        return bytes(self.body[PREFIX_BYTES:])
