"""An HTTP server that answers each request with the next line of a script, in every way a real one can fail."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

DATE = "Sun, 15 Nov 2026 09:00:00 GMT"


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. `ends` closes the connection behind it, `cut` sends half of it and resets the connection."""

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    ends: bool = False
    cut: bool = False
    # Never finish the headers, a byte at a time.
    drips: bool = False


@dataclass(slots=True)
class Scripted:
    script: list[Reply]
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    requests: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    connections: int = 0
    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def run(self) -> None:
        threads: list[threading.Thread] = []
        with contextlib.suppress(OSError):
            while True:
                line, _ = self.listener.accept()
                self.connections += 1
                threads.append(threading.Thread(target=self._serve, args=(line,)))
                threads[-1].start()
        for thread in threads:
            thread.join()

    def _serve(self, line: socket.socket) -> None:
        with line, contextlib.suppress(OSError), line.makefile("rb") as reader:
            while self.script:
                head = b""
                while not head.endswith(b"\r\n\r\n"):
                    read = reader.readline()
                    if not read:
                        return
                    head += read
                self.requests.append(head.decode())
                self.bodies.append(reader.read(int(self.header("Content-Length") or 0)))
                reply = self.script.pop(0)
                self._answer(line, reply)
                if reply.ends or reply.cut or reply.drips:
                    return

    def header(self, name: str) -> str:
        lines = [line for line in self.requests[-1].splitlines() if line.startswith(f"{name}: ")]
        return lines[0].partition(": ")[2] if lines else ""

    def _answer(self, line: socket.socket, reply: Reply) -> None:
        body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        headers = {"Content-Length": str(len(body)), "Date": DATE, **reply.headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        content = f"HTTP/1.1 {reply.status} x\r\n{head}\r\n".encode() + body
        if reply.drips:
            while not self.stopped.wait(0.02):
                line.sendall(b"x")
        elif reply.cut:
            line.sendall(content[: len(content) // 2])
            # Without lingering, closing sends a reset.
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            line.sendall(content)


@contextlib.contextmanager
def serving(*script: Reply) -> Iterator[Scripted]:
    server = Scripted(list(script))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stopped.set()
        with contextlib.suppress(OSError):
            server.listener.shutdown(socket.SHUT_RDWR)
        server.listener.close()
        thread.join()
