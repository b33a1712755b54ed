"""Look up SRV records, which Python's resolver functions do not support.

A query goes to each nameserver of resolv.conf in turn, over UDP, and again over TCP if the answer was truncated (RFC
1035, RFC 2782). Answers are not trusted: their size is limited, and pointers in names may lead backwards only.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from watchkeeper.errors import CollectError

RESOLV_CONF = Path("/etc/resolv.conf")
# The limits of the C library (resolv.conf(5)).
MAX_SERVERS, MAX_SEARCH_DOMAINS = 3, 6
TIMEOUT_SECONDS = 2.0
TYPE_SRV, TYPE_OPT, CLASS_IN = 33, 41, 1
# The largest answer that we accept over UDP.
UDP_BYTES = 4096
RECURSION_DESIRED, IS_ANSWER, IS_TRUNCATED = 0x0100, 0x8000, 0x0200
NO_ERROR, NO_SUCH_NAME = 0, 3
MAX_NAME_BYTES = 255


@dataclass(frozen=True, slots=True, order=True)
class SrvRecord:
    """One SRV record; `host` has no trailing dot."""

    host: str
    port: int


class MalformedAnswer(Exception):
    """An answer that is not a valid answer to our query."""


@dataclass(frozen=True, slots=True)
class Resolver:
    """Nameservers as (host, port), and the search domains for short names."""

    servers: tuple[tuple[str, int], ...]
    search: tuple[str, ...] = ()

    async def srv_records(self, name: str) -> list[SrvRecord]:
        """The SRV records of a name, sorted; CollectError if no nameserver has any."""
        failures: list[str] = []
        searched_names = [] if name.endswith(".") else [f"{name}.{domain}" for domain in self.search]
        for full_name in [name.rstrip("."), *searched_names]:
            for server in self.servers:
                try:
                    records = await self._query(server, full_name)
                except (OSError, EOFError, TimeoutError, MalformedAnswer) as error:
                    reason = "no answer" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
                    failures.append(f"{server[0]}: {reason}")
                    continue
                if records is None:
                    failures.append(f"{server[0]} has no {full_name}")
                    break
                return sorted(records)
        raise CollectError(
            f"no SRV record was found: {'; '.join(failures[:5]) or 'no nameserver is configured'}", where=f"dns {name}"
        )

    async def _query(self, server: tuple[str, int], name: str) -> list[SrvRecord] | None:
        """The records, or None if the nameserver answers that the name does not exist."""
        query_id = secrets.randbits(16)
        query = _encode_query(query_id, name)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            answer = await _query_udp(server, query, query_id)
        if struct.unpack_from("!H", answer, 2)[0] & IS_TRUNCATED:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                answer = await _query_tcp(server, query)
        return parse_answer(answer, query_id)


def system_resolver(path: Path = RESOLV_CONF) -> Resolver:
    """The resolver that resolv.conf configures; without that file, a nameserver on this machine."""
    servers: list[tuple[str, int]] = []
    search: list[str] = []
    with suppress(OSError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            word, *rest = line.split() or [""]
            if word == "nameserver" and rest:
                servers.append((rest[0], 53))
            elif word in ("search", "domain"):
                search = [domain.rstrip(".") for domain in rest]
    return Resolver(tuple(servers[:MAX_SERVERS]) or (("127.0.0.1", 53),), tuple(search[:MAX_SEARCH_DOMAINS]))


def _encode_query(query_id: int, name: str) -> bytes:
    try:
        labels = [label.encode("idna") for label in name.split(".")]
    except UnicodeError as error:
        raise MalformedAnswer(f"{name} is not a valid name: {error}") from error
    encoded_name = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    if len(encoded_name) > MAX_NAME_BYTES:
        raise MalformedAnswer(f"the name has {len(encoded_name)} bytes, the limit is {MAX_NAME_BYTES}")
    header = struct.pack("!6H", query_id, RECURSION_DESIRED, 1, 0, 0, 1)
    udp_size_option = b"\0" + struct.pack("!HHIH", TYPE_OPT, UDP_BYTES, 0, 0)
    return header + encoded_name + struct.pack("!HH", TYPE_SRV, CLASS_IN) + udp_size_option


def parse_answer(message: bytes, query_id: int) -> list[SrvRecord] | None:
    """The SRV records of an answer to query `query_id`; None if the name does not exist; MalformedAnswer otherwise."""
    try:
        answer_id, flags, questions, answers = struct.unpack_from("!4H", message)
        if answer_id != query_id or not flags & IS_ANSWER:
            raise MalformedAnswer("answers another query")
        if flags & 0x000F == NO_SUCH_NAME:
            return None
        if flags & 0x000F != NO_ERROR:
            raise MalformedAnswer(f"answered with error code {flags & 0x000F}")
        offset = 12
        for _ in range(questions):
            offset = _read_name(message, offset)[1] + 4
        records = []
        for _ in range(answers):
            offset = _read_name(message, offset)[1]
            kind, _, _, length = struct.unpack_from("!HHIH", message, offset)
            offset += 10
            if kind == TYPE_SRV:
                [port] = struct.unpack_from("!H", message, offset + 4)
                records.append(SrvRecord(_read_name(message, offset + 6)[0], port))
            offset += length
        return records
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedAnswer("the answer is truncated or malformed") from error


def _read_name(message: bytes, offset: int) -> tuple[str, int]:
    """A name and the offset after it; a pointer must lead to an earlier offset, so that the loop ends."""
    labels: list[str] = []
    after: int | None = None
    earliest = offset
    while length := message[offset]:
        if length >= 0xC0:
            after = offset + 2 if after is None else after
            offset = struct.unpack_from("!H", message, offset)[0] & 0x3FFF
            if offset >= earliest:
                raise MalformedAnswer("a pointer in a name leads forwards")
            earliest = offset
            continue
        labels.append(message[offset + 1 : offset + 1 + length].decode("ascii"))
        offset += 1 + length
    return ".".join(labels), offset + 1 if after is None else after


class _Listener(asyncio.DatagramProtocol):
    """Waits for the datagram with our query id; another one may be forged."""

    def __init__(self, accepts: Callable[[bytes], bool]) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._accepts = accepts

    def datagram_received(self, data: bytes, addr: object) -> None:  # noqa: ARG002 (asyncio names it)
        if not self.answer.done() and self._accepts(data):
            self.answer.set_result(data)

    def error_received(self, exc: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(exc)


async def _query_udp(server: tuple[str, int], query: bytes, query_id: int) -> bytes:
    id_bytes = struct.pack("!H", query_id)
    transport, listener = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: _Listener(lambda message: len(message) >= 12 and message[:2] == id_bytes), remote_addr=server
    )
    try:
        transport.sendto(query)
        return await listener.answer
    finally:
        transport.close()


async def _query_tcp(server: tuple[str, int], query: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*server)
    try:
        writer.write(struct.pack("!H", len(query)) + query)
        await writer.drain()
        [length] = struct.unpack("!H", await reader.readexactly(2))
        return await reader.readexactly(length)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
