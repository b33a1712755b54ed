"""One HTTP call: a receiver that is silent, drips its answer or never ends it costs a stated time and no more."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from watchkeeper.errors import ReceiverError
from watchkeeper.net import sync_http
from watchkeeper.notify import receiver_http

# Only one of the two can run out: a thread that drips on a busy machine may be late.
QUICK = sync_http.HttpLimits(idle_seconds=20, total_seconds=0.6)
IMPATIENT = sync_http.HttpLimits(idle_seconds=0.3, total_seconds=20)


class Dripping(BaseHTTPRequestHandler):
    """Sends a byte of its answer often enough that no wait for one is ever long; the headers too, if asked for them."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/silent":
            self.server.is_over.wait(60)  # type: ignore[attr-defined]
            return
        text = b"HTTP/1.0 200 OK\r\nContent-Length: 500\r\n\r\n" + b"x" * 500
        at_once = 0 if self.path == "/headers" else text.index(b"x")
        try:
            self.wfile.write(text[:at_once])
            for byte in text[at_once:]:
                self.wfile.write(bytes([byte]))
                self.server.is_over.wait(0.05)  # type: ignore[attr-defined]
        except OSError:
            return

    def log_message(self, *_: object) -> None:
        """Deliberately silent."""


@contextmanager
def dripping() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Dripping)
    server.is_over = threading.Event()  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.is_over.set()  # type: ignore[attr-defined]
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "limits", "problem"),
    [
        ("/headers", QUICK, "no whole answer within 0.6 s"),
        ("/body", QUICK, "no whole answer within 0.6 s"),
        ("/silent", IMPATIENT, "no answer within 0.3 s"),
    ],
)
def test_an_answer_that_is_slow_or_missing_times_out(path: str, limits: sync_http.HttpLimits, problem: str) -> None:
    began = time.monotonic()
    with dripping() as url, pytest.raises(ReceiverError, match=problem) as refused:
        receiver_http.http_post(url + path, b"{}", {}, limits=limits)
    assert refused.value.may_retry
    # The whole answer drips for 25 s.
    assert time.monotonic() - began < 20.0


def test_an_invalid_address_is_refused_and_not_retried() -> None:
    with pytest.raises(ReceiverError, match="is not a valid URL") as refused:
        receiver_http.http_post("http://[::1", b"", {})
    assert not refused.value.may_retry


@contextmanager
def dripping_handshakes() -> Iterator[str]:
    """A server that promises 16 kB of its part of a TLS handshake, and sends them byte by byte."""
    is_over, threads = threading.Event(), list[threading.Thread]()

    def drip(wire: socket.socket) -> None:
        with wire, suppress(OSError):
            wire.recv(65536)
            wire.sendall(b"\x16\x03\x03\x40\x00")
            while not is_over.wait(0.05):
                wire.sendall(b"\x02")

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                threads.append(threading.Thread(target=drip, args=(listener.accept()[0],)))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=serve, args=(listener,))
        serving.start()
        try:
            yield f"https://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            is_over.set()
            listener.shutdown(socket.SHUT_RDWR)
            for thread in (serving, *threads):
                thread.join()


@pytest.mark.slow
def test_a_slow_handshake_times_out() -> None:
    began = time.monotonic()
    with dripping_handshakes() as url, pytest.raises(ReceiverError, match=r"no whole answer within 0\.6 s") as refused:
        receiver_http.http_post(url, b"{}", {}, limits=QUICK)
    assert refused.value.may_retry
    # One wait alone would be 20 s.
    assert time.monotonic() - began < 15.0


@pytest.mark.parametrize(("url", "port"), [("http://[fd00::5]/hook", 80), ("https://[fd00::5]", 443)])
def test_an_ipv6_address_without_a_port_uses_the_default_port(url: str, port: int) -> None:
    client = sync_http.HttpClient(url)
    assert (client._host, client._port) == ("fd00::5", port)
