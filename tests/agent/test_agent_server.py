"""The agent's HTTP server: who may read, and what clients cannot block."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import hashlib
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.waiting import until_async
from watchkeeper.agent import agent_server
from watchkeeper.agent.agent_server import Credentials, HttpPage, ListenSettings, Route, load_credentials, serve
from watchkeeper.errors import SettingsError, StartRefused

ROUTES = {
    "/metrics": Route(lambda: HttpPage(b"up 1\n")),
    "/-/healthy": Route(lambda: HttpPage(b"ok\n"), needs_credentials=False),
}
LOCAL = ListenSettings(port=0)


async def say(address: str, request: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """Send bytes and read until the server closes or has been silent."""
    if address.startswith("unix:"):
        reader, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
    else:
        parts = urlsplit(address)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=tls)
    writer.write(request)
    try:
        return await reader.read()
    finally:
        await close(writer)


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def get(path: str, **headers: str) -> bytes:
    lines = [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", "Connection: close", *lines, "", ""]).encode()


def ask(listen: ListenSettings, *requests: bytes) -> list[bytes]:
    async def story() -> list[bytes]:
        async with serve(listen, ROUTES) as address:
            return [await say(address, request) for request in requests]

    return asyncio.run(story())


def status(answer: bytes) -> int:
    return int(answer.split()[1])


def test_a_long_page_is_compressed_for_clients_that_accept_gzip() -> None:
    long = b"up 1\n" * 4000

    async def story() -> list[bytes]:
        async with serve(LOCAL, {"/metrics": Route(lambda: HttpPage(long))}) as address:
            requests = get("/metrics"), get("/metrics", **{"Accept-Encoding": "gzip"})
            return [await say(address, request) for request in requests]

    plain, small = asyncio.run(story())
    head, _, body = small.partition(b"\r\n\r\n")
    assert plain.endswith(b"\r\n\r\n" + long)
    assert b"Content-Encoding: gzip" in head
    assert f"Content-Length: {len(body)}".encode() in head
    assert gzip.decompress(body) == long


def test_the_pages_are_served_and_nothing_else_is() -> None:
    page, health, other, command = ask(
        LOCAL, get("/metrics?x=1"), get("/-/healthy"), get("/etc"), get("/metrics").replace(b"GET", b"POST")
    )
    assert page.startswith(b"HTTP/1.1 200")
    assert page.endswith(b"\r\n\r\nup 1\n")
    assert [status(health), status(other), status(command)] == [200, 404, 405]


def test_a_token_or_a_password_opens_the_page_and_health_needs_none(tmp_path: Path) -> None:
    hashed = hashlib.sha256(b"secret-two").hexdigest()
    (tmp_path / "tokens").write_text(f"# scrapers\nsecret-one\nsha256:{hashed}\n")
    (tmp_path / "users").write_text("prometheus:pass word\n")
    listen = ListenSettings(port=0, credentials=load_credentials(tmp_path / "tokens", tmp_path / "users"))
    basic = base64.b64encode(b"prometheus:pass word").decode()
    proofs = ["Bearer secret-one", "bearer secret-two", f"Basic {basic}", "Bearer wrong", "Basic !", "Bearer", "x"]
    answers = ask(listen, *(get("/metrics", Authorization=proof) for proof in proofs), get("/metrics"))
    assert [status(answer) for answer in answers] == [200, 200, 200, 401, 401, 401, 401, 401]
    assert status(ask(listen, get("/-/healthy"))[0]) == 200


@pytest.mark.parametrize("content", ["", "# only a comment\n"])
def test_a_secrets_file_without_a_secret_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokens").write_text(content)
    with pytest.raises(SettingsError, match="has no secret"):
        load_credentials(tmp_path / "tokens", None)


def test_a_public_address_needs_credentials_or_an_explicit_option() -> None:
    with pytest.raises(StartRefused, match="anyone who can reach this address"):
        ListenSettings("0.0.0.0").check()
    ListenSettings("0.0.0.0", allows_anonymous=True).check()
    ListenSettings("0.0.0.0", credentials=Credentials(frozenset({b"x"}))).check()
    ListenSettings("::1").check()


def test_a_port_in_use_is_a_clear_error() -> None:
    async def story() -> None:
        async with serve(LOCAL, ROUTES) as address:
            taken = ListenSettings(port=urlsplit(address).port or 0)
            with pytest.raises(StartRefused, match="another program listens on this address") as refused:
                async with serve(taken, ROUTES):
                    pass
            assert "--listen" in str(refused.value)

    asyncio.run(story())


def test_a_unix_socket_is_served_and_a_stale_one_is_replaced(tmp_path: Path) -> None:
    listen = ListenSettings(socket=tmp_path / "s")

    async def story() -> None:
        async with serve(listen, ROUTES) as address:
            assert status(await say(address, get("/metrics"))) == 200
            with pytest.raises(StartRefused, match="another program listens on this address"):
                async with serve(listen, ROUTES):
                    pass

    asyncio.run(story())
    left_over = subprocess.run(
        ["python3", "-c", f"import socket; socket.socket(socket.AF_UNIX).bind({str(tmp_path / 's')!r})"], check=False
    )
    assert left_over.returncode == 0
    asyncio.run(story())
    assert not (tmp_path / "s").exists()


def test_an_invalid_or_too_large_request_is_answered_and_disconnected() -> None:
    large = b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 20_000
    assert [status(answer) for answer in ask(LOCAL, large, b"hello there\r\n\r\n")] == [431, 400]


async def is_answered(address: str) -> bool:
    try:
        return bool(await say(address, get("/metrics")))
    except OSError:
        return False


def with_patience(seconds: float, story: Callable[[str], Awaitable[None]]) -> None:
    async def run() -> None:
        async with serve(LOCAL, ROUTES) as address:
            async with asyncio.timeout(seconds):
                await story(address)

    asyncio.run(run())


def test_a_client_that_never_finishes_its_request_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_server, "REQUEST_SECONDS", 0.05)

    async def story(address: str) -> None:
        assert await say(address, b"GET /metr") == b""

    with_patience(60, story)


@pytest.mark.slow
def test_an_idle_connection_is_closed_and_an_active_one_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Time enough for the first to ask, also where others have the cores.
    monkeypatch.setattr(agent_server, "REQUEST_SECONDS", 1.0)

    async def story(address: str) -> None:
        active, idle = [await asyncio.open_connection("127.0.0.1", urlsplit(address).port) for _ in range(2)]
        kept = get("/metrics").replace(b"Connection: close\r\n", b"")
        active[1].write(kept)
        await active[0].readuntil(b"up 1\n")
        assert await idle[0].read() == b""
        active[1].write(kept)
        assert await active[0].readuntil(b"up 1\n")
        for _, writer in (active, idle):
            await close(writer)

    with_patience(60, story)


def test_connections_above_the_limit_are_closed_and_the_others_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_server, "MAX_CONNECTIONS", 2)

    async def story(address: str) -> None:
        port = urlsplit(address).port
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for _, writer in held:
            writer.write(b"G")

        async def is_refused() -> bool:
            return not await is_answered(address)

        await until_async(is_refused)
        for _, writer in held:
            await close(writer)
        await until_async(lambda: is_answered(address))

    with_patience(60, story)


def test_a_connection_carries_several_requests() -> None:
    async def story(address: str) -> None:
        kept = get("/metrics").replace(b"Connection: close\r\n", b"")
        assert (await say(address, kept + get("/metrics"))).count(b"up 1\n") == 2

    with_patience(60, story)


def certificate(folder: Path) -> ListenSettings:
    """Where to listen, with a certificate of our own."""
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-subj", "/CN=localhost", "-days", "2", "-keyout", f"{folder}/key", "-out", f"{folder}/cert"]
    if subprocess.run(made, capture_output=True, check=False).returncode != 0:
        pytest.skip("openssl is needed to make a certificate")
    return ListenSettings(port=0, certificate=folder / "cert", key=folder / "key")


def test_a_client_without_tls_is_disconnected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_server, "REQUEST_SECONDS", 0.05)

    async def story() -> None:
        async with serve(certificate(tmp_path), ROUTES) as address, asyncio.timeout(30):
            parts = urlsplit(address)
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            assert await reader.read() == b""
            writer.close()

    asyncio.run(story())


def test_tls_is_used_if_a_certificate_is_set(tmp_path: Path) -> None:
    listen = certificate(tmp_path)
    trust = ssl.create_default_context(cafile=f"{tmp_path}/cert")
    trust.check_hostname = False

    async def story() -> None:
        async with serve(listen, ROUTES) as address:
            assert address.startswith("https://")
            assert status(await say(address, get("/metrics"), trust)) == 200

    asyncio.run(story())


def test_half_a_certificate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartRefused, match="a certificate and its key"):
        ListenSettings(certificate=tmp_path / "cert").check()
