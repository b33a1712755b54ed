"""A server on loopback that answers from a script and remembers what it was asked."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs


@dataclass(frozen=True, slots=True)
class Asked:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def form(self) -> dict[str, list[str]]:
        return parse_qs(self.body.decode())


@dataclass(frozen=True, slots=True)
class Reply:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def success(content: object, **more: object) -> Reply:
    return Reply(body=json.dumps({"status": "success", "data": content, **more}).encode())


def vector(*rows: tuple[dict[str, str], float], **more: object) -> Reply:
    result = [{"metric": labels, "value": [0, str(value)]} for labels, value in rows]
    return success({"resultType": "vector", "result": result}, **more)


def failure(status: int, kind: str, message: str) -> Reply:
    return Reply(status, json.dumps({"status": "error", "errorType": kind, "error": message}).encode())


@dataclass(slots=True)
class Scripted:
    """Replies in order, the last one again and again; a callable makes its reply from the request."""

    replies: list[Reply | Callable[[Asked], Reply]]
    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    connections: set[object] = field(default_factory=set)

    def next(self, asked: Asked, connection: object) -> Reply:
        self.asked.append(asked)
        self.connections.add(connection)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return reply(asked) if callable(reply) else reply


@contextlib.contextmanager
def serving(*replies: Reply | Callable[[Asked], Reply], tls: ssl.SSLContext | None = None) -> Iterator[Scripted]:
    script = Scripted(list(replies))

    class Speaker(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            reply = script.next(Asked(self.command, self.path, dict(self.headers), body), self.client_address)
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if reply.status != 204:
                self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            if reply.status != 204:
                self.wfile.write(reply.body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Speaker)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    script.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
