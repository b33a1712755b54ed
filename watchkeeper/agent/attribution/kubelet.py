"""Asking the kubelet which pod holds which GPU: one gRPC call over its unix socket, with a deadline and a size limit.

gRPC is HTTP/2 with five bytes before each message, so `h2` is all it takes; it is imported at the first question, and
a node without a kubelet never asks. Each question has a connection of its own: a kubelet that restarts leaves a
socket that looks open. Attribution asks `PodSource.read` every few seconds and says what it raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from watchkeeper.errors import CollectError, quote
from watchkeeper.model import workloads
from watchkeeper.readers.clusters import pod_resources

if TYPE_CHECKING:
    from h2.connection import H2Connection
    from h2.events import Event

T = TypeVar("T")

SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
LIST = "/v1.PodResourcesLister/List"
ALLOCATABLE = "/v1.PodResourcesLister/GetAllocatableResources"
# Kubelets before 1.20 have only this; the fields we read have the same numbers.
OLD_LIST = "/v1alpha1.PodResourcesLister/List"
# The kubelet answers from memory in a millisecond; two seconds is a node in trouble.
TIMEOUT_SECONDS = 2.0
# 500 pods with 64 devices and their topology are below 1 MiB; the kubelet itself stops at 16 MiB.
MAX_ANSWER_BYTES = 16 * 1024 * 1024
OK, UNIMPLEMENTED = "0", "12"
# https://grpc.github.io/grpc/core/md_doc_statuscodes.html
STATUS_WORDS = {
    "4": "deadline exceeded",
    "7": "permission denied",
    "8": "asked too often",
    UNIMPLEMENTED: "no such service",
    "13": "internal error",
    "14": "unavailable",
}
STREAM = 1
EMPTY_MESSAGE = b"\x00\x00\x00\x00\x00"
PREFIX_BYTES = 5


class _GrpcError(CollectError):
    """The call arrived and was answered with a gRPC status other than OK."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(f"answered {STATUS_WORDS.get(status, 'gRPC status ' + status)}: {quote(message)}")
        self.status = status


class KubeletPods:
    """The kubelet of this node."""

    def __init__(
        self,
        socket: Path = SOCKET,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        self._socket = socket
        self._timeout_seconds = timeout_seconds
        self._max_bytes = max_bytes

    def exists(self) -> bool:
        """True where a kubelet has ever been; asking is worth the import only then."""
        return self._socket.is_socket()

    async def read(self) -> Mapping[str, tuple[workloads.Holding, ...]]:
        """Holders by device: a GPU's or MIG slice's UUID, `nvidia3` or `3`; CollectError says why nobody knows."""
        return pod_resources.holdings(await self.allocated_devices())

    async def allocated_devices(self) -> tuple[pod_resources.AllocatedDevice, ...]:
        """The devices of every container, in the kubelet's own words."""
        return await self._asking(self._held())

    async def allocatable_devices(self) -> tuple[str, ...]:
        """Ids of the devices that the kubelet offers to pods; a GPU that is missing here cannot be scheduled."""
        return await self._asking(self._allocatable())

    async def _held(self) -> tuple[pod_resources.AllocatedDevice, ...]:
        try:
            answer = await self._call(LIST)
        except _GrpcError as error:
            if error.status != UNIMPLEMENTED:
                raise
            answer = await self._call(OLD_LIST)
        return pod_resources.read_list(answer)

    async def _allocatable(self) -> tuple[str, ...]:
        return pod_resources.read_allocatable(await self._call(ALLOCATABLE))

    async def _asking(self, question: Coroutine[Any, Any, T]) -> T:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await question
        except TimeoutError as error:
            raise self._failed(f"no answer within {self._timeout_seconds:g} s") from error
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise self._failed("no kubelet listens there") from error
        except PermissionError as error:
            raise self._failed(
                "may not be opened", remedy="Run the agent as root, or with the socket's group"
            ) from error
        except OSError as error:
            raise self._failed(error.strerror or type(error).__name__) from error
        except CollectError as error:
            raise self._failed(error.problem) from error

    def _failed(self, problem: str, *, remedy: str | None = None) -> CollectError:
        return CollectError(problem, where=str(self._socket), remedy=remedy)

    async def _call(self, method: str) -> bytes:
        """The message that one unary call with an empty request is answered with."""
        reader, writer = await asyncio.open_unix_connection(str(self._socket))
        try:
            return await _GrpcCall(reader, writer, self._max_bytes).message(method)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


@dataclass(slots=True)
class _GrpcCall:
    """One call on a connection of its own, and what has arrived of its answer."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    max_bytes: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    has_ended: bool = False

    async def message(self, method: str) -> bytes:
        from h2 import config, connection, exceptions

        link = connection.H2Connection(config.H2Configuration(client_side=True, header_encoding="utf-8"))
        try:
            link.initiate_connection()
            link.send_headers(STREAM, _request_headers(method))
            link.send_data(STREAM, EMPTY_MESSAGE, end_stream=True)
            while not self.has_ended:
                self.writer.write(link.data_to_send())
                await self.writer.drain()
                received = await self.reader.read(65536)
                if not received:
                    raise CollectError("the connection was closed before the end of the answer")
                for event in link.receive_data(received):
                    self._take(event, link)
        except (exceptions.ProtocolError, UnicodeDecodeError) as error:
            raise CollectError(f"does not speak gRPC: {type(error).__name__} {error}".rstrip()) from error
        return self._unwrap()

    def _take(self, event: Event, link: H2Connection) -> None:
        from h2 import events

        if isinstance(event, (events.ResponseReceived, events.TrailersReceived)):
            self.headers |= {str(name): str(value) for name, value in event.headers}
        elif isinstance(event, events.DataReceived):
            self.body += event.data
            if len(self.body) > self.max_bytes + PREFIX_BYTES:
                raise CollectError(f"the answer has {len(self.body)} bytes or more, the limit is {self.max_bytes}")
            link.acknowledge_received_data(event.flow_controlled_length, STREAM)
        elif isinstance(event, (events.StreamReset, events.ConnectionTerminated)):
            raise CollectError(f"broke off the call with HTTP/2 error {event.error_code}")
        self.has_ended = self.has_ended or isinstance(event, events.StreamEnded)

    def _unwrap(self) -> bytes:
        """The message without its prefix: one byte that says whether it is compressed, and four for its length."""
        status = self.headers.get("grpc-status")
        if status is None:
            raise CollectError(f"does not speak gRPC: HTTP status {self.headers.get(':status', 'missing')}")
        if status != OK:
            raise _GrpcError(status, self.headers.get("grpc-message", ""))
        length = int.from_bytes(self.body[1:PREFIX_BYTES], "big")
        if len(self.body) != PREFIX_BYTES + length or self.body[0] != 0:
            raise CollectError(f"one plain message of {length} bytes was announced, {len(self.body)} bytes came")
        return bytes(self.body[PREFIX_BYTES:])


def _request_headers(method: str) -> list[tuple[str, str]]:
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]
