"""SRV records: queried over UDP, over TCP if they are truncated, and never trusted."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.errors import CollectError
from watchkeeper.net import dns
from watchkeeper.scrape.discovery import Discovery

NAME = "_metrics._tcp.gpu.example"
NOW = datetime(2026, 3, 1, tzinfo=UTC)
Answer = Callable[[bytes, bool], bytes]


def answer(query: bytes, records: Iterable[tuple[str, int]] = (), *, flags: int = 0x8180) -> bytes:
    """An answer to a query; the owner of the records is a pointer to the queried name."""
    rows = []
    for host, port in records:
        name = b"".join(bytes([len(part)]) + part.encode() for part in host.split(".")) + b"\0"
        target = struct.pack("!3H", 10, 5, port) + name
        rows.append(struct.pack("!HHHIH", 0xC00C, dns.TYPE_SRV, 1, 60, len(target)) + target)
    question_section = query[12 : query.index(b"\0", 12) + 5]
    return query[:2] + struct.pack("!5H", flags, 1, len(rows), 0, 0) + question_section + b"".join(rows)


@asynccontextmanager
async def nameserver(reply: Answer) -> AsyncIterator[tuple[str, int]]:
    """A nameserver on one port of loopback, over UDP and TCP; `reply` gets the query and whether it came over TCP."""

    class UdpServer(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def datagram_received(self, data: bytes, addr: object) -> None:
            if records := reply(data, False):
                self.transport.sendto(records, addr)  # type: ignore[attr-defined]

    async def answer_tcp(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        [length] = struct.unpack("!H", await reader.readexactly(2))
        records = reply(await reader.readexactly(length), True)
        writer.write(struct.pack("!H", len(records)) + records)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer_tcp, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()[:2]
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(UdpServer, local_addr=address)
    try:
        yield address
    finally:
        transport.close()
        server.close()
        await server.wait_closed()


def look_up(reply: Answer, *, search: tuple[str, ...] = (), name: str = NAME) -> list[dns.SrvRecord]:
    async def story() -> list[dns.SrvRecord]:
        async with nameserver(reply) as address:
            return await dns.Resolver((address,), search).srv_records(name)

    return asyncio.run(story())


def test_every_record_is_a_host_and_a_port() -> None:
    records = look_up(lambda query, _: answer(query, [("n2.example", 9400), ("n1.example", 9400)]))
    assert records == [dns.SrvRecord("n1.example", 9400), dns.SrvRecord("n2.example", 9400)]


def test_a_truncated_answer_is_queried_over_tcp() -> None:
    hosts = [(f"node-{at:04}.example", 9400) for at in range(300)]

    def reply(query: bytes, is_tcp: bool) -> bytes:
        return answer(query, hosts) if is_tcp else answer(query, flags=0x8380)

    assert len(look_up(reply)) == 300


def test_a_name_that_does_not_exist_is_tried_in_the_search_domains() -> None:
    def reply(query: bytes, _: bool) -> bytes:
        is_search_name = b"\x03lab\0" in query
        return answer(query, [("n1.lab", 9400)] if is_search_name else (), flags=0x8180 if is_search_name else 0x8183)

    assert look_up(reply, search=("lab",), name="_m._tcp.gpu") == [dns.SrvRecord("n1.lab", 9400)]
    with pytest.raises(CollectError, match=r"has no _m\._tcp\.gpu"):
        look_up(reply, search=("lab",), name="_m._tcp.gpu.")


def test_the_second_nameserver_is_used_when_the_first_fails() -> None:
    async def story() -> list[dns.SrvRecord]:
        async with (
            nameserver(lambda query, _: answer(query, flags=0x8182)) as broken,
            nameserver(lambda query, _: answer(query, [("n1.example", 1)])) as works,
        ):
            return await dns.Resolver((broken, works)).srv_records(NAME)

    assert asyncio.run(story()) == [dns.SrvRecord("n1.example", 1)]


def test_a_silent_nameserver_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dns, "TIMEOUT_SECONDS", 0.05)
    with pytest.raises(CollectError, match=f"dns {NAME}: no SRV record was found: 127.0.0.1: no answer"):
        look_up(lambda _, __: b"")


@given(st.binary(max_size=200))
def test_any_answer_has_records_or_is_malformed(message: bytes) -> None:
    query = answer(b"\0\1" + bytes(10) + b"\1a\0\0\x21\0\1")
    for text in (message, b"\0\1\x81\x80\0\1\0\3" + message, query[:6] + b"\0\2" + query[8:] + message):
        try:
            records = dns.parse_answer(text, 1)
        except dns.MalformedAnswer:
            continue
        assert records is None or all(isinstance(each, dns.SrvRecord) for each in records)


def test_a_name_that_points_at_itself_is_refused() -> None:
    with pytest.raises(dns.MalformedAnswer, match="leads forwards"):
        dns.parse_answer(b"\0\1\x81\x80\0\1\0\0\0\0\0\0\xc0\x0c\0\x21\0\1", 1)


def test_the_machines_own_nameservers_are_read(tmp_path: Path) -> None:
    file = tmp_path / "resolv.conf"
    file.write_text("# by hand\nsearch lab.example example.\nnameserver 10.0.0.1\nnameserver ::1\noptions ndots:5\n")
    assert dns.system_resolver(file) == dns.Resolver((("10.0.0.1", 53), ("::1", 53)), ("lab.example", "example"))
    assert dns.system_resolver(tmp_path / "absent").servers == (("127.0.0.1", 53),)


def test_a_job_finds_its_targets_by_srv_records(tmp_path: Path) -> None:
    config = tmp_path / "prometheus.yml"
    config.write_text(f"scrape_configs: [{{job_name: gpu, dns_sd_configs: [{{names: [{NAME}]}}]}}]\n")

    async def story() -> list[tuple[str, dict[str, str]]]:
        async with nameserver(lambda query, _: answer(query, [("n1.example", 9400)])) as address:
            records = await Discovery([], config=config, resolver=dns.Resolver((address,))).refresh(NOW)
            return [(target.url, dict(target.discovered)) for target in records.targets]

    [(url, discovered)] = asyncio.run(story())
    assert url == "http://n1.example:9400/metrics"
    assert discovered["__meta_dns_name"] == NAME
    assert discovered["__meta_dns_srv_record_target"] == "n1.example."
    assert discovered["__meta_dns_srv_record_port"] == "9400"
