"""How a program's series leave it: a page on a port, a file for node_exporter, a Pushgateway, a note where the port is.

`Exports` says what is wanted, in code or by the environment, so that whoever writes the job's manifest decides.
`Exporter` does it for a monitor, from threads of its own. A wish that would open a port to the network without saying
so is refused when the program starts; whatever breaks later is logged once and costs the program nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import ipaddress
import json
import logging
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from watchkeeper.instrument import publish
from watchkeeper.instrument.endpoint import Endpoint
from watchkeeper.instrument.page import MetricsPage

log = logging.getLogger("watchkeeper.instrument")
EVERY_SECONDS = 15.0
SHORTEST_SECONDS = 0.05
# Files and a push at the end of a program: it may not hang at its exit.
CLOSE_SECONDS = 5.0
PREFIX = "WATCHKEEPER_METRICS_"
# What may stand in a file's name.
PLAIN_NAME = re.compile(r"[^A-Za-z0-9._-]+")


class ExportRefused(ValueError):
    """A wish that would do harm, or that cannot be understood; it says which and what to write instead."""


@dataclass(frozen=True, slots=True)
class Exports:
    """`port` 0 takes any free one; each rank of a node adds its local rank to any other. None of all: nothing leaves.

    `announce` is a folder for file_sd lists, `textfile` one that node_exporter reads, `gateway` a Pushgateway.
    """

    port: int | None = None
    host: str = "127.0.0.1"
    is_open: bool = False
    announce: Path | None = None
    textfile: Path | None = None
    gateway: str | None = None
    every_seconds: float = EVERY_SECONDS

    def __post_init__(self) -> None:
        if self.port is not None and not 0 <= self.port < 65_536:
            raise ExportRefused(f"exports: port {self.port} is not between 0 and 65535")
        if self.port is not None and not self.is_open and not _is_loopback(self.host):
            raise ExportRefused(
                f"exports: {self.host} can be reached from the network, and the page has no password. "
                f"If that is meant, say so: Exports(…, host={self.host!r}, is_open=True), or {PREFIX}OPEN=1"
            )
        if self.announce is not None and self.port is None:
            raise ExportRefused(
                f"exports: there is no port to announce in {self.announce}. Write Exports(port=0, announce=…)"
            )
        if self.gateway is not None and not self.gateway.startswith(("http://", "https://")):
            raise ExportRefused(
                f"exports: the gateway {self.gateway!r} is not a URL. Write one such as http://gateway.example:9091"
            )


def from_environment(environment: Mapping[str, str] | None = None) -> Exports:
    """WATCHKEEPER_METRICS_PORT, _HOST, _OPEN, _ANNOUNCE, _TEXTFILE, _GATEWAY, _SECONDS; what is not set is not done."""
    given = os.environ if environment is None else environment

    def word(name: str) -> str | None:
        return given.get(PREFIX + name) or None

    port, seconds = word("PORT"), word("SECONDS")
    try:
        chosen = None if port is None else int(port)
        every = EVERY_SECONDS if seconds is None else float(seconds)
    except ValueError as error:
        raise ExportRefused(f"{PREFIX}PORT={port or ''} {PREFIX}SECONDS={seconds or ''}: not numbers") from error
    announce, textfile = word("ANNOUNCE"), word("TEXTFILE")
    return Exports(
        chosen,
        word("HOST") or "127.0.0.1",
        word("OPEN") == "1",
        None if announce is None else Path(announce),
        None if textfile is None else Path(textfile),
        word("GATEWAY"),
        every,
    )


@dataclass(frozen=True, slots=True)
class MetricsSource:
    """Whose series they are: `name` for files, `labels` for the gateway's group, `local_rank` for the port."""

    name: str
    labels: Mapping[str, str]
    write: Callable[[MetricsPage], None]
    node: str = ""
    local_rank: int = 0

    @property
    def file_name(self) -> str:
        return f"watchkeeper_{PLAIN_NAME.sub('-', self.name)[:100]}"

    def page(self, *, is_openmetrics: bool = False) -> MetricsPage:
        made = MetricsPage(is_openmetrics=is_openmetrics)
        self.write(made)
        return made


