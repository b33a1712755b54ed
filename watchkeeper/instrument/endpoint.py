"""A page on a port, from one thread of the program: what Prometheus or a hub scrapes.

One request at a time is enough for a scraper or two, and a client that sends nothing is left after some seconds.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Protocol

from watchkeeper.instrument.page import MetricsPage

CLIENT_SECONDS = 5.0
STOP_SECONDS = 0.2


class Pages(Protocol):
    def __call__(self, *, is_openmetrics: bool = False) -> MetricsPage: ...


class Endpoint:
    """Listens from its making until `close`; OSError when the port is taken."""

    def __init__(self, host: str, port: int, pages: Pages) -> None:
        self._server = _Server(host, port, _answering(pages))
        self.host, self.port = host, int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(STOP_SECONDS,), name="watchkeeper-metrics", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(HTTPServer):
    # HTTPServer asks for the name of its address when it binds, and a broken resolver takes long to answer.
    def __init__(self, host: str, port: int, answering: Callable[..., BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), answering)

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is nothing to write onto the program's output."""


def _answering(pages: Pages) -> type[BaseHTTPRequestHandler]:
    class Answer(BaseHTTPRequestHandler):
        timeout = CLIENT_SECONDS

        def answer(self) -> None:
            if self.path.partition("?")[0] not in ("/", "/metrics"):
                self.send_error(404, "only /metrics is here")
                return
            page = pages(is_openmetrics="application/openmetrics-text" in self.headers.get("Accept", ""))
            content = page.content()
            self.send_response(200)
            self.send_header("Content-Type", page.content_type)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = answer  # noqa: N815

        def log_message(self, format: str, *arguments: object) -> None:
            """The program's output is not ours."""

    return Answer
