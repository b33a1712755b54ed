"""Serves the metrics page on a port, from one thread of the program, for Prometheus or a hub.

It handles one request at a time, and closes the connection of a client that sends nothing for some seconds.
"""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Protocol

from watchkeeper.instrument.page import MetricsPage

CLIENT_TIMEOUT_SECONDS = 5.0
STOP_POLL_SECONDS = 0.2


class RenderPage(Protocol):
    def __call__(self, *, is_openmetrics: bool = False) -> MetricsPage: ...


class Endpoint(HTTPServer):
    """Listens from its creation until `close`; OSError if the port is in use."""

    def __init__(self, host: str, port: int, render: RenderPage) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _MetricsRequest)
        self.host, self.port, self.render = host, int(self.server_address[1]), render
        threading.Thread(
            target=self.serve_forever, args=(STOP_POLL_SECONDS,), name="watchkeeper-metrics", daemon=True
        ).start()

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    # HTTPServer resolves the name of its address when it binds, which takes long with a broken resolver.
    def server_bind(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing to the program's output when a client disconnects."""


class _MetricsRequest(BaseHTTPRequestHandler):
    server: Endpoint
    timeout = CLIENT_TIMEOUT_SECONDS

    def send_page(self) -> None:
        if self.path.partition("?")[0] not in ("/", "/metrics"):
            self.send_error(404, "not found, use /metrics")
            return
        page = self.server.render(is_openmetrics="application/openmetrics-text" in self.headers.get("Accept", ""))
        content = page.encode()
        self.send_response(200)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = send_page  # noqa: N815

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing to the program's output."""
