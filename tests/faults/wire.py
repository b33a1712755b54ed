"""A bad line between two programs: a TCP relay that cuts, delays and repeats, by a seed.

To repeat a request is what a client does whose answer was lost: the relay swallows the answer and cuts, so that
the request has arrived and its sender must think that it has not.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time


class BadLine:
    """Relays connections to `port`; `quality` 0 cuts every one, 1 none."""

    def __init__(self, port: int, rng: random.Random) -> None:
        self._target, self._rng = port, rng
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.quality = 1.0
        self.accepted = self.cut = self.swallowed = self.delayed = 0
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            threading.Thread(target=self._relay, args=(near,), daemon=True).start()

    def _relay(self, near: socket.socket) -> None:
        with near:
            try:
                far = socket.create_connection(("127.0.0.1", self._target), timeout=5)
            except OSError:
                return
            with far:
                self._open |= {near, far}
                there = threading.Thread(target=self._pass, args=(near, far, False), daemon=True)
                there.start()
                self._pass(far, near, True)
                there.join()
                self._open -= {near, far}

    def _pass(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while part := source.recv(65536):
                if self._rng.random() > self.quality:
                    fate = self._rng.choice(("cut", "swallow", "delay"))
                    if fate == "delay":
                        self.delayed += 1
                        time.sleep(self._rng.uniform(0.05, 0.5))
                    elif fate == "cut" or is_answer:
                        self.swallowed += is_answer
                        self.cut += not is_answer
                        break
                sink.sendall(part)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in list(self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._thread.join()
