"""Local addresses in every spelling, and which names and redirects may lead to them."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from watchkeeper.errors import CollectError, ReceiverError
from watchkeeper.net import addresses, http
from watchkeeper.notify import receiver_http

RECEIVED: list[str] = []


@pytest.mark.parametrize(
    ("address", "is_private"),
    [
        ("127.0.0.1", True),
        ("169.254.169.254", True),
        ("::ffff:169.254.169.254", True),
        ("fe80::1%eth0", True),
        ("[::1]", True),
        ("0.0.0.0", True),
        ("localhost", True),
        ("fd00:ec2::254", True),
        ("100.100.100.200", True),
        ("::ffff:100.100.100.200", True),
        ("10.0.0.1", False),
        ("hooks.example", False),
    ],
)
def test_loopback_and_link_local_addresses_are_private_however_they_are_written(address: str, is_private: bool) -> None:
    assert addresses.is_machine_local(address) is is_private


def test_a_name_may_not_resolve_to_a_local_address_unless_it_is_a_local_name() -> None:
    assert addresses.is_unexpectedly_local("hooks.example", "169.254.169.254")
    assert not addresses.is_unexpectedly_local("169.254.169.254", "169.254.169.254")
    assert not addresses.is_unexpectedly_local("localhost", "127.0.0.1")
    assert not addresses.is_unexpectedly_local(os.uname().nodename, "127.0.1.1")
    assert not addresses.is_unexpectedly_local("hooks.example", "203.0.113.1")


@pytest.fixture
def inward(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server of this machine, with the name `hooks.example`, that redirects to `inside.example`."""

    class Redirecting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.server.received.append(self.path)  # type: ignore[attr-defined]
            self.send_response(302)
            self.send_header("Location", f"http://inside.example:{self.server.server_port}/secret")  # type: ignore[attr-defined]
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Deliberately silent."""

    real = socket.getaddrinfo

    def resolve(host: str, *others: Any, **named: Any) -> Any:
        return real("127.0.0.1" if str(host).endswith(".example") else host, *others, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Redirecting)
    server.received = RECEIVED  # type: ignore[attr-defined]
    RECEIVED.clear()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://hooks.example:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_message_is_not_sent_to_a_name_with_a_local_address(inward: str) -> None:
    with pytest.raises(ReceiverError, match=r"its name resolves to 127\.0\.0\.1, an address of this machine"):
        receiver_http.http_post(f"{inward}/hook", b"{}", {})
    assert RECEIVED == []


def test_a_redirect_of_a_message_is_an_answer_and_is_not_followed(inward: str) -> None:
    status, _ = receiver_http.http_post(f"{inward.replace('hooks.example', '127.0.0.1')}/hook", b"{}", {})
    assert (status, RECEIVED) == (302, ["/hook"])


def test_a_redirect_to_a_local_address_is_not_followed(inward: str) -> None:
    async def read() -> None:
        connection = http.Connection(timeout_seconds=60)
        try:
            await connection.send(http.HttpRequest(f"{inward}/metrics"))
        finally:
            await connection.aclose()

    with pytest.raises(CollectError, match=r"redirects to 127\.0\.0\.1"):
        asyncio.run(read())
    assert RECEIVED == ["/metrics"]
