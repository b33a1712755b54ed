"""SRV records from the system's nameservers: the one kind of name that the system's own resolver cannot look up.

`discovery` asks for `dns_sd_configs` of type SRV. A question goes to each nameserver of resolv.conf in turn, over UDP,
and again over TCP where the answer did not fit (RFC 1035, RFC 2782). Everything that comes back is bounded and
distrusted: names may point backwards only.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from watchkeeper.errors import CollectError

RESOLV_CONF = Path("/etc/resolv.conf")
# What the C library takes from resolv.conf (resolv.conf(5)).
MAX_SERVERS, MAX_SEARCHED = 3, 6
TIMEOUT_SECONDS = 2.0
TYPE_SRV, TYPE_OPT, CLASS_IN = 33, 41, 1
# The size of an answer that we take over UDP, and that of the whole record that says so.
UDP_BYTES = 4096
RECURSION_DESIRED, IS_ANSWER, IS_CUT_OFF = 0x0100, 0x8000, 0x0200
NO_ERROR, NO_SUCH_NAME = 0, 3
LONGEST_NAME = 255


@dataclass(frozen=True, slots=True, order=True)
class SrvRecord:
    """One SRV record; `host` has no dot at its end."""

    host: str
    port: int


class MalformedAnswer(Exception):
    """An answer that is none."""


@dataclass(frozen=True, slots=True)
class Resolver:
    """Nameservers as (host, port), and the domains that short names are looked for in."""

    servers: tuple[tuple[str, int], ...]
    search: tuple[str, ...] = ()

    async def srv_records(self, name: str) -> list[SrvRecord]:
        """The records of a name, sorted; CollectError if no server knows it."""
        failures: list[str] = []
        for full in self._full_names(name):
            for server in self.servers:
                try:
                    found = await self._ask(server, full)
                except (OSError, EOFError, TimeoutError, MalformedAnswer) as error:
                    words = "no answer" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
                    failures.append(f"{server[0]}: {words}")
                    continue
                if found is None:
                    failures.append(f"{server[0]} knows no {full}")
                    break
                return sorted(found)
        raise CollectError(
            f"no SRV record was found: {'; '.join(failures[:5]) or 'there is no nameserver'}", where=f"dns {name}"
        )

    def _full_names(self, name: str) -> Iterator[str]:
        yield name.rstrip(".")
        if not name.endswith("."):
            yield from (f"{name}.{domain}" for domain in self.search)

    async def _ask(self, server: tuple[str, int], name: str) -> list[SrvRecord] | None:
        """The records, or None if the server says that there is no such name."""
        number = secrets.randbits(16)
        question = _question(number, name)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            answer = await _over_udp(server, question, number)
        if struct.unpack_from("!H", answer, 2)[0] & IS_CUT_OFF:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                answer = await _over_tcp(server, question)
        return parse_answer(answer, number)


def system_resolver(path: Path = RESOLV_CONF) -> Resolver:
    """The resolver that this machine is configured with; without a file, the one on this machine."""
    servers: list[tuple[str, int]] = []
    search: list[str] = []
    with suppress(OSError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            word, *rest = line.split() or [""]
            if word == "nameserver" and rest:
                servers.append((rest[0], 53))
            elif word in ("search", "domain"):
                search = [domain.rstrip(".") for domain in rest]
    return Resolver(tuple(servers[:MAX_SERVERS]) or (("127.0.0.1", 53),), tuple(search[:MAX_SEARCHED]))


def _question(number: int, name: str) -> bytes:
    try:
        labels = [label.encode("idna") for label in name.split(".")]
    except UnicodeError as error:
        raise MalformedAnswer(f"{name} is no name: {error}") from error
    packed = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    if len(packed) > LONGEST_NAME:
        raise MalformedAnswer(f"the name has {len(packed)} bytes, the limit is {LONGEST_NAME}")
    head = struct.pack("!6H", number, RECURSION_DESIRED, 1, 0, 0, 1)
    larger_answers = b"\0" + struct.pack("!HHIH", TYPE_OPT, UDP_BYTES, 0, 0)
    return head + packed + struct.pack("!HH", TYPE_SRV, CLASS_IN) + larger_answers


def parse_answer(message: bytes, number: int) -> list[SrvRecord] | None:
    """The SRV records of an answer to question `number`; None for a name that does not exist; Unreadable otherwise."""
    try:
        own, flags, questions, answers = struct.unpack_from("!4H", message)
        if own != number or not flags & IS_ANSWER:
            raise MalformedAnswer("answers another question")
        if flags & 0x000F == NO_SUCH_NAME:
            return None
        if flags & 0x000F != NO_ERROR:
            raise MalformedAnswer(f"answers with code {flags & 0x000F}")
        at = 12
        for _ in range(questions):
            at = _name(message, at)[1] + 4
        found = []
        for _ in range(answers):
            at = _name(message, at)[1]
            kind, _, _, length = struct.unpack_from("!HHIH", message, at)
            at += 10
            if kind == TYPE_SRV:
                found.append(SrvRecord(_name(message, at + 6)[0], struct.unpack_from("!H", message, at + 4)[0]))
            at += length
        return found
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedAnswer("the answer is cut off or broken") from error


def _name(message: bytes, at: int) -> tuple[str, int]:
    """A name and where the next thing begins; a pointer leads to an earlier place, so that this ends."""
    labels: list[str] = []
    after: int | None = None
    earliest = at
    while length := message[at]:
        if length >= 0xC0:
            after = at + 2 if after is None else after
            at = struct.unpack_from("!H", message, at)[0] & 0x3FFF
            if at >= earliest:
                raise MalformedAnswer("a name points forwards")
            earliest = at
            continue
        labels.append(message[at + 1 : at + 1 + length].decode("ascii"))
        at += 1 + length
    return ".".join(labels), at + 1 if after is None else after


class _Listener(asyncio.DatagramProtocol):
    """Waits for the one datagram with our number; others are somebody's guess."""

    def __init__(self, is_ours: Callable[[bytes], bool]) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._is_ours = is_ours

    def datagram_received(self, data: bytes, addr: object) -> None:  # noqa: ARG002 (asyncio names it)
        if not self.answer.done() and self._is_ours(data):
            self.answer.set_result(data)

    def error_received(self, exc: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(exc)


async def _over_udp(server: tuple[str, int], question: bytes, number: int) -> bytes:
    mark = struct.pack("!H", number)
    transport, listener = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: _Listener(lambda message: len(message) >= 12 and message[:2] == mark), remote_addr=server
    )
    try:
        transport.sendto(question)
        return await listener.answer
    finally:
        transport.close()


async def _over_tcp(server: tuple[str, int], question: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*server)
    try:
        writer.write(struct.pack("!H", len(question)) + question)
        await writer.drain()
        [length] = struct.unpack("!H", await reader.readexactly(2))
        return await reader.readexactly(length)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
