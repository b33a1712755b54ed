"""One HTTP call to a receiver or an Alertmanager, with a limit on each wait, on the whole, and on the answer.

A socket's own timeout starts again with each byte, so a server that drips its answer would hold a line for ever;
here a timer cuts the connection when the time for all of it is up, from the first address tried to the last byte. Only
the look-up of a name is left to the resolver's own limits. Blocks; callers have a thread to wait in.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Self
from urllib.parse import SplitResult, urlsplit

from watchkeeper.errors import ReceiverError
from watchkeeper.net import addresses

# What we keep of an answer to a message, and show.
ANSWER_BYTES = 200


@dataclass(frozen=True, slots=True)
class Limits:
    """`wait_seconds` for the next sign of life, `whole_seconds` for everything together."""

    wait_seconds: float = 10.0
    whole_seconds: float = 30.0
    answer_bytes: int = ANSWER_BYTES


USUAL = Limits()


def post(url: str, body: bytes, headers: dict[str, str], *, limits: Limits = USUAL) -> tuple[int, str]:
    """Status and the beginning of the answer; ReceiverError if there is none."""
    status, answer = call("POST", url, headers, body=body, limits=limits)
    return status, answer.decode("utf-8", "replace").strip()


def call(
    method: str, url: str, headers: dict[str, str], *, body: bytes | None = None, limits: Limits = USUAL
) -> tuple[int, bytes]:
    """Status and at most `answer_bytes` of the answer; ReceiverError if there is none in time."""
    parts, connection, context = _connection(url)
    where = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    with closing(connection), _Cutter(limits.whole_seconds) as cutter:
        try:
            connection.sock = wire = _reached(connection, context, limits)
            cutter.watch(wire)
            if isinstance(wire, ssl.SSLSocket):
                wire.do_handshake()
            reached = wire.getpeername()[0]
            if addresses.leads_astray(parts.hostname or "", reached):
                raise ReceiverError(
                    f"its name leads to {reached}, which is this machine's own; write that address if it is meant",
                    where=where,
                )
            connection.request(method, target, body=body, headers=headers)
            with connection.getresponse() as answer:
                found = answer.status, answer.read(limits.answer_bytes)
            cutter.raise_if_cut()
            return found
        except (OSError, http.client.HTTPException, ValueError) as error:
            if cutter.has_cut:
                problem = f"no whole answer within {limits.whole_seconds:g} s"
            elif isinstance(error, TimeoutError):
                problem = f"no answer within {limits.wait_seconds:g} s"
            else:
                problem = f"cannot be reached: {error}"
            raise ReceiverError(problem, where=where, may_retry=True) from error


class _Cutter:
    """Cuts the wire of a call when the time for the whole is up."""

    def __init__(self, seconds: float) -> None:
        self.has_cut = False
        # Kept apart: of an answer that ends with the connection http.client lets go before it is read.
        self._wires: list[socket.socket] = []
        self._timer = threading.Timer(seconds, self._cut)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def watch(self, wire: socket.socket) -> None:
        self._wires.append(wire)
        self.raise_if_cut()

    def raise_if_cut(self) -> None:
        if self.has_cut:
            raise TimeoutError

    def _cut(self) -> None:
        self.has_cut = True
        for wire in self._wires:
            with suppress(OSError):
                wire.shutdown(socket.SHUT_RDWR)


def _connection(url: str) -> tuple[SplitResult, http.client.HTTPConnection, ssl.SSLContext | None]:
    try:
        parts = urlsplit(url)
        # Never None: http.client would look for it behind the last colon of an IPv6 address.
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise ReceiverError(f"is no address: {error}", where=url[:60]) from error
    if parts.scheme != "https":
        return parts, http.client.HTTPConnection(host, port), None
    context = ssl.create_default_context()
    return parts, http.client.HTTPSConnection(host, port, context=context), context


def _reached(connection: http.client.HTTPConnection, context: ssl.SSLContext | None, limits: Limits) -> socket.socket:
    """A connection to the first address of the name that answers; all share the time for the whole. Not greeted yet."""
    ends_at = time.monotonic() + limits.whole_seconds
    problem = OSError("the name has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(
        connection.host, connection.port, type=socket.SOCK_STREAM
    ):
        wire = socket.socket(family, kind, protocol)
        try:
            wire.settimeout(max(0.001, min(limits.wait_seconds, ends_at - time.monotonic())))
            wire.connect(address)
        except OSError as error:
            wire.close()
            problem = error
            continue
        wire.settimeout(limits.wait_seconds)
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is None:
            return wire
        return context.wrap_socket(wire, server_hostname=connection.host, do_handshake_on_connect=False)
    raise problem