class Exporter:
    """Everything that one monitor exports, from its start until `close`."""

    def __init__(self, exports: Exports, source: MetricsSource) -> None:
        self._exports, self._source = exports, source
        self._pid = os.getpid()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._failing: set[str] = set()
        self._listed = b""
        self.endpoint: Endpoint | None = None
        if exports != Exports():
            # For a program that never closes its monitor.
            atexit.register(self.close)
        if exports.port is not None:
            self._listen(exports.port)
        if exports.textfile is not None or exports.gateway is not None:
            self._thread = threading.Thread(target=self._publish, name="watchkeeper-publish", daemon=True)
            self._thread.start()

    @property
    def address(self) -> str | None:
        """`127.0.0.1:9500`, or None where there is no page."""
        return None if self.endpoint is None else self.endpoint.address

    def close(self) -> None:
        """End the page and take files and pushes back, so that nobody reads the numbers of a program that is over."""
        atexit.unregister(self.close)
        if os.getpid() != self._pid or self._stop.is_set():
            return
        self._stop.set()
        if self.endpoint is not None:
            self.endpoint.close()
            if self._exports.announce is not None:
                with contextlib.suppress(OSError):
                    self._take_back(self._announced(self._exports.announce))
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _listen(self, port: int) -> None:
        wanted = port + self._source.local_rank if port else 0
        try:
            self.endpoint = Endpoint(self._exports.host, wanted, self._source.page)
        except OSError as error:
            log.warning(
                "No metrics page: %s:%d cannot be opened (%s); the program goes on without",
                self._exports.host,
                wanted,
                error,
            )
            return
        if self._exports.announce is not None:
            self._attempt("announcement", lambda: self._announce(self._exports.announce))

    def _announce(self, folder: Path | None) -> None:
        assert folder is not None
        assert self.endpoint is not None
        # Another node reads the list: loopback would be its own.
        host = self._exports.host
        host = self._source.node if host in ("0.0.0.0", "::") and self._source.node else host  # noqa: S104
        target = f"[{host}]:{self.endpoint.port}" if ":" in host else f"{host}:{self.endpoint.port}"
        self._listed = json.dumps([{"targets": [target], "labels": {"job": "workloads"}}]).encode()
        publish.replace_file(self._announced(folder), self._listed)

    def _take_back(self, path: Path) -> None:
        # A rank that was started again may have announced itself under the same name already.
        if path.read_bytes() == self._listed:
            path.unlink()

    def _announced(self, folder: Path) -> Path:
        return folder / f"{self._source.file_name}.json"

    def _publish(self) -> None:
        textfile, gateway = self._exports.textfile, self._exports.gateway
        path = None if textfile is None else textfile / f"{self._source.file_name}.prom"
        url = None if gateway is None else publish.group_url(gateway, self._source.labels)
        while not self._stop.wait(max(SHORTEST_SECONDS, self._exports.every_seconds)):
            content = self._attempt("page", lambda: self._source.page().content())
            if content is None:
                continue
            if path is not None:
                self._attempt("textfile", partial(publish.replace_file, path, content))
            if url is not None:
                self._attempt("gateway", partial(publish.push, url, content))
        if path is not None:
            self._attempt("textfile", lambda: path.unlink(missing_ok=True))
        if url is not None:
            self._attempt("gateway", lambda: publish.take_back(url))

    def _attempt(self, what: str, call: Callable[[], bytes | None]) -> bytes | None:
        """Deliberately any error: a program must not end because nobody could be told. One line for each change."""
        try:
            answer = call()
        except Exception as error:
            if what not in self._failing:
                self._failing.add(what)
                log.warning("Metrics do not get out by %s: %s; it is tried again and again", what, error)
            return None
        if what in self._failing:
            self._failing.discard(what)
            log.info("Metrics get out by %s again", what)
        return answer


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
